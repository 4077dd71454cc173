"""Apache Beam, pandas and pyarrow are loaded by who uses them, and by nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flink_agents.runtime.flink.launch.beam import WORKERS
from flink_agents.runtime.flink.launch.flink_home import FlinkHome
from tests.suite.tables import each_case

PREPARED = "import sys\nfrom flink_agents.runtime.flink.launch.beam import leave_out_beam\nleave_out_beam()\n"
SHOWN = """
import pyflink.fn_execution
from pyflink.fn_execution import coders
large = sorted({"apache_beam", "pandas", "pyarrow", "grpc"} & set(sys.modules))
print(large, pyflink.fn_execution.PYFLINK_CYTHON_ENABLED, coders.coder_impl.__name__.rpartition(".")[2])
"""
LARGE = "['apache_beam', 'grpc', 'pandas', 'pyarrow']"


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@each_case(
    "code, environment, shown",
    [
        # What PyFlink decides itself, and what it decides without Beam.
        ("import sys\n" + SHOWN, {}, f"{LARGE} True coder_impl_fast"),
        (PREPARED + SHOWN, {}, "[] True coder_impl_fast"),
        (PREPARED + SHOWN, {"PYFLINK_CYTHON_ENABLED": ""}, "[] False coder_impl_slow"),
        (PREPARED + "leave_out_beam()\n" + SHOWN, {}, "[] True coder_impl_fast"),
        # The author's code was first.
        ("import apache_beam\n" + PREPARED + SHOWN, {}, f"{LARGE} True coder_impl_fast"),
        ("import pyflink.fn_execution\n" + PREPARED + SHOWN, {}, f"{LARGE} True coder_impl_fast"),
        # Without Beam's compiled module, PyFlink's slow ones are used.
        (
            PREPARED
            + "from flink_agents.runtime.flink.launch import beam\nbeam._COMPILED_IN_BEAM = ('no',)\n"
            + SHOWN,
            {},
            "[] False coder_impl_slow",
        ),
    ],
)
def test_pyflink_decides_the_same_without_beam(code: str, environment: dict[str, str], shown: str) -> None:
    assert run_python(code, **environment) == shown


def test_who_uses_beam_later_has_all_of_it() -> None:
    later = """
import apache_beam.coders.stream
from pyflink.fn_execution.beam import beam_operations, beam_operations_fast, beam_coder_impl_fast
import pandas
print(beam_operations.beam_operations.__name__, pandas.Series([1, 2]).sum())
"""
    *_, last = run_python(PREPARED + SHOWN + later).splitlines()
    assert last == "pyflink.fn_execution.beam.beam_operations_fast 3"


EMBEDDED = f"""
import runpy, sys
sys.orig_argv = {{argv}}
sys.path.insert(0, {str(WORKERS)!r})
runpy.run_path({str(WORKERS / "sitecustomize.py")!r})
"""


@each_case(
    "argv, shown",
    [
        ([""], "[] True coder_impl_fast"),
        ([], "[] True coder_impl_fast"),
        (["-c"], f"{LARGE} True coder_impl_fast"),
    ],
)
def test_only_the_python_in_a_jvm_is_prepared(argv: list[str], shown: str) -> None:
    assert run_python(EMBEDDED.format(argv=argv) + SHOWN) == shown


def test_another_sitecustomize_is_executed_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    path = os.pathsep.join([str(WORKERS), str(tmp_path)])
    assert run_python("print('done')", PYTHONPATH=path) == "theirs\ndone"


def test_clusters_prepare_their_workers(tmp_path: Path) -> None:
    environment = FlinkHome(tmp_path, tmp_path, tmp_path).environment()
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(WORKERS)


JOB = """
import os, sys

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from pyflink.table import DataTypes
from pyflink.table.udf import AggregateFunction, udaf, udf


class Telling(Agent):
    @action(InputEvent)
    def tell(self, event, ctx) -> OutputEvent:
        large = sorted({"apache_beam", "pandas", "pyarrow"} & set(sys.modules))
        if event.input["number"] == 2:
            import apache_beam, pandas
        return OutputEvent(output=("agent", event.input["text"], large))


@udf(result_type=DataTypes.STRING(), func_type="pandas")
def shout(texts):
    from pyflink.fn_execution.beam import beam_operations

    return texts.str.upper() + beam_operations.beam_operations.__name__.rpartition(".")[2]


class Sum(AggregateFunction):
    def create_accumulator(self):
        return [0]

    def get_value(self, accumulator):
        return accumulator[0]

    def accumulate(self, accumulator, number):
        accumulator[0] += number


if __name__ == "__main__":
    agents = AgentsExecutionEnvironment.get_execution_environment()
    print("apache_beam" in sys.modules)
    tables = agents.table_env
    numbers = tables.from_elements([(1, "a"), (2, "b")], ["number", "text"])
    table = numbers.select(shout(numbers.text).alias("text"), numbers.number)
    outputs = agents.from_table(table, "number").apply(Telling()).to_list()
    agents.execute()
    print(*sorted(outputs), sep="\\n")
    total = udaf(Sum(), result_type=DataTypes.BIGINT(), accumulator_type=DataTypes.ARRAY(DataTypes.BIGINT()))
    print(list(numbers.group_by(numbers.text).select(total(numbers.number)).to_pandas().iloc[:, 0]))
"""


@pytest.mark.minicluster
def test_tables_of_pandas_functions_work_beside_an_agent(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(tmp_path)},
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == [
        "False",
        "('agent', 'Abeam_operations_fast', [])",
        "('agent', 'Bbeam_operations_fast', [])",
        "[1, 2]",
    ], done.stdout + done.stderr
