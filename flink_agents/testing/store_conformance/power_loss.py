"""Cases of power loss for stores in files: acknowledged appends, torn writes.

A suite takes part if its fixture ``store_files`` returns the directory of the files. The cases copy the files
while the store is open, as a loss of power would leave them, and open the copy. So they find bytes that are
still in the process when an append returns. They cannot see if the system has flushed its cache: the store
must also call ``os.fsync`` before that.
"""

# ruff: noqa: D102 - the names of cases describe them.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

import pytest

from flink_agents.api.action_state import JournalKey
from flink_agents.api.errors import StoreMismatchError
from flink_agents.testing.store_conformance.base import (
    JOURNAL,
    OTHER,
    Stores,
    SuiteBase,
    case,
    indexes,
    record,
)


def tear_files(previous_files: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Yield the files that a loss of power can leave between two copies.

    Args:
        previous_files: Content of the files before a write, by path.
        after: Content after it. Files that only grew may have a part of the new bytes: the rest is missing or
            zeros.
    """
    grown = {
        name: len(previous_files.get(name, b""))
        for name, data in after.items()
        if len(data) > len(previous_files.get(name, b"")) and data.startswith(previous_files.get(name, b""))
    }
    for part in (0.0, 0.01, 0.3, 0.6, 0.9, 1.0) if grown else ():
        cut = dict(after)
        filled = dict(after)
        for name, start in grown.items():
            size = len(after[name])
            end = min(start + ceil(part * (size - start)), size - 1)
            cut[name] = after[name][:end]
            filled[name] = cut[name] + bytes(size - end)
        yield cut
        yield filled


class PowerLossCases(SuiteBase):
    """Cases: a loss of power loses no acknowledged append."""

    @case
    async def test_acknowledged_records_survive_a_loss_of_power(self, stores: Stores) -> None:
        store = await stores.open()
        copies = [stores.files()]
        for n in range(4):
            await store.append(JOURNAL, [record(n, n), record(n, n + 100)])
            copies.append(stores.files())
        for runs, files in enumerate(copies):
            await stores.restore(files)
            again = await stores.open()
            expected = [index for n in range(runs) for index in (n, n + 100)]
            assert indexes(await again.scan(JOURNAL)) == expected

    @case
    async def test_acknowledged_removals_survive_a_loss_of_power(self, stores: Stores) -> None:
        store = await stores.open()
        forgotten_journal = JournalKey("gone", "skey")
        for journal in (JOURNAL, OTHER, forgotten_journal):
            await store.append(journal, [record(n, n) for n in range(4)])
        await store.prune(JOURNAL, 1)
        await store.forget("gone")
        await stores.restore(stores.files())
        again = await stores.open()
        assert await again.pruned_through(JOURNAL) == 1
        assert indexes(await again.scan(JOURNAL)) == [2, 3]
        assert indexes(await again.scan(OTHER)) == [0, 1, 2, 3]
        assert indexes(await again.scan(forgotten_journal)) == []

    @case
    async def test_a_torn_append_is_there_as_a_whole_or_not_at_all(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [record(0, 0, b"first" * 100)])
        previous_files = stores.files()
        await store.append(JOURNAL, [record(1, n, bytes([n]) * 1000) for n in (1, 2, 3)])
        for files in tear_files(previous_files, stores.files()):
            await stores.restore(files)
            again = await stores.open()
            stored_indexes = indexes(await again.scan(JOURNAL))
            assert stored_indexes in ([0], [0, 1, 2, 3]), stored_indexes
            # The rest of the torn append must not hide the next one.
            await again.append(JOURNAL, [record(2, 4)])
            assert indexes(await again.scan(JOURNAL)) == [*stored_indexes, 4]
            await again.close()
            assert indexes(await (await stores.open()).scan(JOURNAL)) == [*stored_indexes, 4]

    @case
    async def test_a_marker_of_another_store_is_rejected(self, stores: Stores) -> None:
        empty = stores.files()
        store = await stores.open()
        await store.append(JOURNAL, [record(0)])
        store_id = store.store_id
        marker = store.recovery_marker(JOURNAL)
        await stores.restore(empty)
        other_store = await stores.open()
        assert other_store.store_id != store_id
        with pytest.raises(StoreMismatchError):
            await other_store.rebuild(JOURNAL, marker)
