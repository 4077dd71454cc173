"""Old owners that go on appending, owners that die on their way, jobs that race: one history for all."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flink_agents.api.action_state import JournalKey, Owner
from flink_agents.api.errors import (
    AppendOutcomeUnknownError,
    FencedOwnerError,
    JobIdentifierInUseError,
)
from flink_agents.connectors.action_state.kafka.ownership.claims import Claims, ClaimsWriter
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.connectors.action_state.kafka.topics import find_topics
from tests.kafka.kafka_stores import (
    GROUP,
    indexes,
    journal_in,
    opened,
    record,
    run,
    wait_until,
)

ROOT = Path(__file__).parents[2]
ACKNOWLEDGED = 300

Run = tuple[str, int]


async def all_runs(settings: KafkaSettings) -> dict[Run, list[int]]:
    """What a new attempt finds."""
    store = await opened(settings)
    indexes_by_run: dict[Run, list[int]] = {}
    infos = await store.journals(limit=100_000)
    for info, records in zip(
        infos, await asyncio.gather(*(store.scan(info.journal) for info in infos)), strict=True
    ):
        for stored_record in records:
            indexes_by_run.setdefault((info.journal.key, stored_record.seq), []).append(stored_record.index)
    await store.close()
    return indexes_by_run


@contextmanager
def flooding(settings: KafkaSettings, file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that appends until it is refused."""
    script = str(Path(__file__).with_name("kafka_store_process.py"))
    arguments = [settings.bootstrap_servers, settings.topic, str(file)]
    with subprocess.Popen(
        [sys.executable, script, *arguments], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def noted(file: Path, what: str) -> set[Run]:
    lines = file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines() if file.exists() else []
    parts = [line.split("\t") for line in lines]
    return {(key, int(seq)) for kind, key, seq in parts if kind == what}


def test_an_attempt_in_another_process_goes_on(settings: KafkaSettings, tmp_path: Path) -> None:
    """What it was told to be stored is found, what it was refused is not, and nothing comes later."""
    file = tmp_path / "noted"
    for turn in range(2):
        with flooding(settings, file) as child:
            wanted = len(noted(file, "stored")) + ACKNOWLEDGED
            wait_until(lambda wanted=wanted: len(noted(file, "stored")) >= wanted)
            first = run(all_runs(settings))
            assert child.wait(60) == 0
        runs = run(all_runs(settings))
        stored = noted(file, "stored")
        refused = noted(file, "refused")
        assert stored <= set(first)
        assert stored == set(runs)
        assert runs == first
        assert len(refused) == 20 * (turn + 1)
        assert refused & set(runs) == set()
        assert {tuple(records) for records in runs.values()} == {(0, 1, 2)}


@pytest.mark.nightly
def test_attempts_take_over_again_and_again_while_all_append(settings: KafkaSettings) -> None:
    stored: set[Run] = set()
    refused: set[Run] = set()

    async def flood(store: KafkaStore, key: str) -> None:
        for seq in range(2**60):
            try:
                await store.append(JournalKey("job", key), [record(seq, 0), record(seq, 1)])
            except FencedOwnerError:
                refused.add((key, seq))
                return
            stored.add((key, seq))

    async def body() -> None:
        attempts: list[KafkaStore] = []
        floods: list[asyncio.Task[None]] = []
        for attempt in range(6):
            # One subtask, two, and one again: each attempt outranks all before it.
            attempts.append(await opened(settings, 0, 1 + attempt % 2))
            stored_count = len(stored)
            floods += [asyncio.create_task(flood(attempts[-1], f"{attempt} {number}")) for number in range(8)]
            while len(stored) < stored_count + 40:
                await asyncio.sleep(0)
        runs = await all_runs(settings)
        await asyncio.gather(*floods)
        assert await all_runs(settings) == runs
        assert set(runs) == stored
        assert refused & set(runs) == set()
        assert len(refused) == len(floods)
        await asyncio.gather(*(store.close() for store in attempts))

    run(body())


@contextmanager
def claimer(settings: KafkaSettings) -> Iterator[ClaimsWriter]:
    """What a store takes over with, for one that stops half way."""
    producer = settings.create_producer()
    try:
        yield ClaimsWriter(producer, find_topics(settings, create=False)[1], settings)
    finally:
        producer.close()


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("lease", [0.0, 0.2])
def test_an_owner_that_died_while_it_took_over(settings: KafkaSettings, lease: float) -> None:
    """The old one may not go on when its lease is over, and does not wait for ever; the next one begins."""
    impatient = replace(settings, append_seconds=2.0, append_lease_seconds=lease)
    journal = journal_in(settings, 0)
    stored: list[int] = []

    async def body() -> None:
        old = await opened(impatient)
        await old.append(journal, [record(index=-1)])
        with claimer(settings) as dead:
            await asyncio.to_thread(dead.write_claim, Owner.create("job-1", GROUP))
        with pytest.raises(AppendOutcomeUnknownError, match="makes no progress"):
            for index in range(2**60):
                await old.append(journal, [record(index=index)])
                stored.append(index)
        assert lease or not stored
        new = await opened(settings)
        await new.rebuild()
        await new.append(journal, [record(index=-2)])
        # The last one is stored as well, but nobody was told.
        assert indexes(await new.scan(journal)) == [-1, *stored, len(stored), -2]
        assert len((await new.stats()).owners) == 1
        await old.close()
        await new.close()

    run(body())


def test_the_next_owner_decides_for_one_that_died_while_it_took_over(settings: KafkaSettings) -> None:
    """A fence that comes late changes nothing any more."""
    journal = journal_in(settings, 0)

    async def body() -> None:
        old = await opened(replace(settings, append_lease_seconds=0.0))
        slow = Owner.create("job-1", GROUP)
        with claimer(settings) as half:
            await asyncio.to_thread(half.write_claim, slow)
            waiting = asyncio.create_task(old.append(journal, [record(index=1)]))
            while await asyncio.to_thread(_appended, settings) == 0:
                assert not waiting.done()
            new = await opened(settings)
            await waiting
            with pytest.raises(FencedOwnerError):
                await old.append(journal, [record(index=2)])
            await asyncio.to_thread(half.write_fence, slow, dict.fromkeys(range(settings.partitions), 0))
        newest = await opened(settings)
        for store in (new, newest):
            await store.rebuild()
            assert indexes(await store.scan(journal)) == [1]
        for store in (old, new, newest):
            await store.close()

    run(body())


def _appended(settings: KafkaSettings) -> int:
    """How many batches there are."""
    from tests.kafka.kafka_stores import batches

    return len(batches(settings))


def test_jobs_that_race(settings: KafkaSettings) -> None:
    """One of them wins, and the others leave it alone."""
    jobs = [f"job-{number}" for number in range(4)]

    async def body() -> None:
        outcomes = await asyncio.gather(
            *(opened(settings, job_id=job) for job in jobs), return_exceptions=True
        )
        won = [outcome for outcome in outcomes if isinstance(outcome, KafkaStore)]
        assert len(won) == 1
        assert {type(outcome) for outcome in outcomes} == {KafkaStore, JobIdentifierInUseError}
        await won[0].append(journal_in(settings, 0), [record()])
        assert len((await won[0].stats()).owners) == 1
        await won[0].close()
        await (await opened(settings, job_id="another")).close()

    run(body())


def test_an_owner_that_is_forgotten_while_it_took_over_blocks_another_job_for_its_lease(
    settings: KafkaSettings,
) -> None:
    async def body() -> None:
        await (await opened(settings)).close()
        with claimer(settings) as dead:
            await asyncio.to_thread(dead.write_claim, Owner.create("job-1", GROUP, 3, 5))
        second = await opened(settings, job_id="job-2")
        await second.append(journal_in(settings, 0), [record()])
        await second.close()

    run(body())


def test_foreign_records_among_the_claims_are_passed_over(settings: KafkaSettings) -> None:
    """What lies behind them in the same answer of the broker is not lost."""
    journal = journal_in(settings, 0)

    async def body() -> None:
        old = await opened(settings)
        await old.append(journal, [record(index=1)])
        with claimer(settings) as foreign:
            for kind in ("claim", "fence", "beat", "nonsense"):
                await asyncio.to_thread(foreign._write_record, kind, "somebody", 7)
            await asyncio.to_thread(foreign._write_record, "fence", old._owner.token if old._owner else "", 7)
        new = await opened(settings)
        await new.append(journal, [record(index=2)])
        with pytest.raises(FencedOwnerError):
            await old.append(journal, [record(index=3)])
        await new.rebuild()
        assert indexes(await new.scan(journal)) == [1, 2]
        await old.close()
        await new.close()

    run(body())


def test_many_claims_are_read_in_no_time(settings: KafkaSettings) -> None:
    """What an owner costs must not grow with the owners before it: seen by what is compared."""
    compared = 0

    class Counted(Owner):
        def outranks(self, other: Owner) -> bool:
            nonlocal compared
            compared += 1
            return super().outranks(other)

    run(_open_and_close(settings))
    claims = Claims(settings, find_topics(settings, create=False)[1])
    try:
        for attempt in range(200):
            for subtask in range(4):
                owner = Counted.create("job-1", GROUP, subtask, 4)
                at = 10 * (4 * attempt + subtask)
                claims._apply_claim(at, "claim", owner.token, ["job-1", GROUP, subtask, 4, 1.0])
                claims._by_token[owner.token].owner = owner
                claims._apply_claim(at + 1, "fence", owner.token, [[0, at]])
        assert len(list(claims.live_claims())) == 4
        compared = 0
        assert len(list(claims.live_claims())) == 4
        assert compared < 100
    finally:
        claims.close()


async def _open_and_close(settings: KafkaSettings) -> None:
    await (await opened(settings)).close()
