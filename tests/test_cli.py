"""The command ``flink-agents``, as a shell would call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flink_agents.cli.main import app
from tests.suite.tables import each_case

AGENT = """
from flink_agents import Agent, Event, InputEvent, OutputEvent, action


class Greeted(Event):
    name: str


class Greeter(Agent):
    @action(InputEvent)
    def greet(self, event, ctx) -> Greeted:
        return Greeted(name=event.input)

    @action(Greeted)
    def answer(self, event, ctx) -> OutputEvent:
        return OutputEvent(output=event.name)


class Broken(Agent):
    @action(InputEvent)
    def greet(self, event) -> Greeted:
        return Greeted(name=event.input)
"""


ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (
    "approvals",
    "cluster",
    "demo",
    "doctor",
    "kafka",
    "new",
    "plan",
    "run",
    "signal",
    "journal",
    "stop",
    "version",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(AGENT)
    return tmp_path


def flink_agents(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("flink-agents")), *arguments]
    environment = {"PATH": os.defpath, "HOME": str(cwd), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def test_version(tmp_path: Path) -> None:
    done = flink_agents("version", cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["flink-agents-python", "0.1.0"])


def test_without_a_command_it_lists_them(tmp_path: Path) -> None:
    shown = flink_agents("--help", cwd=tmp_path).stdout
    assert [name for name in COMMANDS if name not in shown] == []


def test_version_is_an_option_as_well() -> None:
    done, same = (CliRunner().invoke(app, [spelling]) for spelling in ("--version", "version"))
    assert (done.exit_code, done.stdout) == (0, same.stdout)
    assert done.stdout.startswith("flink-agents-python ")


def test_help_shows_switches_without_a_value() -> None:
    shown = CliRunner().invoke(app, ["plan", "show", "--help"]).stdout.splitlines()
    [line] = [help_line.split() for help_line in shown if "--json" in help_line]
    assert line[:2] == ["--json", "Print"]
    assert "bool" not in "".join(shown)


def test_plan_show_as_text(project: Path) -> None:
    done = flink_agents("plan", "show", "shop:Greeter", cwd=project)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "agent Greeter"
    assert "  greet   InputEvent -> Greeted" in lines
    assert "  answer  Greeted -> OutputEvent" in lines


def test_plan_show_as_json_can_be_shown_again(project: Path) -> None:
    done = flink_agents("plan", "show", "shop:Greeter", "--json", cwd=project)
    assert [action["name"] for action in json.loads(done.stdout)["actions"]] == ["greet", "answer"]
    (project / "plan.json").write_text(done.stdout)
    again = flink_agents("plan", "show", "plan.json", "--json", cwd=project)
    assert again.stdout == done.stdout


def test_plan_show_as_graph(project: Path) -> None:
    mermaid = flink_agents("plan", "show", "shop:Greeter", "--mermaid", cwd=project).stdout
    assert mermaid.startswith("flowchart LR\n") and mermaid.count("-->") == 4


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("shop:Broken", "greet"),
        ("shop:Nobody", "Nobody"),
        ("nothing:Greeter", "nothing"),
        ("shop", "shop:Name"),
        ("agents.yaml", "agents.yaml"),
    ],
)
def test_an_error_is_text_and_exit_code_2(project: Path, target: str, found: str) -> None:
    done = flink_agents("plan", "show", target, cwd=project)
    assert done.returncode == 2
    assert found in done.stderr
    assert "Traceback" not in done.stderr


JOB = """
from flink_agents.runtime.flink.job import Job


def start():
    # As execute() begins: there is no Flink here.
    Job.__new__(Job).execute()
"""


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize(
    "command",
    [("plan", "show", "job:Greeter"), ("plan", "show", "job.py:Greeter"), ("plan", "show", "a.yaml")],
)
def test_a_job_is_refused_while_a_command_imports_its_module(project: Path, command: tuple[str, ...]) -> None:
    (project / "job.py").write_text(AGENT + JOB + "start()\n")
    (project / "a.yaml").write_text(
        "agents: [{name: A, actions: [{name: a, triggers: [_input_event], function: 'job:start'}]}]"
    )
    done = flink_agents(*command, cwd=project)
    assert done.returncode == 2
    first, *remaining_lines = done.stderr.splitlines()
    assert first.startswith("MissingMainGuardError: job.py:")
    assert "flink-agents plan show imports the module" in first
    assert 'write if __name__ == "__main__":' in "".join(remaining_lines)
    (project / "job.py").write_text(f'{AGENT}{JOB}if __name__ == "__main__":\n    start()\n')
    if command[-1] != "a.yaml":
        assert flink_agents(*command, cwd=project).returncode == 0


def test_options_exclude_each_other(project: Path) -> None:
    done = flink_agents("plan", "show", "shop:Greeter", "--json", "--mermaid", cwd=project)
    assert done.returncode == 2
    assert "exclude each other" in done.stderr


def test_doctor_prints_json(tmp_path: Path) -> None:
    done = flink_agents("doctor", "--json", cwd=tmp_path)
    checks = {check["name"]: check["status"] for check in json.loads(done.stdout)}
    assert done.returncode == (1 if "fail" in checks.values() else 0)
    assert checks["Python"] == "ok"


@pytest.mark.nightly
@pytest.mark.minicluster
def test_demo_hands_its_arguments_on(tmp_path: Path) -> None:
    done = flink_agents("demo", "--sample", "--output", "suggestions.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "suggestions.jsonl").read_text().splitlines()) > 0


def test_no_cluster_runs_here(tmp_path: Path) -> None:
    done = flink_agents("cluster", "status", "--json", cwd=tmp_path)
    assert done.returncode == 1 and json.loads(done.stdout)["running"] is False
    assert flink_agents("cluster", "stop", cwd=tmp_path).stdout == "no Flink runs here\n"


@pytest.mark.parametrize("command", [("run", "shop.py"), ("stop", "orders", "--savepoint")])
def test_a_cluster_that_does_not_answer_is_named(command: tuple[str, ...], project: Path) -> None:
    done = flink_agents(*command, "--cluster", "localhost:1", cwd=project)
    assert done.returncode == 2
    assert done.stderr.startswith("ClusterUnavailableError: no Flink cluster answers at http://localhost:1\n")
    assert "flink-agents cluster start" in done.stderr


def test_an_option_of_flink_has_a_value(project: Path) -> None:
    done = flink_agents("run", "shop.py", "-D", "parallelism.default", cwd=project)
    assert done.returncode == 2 and "name=value" in done.stderr


def lost_output(*arguments: str, stream: str, closed_pipe: bool, cwd: Path) -> tuple[int, str]:
    """Return exit code and the other output of a command that cannot write to one or both of its streams."""
    if closed_pipe:
        reader, lost = os.pipe()
        os.close(reader)
    else:
        lost = os.open("/dev/full", os.O_WRONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from flink_agents.cli.main import app; app()", *arguments],
            cwd=cwd,
            stdout=subprocess.PIPE if stream == "stderr" else lost,
            stderr=subprocess.PIPE if stream == "stdout" else lost,
            text=True,
            check=False,
        )
    finally:
        os.close(lost)
    return done.returncode, (done.stdout or "") + (done.stderr or "")


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
@each_case("stream", ["stdout", "both"])
@each_case("arguments", [["--help"], ["--version"], ["runs", "--help"], ["explain", "FA6121"], ["explain"]])
def test_a_full_disk_is_told_without_a_traceback(arguments: list[str], stream: str, tmp_path: Path) -> None:
    code, text = lost_output(*arguments, stream=stream, closed_pipe=False, cwd=tmp_path)
    assert code == 2
    assert text == (
        "flink-agents: cannot write the output: No space left on device\n" if stream == "stdout" else ""
    )


@each_case(
    "arguments, stream",
    [
        (["--help"], "stdout"),
        (["--version"], "stdout"),
        (["explain"], "both"),
        (["explain", "FA6121"], "stdout"),
        (["nonsense"], "both"),
        (["nonsense"], "stderr"),
        (["runs", "--path", "nowhere"], "stderr"),
    ],
)
def test_a_reader_that_leaves_is_no_failed_check(arguments: list[str], stream: str, tmp_path: Path) -> None:
    assert lost_output(*arguments, stream=stream, closed_pipe=True, cwd=tmp_path) == (141, "")


@each_case("text", ["2 hours", "", "1", "-1 h", "yesterday", "99999999999 d"])
def test_an_invalid_age_of_runs_names_its_option(text: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["runs", "--path", str(tmp_path), "--since", text])
    assert result.exit_code == 2 and "'--since'" in result.stderr and "trace" not in result.stderr
