"""How a store ``kafka`` ends: in order, by a kill, forgotten, and while brokers are away or come back."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import psutil
import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from flink_agents.api.action_state import JournalKey
from flink_agents.api.errors import AppendOutcomeUnknownError, OptionError, StoreClosedError
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.kafka_clients import close_producer
from flink_agents.testing.kafka import KafkaBroker
from tests.kafka.kafka_stores import (
    go_on,
    indexes,
    journal_in,
    opened,
    record,
    run,
    wait_until,
)
from tests.suite.tables import each_case


def threads() -> set[threading.Thread]:
    """Those of stores and their clients; asyncio keeps its own for later."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


def connections(settings: KafkaSettings) -> int:
    """How many this process has to the broker."""
    port = int(settings.bootstrap_servers.rpartition(":")[2])
    open_connections = psutil.Process().net_connections("tcp")
    return sum(connection.raddr != () and connection.raddr.port == port for connection in open_connections)


@pytest.fixture
def nothing_left(settings: KafkaSettings) -> Iterator[None]:
    """See that the test leaves no thread and no connection behind."""
    # Tests before this one may have left something that is not its own.
    with warnings.catch_warnings(action="ignore"):
        gc.collect()
    previous_threads, connected = threads(), connections(settings)
    yield
    try:
        wait_until(lambda: threads() <= previous_threads)
    except AssertionError:
        frames = sys._current_frames()
        remaining_threads = {
            thread.name: traceback.format_stack(frames[thread.ident])[-3:]
            for thread in threads() - previous_threads
            if thread.ident in frames
        }
        pytest.fail(f"threads are left: {remaining_threads}")
    wait_until(lambda: connections(settings) <= connected)


@pytest.mark.usefixtures("nothing_left")
def test_nothing_is_left_behind_a_close(settings: KafkaSettings) -> None:
    async def body() -> None:
        store = await opened(settings)
        await store.rebuild()
        await store.append(journal_in(settings, 0), [record()])
        assert connections(settings) > 0
        await store.close()

    run(body())


@pytest.mark.usefixtures("nothing_left")
def test_nothing_is_left_behind_a_kill(settings: KafkaSettings) -> None:
    async def body() -> None:
        store = await opened(settings)
        await store.append(journal_in(settings, 0), [record()])
        waiting = [
            asyncio.ensure_future(store.append(journal_in(settings, 0), [record(1, number)]))
            for number in range(10)
        ]
        await asyncio.sleep(0)
        store.kill()
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in errors} <= {StoreClosedError, AppendOutcomeUnknownError, type(None)}
        again = await opened(settings)
        await again.rebuild()
        stored = indexes(await again.scan(journal_in(settings, 0), 1))
        assert {number for number, error in enumerate(errors) if error is None} <= set(stored)
        assert not {n for n, error in enumerate(errors) if isinstance(error, StoreClosedError)} & set(stored)
        await again.close()

    run(body())


@pytest.mark.usefixtures("nothing_left")
def test_nothing_is_left_where_a_store_does_not_open(settings: KafkaSettings) -> None:
    async def body() -> None:
        await (await opened(settings)).close()
        with pytest.raises(OptionError):
            await opened(replace(settings, client={"nonsense": 1}))
        holder = await opened(settings)
        with pytest.raises(Exception, match="another job is running"):
            await opened(settings, job_id="job-2")
        await holder.close()

    run(body())


@pytest.mark.usefixtures("nothing_left")
def test_a_store_that_is_forgotten_gives_up_its_lease(settings: KafkaSettings) -> None:
    async def body() -> None:
        store = await opened(settings)
        await store.append(journal_in(settings, 0), [record()])
        del store
        gc.collect()
        second = await opened(settings, job_id="job-2")
        await second.close()

    run(body())
    gc.collect()


def test_close_waits_for_what_was_appended_and_refuses_the_rest(settings: KafkaSettings) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        store = await opened(settings)
        appending = [asyncio.ensure_future(store.append(journal, [record(0, n)])) for n in range(50)]
        reading = [asyncio.ensure_future(store.scan(journal)) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.gather(store.close(), store.close())
        errors = await asyncio.gather(*appending, return_exceptions=True)
        assert errors == [None] * 50
        read = await asyncio.gather(*reading, return_exceptions=True)
        assert all(isinstance(result, (list, StoreClosedError)) for result in read), read
        again = await opened(settings)
        await again.rebuild()
        assert indexes(await again.scan(journal)) == list(range(50))
        await again.close()

    run(body())


# -- brokers that are away ----------------------------------------------------------------


@pytest.fixture
def paused(kafka_broker: KafkaBroker) -> Iterator[KafkaBroker]:
    """The broker, which goes on in any case behind the test."""
    yield kafka_broker
    go_on(kafka_broker)


@each_case("seconds", [0.0, 0.2])
def test_a_producer_with_unsent_records_ends_its_thread(paused: KafkaBroker, seconds: float) -> None:
    producer: Any = KafkaProducer(**paused.client_options)
    producer.send("closing", b"1").get(timeout=60)
    paused.pause()
    try:
        producer.send("closing", b"2")
        with pytest.raises(KafkaTimeoutError):
            close_producer(producer, seconds)
    finally:
        paused.resume()
    wait_until(lambda: not producer._sender.is_alive())


@pytest.mark.nightly
def test_an_append_does_not_wait_for_ever(settings: KafkaSettings, paused: KafkaBroker) -> None:
    impatient = replace(settings, append_seconds=3.0)
    journals = [journal_in(settings, partition) for partition in range(settings.partitions)]

    async def body() -> None:
        store = await opened(impatient)
        for journal in journals:
            await store.append(journal, [record(0, 1)])
        paused.pause()
        # Of all partitions, which all wait together.
        errors = await asyncio.gather(
            *(store.append(journal, [record(0, 2)]) for journal in journals), return_exceptions=True
        )
        assert {type(error) for error in errors} == {AppendOutcomeUnknownError}
        with pytest.raises(StoreClosedError):
            await store.append(journals[0], [record(0, 3)])
        await store.close()
        paused.resume()
        again = await opened(settings)
        await again.rebuild()
        for journal in journals:
            assert indexes(await again.scan(journal)) in ([1], [1, 2])
        await again.close()

    run(body())


def test_a_pause_that_ends_is_no_error(settings: KafkaSettings, paused: KafkaBroker) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        store = await opened(settings)
        await store.append(journal, [record(0, 1)])
        paused.pause()
        appending = [asyncio.ensure_future(store.append(journal, [record(0, n)])) for n in range(2, 40)]
        done, _ = await asyncio.wait(appending, timeout=1.0)
        assert not done
        paused.resume()
        await asyncio.gather(*appending)
        assert indexes(await store.scan(journal)) == list(range(1, 40))
        await store.close()

    run(body())


@pytest.mark.nightly
def test_close_ends_while_no_broker_answers(settings: KafkaSettings, paused: KafkaBroker) -> None:
    impatient = replace(settings, append_seconds=2.0, rebuild_seconds=2.0)

    async def body() -> None:
        store = await opened(impatient)
        await store.append(journal_in(settings, 0), [record(0, 1)])
        paused.pause()
        appending = asyncio.ensure_future(store.append(journal_in(settings, 0), [record(0, 2)]))
        await asyncio.sleep(0)
        await store.close()
        assert appending.done()
        # It may have come through just before the broker stood still.
        assert isinstance(appending.exception(), (AppendOutcomeUnknownError, type(None)))
        paused.resume()

    run(body())


# kafka-python forgets the sockets of connections that were refused.
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_broker_that_is_killed_loses_nothing(settings: KafkaSettings, kafka_broker: KafkaBroker) -> None:
    """Twice, while all journals are appended to: what was called done is found, in order, once."""
    stored: dict[str, list[int]] = {f"s{number}": [] for number in range(20)}
    # A loaded machine takes its time to start a broker.
    patient = replace(settings, append_seconds=180.0, rebuild_seconds=180.0)

    async def flood(store: KafkaStore, key: str) -> None:
        for index in range(2**60):
            if ended.is_set():
                return
            await store.append(JournalKey("job", key), [record(0, index)])
            stored[key].append(index)

    async def more(count: int, floods: Sequence[asyncio.Future[None]]) -> None:
        expected = sum(map(len, stored.values())) + count
        while sum(map(len, stored.values())) < expected:
            done, _ = await asyncio.wait(floods, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()

    async def body() -> None:
        store = await opened(patient)
        floods = [asyncio.ensure_future(flood(store, key)) for key in stored]
        for _ in range(2):
            await more(200, floods)
            kafka_broker.kill()
            await asyncio.to_thread(kafka_broker.start)
        await more(20, floods)
        ended.set()
        await asyncio.gather(*floods)
        again = await opened(patient)
        await again.rebuild()
        for key, expected in stored.items():
            assert indexes(await again.scan(JournalKey("job", key))) == expected
        await store.close()
        await again.close()

    ended = threading.Event()
    try:
        run(body(), 360)
    finally:
        kafka_broker.start()
        go_on(kafka_broker)
        gc.collect()


def test_an_owner_is_refused_at_once_where_it_was_outranked_while_idle(settings: KafkaSettings) -> None:
    """The sign of life that it gives tells it, so that it sends nothing more."""

    async def body() -> None:
        old = await opened(settings)
        new = await opened(settings)
        writer = old._writer
        assert writer is not None
        while writer._failure is None:
            await asyncio.sleep(0.01)
        with pytest.raises(Exception, match="took over"):
            await old.append(journal_in(settings, 0), [record()])
        looked = KafkaStore(settings)
        await looked.open(None)
        assert await looked.journals() == []
        for store in (old, new, looked):
            await store.close()

    run(body())
