"""Cases about who may append: attempts, subtasks, rescaled jobs, and two jobs with one name."""

# ruff: noqa: D102 - the names of cases describe them.

from __future__ import annotations

import asyncio

import pytest

from flink_agents.api.action_state import (
    ActionStateStore,
    JournalKey,
    Owner,
)
from flink_agents.api.errors import FencedOwnerError, JobIdentifierInUseError, StoreClosedError
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


async def _may_append(store: ActionStateStore) -> bool:
    """Return True if an append is accepted; if it is rejected, nothing may be stored."""
    previous_count = len(await store.scan(OTHER))
    error = await outcome(store.append(OTHER, [record(0), record(1)]))
    assert error is None or isinstance(error, FencedOwnerError), error
    assert len(await store.scan(OTHER)) == previous_count + (2 if error is None else 0)
    return error is None


class OwnershipCases(SuiteBase):
    """Cases: only the present owners of a job may append."""

    @case
    async def test_an_attempt_ends_its_predecessor(self, stores: Stores) -> None:
        old = await stores.open()
        await old.append(JOURNAL, [record(index=1)])
        new = await stores.open()
        assert not await _may_append(old)
        assert await _may_append(new)
        assert indexes(await new.read(JOURNAL, 0)) == [1]

    @case
    async def test_only_the_last_of_many_attempts_may_append(self, stores: Stores) -> None:
        attempts = [await stores.open() for _ in range(4)]
        assert [await _may_append(store) for store in attempts] == [False, False, False, True]

    @case
    async def test_a_refused_attempt_stays_refused(self, stores: Stores) -> None:
        old = await stores.open()
        new = await stores.open()
        assert not await _may_append(old)
        await new.close()
        assert not await _may_append(old)

    @case
    async def test_an_attempt_is_ended_with_appends_on_their_way(self, stores: Stores) -> None:
        old = await stores.open()
        first = [
            asyncio.ensure_future(outcome(old.append(JOURNAL, [record(0, n), record(0, n)])))
            for n in range(40)
        ]
        await asyncio.sleep(0)
        new = await stores.open()
        second = [
            asyncio.ensure_future(outcome(old.append(JOURNAL, [record(0, n)]))) for n in range(100, 140)
        ]
        seen = indexes(await new.read(JOURNAL, 0))
        errors = await asyncio.gather(*first)
        assert {type(error) for error in errors} <= {type(None), FencedOwnerError}
        assert seen == [n for n, error in enumerate(errors) if error is None for _ in range(2)]
        assert {type(error) for error in await asyncio.gather(*second)} == {FencedOwnerError}
        assert indexes(await new.read(JOURNAL, 0)) == seen

    @case
    async def test_an_attempt_that_ended_prunes_nothing(self, stores: Stores) -> None:
        old = await stores.open()
        await old.append(JOURNAL, [record(0)])
        new = await stores.open()
        with pytest.raises(FencedOwnerError):
            await old.prune(JOURNAL, 0)
        assert len(await new.read(JOURNAL, 0)) == 1

    @case
    async def test_the_end_of_an_old_attempt_does_not_end_the_new_one(self, stores: Stores) -> None:
        old = await stores.open()
        new = await stores.open()
        await old.close()
        assert await _may_append(new)
        with pytest.raises(JobIdentifierInUseError):
            await stores.open(job_id="job-2")

    @case
    async def test_subtasks_work_side_by_side(self, stores: Stores) -> None:
        subtasks = [await stores.open(subtask, 3) for subtask in range(3)]
        assert [await _may_append(store) for store in subtasks] == [True, True, True]
        again = await stores.open(1, 3)
        assert [await _may_append(store) for store in subtasks] == [True, False, True]
        assert await _may_append(again)

    @case
    async def test_a_subtask_reads_what_another_one_wrote(self, stores: Stores) -> None:
        first = await stores.open(0, 2)
        second = await stores.open(1, 2)
        await first.append(JOURNAL, [record(index=1)])
        assert indexes(await second.read(JOURNAL, 0)) == [1]

    @case
    async def test_a_job_that_is_rescaled_ends_all_subtasks_of_before(self, stores: Stores) -> None:
        old = [await stores.open(subtask, 2) for subtask in range(2)]
        new = [await stores.open(0, 3)]
        assert [await _may_append(store) for store in old] == [False, False]
        new += [await stores.open(subtask, 3) for subtask in (1, 2)]
        assert [await _may_append(store) for store in new] == [True, True, True]

    @case
    async def test_a_job_that_is_rescaled_to_one(self, stores: Stores) -> None:
        old = [await stores.open(subtask, 3) for subtask in range(3)]
        new_store = await stores.open(0, 1)
        assert [await _may_append(store) for store in old] == [False, False, False]
        assert await _may_append(new_store)

    @case
    async def test_a_job_that_is_rescaled_there_and_back(self, stores: Stores) -> None:
        first = [await stores.open(subtask, 2) for subtask in range(2)]
        second = await stores.open(2, 3)
        third = [await stores.open(subtask, 2) for subtask in range(2)]
        assert [await _may_append(store) for store in (*first, second)] == [False, False, False]
        assert [await _may_append(store) for store in third] == [True, True]

    @case
    async def test_groups_do_not_touch_each_other(self, stores: Stores) -> None:
        groups = ["orders/agent", "orders/agent_1", "orders", "", "orders/agent\x00", "orders/\udcff"]
        opened = [await stores.open(group=group, job_id=f"job {group}") for group in groups]
        assert [await _may_append(store) for store in opened] == [True] * len(groups)

    @case
    async def test_a_second_job_is_refused_while_the_first_lives(self, stores: Stores) -> None:
        first = await stores.open(job_id="job-1")
        with pytest.raises(JobIdentifierInUseError, match="(?s)job-1.*job-2"):
            await stores.open(job_id="job-2")
        assert await _may_append(first)

    @case
    async def test_a_second_job_is_refused_whatever_its_parallelism(self, stores: Stores) -> None:
        first = await stores.open(1, 2)
        with pytest.raises(JobIdentifierInUseError):
            await stores.open(0, 3, job_id="job-2")
        assert await _may_append(first)

    @case
    async def test_a_second_job_may_begin_when_the_first_has_ended(self, stores: Stores) -> None:
        first = [await stores.open(subtask, 2) for subtask in range(2)]
        await first[0].append(JOURNAL, [record(index=1)])
        await first[0].close()
        with pytest.raises(JobIdentifierInUseError):
            await stores.open(job_id="job-2")
        await first[1].close()
        second = await stores.open(job_id="job-2")
        assert await _may_append(second)
        assert indexes(await second.read(JOURNAL, 0)) == [1]

    @case
    async def test_the_first_job_comes_back_when_the_second_has_ended(self, stores: Stores) -> None:
        first = await stores.open(job_id="job-1")
        await first.close()
        second = await stores.open(job_id="job-2")
        await second.close()
        assert await _may_append(await stores.open(job_id="job-1"))

    @case
    async def test_a_second_job_takes_over_from_one_that_died(self, stores: Stores) -> None:
        first = [await stores.open(subtask, 2) for subtask in range(2)]
        await first[0].append(JOURNAL, [record(index=1)])
        for store in first:
            await self.kill(store)
        second = await stores.open(job_id="job-2")
        assert await _may_append(second)
        assert indexes(await second.read(JOURNAL, 0)) == [1]

    @case
    async def test_an_attempt_does_not_wait_for_one_that_died(self, stores: Stores) -> None:
        first = await stores.open()
        await self.kill(first)
        assert await _may_append(await stores.open())

    @case
    async def test_who_only_looks_ends_nobody(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [record(0), record(1)])
        looking = await stores.open_for(None)
        assert await _may_append(store)
        assert len(await looking.scan(JOURNAL)) == 2
        assert looking.may_have(JOURNAL)
        assert looking.may_have(JournalKey("job", "snever"))
        with pytest.raises(StoreClosedError):
            await looking.append(JOURNAL, [record(2)])
        await looking.prune(JOURNAL, 0)
        assert await store.pruned_through(JOURNAL) == 0
        await looking.close()
        assert await _may_append(store)

    @case
    async def test_owners_are_listed(self, stores: Stores) -> None:
        owners = [Owner.create("job-1", "orders/agent", subtask, 2) for subtask in range(2)]
        opened = [await stores.open_for(owner) for owner in owners]
        assert set((await opened[0].stats()).owners) == set(owners)
        await opened[1].close()
        assert (await opened[0].stats()).owners == (owners[0],)
