"""A TaskManager runs job after job, and some beside each other, each with its own version of the code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flink_agents import AgentsExecutionEnvironment
from flink_agents.cli.checks.cluster import cluster_checks
from tests.cluster import session_job
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.flink_rest import ClusterJob

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

SCRIPT = Path(session_job.__file__)
FAIL_AT_ONCE = {"restart-strategy.type": "none"}

TELLER = """
from flink_agents import Agent, InputEvent, OutputEvent, action
from session_{words} import WORD

class Teller(Agent):
    output_type = str

    @action(InputEvent)
    def {method}(self, event, ctx):
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        return OutputEvent(output=f"{says} {{WORD}} {{ctx.key}} {{count}}")
"""

MAIN = """
import sys
from dataclasses import dataclass
from typing import Any
from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from tests.cluster import session_job
from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

@dataclass
class Order:
    number: int
    price: int = {price}

class Teller(Agent):
    @action(InputEvent)
    def tell(self, event, ctx):
        orders = [*ctx.short_term_memory.get("orders", []), event.input][-3:]
        ctx.short_term_memory.set("orders", orders)
        assert all(type(order) is Order for order in orders)
        return OutputEvent(output=orders[0])

name, output = sys.argv[1:]
env: Any = AgentsExecutionEnvironment.get_execution_environment()
source = NumberSequenceSource(0, session_job.FOREVER)
numbers = env.stream_env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
orders = numbers.map(session_job.slowly).map(lambda number: Order(number)).disable_chaining()
outputs = env.from_datastream(orders, lambda order: order.number % 3).apply(Teller).to_datastream()
lines = outputs.map(lambda order: f"{{name}} {{order.price}} 0 0", output_type=Types.STRING())
lines.map(session_job.Append(output), output_type=Types.STRING()).print()
env.execute("main")
"""


class Code:
    """Directories with versions of modules, each of which goes to the workers with a job."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, version: str, **sources: str) -> Path:
        directory = self._root / version
        directory.mkdir()
        for name, source in sources.items():
            (directory / f"session_{name}.py").write_text(source, encoding="utf-8")
        return directory

    def add(self, directory: Path, module: str, output: Path, env: AgentsExecutionEnvironment) -> None:
        """Build a job with the modules of a directory, in this process, which keeps nothing of them."""
        flink: Any = env.stream_env
        flink.add_python_file(str(directory))
        sys.path.insert(0, str(directory))
        importlib.invalidate_caches()
        try:
            teller: Any = importlib.import_module(module)
            session_job.build(env, teller.Teller, str(output), session_job.FOREVER)
        finally:
            sys.path.remove(str(directory))
            for name in [name for name in sys.modules if name.startswith("session_")]:
                del sys.modules[name]


class Lines:
    """What jobs have written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_all(self) -> list[list[str]]:
        text = self.path.read_text(encoding="ascii") if self.path.exists() else ""
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def lines_of(self, word: str) -> list[list[str]]:
        return [line for line in self.read_all() if line[0] == word]

    def counts(self) -> dict[str, int]:
        """The greatest count of each key."""
        counts_by_key: dict[str, int] = {}
        for _, _, key, count, _ in self.read_all():
            counts_by_key[key] = max(counts_by_key.get(key, 0), int(count))
        return counts_by_key

    def processes(self) -> set[str]:
        return {line[-1] for line in self.read_all()}


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Code]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Code(tmp_path)


@pytest.fixture(scope="module")
def cluster(flink_cluster: FlinkCluster) -> FlinkCluster:
    """One TaskManager for all tests, as their jobs have it."""
    flink_cluster.fresh_taskmanagers(count=1, slots=3)
    return flink_cluster


def wait_for_lines(cluster: FlinkCluster, job: ClusterJob, lines: Lines, word: str, more: int) -> None:
    wanted = len(lines.lines_of(word)) + more
    cluster.wait_for(f"{more} more lines with {word}", lambda: len(lines.lines_of(word)) >= wanted, job)


def test_jobs_follow_one_another_and_run_their_own_code(
    cluster: FlinkCluster, code: Code, tmp_path: Path
) -> None:
    shop = Lines(tmp_path / "shop.txt")
    bank = Lines(tmp_path / "bank.txt")
    words = {"words": "WORD = 'w1'\n", "terms": "WORD = 't1'\n"}
    first = code.write(
        "v1",
        shop=TELLER.format(words="words", says="one", method="tell"),
        bank=TELLER.format(words="terms", says="bank", method="tell"),
        **words,
    )
    arguments = ("--module", "session_shop", "--output", str(shop.path))
    beside = cluster.submit_here(partial(code.add, first, "session_bank", bank.path), parallelism=1)
    job = cluster.submit(SCRIPT, *arguments, parallelism=1, shipped=first)
    wait_for_lines(cluster, job, shop, "one", 20)
    wait_for_lines(cluster, beside, bank, "bank", 1)

    savepoint = job.stop_with_savepoint(tmp_path / "savepoints")
    cluster.wait_for("the end of the stopped job", lambda: job.state() == "FINISHED")
    previous_counts = shop.counts()
    assert {line[1] for line in shop.read_all()} == {"w1"}

    # A function, a constant of another module, and the name of an action; the other job goes on.
    second = code.write(
        "v2",
        shop=TELLER.format(words="words", says="two", method="say"),
        bank=TELLER.format(words="terms", says="bank", method="tell"),
        words="WORD = 'w2'\n",
        terms="WORD = 't2'\n",
    )
    resumed = cluster.submit(SCRIPT, *arguments, parallelism=1, shipped=second, savepoint=savepoint)
    wait_for_lines(cluster, resumed, shop, "two", 10)
    wait_for_lines(cluster, beside, bank, "bank", 10)
    new_lines = shop.lines_of("two")
    assert {line[1] for line in new_lines} == {"w2"}
    starts = {key: min(int(line[3]) for line in new_lines if line[2] == key) for key in previous_counts}
    assert starts == {key: count + 1 for key, count in previous_counts.items()}
    assert len(shop.lines_of("one")) == sum(previous_counts.values())

    # What the other job has in use is not taken from it.
    third = partial(code.add, second, "session_bank", tmp_path / "refused.txt")
    refused = cluster.submit_here(third, parallelism=1, options=FAIL_AT_ONCE)
    cluster.wait_for("the refusal", lambda: refused.state() == "FAILED")
    text = refused.exceptions()
    assert "another version of the module session_terms in memory" in text
    assert f"in use by the job 'Flink Streaming Job' ({beside.id})" in text
    wait_for_lines(cluster, beside, bank, "bank", 10)
    assert {line[1] for line in bank.read_all()} == {"t1"}

    for running_job in (beside, resumed):
        running_job.cancel()
    cluster.wait_for("the end of both", lambda: {beside.state(), resumed.state()} == {"CANCELED"})
    fourth = partial(code.add, second, "session_bank", bank.path)
    last = cluster.submit_here(fourth, parallelism=1, options=FAIL_AT_ONCE)
    cluster.wait_for("the new version", lambda: any(line[1] == "t2" for line in bank.read_all()), last)
    last.cancel()
    cluster.wait_for("the end of the last one", lambda: last.state() == "CANCELED")
    assert len(shop.processes() | bank.processes()) == 1

    checks = cluster_checks(cluster.rest.address)
    assert len(checks) == 5 and {check.status for check in checks} == {"ok"}, checks


def test_main_scripts_beside_each_other(cluster: FlinkCluster, tmp_path: Path) -> None:
    """Two jobs of one script share its classes; a script with another class of that name is refused."""
    lines = Lines(tmp_path / "lines.txt")
    script = tmp_path / "one.py"
    changed = tmp_path / "two.py"
    script.write_text(MAIN.format(price=1), encoding="utf-8")
    changed.write_text(MAIN.format(price=2), encoding="utf-8")

    def submit(path: Path, name: str) -> ClusterJob:
        return cluster.submit(path, name, str(lines.path), parallelism=1, options=FAIL_AT_ONCE)

    first, second = submit(script, "first"), submit(script, "second")
    for job, name in ((first, "first"), (second, "second"), (first, "first")):
        wait_for_lines(cluster, job, lines, name, 20)
    refused = submit(changed, "third")
    cluster.wait_for("the refusal", lambda: refused.state() == "FAILED")
    text = refused.exceptions()
    assert "another job in this process has another class Order in its main script" in text
    assert first.id in text and second.id in text
    for job, name in ((first, "first"), (second, "second")):
        wait_for_lines(cluster, job, lines, name, 20)
        job.cancel()
    cluster.wait_for("the end of both", lambda: {first.state(), second.state()} == {"CANCELED"})
    last = submit(changed, "third")
    wait_for_lines(cluster, last, lines, "third", 20)
    assert {line[1] for line in lines.lines_of("third")} == {"2"}
    last.cancel()
    cluster.wait_for("the end of the last one", lambda: last.state() == "CANCELED")
