"""The JVM finds this Python, whatever line of a job starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flink_agents.runtime.flink.launch.jvm import find_java_home
from tests.suite.tables import each_case

pytestmark = pytest.mark.minicluster

JOB = """
{before}
from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
{after}


class Increment(Agent):
    @action(InputEvent)
    def increment(self, event, ctx) -> OutputEvent:
        return OutputEvent(output=event.input + 1)


if __name__ == "__main__":
    agents = AgentsExecutionEnvironment.get_execution_environment(env)
    numbers = env.from_collection([1, 2, 3])
    outputs = agents.from_datastream(numbers, lambda number: number).apply(Increment).to_list()
    agents.execute()
    print(sorted(outputs))
"""
MAKE = """
from pyflink.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment()
"""


def run(directory: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = directory / "job.py"
    script.write_text(text)
    # No PATH: as from an environment that nobody activated.
    environment["HOME"] = str(directory)
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False
    )


def test_a_job_may_make_flinks_environment_first(tmp_path: Path) -> None:
    done = run(tmp_path, JOB.format(before="", after=MAKE))
    assert (done.stdout, done.returncode) == ("[2, 3, 4]\n", 0), done.stderr


PROJECT = JOB.replace(
    'if __name__ == "__main__":\n', "def test_job(agents_environment, agent_harness):\n"
).replace("AgentsExecutionEnvironment.get_execution_environment(env)", "agents_environment()")


@pytest.mark.nightly
@each_case("option", [["-W", "error"], []])
def test_jobs_and_fixtures_work_if_warnings_are_errors(option: list[str], tmp_path: Path) -> None:
    """By the option, or by the variable, which Flink's workers would inherit."""
    script = tmp_path / "job.py"
    project = tmp_path / "test_job.py"
    script.write_text(JOB.format(before="", after=MAKE))
    job = PROJECT.format(before="", after="")
    project.write_text(
        job.replace("env.from_collection([1, 2, 3])", "[1, 2, 3]").replace("from_datastream", "from_list")
        + "    assert agent_harness(Increment, str).push(1) == [2]\n"
    )
    environment = os.environ | ({} if option else {"PYTHONWARNINGS": "error"})
    for program in ([str(script)], ["-m", "pytest", "-q", *option, str(project)]):
        done = subprocess.run(
            [sys.executable, *option, *program],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Warning" not in done.stdout + done.stderr


def test_before_the_import_it_is_too_late_and_said_so(tmp_path: Path) -> None:
    done = run(tmp_path, JOB.format(before=MAKE, after=""), JAVA_HOME=str(find_java_home().home))
    assert done.returncode == 1
    assert "PyFlink's JVM was started before AgentsExecutionEnvironment was imported" in done.stderr
    assert "fix: write 'from flink_agents import AgentsExecutionEnvironment' before" in done.stderr


def test_the_package_alone_does_not_prepare_the_jvm_and_it_is_said_so(tmp_path: Path) -> None:
    preceding_code = "import flink_agents" + MAKE
    done = run(tmp_path, JOB.format(before=preceding_code, after=""), JAVA_HOME=str(find_java_home().home))
    assert done.returncode == 1
    assert "before AgentsExecutionEnvironment was imported" in done.stderr
