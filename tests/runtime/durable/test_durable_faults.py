"""A crash at each step of calls and commits: what is repeated, and that nothing else differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from durable_tools import (
    EFFECTS,
    counted,
    crash,
    effect,
    effect_async,
    forget,
    journal,
    journal_keys,
    one_action,
)

from flink_agents import Agent, Event, InputEvent, OutputEvent
from flink_agents.api.action_state import JournalKey, RecordKind
from flink_agents.api.errors import FencedOwnerError, RecordsPrunedError, StoreError, StoreMismatchError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Choose, Fault, Faults

pytestmark = pytest.mark.executes_once

STEPS = 5


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


class Next(Event):
    number: int
    record: Any


async def first(event: InputEvent, ctx: Any) -> Event:
    return await one_step(ctx, 0, event.input)


async def following(event: Next, ctx: Any) -> Event:
    return await one_step(ctx, event.number, event.record)


async def one_step(ctx: Any, number: int, record: Any) -> Event:
    done = await ctx.durable_execute_async(effect_async, (record, number))
    ctx.short_term_memory.append("steps", list(done))
    if number < STEPS - 1:
        return Next(number=number + 1, record=record)
    return OutputEvent(output=(record, ctx.short_term_memory.get("steps")))


async def five_calls(event: InputEvent, ctx: Any) -> Event:
    for number in range(STEPS):
        done = await ctx.durable_execute_async(effect, (event.input, number))
        ctx.short_term_memory.append("steps", list(done))
    return OutputEvent(output=(event.input, ctx.short_term_memory.get("steps")))


def five_blocking(event: InputEvent, ctx: Any) -> Event:
    for number in range(STEPS):
        done = ctx.durable_execute(effect, (event.input, number))
        ctx.short_term_memory.append("steps", list(done))
    return OutputEvent(output=(event.input, ctx.short_term_memory.get("steps")))


def chain() -> Agent:
    return Agent(name="chain").add_action("first", [InputEvent], first).add_action("next", [Next], following)


AGENTS: dict[str, Callable[[], Agent]] = {
    "chain": chain,
    "calls": lambda: Agent(name="calls").add_action("act", [InputEvent], five_calls),
    "blocking": lambda: Agent(name="blocking").add_action("act", [InputEvent], five_blocking),
}
INPUTS = ["a", "b"]
ALL = [(record, number) for record in INPUTS for number in range(STEPS)]


def expected(name: str) -> Any:
    with OperatorHarness(AGENTS[name]()) as harness:
        harness.push_all(INPUTS)
        result = harness.outputs, harness.memory()
    forget()
    return result


def nth(kind: RecordKind, number: int, fault: Fault) -> Choose:
    """The fault at the record of that kind with that number, counted over all runs."""
    seen: list[int] = []

    def choose(asked: int, where: JournalKey, records: Any) -> Fault | None:
        previous_count = len(seen)
        seen.extend(record.seq for record in records if record.kind is kind)
        return fault if previous_count <= number < len(seen) else None

    return choose


@pytest.mark.parametrize("fault", [fault for fault in Fault if not fault.hangs])
@pytest.mark.parametrize("name", [*AGENTS])
def test_a_crash_at_each_record_of_a_call(name: str, fault: Fault) -> None:
    outputs, memory = expected(name)
    for number, call in enumerate(ALL):
        forget()
        faults = Faults(nth(RecordKind.CALL, number, fault))
        with OperatorHarness(AGENTS[name](), store=faults.store) as harness:
            snapshot = harness.snapshot()
            with crash():
                harness.push_all(INPUTS)
            assert EFFECTS == ALL[: number + 1]
            harness.restore(snapshot)
            harness.push_all(INPUTS)
            assert (harness.outputs, harness.memory()) == (outputs, memory)
        # Only the effect whose record was not stored is repeated: it was in the window.
        assert counted() == {
            recorded_call: 2 if recorded_call == call and not fault.stores else 1 for recorded_call in ALL
        }


@pytest.mark.parametrize("fault", [fault for fault in Fault if not fault.hangs])
@pytest.mark.parametrize("name", [*AGENTS])
def test_a_crash_at_each_record_of_an_action(name: str, fault: Fault) -> None:
    outputs, memory = expected(name)
    actions = len(INPUTS) * (STEPS if name == "chain" else 1)
    for number in range(actions):
        forget()
        faults = Faults(nth(RecordKind.ACTION, number, fault))
        with OperatorHarness(AGENTS[name](), store=faults.store) as harness:
            snapshot = harness.snapshot()
            with crash():
                harness.push_all(INPUTS)
            harness.restore(snapshot)
            harness.push_all(INPUTS)
            assert (harness.outputs, harness.memory()) == (outputs, memory)
        assert EFFECTS == ALL


@pytest.mark.parametrize("fault", [Fault.HANGS, Fault.HANGS_STORED])
@pytest.mark.parametrize("name", [*AGENTS])
def test_an_attempt_that_dies_while_it_appends(name: str, fault: Fault) -> None:
    outputs, memory = expected(name)
    for number in (0, 3, 7):
        forget()
        faults = Faults(nth(RecordKind.CALL, number, fault))
        config = {"action-state.shutdown-grace": "0 s"}
        with OperatorHarness(AGENTS[name](), store=faults.store, auto_run=False, config=config) as harness:
            snapshot = harness.snapshot()
            harness.push_all(INPUTS)
            assert faults.hanging.wait(30)
            harness.restore(snapshot)
            harness.push_all(INPUTS)
            harness.run_until_idle()
            assert (harness.outputs, harness.memory()) == (outputs, memory)
        assert counted() == {
            recorded_call: 2 if recorded_call == ALL[number] and not fault.stores else 1
            for recorded_call in ALL
        }


@pytest.mark.parametrize("name", [*AGENTS])
def test_a_crash_behind_each_commit_from_each_checkpoint(name: str) -> None:
    outputs, memory = expected(name)
    with OperatorHarness(AGENTS[name]()) as harness:
        snapshots = [harness.snapshot()]
        for record in INPUTS:
            harness.push(record)
            snapshots.append(harness.snapshot())
        for first_again, snapshot in enumerate(snapshots):
            harness.restore(snapshot)
            harness.push_all(INPUTS[first_again:])
            assert (harness.outputs, harness.memory()) == (outputs, memory)
    assert EFFECTS == ALL


# -- restores ---------------------------------------------------------------------------


def by_record(record: str) -> str:
    return record


def test_a_restore_from_before_the_first_checkpoint_repeats_nothing() -> None:
    faults = Faults()
    with OperatorHarness(chain(), store=faults.store) as harness:
        harness.push_all(INPUTS)
        outputs = harness.outputs
    # A new operator, without any state, of the same job.
    with OperatorHarness(chain(), store=faults.store) as harness:
        assert harness.push_all(INPUTS) == outputs
    assert EFFECTS == ALL


def test_a_restore_behind_what_was_pruned_is_an_error_before_any_effect() -> None:
    faults = Faults()
    with OperatorHarness(chain(), store=faults.store) as harness:
        first_snapshot = harness.snapshot()
        harness.push("a")
        second_snapshot = harness.snapshot()
        harness.push("b")
        outputs = list(harness.outputs)
        (key,) = journal_keys(faults)
        harness.restore(second_snapshot)
        prune(faults, key, 0)
        harness.push("b")
        assert harness.outputs == outputs
        effects = list(EFFECTS)
        harness.restore(first_snapshot)
        with pytest.raises(RecordsPrunedError, match="pruned"):
            harness.push("a")
        assert effects == EFFECTS == ALL


def prune(faults: Faults, key: JournalKey, through: int) -> None:
    import asyncio

    async def do() -> None:
        store = faults.store()
        await store.open(None)
        await store.prune(key, through)

    asyncio.run(do())


def test_recorded_runs_are_found_after_a_change_of_parallelism() -> None:
    keys = [f"key{number}" for number in range(12)]
    agent = Agent(name="scaled").add_action("act", [InputEvent], five_calls)
    with OperatorHarness(agent, by_record, parallelism=2) as harness:
        snapshot = harness.snapshot()
        harness.push_all(keys)
        outputs = sorted(harness.outputs)
        for parallelism in (3, 1):
            harness.restore(snapshot, parallelism)
            harness.push_all(keys)
            assert sorted(harness.outputs) == outputs
    assert set(counted().values()) == {1} and len(EFFECTS) == STEPS * len(keys)


def test_another_job_uses_nothing_of_an_old_one() -> None:
    faults = Faults()
    for job in ("one", "two"):
        with OperatorHarness(chain(), store=faults.store, config={"job-identifier": job}) as harness:
            harness.push_all(INPUTS)
    assert EFFECTS == ALL * 2
    assert len(journal_keys(faults)) == 2


# -- owners -----------------------------------------------------------------------------


def test_a_stale_attempt_cannot_record_anything() -> None:
    faults = Faults()
    old = OperatorHarness(chain(), store=faults.store, forced_replay=False, forced_restart=False)
    old.push("a")
    new = OperatorHarness(chain(), store=faults.store)
    previous_journal = journal(faults)
    with pytest.raises(FencedOwnerError):
        old.push("b")
    assert journal(faults) == previous_journal
    # Its effect was in the window; the new attempt does it again, and is not disturbed.
    assert new.push_all(INPUTS) == new.outputs
    assert len(new.outputs) == 2
    assert counted()["b", 0] == 2 and counted()["a", 0] == 1
    with pytest.raises(StoreError):
        old.push("c")
    old.close()
    new.push("d")
    new.close()


def test_state_of_another_store_is_refused() -> None:
    """What its runs did would be done again."""

    def act(event: InputEvent, ctx: Any) -> None:
        ctx.durable_execute(effect, event.input)

    with OperatorHarness(one_action(act), store=Faults().store) as harness:
        harness.push("first")
        checkpoint = harness.snapshot()
    with OperatorHarness(one_action(act), store=Faults().store) as harness:
        with pytest.raises(StoreMismatchError, match="another store"):
            harness.restore(checkpoint)
            harness.push("second")
    assert EFFECTS == ["first"]
