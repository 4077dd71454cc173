"""A local job in a process of its own is killed or stopped, and its next start resumes it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.cluster.waiting import wait_until

SCRIPT = Path(__file__).with_name("resuming_job.py")
KEYS = 10


def names_in(directory: Path) -> list[str]:
    """Return the names in a directory; none if it is gone."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


class Till:
    """The job of ``resuming_job.py`` in a directory.

    Args:
        directory: Its directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def started(self, **environ: str) -> Iterator[subprocess.Popen[str]]:
        """Start the script; what is left of it is killed at the end."""
        root = str(SCRIPT.parents[2])
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            cwd=self.directory,
            env={**os.environ, "RESUMING_JOB": str(self.directory), "PYTHONPATH": root, **environ},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Pytest may have been started with the signal switched off, as shells do behind "&".
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            yield process
        finally:
            self.kill(process)
            process.wait()
            if process.stderr is not None:
                process.stderr.close()

    @staticmethod
    def kill(process: subprocess.Popen[str], jvm: bool = True) -> None:
        """Kill the script, and its JVM."""
        for child in Till.jvms(process) if jvm else []:
            child.kill()
        process.kill()

    @staticmethod
    def jvms(process: subprocess.Popen[str]) -> list[psutil.Process]:
        """Return the processes that the script has started."""
        try:
            return psutil.Process(process.pid).children()
        except psutil.NoSuchProcess:
            return []

    def lines(self, file: str) -> list[str]:
        """Return the lines of a file that the job writes."""
        path = self.directory / file
        return path.read_text().splitlines() if path.exists() else []

    def run_on(self, process: subprocess.Popen[str], records: int = 60) -> None:
        """Wait until the job has made so many further calls, and has a further checkpoint."""
        record_count, previous_checkpoints = len(self.lines("records")), set(self.checkpoints())

        def came_on() -> bool:
            assert process.poll() is None, process.communicate()[1]
            further = set(self.checkpoints()) - previous_checkpoints
            return len(self.lines("records")) >= record_count + records and len(further) >= 2

        wait_until("further records and checkpoints", came_on, 240)

    def checkpoints(self) -> list[Path]:
        """Return the complete checkpoints."""
        # Flink removes directories meanwhile, in which glob would leave an iterator open.
        home = self.directory / "state/jobs/till/checkpoints"
        paths = list[Path]()
        for job in names_in(home):
            paths += [home / job / name / "_metadata" for name in names_in(home / job)]
        return [path for path in paths if path.exists()]

    def check(self, starts: int) -> None:
        """Check that nothing is lost or repeated, but for what was in flight when a process died."""
        recorded = Counter(line.split()[0] for line in self.lines("effects"))
        assert sum(count - 1 for count in recorded.values()) <= starts * KEYS
        assert max(recorded.values()) <= 2
        for key in range(KEYS):
            orders = sorted({int(order) for order in recorded if int(order) % KEYS == key})
            assert orders == list(range(key, key + KEYS * len(orders), KEYS))
        # Memory is restored with the inputs: each order has the count of its place among those of its key.
        for order, count in map(str.split, self.lines("records")):
            assert int(count) == int(order) // KEYS + 1


def test_a_killed_job_resumes(tmp_path: Path) -> None:
    till = Till(tmp_path)
    with till.started() as process:
        till.run_on(process)
        till.kill(process)
        assert "resuming" not in process.communicate()[1]
    with till.started() as process:
        till.run_on(process)
        process.send_signal(signal.SIGTERM)
        stderr = process.communicate()[1]
    assert "resuming 'till' from checkpoint " in stderr and "(to start over: --fresh)" in stderr
    assert process.returncode == 143 and "is stopped with savepoint" in stderr
    with till.started() as process:
        till.run_on(process)
        till.kill(process)
        assert "resuming 'till' from savepoint " in process.communicate()[1]
    till.check(starts=3)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["script", "jvm", "interrupt", "twice", "group"])
def test_each_end_is_followed_by_a_start_that_resumes(kind: str, tmp_path: Path) -> None:
    till = Till(tmp_path)
    with till.started() as process:
        till.run_on(process)
        jvms = till.jvms(process)
        match kind:
            case "script":
                till.kill(process, jvm=False)
            case "jvm":
                jvms[0].kill()
            case "group":
                os.killpg(process.pid, signal.SIGTERM)
            case _:
                process.send_signal(signal.SIGINT)
        if kind == "twice":
            assert process.stderr is not None
            while "stopping" not in process.stderr.readline():
                pass
            process.send_signal(signal.SIGINT)
        process.communicate()
        expected = {"script": -signal.SIGKILL, "jvm": 1, "interrupt": 130, "twice": 130, "group": 143}
        assert process.returncode == expected[kind]
        # Neither outlives the other.
        psutil.wait_procs(jvms, 60)
        assert not any(jvm.is_running() and jvm.status() != psutil.STATUS_ZOMBIE for jvm in jvms)
    with till.started() as process:
        till.run_on(process)
        till.kill(process)
        assert "resuming 'till' from " in process.communicate()[1]
    till.check(starts=2)


@pytest.mark.nightly
def test_a_job_with_rocksdb_resumes_in_a_folder_that_was_moved(tmp_path: Path) -> None:
    original_folder = tmp_path / "before"
    after = tmp_path / "after"
    original_folder.mkdir()
    till = Till(original_folder)
    with till.started(RESUMING_JOB_BACKEND="rocksdb") as process:
        till.run_on(process)
        till.kill(process)
        process.communicate()
    original_folder.rename(after)
    moved = Till(after)
    with moved.started(RESUMING_JOB_BACKEND="rocksdb") as process:
        moved.run_on(process)
        moved.kill(process)
        assert "resuming 'till' from checkpoint " in process.communicate()[1]
    moved.check(starts=2)


@pytest.mark.nightly
def test_a_killed_job_resumes_with_another_parallelism(tmp_path: Path) -> None:
    till = Till(tmp_path)
    for parallelism in "132":
        with till.started(RESUMING_JOB_PARALLELISM=parallelism) as process:
            till.run_on(process)
            till.kill(process)
            assert ("resuming 'till' from checkpoint" in process.communicate()[1]) == (parallelism != "1")
    till.check(starts=3)


@pytest.mark.nightly
def test_one_process_runs_a_job_and_a_failure_before_its_first_checkpoint_ends_it(tmp_path: Path) -> None:
    till = Till(tmp_path)
    with till.started(RESUMING_JOB_FAILS="1") as process:
        stderr = process.communicate()[1]
        assert process.returncode == 1
        assert "LookupError: a typo" in stderr and "restart 1" not in stderr
    assert max(Counter(till.lines("failures")).values()) == 1
    with till.started() as process:
        till.run_on(process)
        with till.started() as second:
            stderr = second.communicate()[1]
            assert second.returncode == 1 and "FA3202" in stderr


@pytest.mark.nightly
def test_the_page_says_what_happens(tmp_path: Path) -> None:
    page = (SCRIPT.parents[2] / "docs" / "running.md").read_text("utf-8")
    [console] = re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    shutil.copy(SCRIPT.parents[2] / "examples" / "orders.py", tmp_path)
    first, second = (part.splitlines()[1:] for part in console.split("$ ")[1:])
    environ = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "orders.py"],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    printed: list[str] = []
    with start() as process:
        assert process.stdout is not None
        while not printed or printed[-1] != first[-2]:
            printed.append(process.stdout.readline().rstrip())
        process.kill()
    assert [line for line in printed if line in first] == first[:-1]
    with start() as process:
        printed_lines = process.communicate()[0].splitlines()
    wanted = [re.escape(line).replace(re.escape("..."), ".*") for line in second]
    matched_lines = [
        line
        for line in printed_lines
        if any(re.fullmatch(pattern, line) for pattern in wanted) or "charging" in line
    ]
    assert len(matched_lines) == len(wanted) and all(map(re.fullmatch, wanted, matched_lines)), printed_lines


TWO_JOBS = """
import os, signal, time
from pathlib import Path
from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action

HERE = Path(__file__).parent

def charge(order):
    with (HERE / "effects").open("a") as file:
        file.write(order + "\\n")
    if order == "b3" and not (HERE / "died").exists():
        (HERE / "died").touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return order

class Pay(Agent):
    @action(InputEvent)
    def pay(self, event, ctx):
        return OutputEvent(output=ctx.durable_execute(charge, event.input))

env = AgentsExecutionEnvironment.get_execution_environment()
for name in "ab":
    orders = env.from_list([f"{name}{number}" for number in range(5)], key_selector=lambda order: 1)
    receipts = orders.apply(Pay()).to_list()
    env.execute(name)
    print(name, *receipts, flush=True)
"""


@pytest.mark.nightly
def test_jobs_that_finished_are_skipped_if_the_script_died_in_a_later_one(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO_JOBS, "utf-8")
    environ = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])}

    def start() -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, "two.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout.splitlines()

    assert start() == (-signal.SIGKILL, ["a a0 a1 a2 a3 a4"])
    assert start() == (0, ["a a0 a1 a2 a3 a4", "b b0 b1 b2 b3 b4"])
    effects = (tmp_path / "effects").read_text().split()
    assert effects == ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2", "b3", "b3", "b4"]
    # The script has ended well, so the next start is a new one, with other job runs.
    assert start()[0] == 0
    assert len((tmp_path / "effects").read_text().split()) == len(effects) + 10
