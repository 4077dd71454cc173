"""Cases about stored content: names of journals, records, their order, bounds and sizes."""

# ruff: noqa: D102 - the names of cases describe them.

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from uuid import UUID

import pytest

from flink_agents.api.action_state import JournalKey, Record, RecordKind
from flink_agents.api.errors import RecordTooLargeError
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.testing.store_conformance.base import (
    JOURNAL,
    OTHER,
    Stores,
    SuiteBase,
    case,
    indexes,
    outcome,
    record,
)

_ODD_KEYS = [1, "1", 1.0, True, b"1", ("1",), (1,), None, Decimal(1), UUID(int=1), date(1, 1, 1), -1, 2**70]
_ODD_KEYS += ["", "a", "a_1", "_", "user_1", "A", "é", "e\u0301", "日本", "\U0001f600", "a\x00b", "\ud800"]
_ODD_TEXTS = ["", " ", "\x00", "a", "a\x00", "a\x00b", "a_1", "A", "%", "'", '"', "\\", "\n", "é", "e\u0301"]
_ODD_TEXTS += [
    "\udcff",
    "\ud83d\ude00",
    "\U0001f600",
    "x" * 10_000,
    "é" * 10_000,
    "null",
    "a/b",
    "a:b",
    "a,b",
]


async def _one_record_each(stores: Stores, journals: Sequence[JournalKey]) -> None:
    """Check that each of several journals keeps its own record, also in a store that is opened later."""
    store = await stores.open()
    for number, journal in enumerate(journals):
        await store.append(journal, [record(index=number)])
    for again in (store, await stores.open()):
        for number, journal in enumerate(journals):
            assert indexes(await again.scan(journal)) == [number], journal


class ContentCases(SuiteBase):
    """Cases: journals are separate, and records are stored as they are, in order."""

    @case
    async def test_each_key_has_its_own_journal(self, stores: Stores) -> None:
        await _one_record_each(stores, [JournalKey("job", encode_key(key)) for key in _ODD_KEYS])

    @case
    async def test_any_text_names_a_journal(self, stores: Stores) -> None:
        await _one_record_each(stores, [JournalKey("job", text) for text in _ODD_TEXTS])

    @case
    async def test_any_text_is_a_journal_id(self, stores: Stores) -> None:
        await _one_record_each(stores, [JournalKey(text, "skey") for text in _ODD_TEXTS])

    @case
    async def test_long_keys_that_differ_in_their_last_character(self, stores: Stores) -> None:
        await _one_record_each(stores, [JournalKey("job", "x" * 10_000 + end) for end in "abc"])

    @case
    async def test_journal_id_and_key_have_a_border(self, stores: Stores) -> None:
        pairs = [("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", ""), ("a\x00b", "c"), ("a", "b\x00c")]
        await _one_record_each(stores, [JournalKey(*pair) for pair in pairs])

    @case
    async def test_records_come_back_as_they_were(self, stores: Stores) -> None:
        store = await stores.open()
        records = [Record(kind, 0, "step", 7, bytes([kind])) for kind in RecordKind]
        records += [record(data=data) for data in (b"", b"\x00", bytes(range(256)), b"x" * 100_000)]
        records += [record(step=step) for step in _ODD_TEXTS]
        records += [record(index=index) for index in (-1, 0, 2**31, 2**63 - 1, -(2**63))]
        await store.append(JOURNAL, records)
        for again in (store, await stores.open()):
            stored_records = await again.read(JOURNAL, 0)
            assert stored_records == records
            assert {type(stored_record.kind) for stored_record in stored_records} == {RecordKind}
            assert {type(stored_record.data) for stored_record in stored_records} == {bytes}

    @case
    async def test_sequence_numbers_are_as_large_as_they_may_be(self, stores: Stores) -> None:
        store = await stores.open()
        numbers = [0, 2**31, 2**32, 2**53 + 1, 2**63 - 1]
        for seq in numbers:
            await store.append(JOURNAL, [record(seq)])
        assert [stored_record.seq for stored_record in await store.scan(JOURNAL)] == numbers
        assert len(await store.read(JOURNAL, 2**63 - 1)) == 1
        assert await store.read(JOURNAL, 2**53) == []

    @case
    async def test_numbers_out_of_range_are_refused(self, stores: Stores) -> None:
        store = await stores.open()
        for bad in (record(seq=-1), record(seq=2**63), record(index=2**63)):
            with pytest.raises(ValueError):
                await store.append(JOURNAL, [record(), bad])
        assert await store.scan(JOURNAL) == []

    @case
    async def test_a_run_is_in_the_order_of_its_appends(self, stores: Stores) -> None:
        store = await stores.open()
        for index in (5, 3, 9, 0, 3):
            await store.append(JOURNAL, [record(index=index)])
            await store.append(OTHER, [record(index=100 + index)])
        assert indexes(await store.read(JOURNAL, 0)) == [5, 3, 9, 0, 3]
        assert indexes(await store.read(OTHER, 0)) == [105, 103, 109, 100, 103]

    @case
    async def test_records_of_one_append_keep_their_order(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [record(index=index) for index in (4, 1, 3, 1, 2)])
        assert indexes(await store.read(JOURNAL, 0)) == [4, 1, 3, 1, 2]

    @case
    async def test_a_scan_is_by_run_and_then_in_the_order_of_appends(self, stores: Stores) -> None:
        store = await stores.open()
        for index, seq in enumerate([2, 0, 10, 1, 0, 2]):
            await store.append(JOURNAL, [record(seq, index)])
        for again in (store, await stores.open()):
            positions = [
                (stored_record.seq, stored_record.index) for stored_record in await again.scan(JOURNAL)
            ]
            assert positions == [(0, 1), (0, 4), (1, 3), (2, 0), (2, 5), (10, 2)]

    @case
    async def test_the_order_is_that_of_the_calls_while_none_has_returned(self, stores: Stores) -> None:
        store = await stores.open()
        await asyncio.gather(*(store.append(JOURNAL, [record(index=index)]) for index in range(100)))
        assert indexes(await store.read(JOURNAL, 0)) == list(range(100))

    @case
    async def test_many_journals_at_a_time(self, stores: Stores) -> None:
        store = await stores.open()
        journals = [JournalKey("job", f"i{number}") for number in range(10)]

        async def work(start: int) -> None:
            await store.append(
                journals[start % 10], [record(start // 20, start), record(start // 20, -start)]
            )

        await asyncio.gather(*map(work, range(100)))
        for again in (store, await stores.open()):
            for number, journal in enumerate(journals):
                mine = range(number, 100, 10)
                expected = [index for start in mine for index in (start, -start)]
                assert indexes(await again.scan(journal)) == expected

    @case
    async def test_an_append_can_be_read_as_soon_as_it_returns(self, stores: Stores) -> None:
        store = await stores.open()
        for index in range(50):
            await store.append(JOURNAL, [record(index=index)])
            assert indexes(await store.read(JOURNAL, 0)) == list(range(index + 1))

    @case
    async def test_readers_see_an_append_as_a_whole(self, stores: Stores) -> None:
        store = await stores.open()
        writing = asyncio.ensure_future(
            asyncio.gather(*(store.append(JOURNAL, [record(index=index)] * 3) for index in range(50)))
        )
        seen: list[int] = []
        while not writing.done():
            seen.append(len(await store.read(JOURNAL, 0)))
            await asyncio.sleep(0)
        await writing
        seen.append(len(await store.read(JOURNAL, 0)))
        assert {count % 3 for count in seen} == {0}
        assert seen[-1] == 150

    @case
    async def test_what_is_refused_is_refused_as_a_whole(self, stores: Stores) -> None:
        store = await stores.open()
        large = record(index=2, data=b"x" * (store.max_record_bytes + 1))
        with pytest.raises(RecordTooLargeError):
            await store.append(JOURNAL, [record(index=1), large, record(index=3)])
        assert await store.scan(JOURNAL) == []
        await store.append(JOURNAL, [record(index=4)])
        for again in (store, await stores.open()):
            assert indexes(await again.scan(JOURNAL)) == [4]

    @case
    async def test_what_is_refused_does_no_harm_to_others(self, stores: Stores) -> None:
        store = await stores.open()
        large = record(data=b"x" * (store.max_record_bytes + 1))
        errors = await asyncio.gather(
            *(
                outcome(store.append(JOURNAL, [large if index == 5 else record(index=index)]))
                for index in range(10)
            )
        )
        assert [type(error) for error in errors if error] == [RecordTooLargeError]
        assert indexes(await store.read(JOURNAL, 0)) == [0, 1, 2, 3, 4, 6, 7, 8, 9]

    @case
    async def test_an_append_of_nothing_stores_nothing(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [])
        assert await store.scan(JOURNAL) == []
        assert await store.journals() == []

    @case
    async def test_the_caller_may_change_its_list_behind_the_call(self, stores: Stores) -> None:
        store = await stores.open()
        records = [record(index=1)]
        appending = asyncio.ensure_future(store.append(JOURNAL, records))
        await asyncio.sleep(0)
        records.append(record(index=2))
        await appending
        records.clear()
        stored_records = await store.read(JOURNAL, 0)
        assert indexes(stored_records) == [1]
        stored_records.clear()
        assert indexes(await store.read(JOURNAL, 0)) == [1]

    @case
    async def test_where_nothing_was_recorded_nothing_is_found(self, stores: Stores) -> None:
        store = await stores.open()
        assert await store.read(JOURNAL, 0) == []
        await store.append(JOURNAL, [record(3)])
        assert await store.read(JOURNAL, 2) == []
        assert await store.read(JOURNAL, 4) == []
        assert await store.scan(OTHER) == []

    @case
    async def test_bounds_of_a_scan_are_included(self, stores: Stores) -> None:
        store = await stores.open()
        for seq in (1, 3, 5, 7):
            await store.append(JOURNAL, [record(seq), record(seq)])
        bounds = {
            (None, None): [1, 3, 5, 7],
            (0, None): [1, 3, 5, 7],
            (3, None): [3, 5, 7],
            (4, None): [5, 7],
            (8, None): [],
            (None, 5): [1, 3, 5],
            (None, 0): [],
            (3, 5): [3, 5],
            (3, 3): [3],
            (4, 4): [],
            (5, 3): [],
            (0, 2**63 - 1): [1, 3, 5, 7],
        }
        for (first, last), runs in bounds.items():
            sequence_numbers = [stored_record.seq for stored_record in await store.scan(JOURNAL, first, last)]
            assert sequence_numbers == [seq for seq in runs for _ in range(2)], (first, last)

    @case
    async def test_a_record_of_the_largest_size(self, stores: Stores) -> None:
        store = await stores.open()
        assert store.max_record_bytes >= 1024 * 1024
        largest = record(data=b"\xa5" * store.max_record_bytes)
        await store.append(JOURNAL, [largest])
        assert await store.read(JOURNAL, 0) == [largest]

    @case
    async def test_the_error_of_a_record_that_is_too_large_has_both_sizes(self, stores: Stores) -> None:
        store = await stores.open()
        limit = store.max_record_bytes
        with pytest.raises(RecordTooLargeError, match=rf"(?s){limit}.*{limit + 1}"):
            await store.append(JOURNAL, [record(data=b"x" * (limit + 1))])

    @case
    async def test_many_large_records_at_a_time(self, stores: Stores) -> None:
        store = await stores.open()
        data = [bytes([number]) * (store.max_record_bytes // 2) for number in range(6)]
        await asyncio.gather(*(store.append(JOURNAL, [record(index=0, data=content)]) for content in data))
        assert [
            stored_record.data == data[at] for at, stored_record in enumerate(await store.read(JOURNAL, 0))
        ] == [True] * 6
