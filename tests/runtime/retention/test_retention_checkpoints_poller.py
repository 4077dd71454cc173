"""The thread that asks for checkpoints goes on whatever happens, or says that it ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from checkpoint_tools import Flink, FlinkServer
from pruning_tools import JOB, KEY
from test_retention_checkpoints import Hearer

from flink_agents.api.action_state import JournalKey
from flink_agents.api.durable import Prune
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.retention.checkpoints import (
    CheckpointClient,
    CheckpointPoller,
    CheckpointView,
    RestError,
)
from flink_agents.runtime.retention.pruning import FAILURES, Pruner

ENTRY = {"id": 1, "status": "COMPLETED", "is_savepoint": False, "discarded": False}
BODIES: dict[str, Any] = {
    "nothing": b"",
    "no JSON": b"<html>busy</html>",
    "no UTF-8": b'{"history": "\xff\xfe"}',
    "a list": [],
    "a number": 7,
    "a text": "history",
    "nothing known": {},
    "numbers in place of lists": {"history": 5, "counts": {}, "latest": {}},
    "null in place of all": {"history": None, "counts": None, "latest": None},
    "entries that are none": {"history": [None, 3], "counts": {}, "latest": {}},
    "counts that are none": {"history": [ENTRY], "counts": [1], "latest": {}},
    "ids of mixed types": {"history": [ENTRY, {**ENTRY, "id": "x"}], "counts": {}, "latest": {}},
    "ids that are none": {"history": [{**ENTRY, "id": None}], "counts": {"completed": 1}, "latest": {}},
    "counts of mixed types": {"history": [], "counts": {"total": [1]}, "latest": {}},
    "very deep": b"[" * 100_000 + b"]" * 100_000,
    "a number of many digits": b'{"history": ' + b"9" * 10_000 + b"}",
}


@contextmanager
def hearer_of(address: str) -> Iterator[Hearer]:
    poller = CheckpointPoller((address,), JOB, interval=0.001)
    hearer = Hearer()
    poller.listen(hearer)
    try:
        yield hearer
    finally:
        poller.forget(hearer)


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_no_answer_ends_the_thread(body: Any) -> None:
    flink, wrong = Flink(), threading.Event()
    with FlinkServer(lambda path: (200, body if wrong.is_set() else flink.answer())) as server:
        with hearer_of(server.address) as hearer:
            hearer.wait_for("answered", 1)
            wrong.set()
            hearer.wait_for("failed", 3)
            wrong.clear()
            hearer.wait_for("answered", hearer.told.count("answered") + 2)
            assert "ended" not in hearer.told


ERRORS = [
    ValueError("1"),
    KeyError("2"),
    AttributeError("3"),
    RecursionError("4"),
    MemoryError("5"),
    UnicodeError("6"),
    OSError("7"),
    StopIteration("8"),
    RuntimeError("9"),
    EOFError(),
    RestError("10"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_exception_ends_the_thread(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bool] = []

    def request_view(self: CheckpointClient) -> CheckpointView:
        answers.append(len(answers) > 5)
        if not answers[-1]:
            raise error
        return CheckpointView(1, None)

    monkeypatch.setattr(CheckpointClient, "request_view", request_view)
    with hearer_of("nobody") as hearer:
        hearer.wait_for("answered", 2)
        assert hearer.told.count("failed") == 6


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_an_end_of_the_thread_is_said(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends = [error]

    def request_view(self: CheckpointClient) -> CheckpointView:
        if ends:
            raise ends.pop()
        return CheckpointView(1, None)

    monkeypatch.setattr(CheckpointClient, "request_view", request_view)
    poller = CheckpointPoller((), JOB, interval=0.001)
    metrics = RunMetrics(())
    pruner = Pruner(Prune.CHECKPOINTS, 0, metrics, poller, True)
    hearer = Hearer()
    pruned: dict[JournalKey, int] = {}
    pruner.schedule = lambda journals, delay: pruned.update(
        {key: bounds[0] for key, bounds in journals.items()}
    )
    pruner.restored(KEY, 3)
    poller._listeners.append(pruner)
    poller.listen(hearer)
    hearer.wait_for("ended", 1)
    metric_values = dict(metrics.group.values())
    assert (metric_values["rest_reachable"], metric_values["rest_errors"]) == (0, 1)
    assert type(error).__name__ in caplog.text and "rest-address" in caplog.text
    assert pruned == {KEY: 3}, "what holds where Flink is not reached"
    # Whoever comes next has it asked again.
    late = Hearer()
    poller.listen(late)
    late.wait_for("answered", 1)
    for listener in (late, hearer, pruner):
        poller.forget(listener)


def test_questions_without_an_answer_are_counted() -> None:
    metrics = RunMetrics(())
    pruner = Pruner(Prune.CHECKPOINTS, 0, metrics, CheckpointPoller((), JOB), True)
    for _ in range(FAILURES + 2):
        pruner.asking()
        pruner.failed(RestError("refused"))
    assert dict(metrics.group.values())["rest_errors"] == FAILURES + 2


def test_a_listener_that_fails_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Hearer):
        def asking(self) -> None:
            super().asking()
            raise LookupError("always")

    with FlinkServer(lambda path: (200, Flink().answer())) as server:
        poller = CheckpointPoller((server.address,), JOB, interval=0.001)
        fails = Fails()
        hearer = Hearer()
        for listener in (fails, hearer):
            poller.listen(listener)
        hearer.wait_for("answered", 10)
        for listener in (fails, hearer):
            poller.forget(listener)
    assert caplog.text.count("a listener for checkpoints") == 1


def test_a_whole_answer_keeps_its_connection() -> None:
    flink = Flink()
    for _ in range(8):
        flink.complete(flink.trigger())
    with FlinkServer(lambda path: (200, {**flink.answer(), "more": "x" * 200_000})) as server:
        client = CheckpointClient((server.address,), JOB)
        views = [client.request_view() for _ in range(3)]
        client.close()
        assert len({view.connection for view in views}) == server.connections == 1
        assert views[0].highest == 8
