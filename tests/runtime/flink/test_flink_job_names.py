"""A text that names nothing names no job: its folder would be that of all jobs, which --fresh moves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents.api.common.option_values import is_name
from flink_agents.api.errors import JobDefinitionError, OptionError, UnknownJobError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.cli.main import app
from flink_agents.runtime.flink.clusters.jobs import find_job
from flink_agents.runtime.flink.job import Job
from flink_agents.runtime.flink.resume.job_run import JobFolder
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

NO_NAMES = [
    "",
    " ",
    "   ",
    "\t",
    "\n",
    "\u00a0",
    "\u2003",
    "\u200b",
    "\x00",
    ".",
    "..",
    "...",
    "/",
    "//",
    "\\",
]
NO_NAMES += [" . ", "./", "../", "../..", "/.", ".\\.", " / "]

NAMES = ["orders", "7", "orders@2", "a/b", "..orders", " orders ", "v1.2", "-", "_", "%", "注文", "~", "*"]


@each_case("text", NO_NAMES)
def test_dots_slashes_and_blanks_are_no_name(text: str) -> None:
    assert not is_name(text)


@each_case("text", NAMES)
def test_all_else_is_a_name_with_a_folder_of_its_own(text: str) -> None:
    assert is_name(text)
    folder = JobFolder.for_job(Path("state"), text)
    assert folder.path.parent == Path("state").absolute() / "jobs"
    assert folder.path.name not in ("", ".", "..")


EXECUTIONS: dict[str, Callable[[Job, Any], Any]] = {
    "execute": lambda job, name: job.execute(name),
    "execute_async": lambda job, name: job.execute_async(name),
    "execute_and_collect": lambda job, name: job.execute_and_collect(None, name, None),  # type: ignore[arg-type]
}


@each_case("execution", EXECUTIONS)
@each_case("name", [*NO_NAMES, 7, b"orders"])
def test_no_execution_takes_it(execution: str, name: Any) -> None:
    with pytest.raises(JobDefinitionError, match="cannot name a job") as raised:
        # Without PyFlink's environment: whatever a job does before the check would fail.
        EXECUTIONS[execution](Job.__new__(Job), name)
    assert raised.value.found == repr(name)
    assert "test_flink_job_names.py" in str(raised.value).partition("\n")[0]


def from_yaml(text: str, directory: Path) -> Configuration:
    file = directory / "options.yaml"
    file.write_text(json.dumps({"job-identifier": text}))
    return Configuration.from_yaml(file)


SOURCES: dict[str, Callable[[str, Path], Any]] = {
    "code": lambda text, _: Configuration({"job-identifier": text}),
    "set": lambda text, _: Configuration().set(AgentOptions.JOB_IDENTIFIER, text),
    "environment": lambda text, _: Configuration.from_environment({"FLINK_AGENTS_JOB_IDENTIFIER": text}),
    "flink": lambda text, _: Configuration.from_flink({"flink-agents.job-identifier": text}),
    "yaml": from_yaml,
}


@each_case("source", SOURCES)
@each_case("text", NO_NAMES)
def test_no_source_of_options_takes_it_as_an_identifier(source: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="invalid value of option 'job-identifier'") as raised:
        SOURCES[source](text, tmp_path)
    assert "more than dots" in str(raised.value.expected)


@each_case("text", NAMES)
def test_names_are_identifiers(text: str) -> None:
    assert Configuration({"job-identifier": text}).get(AgentOptions.JOB_IDENTIFIER) == text


class Cluster:
    """A cluster with one job, whose id begins with each empty text."""

    address = "http://localhost:8081"

    def get(self, path: str) -> Any:
        return {"jobs": [{"jid": "0a" * 16, "name": "orders", "state": "RUNNING", "start-time": 1}]}


@each_case("text", NO_NAMES)
def test_no_job_of_a_cluster_is_stopped_by_it(text: str) -> None:
    cluster: Any = Cluster()
    assert find_job(cluster, None).name == find_job(cluster, "0A0").name == "orders"
    with pytest.raises(UnknownJobError, match="no running job matches"):
        find_job(cluster, text)


@each_case(
    ("arguments", "text"),
    [
        (["runs", "end", "", "--signals", "t", "--yes"], "name the run"),
        (["runs", "end", " ", "--signals", "t", "--key", "a", "--yes"], "name the run"),
        (["trace", ""], "name the run"),
        (["--job", "", "runs"], "no job ''"),
    ],
)
def test_no_command_takes_it_for_all(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flink-agents.toml").write_text('path = "traces"\n[jobs.orders]\nsignals = "s"\n')
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code != 0
    assert text in outcome.output
