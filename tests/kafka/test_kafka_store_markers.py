"""Recovery markers of the store ``kafka``: what is read behind them, and which are no help."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from kafka.structs import TopicPartition

from flink_agents.api.action_state import Owner, Record
from flink_agents.api.errors import RecordsPrunedError, StoreMismatchError, StoreUnavailableError
from flink_agents.connectors.action_state.kafka.layout import Marker, pack_marker, unpack_marker
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from tests.kafka.kafka_stores import (
    GROUP,
    admin,
    delete_records,
    indexes,
    journal_in,
    opened,
    record,
    run,
)


def read_count(store: KafkaStore) -> int:
    """How many Kafka records it has read."""
    return store._scanner.records


async def of_one_run(store: KafkaStore, settings: KafkaSettings, indexes: range) -> None:
    """Append records of run 5, each in a batch of its own."""
    for index in indexes:
        await store.append(journal_in(settings, 0), [record(5, index)])


def test_behind_a_fresh_marker_only_the_tail_is_read(settings: KafkaSettings) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        first = await opened(settings)
        await of_one_run(first, settings, range(40))
        marker = first.recovery_marker(journal)
        await of_one_run(first, settings, range(40, 43))
        again = await opened(settings)
        await again.rebuild(journal, marker)
        assert read_count(again) == 3
        assert indexes(await again.scan(journal)) == [40, 41, 42]
        await again.rebuild(journal, marker)
        assert read_count(again) == 3
        await of_one_run(again, settings, range(43, 45))
        assert indexes(await again.scan(journal)) == [40, 41, 42, 43, 44]
        assert read_count(again) == 5
        await again.close()
        await first.close()

    run(body())


def test_keys_that_come_again_together_share_what_is_read(settings: KafkaSettings) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        first = await opened(settings)
        markers: list[bytes] = []
        for index in range(30):
            markers.append(first.recovery_marker(journal))
            await of_one_run(first, settings, range(index, index + 1))
        again = await opened(settings)
        read = again._scanner.read_from
        reads = []

        def counted(wanted: Mapping[int, int]) -> None:
            reads.append(wanted)
            read(wanted)

        again._scanner.read_from = counted
        await asyncio.gather(*(again.rebuild(journal, marker) for marker in reversed(markers)))
        # The first caller may be on its way before the others have asked.
        assert len(reads) <= 2
        assert indexes(await again.scan(journal)) == list(range(30))
        await again.close()
        await first.close()

    run(body())


def test_who_shared_what_could_not_be_read_reads_it_again(settings: KafkaSettings) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        first = await opened(settings)
        markers: list[bytes] = []
        for index in range(2):
            markers.append(first.recovery_marker(journal))
            await of_one_run(first, settings, range(index, index + 1))
        again = await opened(settings)
        read, failures = again._scanner.read_from, [StoreUnavailableError("the broker is away")]

        def failing_once(wanted: Mapping[int, int]) -> None:
            if failures:
                raise failures.pop()
            read(wanted)

        again._scanner.read_from = failing_once
        both_ask = threading.Event()
        again._threads.submit(both_ask.wait)
        rebuilt = asyncio.gather(
            *(again.rebuild(journal, marker) for marker in markers), return_exceptions=True
        )
        await asyncio.sleep(0.1)
        both_ask.set()
        error, nothing = await rebuilt
        assert isinstance(error, StoreUnavailableError) and nothing is None
        # Only of what was read it is known that there is nothing.
        assert not again.may_have(journal_in(settings, 0, 1), markers[1])
        await again.close()
        await first.close()

    run(body())


@pytest.mark.nightly(beyond=2)
@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0), (2, 0, 1), (0, 1, 2)])
def test_a_lower_marker_reads_the_missing_part_only(
    settings: KafkaSettings, order: tuple[int, int, int]
) -> None:
    """Records of one run lie on both sides of each border, and keep their order."""
    journal = journal_in(settings, 0)

    async def body() -> None:
        first = await opened(settings)
        markers = [first.recovery_marker(journal)]
        for part in range(3):
            await of_one_run(first, settings, range(10 * part, 10 * part + 10))
            markers.append(first.recovery_marker(journal))
        again = await opened(settings)
        lowest = 3
        for number in order:
            lowest = min(lowest, number)
            await again.rebuild(journal, markers[number])
            assert read_count(again) == 30 - 10 * lowest
            expected = list(range(10 * lowest, 30))
            assert indexes(await again.scan(journal)) == expected
        await again.close()
        await first.close()

    run(body())


def test_removals_on_both_sides_of_a_marker(settings: KafkaSettings) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        first = await opened(settings)
        for seq in range(4):
            await first.append(journal, [record(seq, seq)])
        await first.prune(journal, 0)
        marker = first.recovery_marker(journal)
        await first.append(journal, [record(4, 4)])
        await first.prune(journal, 1)
        await first.append(journal, [record(5, 5)])
        again = await opened(settings)
        await again.rebuild(journal, marker)
        assert indexes(await again.scan(journal)) == [4, 5]
        assert await again.pruned_through(journal) == 1
        await again.rebuild()
        assert indexes(await again.scan(journal)) == [2, 3, 4, 5]
        assert await again.pruned_through(journal) == 1
        await again.close()
        await first.close()

    run(body())


async def restored(
    settings: KafkaSettings, subtask: int, parallelism: int, restored_by: tuple[int, int]
) -> tuple[KafkaStore, bytes]:
    """A new attempt of a subtask, and a marker that another one made behind ten of thirteen records."""
    first = await opened(settings, subtask, parallelism)
    await of_one_run(first, settings, range(10))
    marker = first.recovery_marker(journal_in(settings, 0))
    await of_one_run(first, settings, range(10, 13))
    await first.close()
    return await opened(settings, *restored_by), marker


@pytest.mark.parametrize(("by", "helps"), [((0, 2), True), ((1, 2), False), ((0, 3), False), ((0, 1), False)])
def test_a_marker_helps_other_keys_of_the_same_subtask(
    settings: KafkaSettings, by: tuple[int, int], helps: bool
) -> None:
    journal, other_journal, new = (journal_in(settings, 0, number) for number in range(3))

    async def body() -> None:
        again, marker = await restored(settings, 0, 2, by)
        assert again.may_have(journal, marker, pending=False)
        await again.rebuild(journal, marker, pending=False)
        assert read_count(again) == 3
        assert again.may_have(other_journal, None, pending=True)
        assert again.may_have(other_journal, None, pending=False) is not helps
        await again.rebuild(other_journal, None, pending=False)
        assert read_count(again) == (3 if helps else 13)
        assert not again.may_have(new, None, pending=False)
        await again.rebuild(other_journal, None, pending=True)
        assert read_count(again) == 13
        assert indexes(await again.scan(journal)) == list(range(13))
        await again.close()

    run(body())


def test_a_key_without_inputs_that_wait_needs_nothing_before_its_subtasks_markers(
    settings: KafkaSettings,
) -> None:
    journal, other_journal = journal_in(settings, 0), journal_in(settings, 0, 1)

    async def body() -> None:
        first = await opened(settings)
        early = first.recovery_marker(other_journal)
        await first.append(other_journal, [record(0, 100)])
        await of_one_run(first, settings, range(10))
        marker = first.recovery_marker(journal)
        await first.append(other_journal, [record(1, 101)])
        again = await opened(settings)
        await again.rebuild(journal, marker, pending=False)
        await again.rebuild(other_journal, early, pending=False)
        assert read_count(again) == 1
        assert indexes(await again.scan(other_journal, 1)) == [101]
        await again.rebuild(other_journal, early, pending=True)
        assert indexes(await again.scan(other_journal)) == [100, 101]
        await again.close()
        await first.close()

    run(body())


def test_a_marker_of_this_attempt_bounds_nothing(settings: KafkaSettings) -> None:
    """It was made behind the checkpoint, so that records of other keys lie before it."""
    journal, other_journal = journal_in(settings, 0), journal_in(settings, 0, 1)

    async def body() -> None:
        first = await opened(settings)
        await first.append(other_journal, [record(0, 100)])
        again = await opened(settings)
        await again.append(journal, [record(0, 0)])
        await again.rebuild(journal, again.recovery_marker(journal), pending=False)
        assert again.may_have(other_journal, None, pending=False)
        await again.rebuild(other_journal, None, pending=False)
        assert again.may_have(other_journal, None, pending=False)
        assert indexes(await again.scan(other_journal)) == [100]
        await again.close()
        await first.close()

    run(body())


def test_what_a_former_owner_wrote_is_known_wherever_its_rights_end(settings: KafkaSettings) -> None:
    """Of several who outrank an owner, the first fence decides: it may lie behind one's own."""
    journal = journal_in(settings, 0)

    async def body() -> None:
        old = await opened(settings, 0, 2)
        slow = KafkaStore(settings)
        looked, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        opening = asyncio.create_task(slow.open(Owner.create("job-1", GROUP, 0, 3)))
        while not hasattr(slow, "_claims_writer"):
            await asyncio.sleep(0)
        fence = slow._claims_writer.write_fence

        def late(owner: Owner, ends: dict[int, int]) -> None:
            loop.call_soon_threadsafe(looked.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            fence(owner, ends)

        slow._claims_writer.write_fence = late
        await looked.wait()
        appending = asyncio.create_task(old.append(journal, [record(0, 7)]))
        while (await asyncio.to_thread(_end, settings)) == 0:
            pass
        quick = await opened(settings, 1, 3)
        await quick.rebuild()
        assert indexes(await quick.scan(journal)) == [7]
        await appending
        go_on.set()
        await opening
        await slow.rebuild()
        assert slow.may_have(journal)
        assert indexes(await slow.scan(journal)) == [7]
        newest = await opened(settings, 0, 1)
        await newest.rebuild()
        assert indexes(await newest.scan(journal)) == [7]
        for store in (old, quick, slow, newest):
            await store.close()

    run(body())


def _end(settings: KafkaSettings) -> int:
    """Where partition 0 ends."""
    consumer: Any = settings.create_consumer()
    try:
        return consumer.end_offsets([TopicPartition(settings.topic, 0)])[TopicPartition(settings.topic, 0)]
    finally:
        consumer.close()


def test_records_behind_a_marker_were_removed_by_somebody(settings: KafkaSettings) -> None:
    journal, idle = journal_in(settings, 0), journal_in(settings, 0, 1)

    async def body() -> None:
        first = await opened(settings)
        await of_one_run(first, settings, range(3))
        marker = first.recovery_marker(journal)
        await of_one_run(first, settings, range(3, 6))
        await first.close()
        await asyncio.to_thread(delete_records, settings, 0, 4)
        again = await opened(settings)
        with pytest.raises(RecordsPrunedError, match="(?s)offset 3.*offset 4"):
            await again.rebuild(journal, marker, pending=True)
        await again.rebuild(idle, marker, pending=False)
        assert await again.scan(idle) == []
        await again.append(idle, [record(0, 9)])
        assert indexes(await again.scan(idle)) == [9]
        assert indexes(await again.scan(journal)) == [4, 5]
        await again.close()

    run(body())


@pytest.mark.nightly(beyond=2)
@pytest.mark.parametrize("lost", [1, 7])
@pytest.mark.parametrize("pending", [True, False])
@pytest.mark.parametrize("first_read", [True, False])
def test_a_log_that_ends_before_a_marker(
    settings: KafkaSettings, lost: int, pending: bool, first_read: bool
) -> None:
    """Records that a leader without them has cut off; what is appended later may fill their offsets."""
    journal, other_journal = journal_in(settings, 0), journal_in(settings, 0, 1)

    async def body() -> None:
        first = await opened(settings)
        await of_one_run(first, settings, range(3))
        marker = first.recovery_marker(journal)
        await first.close()
        read = unpack_marker(marker)
        assert read is not None
        behind = pack_marker(read._replace(offset=read.offset + lost))
        again = await opened(settings)
        await of_one_run(again, settings, range(3, 3 + 2 * lost))
        if first_read:
            await again.rebuild()
        assert again.may_have(journal, behind, pending)
        with pytest.raises(RecordsPrunedError, match=f"(?s)offset {read.offset + lost}.*offset 3"):
            await again.rebuild(journal, behind, pending)
        await again.rebuild(journal, marker, pending)
        # Its own markers are made of what it appended since.
        await again.rebuild(other_journal, again.recovery_marker(other_journal), pending)
        await again.close()

    run(body())


def test_a_marker_of_a_topic_that_was_made_anew(settings: KafkaSettings) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        first = await opened(settings)
        marker = first.recovery_marker(journal)
        await first.close()
        with admin(settings) as client:
            client.delete_topics([settings.topic, settings.claims_topic])
        again = await opened(settings)
        for bad in (marker, b"", b"\x00", b"\xc1", pack_marker(_moved(again.recovery_marker(journal)))):
            assert again.may_have(journal, bad, pending=False)
            with pytest.raises(StoreMismatchError):
                await again.rebuild(journal, bad, pending=False)
        await again.rebuild()
        assert again.may_have(journal, marker)
        assert again.may_have(journal, b"")
        await again.close()

    run(body())


def _moved(marker: bytes) -> Marker:
    """The same in another partition."""
    read = unpack_marker(marker)
    assert read is not None
    return read._replace(partition=read.partition + 1)


def test_appends_side_by_side_do_not_pass_a_marker(settings: KafkaSettings) -> None:
    """A marker that is taken at any moment lies before all that is appended afterwards."""
    journals = [journal_in(settings, 0, number) for number in range(20)]

    async def body() -> None:
        store = await opened(settings)
        markers: list[bytes] = []

        async def work(number: int) -> None:
            for seq in range(5):
                marker = store.recovery_marker(journals[number])
                await store.append(journals[number], [record(seq, seq)])
                if seq == 3:
                    markers.append(marker)

        await asyncio.gather(*map(work, range(20)))
        for journal, marker in zip(journals, markers, strict=True):
            again = await opened(settings)
            await again.rebuild(journal, marker)
            records: list[Record] = await again.scan(journal, 3)
            assert indexes(records) == [3, 4]
            await again.close()
        await store.close()

    run(body())
