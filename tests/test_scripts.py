"""The scripts that set up and run the checkout, driven with a Python that only takes notes."""

from __future__ import annotations

import io
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[1]
TOOLS = ("sh", "bash", "cat", "cksum", "cp", "dirname", "mkdir", "mv", "rm", "tail")

# Takes the questions that the scripts ask a Python, makes "virtual environments" of itself, and
# writes each call that would change something to $NOTES.
FAKE_PYTHON = """#!/bin/sh
case "$*" in
    *"import sys, ensurepip"*) exit 0 ;;
    *"import sys; print"*) echo "Python $VERSION"; exit 0 ;;
esac
echo "$(basename "$0") $* [$PYTHONPATH$VIRTUAL_ENV]" >>"$NOTES"
case "$*" in
    "-m venv --clear "*)
        rm -rf "$4"
        mkdir -p "$4/bin"
        cp "$0" "$4/bin/python"
        cp "$0" "$4/bin/flink-agents" ;;
    *require-hashes*) exit "${PIP_STATUS:-0}" ;;
esac
"""


class Checkout:
    """A copy of the scripts, and the only PATH they see."""

    def __init__(self, base: Path) -> None:
        self.root = base / "check out"
        self.bin = base / "bin"
        self.notes = base / "notes"
        self.bin.mkdir()
        for tool in (*TOOLS, "basename"):
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        shutil.copytree(CHECKOUT / "scripts", self.root / "scripts")
        shutil.copytree(CHECKOUT / ".ci", self.root / ".ci")
        shutil.copy(CHECKOUT / "pyproject.toml", self.root)
        (self.root / "requirements").mkdir()
        (self.root / "requirements" / "dev.txt").write_text("six==1.17.0\n")

    def add_python(self, name: str, text: str = FAKE_PYTHON) -> Path:
        python = self.bin / name
        python.write_text(text)
        python.chmod(0o755)
        return python

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.bin), "NOTES": str(self.notes), "VERSION": "3.12.1"} | variables
        return subprocess.run(
            [str(self.root / script), *arguments],
            cwd=self.bin,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        """Return the changing calls since the last question."""
        calls = self.notes.read_text().splitlines() if self.notes.exists() else []
        self.notes.unlink(missing_ok=True)
        return calls


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_first_run_installs_the_lock_and_then_the_checkout(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    done = checkout.run("scripts/setup")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    stages = re.findall("^set-up: (.*)$", done.stderr, re.MULTILINE)
    assert stages == [
        "making .venv with Python 3.12.1: about 2 minutes and 2 GB, once",
        "preparing Java",
        "installing this package",
        "done",
    ]
    venv, lock, package = checkout.calls()
    assert venv.startswith(f"python3.12 -m venv --clear {checkout.root}/.venv")
    assert f"--require-hashes -r {checkout.root}/requirements/dev.txt" in lock
    assert f"--no-deps --no-build-isolation -e {checkout.root}" in package


def test_second_run_does_nothing(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    checkout.run("scripts/setup")
    checkout.calls()
    done = checkout.run("scripts/setup")
    assert (done.returncode, done.stderr, checkout.calls()) == (0, "", [])


def test_changed_lock_installs_anew(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    checkout.run("scripts/setup")
    checkout.calls()
    (checkout.root / "requirements" / "dev.txt").write_text("six==1.16.0\n")
    checkout.run("scripts/setup")
    assert len(checkout.calls()) == 3


def test_changed_pyproject_installs_only_the_checkout(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    checkout.run("scripts/setup")
    checkout.calls()
    with (checkout.root / "pyproject.toml").open("a") as text:
        text.write("# more\n")
    checkout.run("scripts/setup")
    [call] = checkout.calls()
    assert "--no-deps --no-build-isolation -e" in call
    checkout.run("scripts/setup")
    assert checkout.calls() == []


def test_moved_checkout_installs_anew(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    checkout.run("scripts/setup")
    checkout.calls()
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    checkout.run("scripts/setup")
    assert len(checkout.calls()) == 3


def test_interrupted_setup_is_repaired(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    assert checkout.run("scripts/setup", PIP_STATUS="9").returncode == 9
    assert (checkout.root / ".venv" / "bin" / "python").exists()
    checkout.calls()
    assert checkout.run("scripts/setup").returncode == 0
    assert len(checkout.calls()) == 3


def test_environment_whose_python_is_gone_is_repaired(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    checkout.run("scripts/setup")
    checkout.calls()
    python = checkout.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(checkout.bin / "uninstalled")
    checkout.run("scripts/setup")
    assert len(checkout.calls()) == 3


def test_named_python_of_another_version_installs_anew(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    checkout.run("scripts/setup")
    checkout.calls()
    named = checkout.add_python("other")
    checkout.run("scripts/setup", PYTHON=str(named), VERSION="3.11.13")
    assert checkout.calls()[0].startswith("other -m venv")
    done = checkout.run("scripts/setup")
    assert (done.returncode, checkout.calls()) == (0, []), "without PYTHON what is there serves"


def test_newest_python_comes_first_and_unusable_ones_are_passed_over(checkout: Checkout) -> None:
    checkout.add_python("python3", "#!/bin/sh\nexit 1\n")
    checkout.add_python("python3.12", "#!/bin/sh\nexit 1\n")
    checkout.add_python("python3.10")  # too old, and not looked for
    checkout.add_python("python3.11")
    checkout.run("scripts/setup")
    assert checkout.calls()[0].startswith("python3.11 ")


def test_no_python_names_the_fix(checkout: Checkout) -> None:
    done = checkout.run("scripts/setup")
    assert done.returncode == 1
    assert "No Python 3.11 or 3.12 was found" in done.stderr
    assert "PYTHON=/path/to/python3.12" in done.stderr
    assert not (checkout.root / ".venv").exists()


def test_unusable_named_python_is_not_replaced_by_another(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    done = checkout.run("scripts/setup", PYTHON="/no/such/python")
    assert done.returncode == 1
    assert "PYTHON=/no/such/python" in done.stderr
    assert checkout.calls() == []


def test_outer_environment_does_not_get_in(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    checkout.run("scripts/setup", PYTHONPATH="/outer", VIRTUAL_ENV="/active")
    assert [call for call in checkout.calls() if not call.endswith("[]")] == []


def test_demo_and_test_run_in_the_environment(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    checkout.run("scripts/demo", "--count", "2 3")
    assert checkout.calls()[-1] == "flink-agents demo --count 2 3 []"
    checkout.run("scripts/test", "-k", "x")
    assert checkout.calls() == ["python -m pytest -k x []"]
    checkout.run("scripts/nightly", "--list")
    assert checkout.calls() == ["python -m tests.suite.nightly --list []"]


def test_without_arguments_the_daily_suite_runs_in_parallel(checkout: Checkout) -> None:
    checkout.add_python("python3.12")
    checkout.run("scripts/test")
    assert checkout.calls()[-1].startswith(
        "python -m pytest -p tests.suite.progress -n auto --dist loadfile "
    )


def test_scripts_are_executable_and_parse() -> None:
    scripts = [CHECKOUT / ".ci" / "run", *(CHECKOUT / "scripts").iterdir()]
    for script in scripts:
        if script.suffix == ".py":
            continue
        assert os.access(script, os.X_OK) != (script.name == "_env.sh"), script
        shell = "bash" if script.name == "run" else "sh"
        subprocess.run([shell, "-n", str(script)], check=True)


PIP = """Collecting numpy==2.4.2 (from -r dev.txt (line 3))
  Downloading numpy-2.4.2-cp311-cp311-manylinux.whl (16.7 MB)
Collecting six==1.17.0 (from -r dev.txt (line 9))
  Using cached six-1.17.0-py2.py3-none-any.whl (11 kB)
Building wheels for collected packages: docopt
  Building wheel for docopt (pyproject.toml): started
Installing collected packages: six, numpy
"""

SHOWN = [
    "downloaded 1 of 2 packages: numpy",
    "downloaded 1 of 2 packages: numpy, 16.7 MB",
    "downloaded 2 of 2 packages: six",
    "downloaded 2 of 2 packages: six",
    "downloaded 2 of 2 packages: six",
    "downloaded 2 of 2 packages: builds docopt",
    "installed 1 of 2 packages",
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def installer() -> dict[str, Any]:
    return runpy.run_path(str(CHECKOUT / "scripts" / "_install.py"))


def test_progress_follows_pip(installer: dict[str, Any]) -> None:
    progress = installer["Progress"](2, lambda: 1)
    assert progress.text() == "downloaded 0 of 2 packages"
    shown: list[str] = []
    for line in PIP.splitlines():
        progress.read(line)
        shown.append(progress.text())
    assert shown == SHOWN


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(io.StringIO, "set-up:   10 s  c\nset-up:   12 s  e\n", id="log"),
        pytest.param(
            Terminal,
            "".join(
                f"\rset-up: {second:4} s  {text}\033[K"
                for second, text in ((0, "a"), (9, "b"), (10, "c"), (11, "d"), (12, "e"))
            )
            + "\n",
            id="terminal",
        ),
    ],
)
def test_a_log_gets_few_lines_and_a_terminal_one(
    installer: dict[str, Any], stream: type[io.StringIO], expected: str
) -> None:
    seconds = iter([0, 0, 9, 10, 11, 12])
    shown = stream()
    report = installer["Report"](shown, lambda: float(next(seconds)))
    for text in "abcd":
        report.show(text)
    report.show("e", is_last=True)
    assert shown.getvalue() == expected


def test_a_failed_installation_shows_the_end_of_its_output(
    installer: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "dev.txt"
    lock.write_text("no-such-package-here==1.0\n")
    shown = io.StringIO()
    report = installer["Report"](shown)
    assert installer["install"](lock, ["--no-index", "-r", str(lock)], report) == 1
    assert shown.getvalue().endswith("downloaded 0 of 1 packages\n")
    assert "no-such-package-here" in capfd.readouterr().err


STEPS = ("setup", "test", "lint", "demo", "first-hour", "compose-on-host")
"""What CI runs, in its order."""


@pytest.mark.parametrize("failing", ["", *STEPS[1:]])
def test_ci_runs_all_steps_and_names_those_that_failed(checkout: Checkout, failing: str) -> None:
    for name in STEPS:
        script = checkout.root / "scripts" / name
        lines = [
            "#!/bin/sh",
            f'echo {name} "$@" >>"$NOTES"',
            f'echo "1 passed in {name}"',
            f'[ {name} != "{failing}" ]',
        ]
        script.write_text("\n".join(lines) + "\n")
    done = checkout.run(".ci/run", PATH=os.environ["PATH"])
    assert done.returncode == (1 if failing else 0)
    assert checkout.calls() == list(STEPS)
    assert all(f"1 passed in {name}" in done.stdout for name in STEPS)
    assert f"== all: {failing or 'nothing'} failed, after " in done.stdout


def test_ci_stops_where_the_setup_fails(checkout: Checkout) -> None:
    (checkout.root / "scripts" / "setup").write_text('#!/bin/sh\necho setup >>"$NOTES"\nexit 3\n')
    done = checkout.run(".ci/run", PATH=os.environ["PATH"])
    assert (done.returncode, checkout.calls()) == (3, ["setup"])
    assert "== scripts/setup: exit 3 after " in done.stdout
