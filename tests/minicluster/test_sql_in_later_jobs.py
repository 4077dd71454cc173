"""SQL in each of several jobs of one process: the planner works only in the Java thread that created it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.minicluster, pytest.mark.own_conditions]

AGENT = """
from flink_agents import Agent, InputEvent, OutputEvent, action


class Doubling(Agent):
    @action(InputEvent)
    def double(self, event, ctx) -> OutputEvent:
        return OutputEvent(output=event.input["n"] * 2)
"""
CELLS = [
    """
import threading
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment
from flink_agents import AgentsExecutionEnvironment
from doubling import Doubling

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
tables = StreamTableEnvironment.create(env)
agents = AgentsExecutionEnvironment.get_execution_environment(env, tables)

def call_java():
    # As the threads that follow a job, but never without a call.
    while True:
        get_gateway().jvm.java.lang.Thread.sleep(1)

for _ in range(2):
    threading.Thread(target=call_java, daemon=True).start()
""",
    *[
        f"""
rows = tables.sql_query("SELECT n FROM (VALUES (1), (2), (3)) AS rows_(n) WHERE n > {number % 2}")
outputs = agents.from_table(rows, key_selector=lambda row: row["n"]).apply(Doubling).to_list()
agents.execute("job {number}")
print(sorted(outputs))
"""
        for number in range(20)
    ],
]
NOTEBOOK = """
import code
import sys

interpreter = code.InteractiveInterpreter()
for number, cell in enumerate({cells!r}):
    interpreter.runsource(cell, f"<cell {{number}}>", "exec")
"""


def check(program: Path, text: str, jobs: int) -> None:
    (program.parent / "doubling.py").write_text(AGENT)
    program.write_text(text)
    done = subprocess.run(
        [sys.executable, str(program)], cwd=program.parent, capture_output=True, text=True, check=False
    )
    expected = [["[2, 4, 6]", "[4, 6]"][number % 2] for number in range(jobs)]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done.stderr[-3000:]


@pytest.mark.nightly
def test_sql_works_in_each_cell_of_a_notebook(tmp_path: Path) -> None:
    check(tmp_path / "notebook.py", NOTEBOOK.format(cells=CELLS[:4]), 3)


@pytest.mark.nightly
def test_sql_works_in_twenty_jobs_of_a_script(tmp_path: Path) -> None:
    check(tmp_path / "script.py", "".join(CELLS), 20)
