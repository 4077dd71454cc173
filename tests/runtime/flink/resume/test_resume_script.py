"""Starts of a script with several jobs: which jobs of an unfinished start the next one skips."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from resume_world import FreeLock, read

from flink_agents.api.errors import JobFolderError, JobFolderInUseError
from flink_agents.runtime.flink.resume import start_decision as module
from flink_agents.runtime.flink.resume.job_run import JobFolder, RunRecord, Start, iso_now
from flink_agents.runtime.flink.resume.policy import ScriptEnd, ScriptStart
from flink_agents.runtime.flink.resume.start_decision import Request, begin_start
from tests.suite.tables import each_case

PLANS = {"Shop": "a"}


def run(state_dir: Path, line: str) -> list[str]:
    """Let a script run, and return what happened to its jobs.

    Args:
        state_dir: Where its jobs are.
        line: Its command line, and behind a colon its jobs. A job with ``!`` fails, which the script
            survives; one with ``?`` is killed, with the script. The word ``killed`` kills it between jobs.
    """
    command, _, jobs = line.partition(":")
    arguments = command.split()
    fresh = "--fresh" in arguments
    script = ScriptStart(state_dir, "job.py", [argument for argument in arguments if argument != "--fresh"])
    if fresh:
        script.start_over()
    outcomes: list[str] = []
    for word in jobs.split():
        if word == "killed":
            return outcomes
        name = word.rstrip("!?")
        folder = JobFolder.for_job(state_dir, name)
        beginning = begin_start(folder, Request(name, None, PLANS, fresh), FreeLock(), read, script)
        script.record_job_start(name)
        if beginning.skipped:
            script.record_job_finish(name)
            outcomes.append(f"{name}: skipped")
            continue
        previous_run = beginning.run
        record = RunRecord(folder)
        outcomes.append(f"{name}: {'resumed' if previous_run.starts else 'new'} {previous_run.generation}")
        start = Start(len(previous_run.starts) + 1, "0" * 32, iso_now(), 1, 1)
        record.write(replace(previous_run, starts=(*previous_run.starts, start)))
        if word.endswith("?"):
            return outcomes
        if not word.endswith("!"):
            record.set(finished=iso_now())
            script.record_job_finish(name)
    script.record_script_end()
    return outcomes


CASES: list[tuple[str, list[tuple[str, str]]]] = [
    ("each start ends well", [(": a b", "a: new 1, b: new 1"), (": a b", "a: new 2, b: new 2")]),
    ("killed in the second", [(": a b?", "a: new 1, b: new 1"), (": a b", "a: skipped, b: resumed 1")]),
    (
        "killed twice, and once more after that",
        [
            (": a b? c", "a: new 1, b: new 1"),
            (": a b c?", "a: skipped, b: resumed 1, c: new 1"),
            (": a b c", "a: skipped, b: skipped, c: resumed 1"),
            (": a b c", "a: new 2, b: new 2, c: new 2"),
        ],
    ),
    ("killed between two", [(": a killed", "a: new 1"), (": a b", "a: skipped, b: new 1")]),
    ("killed after the last", [(": a b killed", "a: new 1, b: new 1"), (": a b", "a: skipped, b: skipped")]),
    (
        "one failed, and the script went on",
        [(": a b! c", "a: new 1, b: new 1, c: new 1"), (": a b c", "a: skipped, b: resumed 1, c: skipped")],
    ),
    (
        "the failed one is taken out, and put back",
        [
            (": a b! c", "a: new 1, b: new 1, c: new 1"),
            (": a c", "a: skipped, c: skipped"),
            (": a b c", "a: new 2, b: resumed 1, c: new 2"),
        ],
    ),
    (
        "another order",
        [(": a b? c", "a: new 1, b: new 1"), (": c b a", "c: new 1, b: resumed 1, a: skipped")],
    ),
    ("one is added", [(": a b?", "a: new 1, b: new 1"), (": n a b", "n: new 1, a: skipped, b: resumed 1")]),
    (
        "two processes, each with a job of its own",
        [("b: b?", "b: new 1"), ("a: a", "a: new 1"), ("a: a", "a: new 2"), ("b: b", "b: resumed 1")],
    ),
    (
        "a job that another process has finished",
        [
            (": a b?", "a: new 1, b: new 1"),
            ("a: a", "a: skipped"),
            ("a: a", "a: new 2"),
            (": b", "b: resumed 1"),
        ],
    ),
    (
        "started over, and killed before the second",
        [
            (": a b", "a: new 1, b: new 1"),
            (": a b?", "a: new 2, b: new 2"),
            ("--fresh: a? b", "a: new 3"),
            (": a b", "a: resumed 3, b: new 3"),
            (": a b", "a: new 4, b: new 4"),
        ],
    ),
    (
        "started over, and killed twice",
        [
            (": a b? c", "a: new 1, b: new 1"),
            ("--fresh: a b? c", "a: new 2, b: new 2"),
            (": a b? c", "a: skipped, b: resumed 2"),
            (": a b c", "a: skipped, b: resumed 2, c: new 1"),
        ],
    ),
    (
        "another command line does not start over",
        [
            ("b: b?", "b: new 1"),
            ("a --fresh: a?", "a: new 1"),
            ("a: a", "a: resumed 1"),
            ("b: b", "b: resumed 1"),
        ],
    ),
]


@each_case(("name", "starts"), CASES)
def test_which_jobs_the_next_start_skips(
    name: str, starts: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    state_dir = tmp_path_factory.mktemp("state")
    for line, expected in starts:
        assert ", ".join(run(state_dir, line)) == expected, line


def test_outputs_of_a_skipped_job_are_those_of_the_start_that_finished_it(tmp_path: Path) -> None:
    script = ScriptStart(tmp_path, "job.py")
    request = Request("a", None, PLANS)
    beginning = begin_start(JobFolder.for_job(tmp_path, "a"), request, FreeLock(), read, script)
    beginning.keep_outputs([[1, 2], []])
    RunRecord(beginning.folder).set(finished=iso_now())
    again = begin_start(beginning.folder, request, FreeLock(), read, ScriptStart(tmp_path, "job.py"))
    assert again.skipped and again.stored_outputs() == [[1, 2], []]


HOLDER = """
import sys
from pathlib import Path
from flink_agents.runtime.flink.resume.policy import ScriptStart
print(ScriptStart(Path(sys.argv[1]), "job.py").token, flush=True)
sys.stdin.read()
"""


def test_a_job_of_a_start_that_still_runs_is_not_skipped(tmp_path: Path) -> None:
    """Nor does it begin anew, as its process may be in the middle of the script."""
    arguments = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        token = process.stdout.readline().strip()
        folder = JobFolder.for_job(tmp_path, "a")
        request = Request("a", None, PLANS)
        begin_start(folder, request, FreeLock(), read, None)
        RunRecord(folder).set(finished=iso_now(), script=token)
        script = ScriptStart(tmp_path, "job.py")
        assert script.end_of(token) is ScriptEnd.NOT_YET
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "LOCK_SECONDS", 0.0)
            with pytest.raises(JobFolderInUseError):
                begin_start(folder, request, FreeLock(), read, script)
        process.kill()
        process.wait()
        assert script.end_of(token) is ScriptEnd.IN_THE_MIDDLE
        assert begin_start(folder, request, FreeLock(), read, script).skipped


def test_a_state_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(JobFolderError, match=r"local\.state-dir"):
        ScriptStart(tmp_path / "state", "job.py")
