"""Scripts of skills are real processes: what they get, what is kept of them, and when they end."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelRetry
from skill_folders import skill, skill_set, write

from flink_agents.api.errors import ResourceUnavailableError
from flink_agents.models.tools.skills.scripts import INHERITED, BoundedOutput, python

pytestmark = pytest.mark.own_conditions

CHILDREN = """
import os, subprocess, sys, time
child = '''import os, time
os.setsid()
open(os.environ['PIDS'], 'a').write(f'{os.getpid()} ')
time.sleep(600)'''
subprocess.Popen([sys.executable, "-c", child])
middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"
subprocess.Popen([sys.executable, "-c", middle])
open(os.environ["PIDS"], "a").write(f"{os.getpid()} ")
print("begun", flush=True)
time.sleep(600 if "hang" in sys.argv else 0)
while len(open(os.environ["PIDS"]).read().split()) < 3:
    time.sleep(0.01)
"""


def run(folder: Path, script: str, *arguments: str, **said: Any) -> dict[str, Any]:
    # A script that took too long tells what it wrote, where it may be run again.
    skills = skill_set(folder, idempotent=True, **said)
    return asyncio.run(skills.run_script("do", f"scripts/{script}", list(arguments)))


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until something holds, as long as a test may take."""
    while not what():
        time.sleep(0.01)


def pids(file: Path) -> list[int]:
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ended(file: Path) -> bool:
    return not any(map(is_alive, pids(file)))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of scripts are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_exit_code_and_both_outputs(tmp_path: Path, temporary: Path) -> None:
    text = "import sys; print(sys.argv[1:]); print('no', file=sys.stderr); sys.exit(3)"
    folder = write(tmp_path / "s", skill("do", fail=text, crash="import os; os.kill(os.getpid(), 11)"))
    assert run(folder, "fail.py", "a", "-b c") == {
        "exit_code": 3,
        "stdout": "['a', '-b c']\n",
        "stderr": "no\n",
    }
    assert run(folder, "crash.py")["exit_code"] == 128 + signal.SIGSEGV
    assert not list(temporary.iterdir())


def test_the_python_of_a_process_that_embeds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/lib/jvm/bin/java")
    executable = python.__wrapped__()
    printed = subprocess.run(
        [executable, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True
    )
    assert printed.stdout.strip() == sys.prefix


def test_what_runs_a_script(tmp_path: Path) -> None:
    files = {
        "do/scripts/shell.sh": "echo $0 $1",
        "do/scripts/own": "#!/bin/sh\necho own $1",
        "do/scripts/nobody": "#!/no/such/thing\n",
        "do/scripts/data.json": "{}",
    }
    folder = write(tmp_path, {**skill("do"), **files})
    assert run(folder, "shell.sh", "x")["stdout"] == "scripts/shell.sh x\n"
    assert run(folder, "own", "x")["stdout"] == "own x\n"
    assert run(folder, "nobody") == {
        "exit_code": 126,
        "stdout": "",
        "stderr": "the script cannot be started: [Errno 2] No such file or directory: './scripts/nobody'\n",
    }
    with pytest.raises(ModelRetry, match="'scripts/data.json' cannot be run: it is not Python"):
        run(folder, "data.json")


@pytest.mark.parametrize("argument", ["a\0b", "\ud800", "x" * 200_000], ids=["zero", "surrogate", "long"])
def test_arguments_that_no_process_can_be_given(tmp_path: Path, argument: str) -> None:
    folder = write(tmp_path, skill("do", args=""))
    with pytest.raises(ModelRetry, match="argument"):
        run(folder, "args.py", argument)


ENVIRONMENT = "import json, os; print(json.dumps([dict(os.environ), os.getcwd(), sorted(os.listdir())]))"


def test_the_environment_is_clean(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORKER_SECRET", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "LD_PRELOAD_X"):
        monkeypatch.setenv(name, "of the worker")
    monkeypatch.setenv("SHARED", "of all")
    monkeypatch.setenv("SHOP_KEY", "sk-shop-0123456789")
    folder = write(tmp_path / "s", skill("do", env=ENVIRONMENT))
    environment = {"KEY": {"env": "SHOP_KEY"}, "REGION": "eu"}
    result = run(folder, "env.py", inherit=("SHARED",), environment=environment)
    variables, where, files = json.loads(result["stdout"])
    assert Path(where).parent == temporary
    assert files == ["SKILL.md", "scripts"]
    assert variables.pop("HOME") == variables.pop("TMPDIR") == where
    assert (variables.pop("SHARED"), variables.pop("REGION")) == ("of all", "eu")
    assert variables.pop("KEY") == "***"
    assert set(variables) <= {*INHERITED}
    assert variables["PATH"] == os.environ["PATH"]


def test_a_secret_that_is_missing_is_named(tmp_path: Path, temporary: Path) -> None:
    folder = write(tmp_path / "s", skill("do", env=ENVIRONMENT))
    with pytest.raises(ResourceUnavailableError, match="secret of the skills 'ours', KEY, is missing"):
        run(folder, "env.py", environment={"KEY": {"env": "NOBODY_SETS_THIS"}})
    assert not list(temporary.iterdir())


def test_output_is_bounded_and_its_end_is_kept(tmp_path: Path) -> None:
    text = "import sys; sys.stdout.write('a' + 'x' * 50_000_000 + 'z'); sys.stderr.write('e' * 5000)"
    result = run(write(tmp_path, skill("do", flood=text)), "flood.py", output_limit=1000)
    assert result["stdout"] == f"a{'x' * 499}\n[49999002 bytes left out]\n{'x' * 499}z"
    assert len(result["stderr"]) < 1100
    assert result["exit_code"] == 0


def test_a_bounded_output_keeps_what_fits() -> None:
    output = BoundedOutput(7)
    for byte in b"0123456":
        output.add_output(bytes([byte]))
    assert output.text == "0123456"
    output.add_output(b"789")
    assert output.text == "012\n[3 bytes left out]\n6789"


@pytest.mark.parametrize("hangs", [True, False])
def test_no_process_is_left(tmp_path: Path, temporary: Path, hangs: bool) -> None:
    """Not even one in a session of its own, behind a script that ends or that takes too long."""
    seen = tmp_path / "pids"
    folder = write(tmp_path / "s", skill("do", children=CHILDREN))
    arguments = ["hang"] * hangs
    result = run(
        folder, "children.py", *arguments, timeout=2 if hangs else 60, environment={"PIDS": str(seen)}
    )
    assert result["stdout"] == "begun\n"
    assert result["exit_code"] == (None if hangs else 0)
    assert result.get("killed") == ("it took longer than 2 seconds" if hangs else None)
    assert len(pids(seen)) >= 1 if hangs else len(pids(seen)) == 3
    assert ended(seen)
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("times", [1, 2])
def test_a_script_ends_with_the_call_that_is_cancelled(tmp_path: Path, temporary: Path, times: int) -> None:
    """A loop that ends cancels a call again. No transport of the process is left open then."""
    seen = tmp_path / "pids"
    folder = write(tmp_path / "s", skill("do", children=CHILDREN))

    async def cancelled() -> None:
        skills = skill_set(folder, environment={"PIDS": str(seen)})
        call = asyncio.create_task(skills.run_script("do", "scripts/children.py", ["hang"]))
        while len(pids(seen)) < 3:
            await asyncio.sleep(0.01)
        for _ in range(times):
            call.cancel()
            await asyncio.sleep(0)
        await call

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    gc.collect()
    wait_for(lambda: ended(seen))
    assert not list(temporary.iterdir())


WORKER = """
import asyncio, sys
from skill_folders import skill_set
skills = skill_set(sys.argv[1], environment={"PIDS": sys.argv[2]})
asyncio.run(skills.run_script("do", "scripts/children.py", ["hang"]))
"""


def test_a_script_ends_with_a_worker_that_is_killed(tmp_path: Path, temporary: Path) -> None:
    seen = tmp_path / "pids"
    folder = write(tmp_path / "s", skill("do", children=CHILDREN))
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), str(seen)],
        env={
            **os.environ,
            "TMPDIR": str(temporary),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.getcwd()]),
        },
    )
    wait_for(lambda: len(pids(seen)) == 3)
    worker.kill()
    worker.wait()
    wait_for(lambda: ended(seen))
    wait_for(lambda: not list(temporary.iterdir()))


def test_so_many_scripts_run_at_a_time(tmp_path: Path) -> None:
    text = (
        "import os, time\nfrom pathlib import Path\nhere = Path(os.environ['AT'], str(os.getpid()))\n"
        "here.touch()\ntime.sleep(0.1)\nprint(len(os.listdir(here.parent)))\nhere.unlink()"
    )
    folder = write(tmp_path / "s", skill("do", count=text))
    at = tmp_path / "at"
    at.mkdir()

    async def several() -> list[int]:
        skills = skill_set(folder, max_concurrency=2, environment={"AT": str(at)})
        calls = [skills.run_script("do", "scripts/count.py") for _ in range(6)]
        return [int(result["stdout"]) for result in await asyncio.gather(*calls)]

    assert max(asyncio.run(several())) <= 2


READING = """
import os
for name in ("environ", "mem"):
    try:
        with open(f"/proc/{os.environ['WORKER']}/{name}", "rb") as file:
            file.seek(int(os.environ["ADDRESS"]) if name == "mem" else 0)
            shown = file.read(9 if name == "mem" else -1)
            print(name, b"of it" in shown, b"TOKEN_OF_IT" in shown)
    except OSError as error:
        print(name, type(error).__name__)
"""

READ_WORKER = """
import asyncio, ctypes, os, sys
from skill_folders import skill_set
buffer = ctypes.create_string_buffer(b"in memory")
variables = {"WORKER": str(os.getpid()), "ADDRESS": str(ctypes.addressof(buffer))}
skills = skill_set(sys.argv[1], idempotent=True, environment=variables)
print(asyncio.run(skills.run_script("do", "scripts/read.py", []))["stdout"], end="")
print("kept", os.environ["TOKEN_OF_IT_KEY"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_script_reads_no_secret_of_the_worker(tmp_path: Path) -> None:
    """The worker is a process of its own, which has its secrets from its begin."""
    folder = write(tmp_path / "skills", skill("do", read=READING))
    environ = {
        **os.environ,
        "TOKEN_OF_IT_KEY": "canary of it, long",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    done = subprocess.run(
        [sys.executable, "-c", READ_WORKER, str(folder)], capture_output=True, text=True, env=environ
    )
    environ_shown, mem_shown, secret_line = done.stdout.splitlines()
    assert environ_shown in ("environ False True", "environ PermissionError"), done.stderr
    assert (mem_shown, secret_line) == ("mem PermissionError", "kept canary of it, long")
