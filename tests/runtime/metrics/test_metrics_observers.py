"""Observers that a job or a harness is given: each subtask has its own, and what they raise harms no run."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, RetryPolicy, RunObserver
from flink_agents.api.agents.observers import ObservedRun, Phase
from flink_agents.api.errors import ObserverError
from flink_agents.runtime.execution import phases
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

MADE: list[Counting] = []


class Counting(RunObserver):
    """Counts the runs that are committed, by key."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.committed_keys: list[Any] = []
        MADE.append(self)

    def committed(self, run: ObservedRun, seconds: float | None) -> None:
        self.committed_keys.append(run.key)


class Raising(RunObserver):
    """Raises whatever it is told, at each of its methods."""

    error: type[BaseException] = ValueError

    def phase_changed(self, run: ObservedRun, before: Phase | None) -> None:
        raise self.error("phase")

    def action_ended(self, run: ObservedRun, action: str, seconds: float, inline: bool) -> None:
        raise self.error("ended")

    def committed(self, run: ObservedRun, seconds: float | None) -> None:
        raise self.error("committed")


class Exiting(Raising):
    error = SystemExit


class Cancelling(Raising):
    error = asyncio.CancelledError


class Broken(RunObserver):
    def __init__(self) -> None:
        raise OSError("no connection")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    MADE.clear()
    yield


async def answer(event: Any, ctx: Any) -> Any:
    if event.input % 2:
        await asyncio.sleep(0)
    return OutputEvent(output=event.input)


def agent() -> Any:
    return Agent(name="observed").add_action("answer", [InputEvent], answer)


def make_counting() -> Counting:
    return Counting("made by a function")


ONE_ATTEMPT: Any = {"forced_replay": False, "forced_restart": False, "crash": None}
"""Another attempt has other observers."""


def observed_harness(*observers: Any, **options: Any) -> OperatorHarness:
    options = ONE_ATTEMPT | options
    return OperatorHarness(agent(), lambda number: number, observers=observers, **options)


@pytest.mark.parametrize(
    "source", [Counting(), Counting, make_counting], ids=["instance", "class", "function"]
)
def test_an_observer_is_told(source: Any) -> None:
    with observed_harness(source) as harness:
        assert harness.push_all([1, 2, 3]) == [1, 2, 3]
        (observer,) = harness.observers
        assert isinstance(observer, Counting)
        assert observer.committed_keys == [1, 2, 3]
        assert observer is not source


class Naming(RunObserver):
    """Notes agent and id of each run, at each of its phases."""

    def __init__(self) -> None:
        self.named: dict[Any, set[str]] = {}
        self.agents: set[str] = set()

    def phase_changed(self, run: ObservedRun, before: Phase | None) -> None:
        self.agents.add(run.agent)
        self.named.setdefault(run.key, set()).add(run.run_id)


def test_a_run_tells_its_agent_and_its_id() -> None:
    """The id is that of the input event; it is empty until the run knows in which job it has started."""

    async def identify(event: Any, ctx: Any) -> Any:
        if event.input % 2:
            await asyncio.sleep(0)
        return OutputEvent(output=event.id)

    named = Agent(name="named").add_action("identify", [InputEvent], identify)
    with OperatorHarness(named, lambda number: number, observers=[Naming], **ONE_ATTEMPT) as harness:
        ids = harness.push_all([1, 2])
        (observer,) = harness.observers
        assert isinstance(observer, Naming)
        assert observer.agents == {"named"}
        assert observer.named[1] - {""} == {ids[0]}
        assert observer.named[2] - {""} == {ids[1]}


def test_the_id_of_a_run_costs_nothing_unless_an_observer_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(phases, "run_id_of", lambda *parts: read.append(parts))
    with observed_harness(Counting) as harness:
        harness.push_all([1, 2])
    assert read == []


def test_each_subtask_and_each_attempt_has_its_own() -> None:
    instance = Counting("given")
    with observed_harness(instance, Counting, parallelism=3) as harness:
        harness.push_all(range(20))
        observers = harness.observers
        assert len({id(observer) for observer in [*observers, instance]}) == 7
        keys = [
            key for observer in observers if isinstance(observer, Counting) for key in observer.committed_keys
        ]
        assert sorted(keys) == sorted([*range(20), *range(20)])
        harness.restore(harness.checkpoint())
        assert not set(map(id, observers)) & set(map(id, harness.observers))
    assert instance.committed_keys == []


@pytest.mark.parametrize("kind", [Raising, Exiting, Cancelling])
def test_what_an_observer_raises_harms_no_run(kind: type[Raising], caplog: pytest.LogCaptureFixture) -> None:
    with observed_harness(kind, Counting) as harness:
        assert harness.push_all(range(10)) == list(range(10))
        assert harness.run_metrics["observer_errors"] > 30
        counting_observer = harness.observers[1]
        assert isinstance(counting_observer, Counting)
        assert counting_observer.committed_keys == list(range(10)), "others are told all the same"
    records = [record for record in caplog.records if record.name == "flink_agents.observers"]
    assert len(records) == 3, "one for each method"
    assert {record.levelno for record in records} == {logging.ERROR}


class Abort(BaseException):
    """Such as libraries have for what nothing may catch."""


ERRORS: list[type[BaseException]] = [
    ValueError,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    SystemExit,
    asyncio.CancelledError,
    GeneratorExit,
    Abort,
]


def raising(error: type[BaseException]) -> type[RunObserver]:
    """Return an observer that raises in each of its methods."""

    def fail(self: RunObserver, *told: Any) -> None:
        raise error("told")

    names = [name for name in vars(RunObserver) if not name.startswith("_")]
    return type("Failing", (RunObserver,), dict.fromkeys(names, fail))


def fetch(number: int) -> int:
    if number == 3:
        raise LookupError(number)
    return number


async def do_all(event: Any, ctx: Any) -> Any:
    count = ctx.short_term_memory.get("count", 0) + 1
    ctx.short_term_memory.set("count", count)
    result = await ctx.durable_execute_async(fetch, event.input)
    return OutputEvent(output=(result, count))


@each_case("error", ERRORS)
def test_an_observer_that_raises_anything_anywhere_harms_no_run(error: type[BaseException]) -> None:
    run_beside(raising(error))


def run_beside(observer: type[RunObserver]) -> None:
    """Check that runs end as ever with such an observer."""
    retry = RetryPolicy(initial_interval=0.001, max_attempts=2)
    observed_agent = Agent(name="all").add_action(
        "do_all", [InputEvent], do_all, on_error="dead-letter", retry=retry
    )
    options: Any = {"forced_replay": False, "forced_restart": False, "crash": None}
    with OperatorHarness(
        observed_agent, lambda number: 0, observers=[observer, Counting], **options
    ) as harness:
        harness.push_all(range(5))
        while len(harness.outputs) < 4:
            harness.advance_time(1000)
        assert harness.outputs == [(0, 1), (1, 2), (2, 3), (4, 4)]
        assert [letter.error_type for letter in harness.dead_letters] == ["LookupError"]
        (counting,) = [candidate for candidate in harness.observers if isinstance(candidate, Counting)]
        assert len(counting.committed_keys) == 5


class RaisingHandler(logging.Handler):
    """A handler that does not guard itself."""

    error: type[BaseException] = ValueError

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error(record.name)


@each_case("error", ERRORS)
@each_case("filters", [False, True])
def test_a_handler_of_logs_that_raises_harms_no_run(error: type[BaseException], filters: bool) -> None:
    def reject(record: logging.LogRecord) -> bool:
        raise error(record.name)

    handler = RaisingHandler()
    handler.error = error
    if filters:
        handler.addFilter(reject)
    logger = logging.getLogger("flink_agents")
    logger.addHandler(handler)
    try:
        run_beside(raising(ValueError))
    finally:
        logger.removeHandler(handler)


def no_observer() -> Any:
    return "none"


@pytest.mark.parametrize("source", [Broken, no_observer])
def test_an_observer_that_cannot_be_made_is_left_out(source: Any, caplog: pytest.LogCaptureFixture) -> None:
    with observed_harness(source, Counting) as harness:
        assert harness.push(2) == [2]
        assert harness.run_metrics["observer_errors"] == 1
        assert [type(observer) for observer in harness.observers] == [Counting]
    assert "omitted" in caplog.text


def test_without_errors_the_metric_is_there() -> None:
    with observed_harness(Counting) as harness:
        harness.push(1)
        assert harness.run_metrics["observer_errors"] == 0


@each_case("source", ["text", 7, dict, threading.Lock()], ids=repr)
def test_what_gives_no_observer_is_refused(source: Any) -> None:
    with pytest.raises(ObserverError, match="RunObserver"):
        observed_harness(source)
