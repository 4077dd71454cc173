"""The lease of an owner on a real broker, and the clock and the fence that it needs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flink_agents.api.action_state import Owner
from flink_agents.api.errors import (
    FencedOwnerError,
    JobIdentifierInUseError,
    OptionError,
    StoreUnavailableError,
)
from flink_agents.api.settings.stores import open_store
from flink_agents.connectors.action_state.kafka.ownership import lease as lease_module
from flink_agents.connectors.action_state.kafka.ownership.claims import Claims
from flink_agents.connectors.action_state.kafka.ownership.lease import Lease, clock_during_suspend
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.connectors.action_state.kafka.topics import find_topics
from flink_agents.connectors.action_state.kafka.writer import KafkaWriter
from tests.kafka.kafka_stores import GROUP, indexes, journal_in, opened, record, run, wait_until
from tests.kafka.test_kafka_store_owners import all_runs, flooding, noted

HOUR = 3600.0


def looks_of(store: KafkaStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where the looks of a store are noted: the thread that does each of them."""
    looks: list[str] = []
    writer = store._writer
    assert isinstance(writer, KafkaWriter)
    claims = writer._lease._claims
    refresh = claims.refresh

    def noted_refresh(seconds: float | None = None) -> None:
        looks.append(threading.current_thread().name)
        refresh(seconds)

    monkeypatch.setattr(claims, "refresh", noted_refresh)
    return looks


def lease_of(store: KafkaStore) -> Lease:
    writer = store._writer
    assert isinstance(writer, KafkaWriter)
    return writer._lease


# -- appends ------------------------------------------------------------------------------


def test_appends_with_a_lease_do_not_wait_for_looks(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        store = await opened(replace(settings, append_lease_seconds=HOUR))
        await asyncio.to_thread(wait_until, lease_of(store).covers)
        looks = looks_of(store, monkeypatch)
        for index in range(50):
            await store.append(journal_in(settings, 0), [record(index=index)])
        assert looks == []
        await store.close()

    run(body())


def test_looks_go_on_in_the_background_while_appends_come(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        store = await opened(replace(settings, append_lease_seconds=3.0, lease_seconds=HOUR))
        await asyncio.to_thread(wait_until, lease_of(store).covers)
        looks = looks_of(store, monkeypatch)
        index = 0
        while looks.count("store-lease") < 3:
            await store.append(journal_in(settings, 0), [record(index=index)])
            index += 1
        # Not by each append.
        assert len(looks) < index / 2
        await store.close()

    run(body())


def test_without_a_lease_each_append_looks(settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        store = await opened(replace(settings, append_lease_seconds=0.0, lease_seconds=HOUR))
        looks = looks_of(store, monkeypatch)
        for index in range(10):
            await store.append(journal_in(settings, 0), [record(index=index)])
        assert looks == ["store-writer"] * 10
        await store.close()

    run(body())


def test_a_lease_that_ran_out_costs_a_look_and_no_append(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that jumps, as behind a suspended machine."""

    async def body() -> None:
        store = await opened(replace(settings, append_lease_seconds=HOUR))
        await asyncio.to_thread(wait_until, lease_of(store).covers)
        looks = looks_of(store, monkeypatch)
        clock = lease_of(store)._clock
        lease_of(store)._clock = lambda: clock() + 2 * HOUR
        assert not lease_of(store).covers()
        await store.append(journal_in(settings, 0), [record()])
        assert looks
        assert indexes(await store.scan(journal_in(settings, 0))) == [0]
        await store.close()

    run(body())


# -- taking over --------------------------------------------------------------------------


def test_whoever_takes_over_waits_unless_the_lease_was_released(settings: KafkaSettings) -> None:
    """Of an hour, so that what does not wait is told from what does."""
    patient = replace(settings, append_lease_seconds=HOUR)
    journal = journal_in(settings, 0)

    async def body() -> None:
        for index in range(3):
            store = await opened(patient)
            await store.append(journal, [record(index=index)])
            await store.close()
        old = await opened(patient)
        new = asyncio.create_task(opened(settings))
        # While the new one waits, the old one may go on.
        while not (await asyncio.to_thread(lease_of(old).check_owner, 30.0)).undecided:
            await asyncio.sleep(0.01)
        await old.append(journal, [record(index=3)])
        assert not new.done()
        await old.close()
        reader = await new
        await reader.rebuild()
        assert indexes(await reader.scan(journal)) == [0, 1, 2, 3]
        await reader.close()

    run(body())


def test_an_owner_of_a_version_without_leases_is_not_awaited(settings: KafkaSettings) -> None:
    """Its fence names none. That of an owner that has one is understood by such a version."""
    old_settings = replace(settings, append_lease_seconds=0.0)

    async def body() -> None:
        old = await opened(old_settings)
        new = await opened(replace(settings, append_lease_seconds=HOUR))
        with pytest.raises(FencedOwnerError):
            await old.append(journal_in(settings, 0), [record()])
        claims = Claims(settings, find_topics(settings, create=False)[1])
        claims.refresh()
        fences = {claim.append_lease: claim.fence for claim in claims.of_group(GROUP)}
        claims.close()
        assert fences == dict.fromkeys((0.0, HOUR), dict.fromkeys(range(settings.partitions), 0))
        await old.close()
        await new.close()

    run(body())


def test_a_job_that_is_known_to_have_ended_is_not_awaited(settings: KafkaSettings) -> None:
    """Neither its lease nor that of its appends. A job that has not ended is still in use."""
    patient = replace(settings, append_lease_seconds=HOUR, lease_seconds=HOUR)
    journal = journal_in(settings, 0)

    async def body() -> None:
        old = await opened(patient)
        await old.append(journal, [record(index=0)])
        await asyncio.to_thread(wait_until, lease_of(old).covers)
        old.kill()
        new = KafkaStore(replace(patient, lease_seconds=1.0))
        await new.open(Owner.create("job-2", GROUP, ended_jobs=["job-0", "job-1"]))
        await new.append(journal, [record(index=1)])
        assert indexes(await new.scan(journal)) == [0, 1]
        with pytest.raises(JobIdentifierInUseError):
            await KafkaStore(settings).open(Owner.create("job-3", GROUP, ended_jobs=["job-1"]))
        await new.close()

    run(body())


def test_a_fence_by_one_that_does_not_wait_ends_a_lease(settings: KafkaSettings) -> None:
    """By an owner of a former version: what the old one has not heard of is told as soon as it looks."""
    from tests.kafka.test_kafka_store_owners import claimer

    async def body() -> None:
        old = await opened(replace(settings, append_lease_seconds=HOUR))
        with claimer(replace(settings, append_lease_seconds=0.0)) as former:
            owner = Owner.create("job-1", GROUP)
            await asyncio.to_thread(former.write_claim, owner)
            await asyncio.to_thread(former.write_fence, owner, dict.fromkeys(range(settings.partitions), 0))
        await asyncio.to_thread(lease_of(old).check_owner, 30.0)
        with pytest.raises(FencedOwnerError):
            await old.append(journal_in(settings, 0), [record()])
        await old.close()

    run(body())


def test_an_owner_that_is_stopped_notices_by_its_clock(settings: KafkaSettings, tmp_path: Path) -> None:
    """SIGSTOP amid appends, a new owner, SIGCONT: what was called done is found, nothing else comes."""
    file = tmp_path / "noted"
    for turn in range(3):
        with flooding(settings, file) as child:
            wanted = len(noted(file, "stored")) + 100
            wait_until(lambda wanted=wanted: len(noted(file, "stored")) >= wanted)
            os.kill(child.pid, signal.SIGSTOP)
            try:
                first = run(all_runs(settings))
            finally:
                os.kill(child.pid, signal.SIGCONT)
            assert child.wait(60) == 0
        runs = run(all_runs(settings))
        stored = noted(file, "stored")
        refused = noted(file, "refused")
        assert stored <= set(first)
        assert stored == set(runs)
        assert runs == first
        assert len(refused) == 20 * (turn + 1)
        assert refused & set(runs) == set()


# -- looks and clocks ---------------------------------------------------------------------


class FakeClaims:
    """Claims whose look takes as long as it is told, and may fail."""

    def __init__(self) -> None:
        self.look: Any = lambda: None
        self.closed = False

    def refresh(self, _: float) -> None:
        self.look()

    def void_from(self, _: str) -> dict[int, int]:
        return {}

    def is_undecided(self, _: str) -> bool:
        return False

    def is_lost(self, _: str) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def make_lease(claims: FakeClaims, seconds: float, clock: Any) -> Lease:
    untyped_claims: Any = claims
    return Lease(untyped_claims, "token", seconds, clock)


def test_a_look_that_takes_longer_than_the_lease_gives_none() -> None:
    at, claims = SimpleNamespace(now=0.0), FakeClaims()
    claims.look = lambda: setattr(at, "now", at.now + 1.5)
    lease = make_lease(claims, 1.0, lambda: at.now)
    assert lease.check_owner(5).is_free
    assert not lease.covers()
    claims.look = lambda: setattr(at, "now", at.now + 0.5)
    lease.check_owner(5)
    assert lease.covers()
    at.now += 0.5
    assert not lease.covers()


def test_a_look_that_fails_does_not_end_the_background() -> None:
    claims = FakeClaims()

    def fails() -> None:
        claims.look = lambda: None
        raise StoreUnavailableError("the claims cannot be read")

    claims.look = fails
    lease = make_lease(claims, HOUR, time.monotonic)
    lease.start()
    lease._next_check_at = 0.0
    while not lease.covers():
        lease._next_check_at = min(lease._next_check_at, 0.0)
        lease.note_append()
    lease.close(30)
    assert claims.closed


def test_the_clock_is_one_that_counts_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    number = getattr(time, "CLOCK_BOOTTIME", None)
    if number is not None:
        start_seconds = time.clock_gettime(number)
        assert start_seconds <= clock_during_suspend()() <= time.clock_gettime(number)

    def refuses(_: int) -> float:
        raise OSError("no such clock")

    monkeypatch.setattr(lease_module.time, "clock_gettime", refuses)
    assert clock_during_suspend() is time.monotonic


def test_the_length_of_the_lease_is_an_option() -> None:
    brokers = {"bootstrap-servers": "nowhere:1"}
    for options, seconds in (({}, 1.0), ({"append-lease": "250 ms"}, 0.25), ({"append-lease": "0 s"}, 0.0)):
        store = open_store("kafka", {**brokers, **options})
        assert isinstance(store, KafkaStore)
        assert store.settings.append_lease_seconds == seconds
        assert store.settings.lease_seconds == 10.0
    with pytest.raises(OptionError, match="append-lease"):
        open_store("kafka", {**brokers, "append-lease": "-1 s"})
