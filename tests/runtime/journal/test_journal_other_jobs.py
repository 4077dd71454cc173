"""Jobs that start from the state of another one: who owns which journals."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from other_jobs_tools import FIRST, MADE, SECOND, THIRD, Job, Make, close, made_by, open_, prune

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.errors import (
    AgentsError,
    FencedOwnerError,
    JobIdentifierInUseError,
    JobIdentifierMismatchError,
    RecordsPrunedError,
)
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.runtime.journal.other_jobs import GroupedStore
from flink_agents.runtime.loop import agent_loop
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing.harness import Snapshot
from tests.suite.factors import factors

pytestmark = pytest.mark.own_conditions


@pytest.fixture(autouse=True)
def begin() -> Iterator[None]:
    MADE.clear()
    yield
    open_()


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes stores that share their records."""
    if request.param == "memory":
        place = MemoryPlace()
        return lambda: MemoryStore(place)
    return lambda: SQLiteStore(tmp_path / "store.db", lease_seconds=0.5)


# -- a job beside another one ------------------------------------------------------------


PAIRS = [("production", "staging"), ("staging", "production"), (FIRST, "staging"), ("production", SECOND)]


@pytest.mark.parametrize(("old", "new"), PAIRS)
@pytest.mark.parametrize("goes_on", ["before", "after"])
def test_a_fork_and_its_origin_share_nothing_behind_the_savepoint(
    make: Make, old: str, new: str, goes_on: str
) -> None:
    with Job(make, old) as origin, Job(make, new, on_job_change="fork") as fork:
        origin.push("a")
        origin.start("slow b")
        savepoint = origin.harness.snapshot()

        def go_on() -> None:
            origin.go_on()
            assert origin.push("c") == [(f"c 1 by {old}", f"c 2 by {old}", 3)]

        if goes_on == "before":
            go_on()
        fork.restore(savepoint)
        # What was in flight is not repeated; what came behind the savepoint is the fork's own.
        second = f"slow b 2 by {old if goes_on == 'before' else new}"
        if goes_on == "before":
            assert fork.push("c") == [
                (f"slow b 1 by {old}", second, 2),
                (f"c 1 by {new}", f"c 2 by {new}", 3),
            ]
        if goes_on == "after":
            go_on()
            assert fork.push("c")[-1] == (f"c 1 by {new}", f"c 2 by {new}", 3)
        # Each goes on after a restart, whatever the other one has pruned.
        checkpoint = fork.harness.snapshot()
        prune(make, new, checkpoint)
        origin.restore(savepoint)
        origin.push("c")
        assert origin.harness.outputs[-1] == (f"c 1 by {old}", f"c 2 by {old}", 3)
        prune(make, old, origin.harness.snapshot())
        fork.restore(checkpoint)
        assert fork.push("d") == [(f"d 1 by {new}", f"d 2 by {new}", 4)]
    for job in (old, new):
        assert set(made_by(job).values()) <= {1}
    keys = {text: {key for _, call_text, key in MADE if call_text == text} for text in ("c 1", "c 2")}
    assert all(len(key_set) == 2 for key_set in keys.values()), "two effects with one idempotency key"


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_fork_decides_once_what_it_takes_over(make: Make, restarts: int) -> None:
    """Restarts before its first checkpoint find what the first attempt took over, and nothing later."""
    with Job(make, "production") as origin, Job(make, "staging", on_job_change="fork") as fork:
        origin.start("slow b")
        savepoint = origin.harness.snapshot()
        fork.restore(savepoint)
        first = fork.push("c")
        assert first[0] == ("slow b 1 by production", "slow b 2 by staging", 1)
        # From now on, all that it needs is in its own journal.
        [state] = fork.harness.snapshot().keys.values()
        assert state.head is not None and Head.unpack(state.head).origins == ()
        origin.go_on()
        origin.push("c")
        for _ in range(restarts):
            fork.restore(savepoint)
            assert fork.push("c") == first
    assert set(made_by("staging").values()) == {1}
    assert set(made_by("production").values()) == {1}


@pytest.mark.parametrize("committed", [1, 2])
def test_a_fork_that_committed_a_run_takes_nothing_over_any_more(
    make: Make, committed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its origin records for later inputs follows from runs that were other ones there."""
    inputs = ["a", "b", "c"]
    # The attempt ends while a call of it goes on, and waits no longer than it must.
    monkeypatch.setattr(agent_loop, "CANCEL_SECONDS", 0.1)
    fork_of = Job(make, "staging", on_job_change="fork", shutdown_grace="0 s")
    with Job(make, "production") as origin, fork_of as fork:
        close("production", "a 1")
        for text in inputs:
            origin.harness.push(text)
        savepoint = origin.harness.snapshot()
        close("staging", f"{inputs[committed]} 1")
        fork.restore(savepoint)
        while fork.harness.sequence_number() < committed:
            fork.harness.advance_time(1)
        checkpoint = fork.harness.snapshot()
        origin.go_on()
        fork.restore(checkpoint)
        open_("staging")
        fork.harness.run_until_idle()
        assert fork.harness.outputs == [
            (f"{text} 1 by staging", f"{text} 2 by staging", number)
            for number, text in enumerate(inputs, start=1)
        ]


def test_a_fork_goes_on_where_its_origin_has_pruned(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with Job(make, "production") as origin, Job(make, "staging", on_job_change="fork") as fork:
        origin.start("slow b")
        savepoint = origin.harness.snapshot()
        origin.go_on()
        prune(make, "production", origin.harness.snapshot())
        fork.restore(savepoint)
        assert fork.push("c")[0] == ("slow b 1 by staging", "slow b 2 by staging", 1)
    assert "start again" in caplog.text


def test_a_fork_may_have_a_store_of_its_own(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    place = MemoryPlace()
    with (
        Job(make, "production") as origin,
        Job(lambda: MemoryStore(place), "staging", on_job_change="fork") as fork,
    ):
        origin.push("a")
        origin.start("slow b")
        savepoint = origin.harness.snapshot()
        fork.restore(savepoint)
        assert fork.push("c")[-1] == ("c 1 by staging", "c 2 by staging", 3)
    assert "start again" in caplog.text


def test_a_run_that_is_taken_over_keeps_its_identity(make: Make) -> None:
    """Services know the idempotency keys of a recorded run, and its own ids stand in its records."""
    with Job(make, "production", True) as origin, Job(make, "staging", True, on_job_change="fork") as fork:
        origin.start("slow b")
        savepoint = origin.harness.snapshot()
        fork.restore(savepoint)
        outputs = fork.harness.run_until_idle()
        origin.go_on()
        fork.restore(savepoint)
        assert fork.harness.run_until_idle() == outputs
    # The second call was made by both, with the same key.
    assert len({(text, key) for _, text, key in MADE}) == 2


@pytest.mark.nightly(beyond=6)
@pytest.mark.parametrize("seed", range(12))
def test_two_jobs_from_one_savepoint_never_meet(make: Make, seed: int) -> None:
    """Whatever one does - records, prunes, restarts - the other one has only its own results."""
    chance = random.Random(seed)
    with Job(make, "production") as origin:
        origin.push("a")
        origin.start("slow b")
        savepoint = origin.harness.snapshot()
        origin.go_on()
        with (
            Job(make, "one", on_job_change="fork") as first_job,
            Job(make, "two", on_job_change="fork") as two,
        ):
            jobs = {job: savepoint for job in (first_job, two)}
            for job in jobs:
                job.restore(savepoint)
            jobs[origin] = origin.harness.snapshot()
            behind: dict[Job, list[str]] = {job: [] for job in jobs}
            for number in range(25):
                job = chance.choice(list(jobs))
                what = chance.choice(["push", "push", "restart", "checkpoint"])
                if what == "push":
                    behind[job].append(f"n{number}")
                    output = job.push(f"n{number}")[-1]
                    assert output[:2] == tuple(f"n{number} {call} by {job.name}" for call in (1, 2))
                elif what == "checkpoint":
                    jobs[job], behind[job] = job.harness.snapshot(), []
                    prune(make, job.name, jobs[job])
                else:
                    job.restore(jobs[job])
                    job.push(*behind[job])
            counts = [made_by(job.name) for job in jobs]
    assert all(set(count.values()) <= {1} for count in counts)


# -- jobs that are refused, and those that go on -----------------------------------------


NAMES = ["orders", "other", FIRST, SECOND]


@factors(old=NAMES, new=NAMES, pending=[False, True])
def test_a_job_goes_on_with_anothers_journals_only_as_its_successor(
    make: Make, old: str, new: str, pending: bool
) -> None:
    with Job(make, old) as former:
        former.push("a")
        if pending:
            former.start("slow b")
        savepoint = former.harness.snapshot()
        former.go_on()
        former.push("c")
    previous_calls = list(MADE)
    successor = old == new or len(old) == len(new) == 32
    with Job(make, new) as job:
        if successor:
            job.restore(savepoint)
            job.push("c")
            assert previous_calls == MADE
            return
        with pytest.raises(JobIdentifierMismatchError) as refused:
            job.restore(savepoint)
            job.push("c")
    text = str(refused.value)
    assert previous_calls == MADE
    for word in (old, "action-state.on-job-change", "'fork'", "'adopt'", "job-identifier", "FA6011"):
        assert word in text


@pytest.mark.parametrize(("old", "new"), [("orders", "other"), (FIRST, "other"), ("orders", SECOND)])
def test_a_job_goes_on_under_another_name_where_it_is_told_to(make: Make, old: str, new: str) -> None:
    with Job(make, old) as former:
        former.push("a")
        savepoint = former.harness.snapshot()
        former.push("b")
    previous_calls = list(MADE)
    with Job(make, new, on_job_change="adopt") as job:
        job.restore(savepoint)
        assert job.push("b") == [(f"b 1 by {old}", f"b 2 by {old}", 2)]
        assert previous_calls == MADE
        job.push("c")
        checkpoint = job.harness.snapshot()
        job.push("d")
        job.restore(checkpoint)
        assert job.push("d") == [(f"d 1 by {new}", f"d 2 by {new}", 4)]
    assert set(Counter(text for _, text, _ in MADE).values()) == {1}


@pytest.mark.parametrize("policy", ["fail", "adopt"])
def test_a_successor_is_refused_as_long_as_the_former_job_lives(make: Make, policy: str) -> None:
    with Job(make, FIRST) as former:
        former.push("a")
        savepoint = former.harness.snapshot()
        with Job(make, SECOND, on_job_change=policy) as job:
            job.restore(savepoint)
            with pytest.raises(JobIdentifierInUseError, match=r"(?s)job-identifier.*on-job-change"):
                job.push("b")
        assert former.push("b") == [(f"b 1 by {FIRST}", f"b 2 by {FIRST}", 2)]
    assert made_by(SECOND) == {}


def test_of_two_successors_one_is_refused(make: Make) -> None:
    with Job(make, FIRST) as former:
        former.push("a")
        savepoint = former.harness.snapshot()
    with Job(make, SECOND) as second, Job(make, THIRD) as third:
        second.restore(savepoint)
        third.restore(savepoint)
        second.push("b")
        with pytest.raises(JobIdentifierInUseError):
            third.push("b")
        second.push("c")
    # Nobody lives: the third goes on with what the second one did.
    with Job(make, THIRD) as third:
        third.restore(savepoint)
        third.push("b", "c", "d")
    assert set(Counter(text for _, text, _ in MADE).values()) == {1}
    assert made_by(THIRD) == {"d 1": 1, "d 2": 1}


def test_a_job_that_is_upgraded_again_and_again_repeats_nothing(make: Make) -> None:
    """Each submission without identifier has an id of its own, and new keys belong to it."""
    expected: list[Any] = []
    snapshot: Snapshot | None = None
    for number in range(5):
        with Job(make, f"{number}" * 32) as job:
            if snapshot is not None:
                job.restore(snapshot)
                # What came behind the checkpoint comes again.
                assert job.push(f"late {number - 1}") == expected
            job.push(f"new {number}")
            snapshot = job.harness.snapshot()
            expected = job.push(f"late {number}")
    assert set(Counter(text for _, text, _ in MADE).values()) == {1}


def test_a_former_attempt_cannot_record_for_a_job_that_was_succeeded() -> None:
    place = MemoryPlace()

    def make() -> MemoryStore:
        return MemoryStore(place)

    former = Job(make, FIRST)
    former.push("a")
    savepoint = former.harness.snapshot()
    # Its lease has run out, but it is not dead.
    place.owners = {token: (owner, lambda: None) for token, (owner, _) in place.owners.items()}  # type: ignore[misc]
    with Job(make, SECOND) as job:
        job.restore(savepoint)
        job.push("b")
        with pytest.raises(FencedOwnerError):
            former.push("c")
        job.push("c")
    former.harness.close()
    assert made_by(SECOND) == {"b 1": 1, "b 2": 1, "c 1": 1, "c 2": 1}


# -- the store of a successor ------------------------------------------------------------


def run(make: Make, act: Callable[[GroupedStore, GroupedStore], Any]) -> None:
    """Let two attempts of a job that succeeds another one meet."""

    async def meet() -> None:
        old, new = GroupedStore(make(), make), GroupedStore(make(), make)
        await old.open(Owner.create("job", "own"))
        try:
            await act(old, new)
        finally:
            await new.close()
            await old.close()

    asyncio.run(meet())


FORMER = JournalKey("former", "k")


def record(seq: int) -> list[Record]:
    return [Record(RecordKind.CALL, seq, "", 0, b"x")]


def test_a_stale_attempt_prunes_nothing_of_a_former_job(make: Make) -> None:
    """What it knows of checkpoints may be those of its successor, which has yet to claim that job."""

    async def act(old: GroupedStore, new: GroupedStore) -> None:
        for seq in range(3):
            await old.append(FORMER, record(seq))
        await old.prune(FORMER, 0)
        await new.open(Owner.create("job", "own"))
        for _ in range(2):
            with pytest.raises(FencedOwnerError):
                await asyncio.gather(*(old.prune(FORMER, 1) for _ in range(3)))
        await new.claim("former")
        await new.rebuild(FORMER)
        assert [stored_record.seq for stored_record in await new.scan(FORMER, 1)] == [1, 2]
        await new.prune(FORMER, 1)
        with pytest.raises(RecordsPrunedError):
            await new.scan(FORMER, 1)

    run(make, act)


def test_of_two_attempts_the_later_one_appends_to_the_journals_of_a_former_job(make: Make) -> None:
    async def act(old: GroupedStore, new: GroupedStore) -> None:
        await old.append(FORMER, record(0))
        await new.open(Owner.create("job", "own"))
        assert new.may_have(FORMER)
        await asyncio.gather(*(new.claim("former") for _ in range(5)))
        with pytest.raises(FencedOwnerError):
            await old.append(FORMER, record(1))
        await new.append(FORMER, record(1))
        assert [stored_record.seq for stored_record in await new.scan(FORMER)] == [0, 1]

    run(make, act)


def test_a_claim_that_is_refused_can_be_made_later(make: Make) -> None:
    async def act(old: GroupedStore, new: GroupedStore) -> None:
        holder = make()
        await holder.open(Owner.create("former job", "former"))
        with pytest.raises(AgentsError):
            await old.append(FORMER, record(0))
        await holder.close()
        await old.append(FORMER, record(0))

    run(make, act)
