"""Owners that stand still at each point of an append, and requests that arrive late, on a real broker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka.errors import DuplicateSequenceNumberError, KafkaConnectionError
from kafka.future import Future
from kafka.protocol.producer import ProduceRequest

from flink_agents.api.action_state import Owner
from flink_agents.api.errors import AppendOutcomeUnknownError, FencedOwnerError
from flink_agents.connectors.action_state.kafka.ownership import takeover as takeover_module
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from tests.kafka.kafka_stopping_process import POINTS
from tests.kafka.kafka_stores import (
    batches,
    indexes,
    journal_in,
    opened,
    raw_records,
    record,
    run,
    wait_until,
)
from tests.kafka.test_kafka_store_owners import ROOT, all_runs

HOUR = 3600.0
SCRIPT = Path(__file__).with_name("kafka_stopping_process.py")
LAST = ("last", 0)

# -- owners that stand still --------------------------------------------------------------

CERTAIN = {
    "before it is sent": "refused",
    "behind its acknowledgement": "stored",
    "behind the clock": "stored",
}
"""What comes of an append whose owner stops there, while another one takes over."""


@pytest.mark.nightly(beyond=2)
@pytest.mark.parametrize("lease", [1.0, 0.0])
@pytest.mark.parametrize("point", POINTS)
def test_an_owner_that_stands_still_at_a_point(
    settings: KafkaSettings, tmp_path: Path, point: str, lease: float
) -> None:
    """What the new owner finds at first is what the old one is told, whenever it goes on."""
    file = tmp_path / "outcome"
    arguments = [settings.bootstrap_servers, settings.topic, str(file), point, str(lease)]
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    ) as child:
        try:
            process = psutil.Process(child.pid)
            wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
            first = run(all_runs(settings))
            os.kill(child.pid, signal.SIGCONT)
            assert child.wait(60) == 0
        finally:
            child.kill()
    outcome = file.read_text(encoding="utf-8")
    assert (outcome == "stored") == (LAST in first)
    assert run(all_runs(settings)) == first
    assert outcome == CERTAIN.get(point, outcome)


# -- requests that arrive late ------------------------------------------------------------


class Line:
    """Between the producer of a store and its broker; out of order until it is repaired.

    Args:
        store: Whose producer.
        carries_requests: Whether the first request reaches the broker, and only its answer is lost.
        answered: What becomes of answers once it is repaired.
    """

    def __init__(
        self,
        store: KafkaStore,
        carries_requests: bool,
        answered: Callable[[Any], Any] = lambda answer: answer,
    ) -> None:
        client: Any = store._producer._sender._client  # type: ignore[attr-defined]
        self._send = client.send
        self._carries = carries_requests
        self._answered = answered
        self._repaired = False
        self.lost = 0
        client.send = self.send

    def send(self, node: Any, request: Any, **options: Any) -> Any:
        """As the client does it."""
        if not isinstance(request, ProduceRequest):
            return self._send(node, request, **options)
        future = Future()
        if self._repaired:
            sent = self._send(node, request, **options)
            sent.add_callback(lambda answer: future.success(self._answered(answer)))
            sent.add_errback(future.failure)
        elif self._carries and not self.lost:
            self._send(node, request, **options).add_both(lambda _: self._lose(future))
        else:
            self._lose(future)
        return future

    def _lose(self, told: Any) -> None:
        self.lost += 1
        told.failure(KafkaConnectionError("the line is out of order"))

    def repair(self) -> None:
        """Let all pass from now on."""
        self._repaired = True


async def late(settings: KafkaSettings, line_of: Callable[[KafkaStore], Line]) -> tuple[Any, list[int]]:
    """What comes of an append on such a line that is repaired when a new owner has taken over.

    Returns:
        The error, or None, and the indexes that a new owner finds in the journal.
    """
    journal = journal_in(settings, 0)
    old = await opened(replace(settings, lease_seconds=HOUR))
    await old.append(journal, [record(index=0)])
    line = line_of(old)
    append = asyncio.create_task(old.append(journal, [record(index=1)]))
    await asyncio.to_thread(wait_until, lambda: line.lost > 0)
    new = await opened(settings)
    await new.rebuild()
    stored_indexes = indexes(await new.scan(journal))
    line.repair()
    (outcome,) = await asyncio.gather(append, return_exceptions=True)
    # It is in the topic, wherever that is.
    assert (
        len(
            [
                raw_record
                for raw_record in raw_records(settings)
                if raw_record.partition == 0 and raw_record.entries
            ]
        )
        == 2
    )
    assert indexes(await new.scan(journal)) == stored_indexes
    await old.close()
    await new.close()
    return outcome, stored_indexes


@pytest.mark.parametrize("lease", [0.0, 1.0])
def test_a_request_that_is_sent_again_behind_the_fence_is_refused(
    settings: KafkaSettings, lease: float
) -> None:
    outcome, stored_indexes = run(
        late(replace(settings, append_lease_seconds=lease), lambda store: Line(store, carries_requests=False))
    )
    assert isinstance(outcome, FencedOwnerError)
    assert stored_indexes == [0]


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("lease", [0.0, 1.0])
def test_a_request_that_is_sent_again_and_was_stored_before_the_fence_counts(
    settings: KafkaSettings, lease: float
) -> None:
    """The broker knows it again, and tells where it lies."""
    outcome, stored_indexes = run(
        late(replace(settings, append_lease_seconds=lease), lambda store: Line(store, carries_requests=True))
    )
    assert outcome is None
    assert stored_indexes == [0, 1]


@pytest.mark.parametrize("carries_requests", [False, True])
def test_an_append_of_which_the_broker_does_not_say_where_it_lies_has_an_unknown_outcome(
    settings: KafkaSettings, carries_requests: bool
) -> None:
    """A broker that has forgotten all but the number of a batch acknowledges it without its offset."""

    def forgets(answer: Any) -> Any:
        for topic in answer.responses:
            for response in topic.partition_responses:
                response.error_code = DuplicateSequenceNumberError.errno
                response.base_offset = -1
        return answer

    outcome, stored_indexes = run(late(settings, lambda store: Line(store, carries_requests, forgets)))
    assert isinstance(outcome, AppendOutcomeUnknownError)
    assert stored_indexes == [0, 1][: 1 + carries_requests]


# -- several new owners -------------------------------------------------------------------


def test_a_new_owner_that_is_overtaken_while_it_waits_decides_nothing(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first fence counts for ever, also where the claim before it gets its fence later."""
    journal = journal_in(settings, 0)
    waits, goes_on = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        loop = asyncio.get_running_loop()
        old = await opened(settings)
        await old.append(journal, [record(index=0)])
        fence = takeover_module.ClaimsWriter.write_fence
        first: list[str] = []

        def slow_fence(self: Any, owner: Owner, ends: dict[int, int]) -> None:
            if not first:
                first.append(owner.token)
                loop.call_soon_threadsafe(waits.set)
                asyncio.run_coroutine_threadsafe(goes_on.wait(), loop).result(60)
            fence(self, owner, ends)

        monkeypatch.setattr(takeover_module.ClaimsWriter, "write_fence", slow_fence)
        slow = asyncio.create_task(opened(settings))
        await waits.wait()
        # It has looked for the ends: what is appended now lies behind its fence, and before the next one.
        append = asyncio.create_task(old.append(journal, [record(index=1)]))
        while len(await asyncio.to_thread(batches, settings)) < 2:
            assert not append.done()
        newest = await opened(settings)
        await append
        goes_on.set()
        overtaken = await slow
        for store in (old, overtaken):
            with pytest.raises(FencedOwnerError):
                await store.append(journal, [record(index=2)])
        last = await opened(settings)
        for store in (newest, last):
            await store.rebuild()
            assert indexes(await store.scan(journal)) == [0, 1]
        for store in (old, overtaken, newest, last):
            await store.close()

    run(body())
