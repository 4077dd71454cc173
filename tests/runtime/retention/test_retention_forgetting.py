"""State forgets keys that have nothing left to do, and none of their identities comes again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

import pytest
from durable_tools import forget, one_action

from flink_agents import Event, OutputEvent, RunnerContext
from flink_agents.api.action_state import JournalKey, RecordKind
from flink_agents.api.durable import Prune
from flink_agents.api.events.key_requests import ERASE
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.journal.records import RunHeader
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.operator.assembly import OperatorHost
from flink_agents.runtime.operator.services.cleanup import ANSWER_MS, IdleKeyExpiry
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness
from flink_agents.testing.fakes.state import KeyState
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.tables import each_case

# What the store answers is found by the attempt that asked; where each timer ends it, there is no answer.
pytestmark = pytest.mark.executes_once

AFTER = 10_000
CONFIG = {"state.idle-key-ttl": "10 s"}
KEYS: list[str] = []
"""Idempotency keys of calls that had an effect outside."""


@pytest.fixture(autouse=True)
def _begin() -> Iterator[None]:
    forget()
    KEYS.clear()
    yield


def charge(value: Any, *, idempotency_key: str) -> str:
    KEYS.append(idempotency_key)
    return idempotency_key


async def charge_async(value: Any, *, idempotency_key: str) -> str:
    return charge(value, idempotency_key=idempotency_key)


def plain(event: Event, ctx: RunnerContext) -> Event:
    return OutputEvent(output=[event.id, str(ctx.uuid4()), ctx.random().random(), ctx.sequence_number])


async def awaited(event: Event, ctx: RunnerContext) -> Event:
    return plain(event, ctx)


def durable(event: Any, ctx: Any) -> Event:
    key = ctx.durable_execute(charge, event.input[1])
    return OutputEvent(output=[event.id, str(ctx.uuid4()), ctx.random().random(), ctx.sequence_number, key])


async def durable_async(event: Any, ctx: Any) -> Event:
    key = await ctx.durable_execute_async(charge_async, event.input[1])
    return OutputEvent(output=[event.id, str(ctx.uuid4()), ctx.random().random(), ctx.sequence_number, key])


ACTIONS = [plain, awaited, durable, durable_async]


class World:
    """A harness, and the store beside it, which is pruned as Flink's checkpoints allow it."""

    def __init__(self, act: Callable[..., Any], config: dict[str, Any] | None = None) -> None:
        self.place = MemoryPlace()
        store: dict[str, Any] = {}
        if act in (durable, durable_async, remember_and_pay):
            store["store"] = lambda: MemoryStore(self.place)
        self.harness = OperatorHarness(
            one_action(act), lambda pair: pair[0], config={**CONFIG, **(config or {})}, **store
        )

    def push(self, key: str, payload: Any = 1) -> Any:
        output_count = len(self.harness.outputs)
        self.harness.push((key, payload))
        return self.harness.outputs[output_count]

    def head(self, key: str) -> Head | None:
        packed = self.harness.state(key).head
        return None if packed is None else Head.unpack(packed)

    def prune(self) -> None:
        """Prune what is committed, as where the only checkpoint that is retained was just taken."""
        for journal in list(self.place.journals):
            packed = self.harness.snapshot().keys.get(journal.key)
            if packed is not None and packed.head is not None:
                self.place.prune(journal, Head.unpack(packed.head).next_seq - 1, 10**6)

    def runs(self, key: str) -> list[int]:
        journals = [journal for name, journal in self.place.journals.items() if name.key == encode_key(key)]
        return sorted(seq for journal in journals for seq in journal.runs)

    def replayed(self) -> set[JournalKey]:
        """The keys whose records the present attempt has replayed."""
        journals = [subtask.shared.journals for subtask in self.harness._subtasks]
        return {
            key
            for journals_of_subtask in journals
            if journals_of_subtask is not None
            for key in journals_of_subtask._replayed.journals
        }

    def pass_time(self) -> None:
        """Let so much time pass that all keys that can be are forgotten, with their stores' answers."""
        self.harness.advance_time(2 * AFTER)
        for subtask in self.harness._subtasks:
            forgetting = subtask.processor.features.idle_keys
            assert isinstance(forgetting, IdleKeyExpiry)
            wait(forgetting._asked.values(), 30)
        self.harness.advance_time(ANSWER_MS)

    def forget(self, *keys: str) -> None:
        self.prune()
        self.pass_time()
        assert not any(self.head(key) for key in keys)


@pytest.mark.parametrize("act", ACTIONS)
@pytest.mark.parametrize("inline", [True, False])
def test_a_key_that_comes_again_has_new_identities(act: Any, inline: bool) -> None:
    world = World(act, {"run.inline": inline})
    seen = [world.push("a", payload) for payload in (1, 1, 2)]
    for _ in range(4):
        world.forget("a")
        seen += [world.push("a", payload) for payload in (1, 1, 2)]
    for position in range(len(seen[0])):
        values = [identities[position] for identities in seen]
        assert len(set(values)) == len(seen), f"{values} has some twice"
    assert len(KEYS) == len(set(KEYS))
    numbers = [identities[3] for identities in seen]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("act", ACTIONS)
def test_without_the_option_heads_stay_and_numbers_begin_at_0(act: Any) -> None:
    world = World(act)
    world.harness = OperatorHarness(one_action(act), lambda pair: pair[0])
    assert [world.push("a")[3] for _ in range(3)] == [0, 1, 2]
    world.harness.advance_time(10**9)
    assert world.head("a") is not None
    assert world.push("a")[3] == 3


def test_a_key_that_comes_often_stays() -> None:
    world = World(plain)
    first = world.push("a")[3]
    for turn in range(1, 50):
        world.harness.advance_time(AFTER - 1000)
        assert world.push("a")[3] == first + turn
        assert len(world.harness.state("a").processing_timers) <= 10


async def remember(event: Any, ctx: Any) -> Event:
    ctx.short_term_memory.set("seen", event.input[1])
    return OutputEvent(output=ctx.sequence_number)


def test_a_key_with_memory_stays() -> None:
    world = World(remember)
    first = world.push("a")
    world.harness.advance_time(100 * AFTER)
    assert world.harness.memory("a")
    assert world.push("a") == first + 1


def test_a_key_goes_when_its_memory_has_expired() -> None:
    world = World(remember, {"memory.short-term.ttl": "60 s"})
    world.push("a")
    world.harness.advance_time(3 * AFTER)
    assert world.head("a") is not None
    world.harness.advance_time(10 * AFTER)
    assert world.head("a") is None


async def remember_objects(event: Any, ctx: Any) -> None:
    ctx.short_term_memory.set("order.items.first", event.input[1])
    ctx.short_term_memory.set("seen", 1)


async def remember_and_delete(event: Any, ctx: Any) -> None:
    ctx.short_term_memory.set("order", event.input[1])
    ctx.short_term_memory.delete("order")


async def remember_and_sleep(event: Any, ctx: Any) -> None:
    ctx.short_term_memory.set("order", event.input[1])
    await ctx.sleep(1)


async def remember_and_pay(event: Any, ctx: Any) -> None:
    ctx.short_term_memory.set("order", await ctx.durable_execute_async(charge_async, event.input[1]))


WRITERS = [
    *(remember, remember_objects, remember_and_delete, remember_and_sleep, remember_and_pay),
    *(plain, awaited),
]


@each_case("ttl", ["1 s", "10 s", "60 s"])
@each_case("act", WRITERS)
def test_a_key_that_is_forgotten_leaves_nothing_in_any_state(act: Any, ttl: str) -> None:
    """A map of expired entries is empty when it is read, and stays in Flink's heap nevertheless."""
    world = World(act, {"memory.short-term.ttl": ttl})
    for _ in range(3):
        world.harness.push_all([("a", 1), ("b", 1), ("a", 2)])
        for _ in range(6):
            world.prune()
            world.pass_time()
        for key in ("a", "b"):
            state = world.harness.state(key)
            # One timer of any key shows the end of the input of all keys.
            assert replace(state, event_timers=set(), processing_timers=set()) == KeyState(), key


@each_case("expired", [False, True])
def test_erasing_a_key_leaves_no_map_of_its_memory(expired: bool) -> None:
    with OperatorHarness(
        one_action(remember_objects), lambda pair: pair[0], config={"memory.short-term.ttl": "60 s"}
    ) as harness:
        harness.push(("a", 1))
        harness.advance_time(61_000 if expired else 0)
        harness.signal("a", ERASE, {})
        harness.run_until_idle()
        assert harness.state("a").memory == {}


@pytest.mark.parametrize("act", [durable, durable_async])
def test_a_key_stays_as_long_as_the_store_has_its_records(act: Any) -> None:
    world = World(act)
    first = world.push("a")[3]
    for _ in range(3):
        world.pass_time()
    assert world.head("a") is not None
    assert world.push("a")[3] == first + 1
    world.prune()
    world.pass_time()
    assert world.head("a") is None


@pytest.mark.parametrize("act", [durable, durable_async])
def test_a_key_that_is_forgotten_leaves_no_note_of_its_replay(act: Any) -> None:
    world = World(act)
    start = world.harness.snapshot()
    first = world.push("a")
    world.harness.restore(start)
    assert world.push("a") == first
    assert world.replayed()
    world.forget("a")
    assert not world.replayed()
    assert world.push("a")[3] > first[3]


async def durable_or_quiet(event: Any, ctx: Any) -> None:
    if event.input[1]:
        await ctx.durable_execute_async(charge_async, event.input[1])


def test_a_key_stays_as_long_as_an_overtaken_run_waits_for_its_input() -> None:
    """Also if no store is asked, since none of its committed runs has recorded anything."""
    place = MemoryPlace()
    options: dict[str, Any] = {"store": lambda: MemoryStore(place)}
    options["config"] = {**CONFIG, "action-state.reorder-timeout": "0 s"}
    with OperatorHarness(one_action(durable_or_quiet), lambda pair: pair[0], **options) as harness:
        snapshot = harness.snapshot()
        harness.push(("a", 1))
        harness.restore(snapshot)
        harness.push(("a", 0))
        harness.advance_time(10 * AFTER)
        packed = harness.state("a").head
        assert packed is not None and len(Head.unpack(packed).skipped) == 1
        harness.push(("a", 1))
        assert len(KEYS) == 1


@pytest.mark.parametrize("act", [durable, durable_async])
@pytest.mark.parametrize("payload", [1, 2], ids=["the same input", "another input"])
def test_a_restore_from_before_the_removal_finds_the_identities_of_before(act: Any, payload: int) -> None:
    world = World(act)
    world.push("a")
    world.prune()
    snapshot = world.harness.snapshot()
    world.forget("a")
    came_again = world.push("a", payload)
    world.push("a", 3)
    # The process dies before a checkpoint has the removal.
    time_of_death = world.harness.current_time
    world.harness.restore(snapshot)
    world.harness.advance_time(max(0, time_of_death - world.harness.current_time))
    assert world.push("a", payload) == came_again
    world.push("a", 3)
    world.push("a", 4)
    assert len(KEYS) == len(set(KEYS)) == 4


@pytest.mark.parametrize("act", [durable, durable_async])
@pytest.mark.parametrize("later", [0, 1, 5_000_000])
def test_a_restore_from_behind_the_removal_finds_the_identities_of_the_new_incarnation(
    act: Any, later: int
) -> None:
    world = World(act)
    world.push("a")
    world.forget("a")
    behind = world.harness.snapshot()
    came_again = [world.push("a") for _ in range(3)]
    for _ in range(2):
        world.harness.restore(behind)
        world.harness.advance_time(later)
        assert [world.push("a") for _ in range(3)] == came_again
    assert world.push("a", 9)[3] == came_again[-1][3] + 1
    assert len(KEYS) == len(set(KEYS)) == 5


def test_a_fresh_head_with_inputs_that_wait_is_restored() -> None:
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    harness = OperatorHarness(
        one_action(durable_async), lambda pair: pair[0], store=faults.store, config=CONFIG, auto_run=False
    )
    harness.push(("a", 1))
    waiting = harness.snapshot()
    with pytest.raises(Exception, match="."):
        harness.run_until_idle()
    harness.restore(waiting)
    harness.advance_time(7 * AFTER)
    harness.run_until_idle()
    harness.push(("a", 2))
    harness.run_until_idle()
    first, second = harness.outputs
    assert second[3] == first[3] + 1
    assert len(KEYS) == len(set(KEYS)) == 2


def test_what_a_fresh_head_may_go_on_with_is_not_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at a key after a restore prunes what lies below it in the checkpoint: nothing here."""
    plain = OperatorHarness._create_host

    def make(metrics: RunMetrics) -> Pruner:
        return Pruner(Prune.RESTORE_ONLY, 0, metrics, None, True)

    def host(self: OperatorHarness, *arguments: Any) -> OperatorHost:
        return replace(plain(self, *arguments), make_pruner=make)

    monkeypatch.setattr(OperatorHarness, "_create_host", host)
    world = World(durable_async)
    snapshot = world.harness.snapshot()
    came = world.push("a")
    for _ in range(3):
        world.harness.restore(snapshot)
        world.harness.advance_time(60_000)
        assert world.push("a") == came
    assert len(KEYS) == 1
    assert world.runs("a") == [came[3]]


def test_late_pruning_of_a_key_that_is_gone_leaves_its_new_records() -> None:
    world = World(durable_async)
    old = world.push("a")[3]
    journal = next(name for name in world.place.journals if name.key == encode_key("a"))
    world.forget("a")
    new = world.push("a")[3]
    world.place.prune(journal, old, 10**6)
    assert world.runs("a") == [new]


def test_the_header_of_a_run_says_where_its_incarnation_began() -> None:
    world = World(durable_async)
    world.push("a")
    world.forget("a")
    begin = world.push("a")[3]
    world.push("a")
    journal = next(
        stored_journal for name, stored_journal in world.place.journals.items() if name.key == encode_key("a")
    )
    headers = [RunHeader.unpack(ValueCodec(), records[0].data) for records in journal.runs.values()]
    assert [header.begin for header in headers] == [begin, begin]


class Source:
    """Inputs in an order, which a restore brings again; everything happens at random moments."""

    def __init__(self, seed: int, act: Any) -> None:
        self.chance = random.Random(seed)
        self.world = World(act)
        self.inputs: list[tuple[str, int]] = []
        self.at = 0
        self.identities: dict[int, Any] = {}
        self.checkpoint = self.world.harness.snapshot(), 0

    def input(self) -> None:
        if self.at == len(self.inputs):
            self.inputs.append((self.chance.choice("abc"), self.chance.choice((1, 1, 2))))
        identity = self.world.push(*self.inputs[self.at])
        assert self.identities.setdefault(self.at, identity) == identity, (
            f"input {self.at} was another run before"
        )
        self.at += 1

    def complete(self) -> None:
        self.checkpoint = self.world.harness.snapshot(), self.at
        if self.chance.random() < 0.7:
            self.world.prune()

    def crash(self) -> None:
        now = self.world.harness.current_time
        state, self.at = self.checkpoint
        self.world.harness.restore(state)
        self.world.harness.advance_time(max(0, now - self.world.harness.current_time))

    def wait(self) -> None:
        if self.chance.random() < 0.5:
            self.world.harness.advance_time(self.chance.randrange(AFTER))
        else:
            self.world.pass_time()

    def step(self) -> None:
        steps = {self.input: 10, self.complete: 3, self.crash: 2, self.wait: 3}
        self.chance.choices(list(steps), list(steps.values()))[0]()


@pytest.mark.parametrize("act", [durable, durable_async])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_each_input_has_one_effect_and_identities_of_its_own(seed: int, act: Any) -> None:
    source = Source(seed, act)
    forgotten = 0
    for _ in range(120):
        source.step()
        forgotten += source.world.head("a") is None
    while source.at < len(source.inputs):
        source.input()
    assert forgotten
    assert len(KEYS) == len(set(KEYS)) == len(source.inputs)
    for position in range(5):
        values = [(source.inputs[at][0], identity[position]) for at, identity in source.identities.items()]
        assert len(set(values)) == len(values)


def test_names_of_journals_do_not_change() -> None:
    world = World(durable_async)
    world.push("a")
    world.forget("a")
    world.push("a")
    names = [name for name in world.place.journals if isinstance(name, JournalKey) and name.key == "sa"]
    assert len(names) == 1
