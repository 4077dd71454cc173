"""The context of an action is refused inside durable functions, wherever they are executed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest
from durable_tools import EFFECTS, effect, effect_async, forget

from flink_agents import (
    NOT_DONE,
    Agent,
    InputEvent,
    MemoryRef,
    MemoryScope,
    OutputEvent,
    ResourceType,
    RunnerContext,
    action,
    client,
    tool,
)
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import ActionFailedError, ContextMisuseError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record

pytestmark = pytest.mark.executes_once


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


REF = MemoryRef(MemoryScope.SHORT_TERM, "object.x")


class Held:
    """What an action took from its context before the call."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx
        self.memory = ctx.short_term_memory
        self.object = ctx.short_term_memory.new_object("object")
        self.object.set("x", 1)
        self.random = ctx.random()
        self.sensory = ctx.sensory_memory


USES: dict[str, Callable[[Held], Any]] = {
    "send_event": lambda held: held.ctx.send_event(OutputEvent(output=1)),
    "emit_to": lambda held: held.ctx.emit_to("side", 1),
    "write sensory": lambda held: held.ctx.sensory_memory.set("a", 1),
    "read sensory": lambda held: held.sensory.get("a"),
    "write": lambda held: held.ctx.short_term_memory.set("a", 1),
    "read": lambda held: held.ctx.short_term_memory.get("a"),
    "append": lambda held: held.memory.append("l", 1),
    "delete": lambda held: held.memory.delete("object"),
    "exists": lambda held: held.memory.exists("a"),
    "fields": lambda held: held.memory.fields(),
    "field_names": lambda held: held.object.field_names(),
    "new_object": lambda held: held.object.new_object("o"),
    "object": lambda held: held.object.set("y", 1),
    "resolve": lambda held: held.ctx.resolve(REF),
    "reference": lambda held: REF.resolve(held.ctx),
    "get_resource": lambda held: held.ctx.get_resource("tool", ResourceType.TOOL),
    "client": lambda held: held.ctx.client("http"),
    "uuid4": lambda held: held.ctx.uuid4(),
    "random": lambda held: held.ctx.random(),
    "number": lambda held: held.random.random(),
    "bits": lambda held: held.random.getrandbits(8),
    "integer": lambda held: held.random.randrange(10),
    "choice": lambda held: held.random.choice([1, 2]),
    "gauss": lambda held: held.random.gauss(0.0, 1.0),
    "bytes": lambda held: held.random.randbytes(3),
    "shuffle": lambda held: held.random.shuffle([1, 2, 3]),
    "seed": lambda held: held.random.seed(3),
    "durable call": lambda held: held.ctx.durable_execute(effect, "nested"),
    "async durable call": lambda held: held.ctx.durable_execute_async(effect_async, "nested"),
    "own method": lambda held: held.ctx.count(),
}

CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "agent_name": lambda ctx: ctx.agent_name,
    "action_name": lambda ctx: ctx.action_name,
    "key": lambda ctx: ctx.key,
    "sequence_number": lambda ctx: ctx.sequence_number,
    "timestamp": lambda ctx: ctx.timestamp,
    "now": lambda ctx: ctx.now(),
    "config": lambda ctx: ctx.config.get("run.max-events"),
    "action_config": lambda ctx: ctx.action_config,
    "metrics": lambda ctx: ctx.action_metric_group.get_counter("calls").inc(),
}


class OwnContext(RunnerContext):
    def count(self) -> None:
        self.short_term_memory.append("counted", 1)


def use(held: Held, name: str) -> None:
    EFFECTS.append(name)
    USES[name](held)
    EFFECTS.append("used")


def kinds(held: Held, name: str) -> dict[str, Callable[[], Any]]:
    """Durable functions of all kinds that use the context."""

    def function() -> None:
        use(held, name)

    async def function_async() -> None:
        use(held, name)

    async def that_waited() -> None:
        await asyncio.sleep(0)
        use(held, name)

    async def in_a_task() -> None:
        await asyncio.create_task(that_waited())

    async def in_a_thread() -> None:
        await asyncio.to_thread(function)

    def returns_a_coroutine() -> Any:
        return that_waited()

    def catches() -> None:
        try:
            use(held, name)
        except ValueError:
            pass

    return {
        "def": function,
        "async def": function_async,
        "async def that waited": that_waited,
        "task": in_a_task,
        "thread": in_a_thread,
        "def that returns a coroutine": returns_a_coroutine,
        "def that catches": catches,
        **kinds_of_contexts(function, that_waited),
    }


def kinds_of_contexts(function: Callable[[], None], that_waited: Callable[[], Any]) -> dict[str, Any]:
    """Durable functions that leave the ``contextvars.Context`` in which they were called."""

    async def in_a_task_of_a_fresh_context() -> None:
        await asyncio.create_task(that_waited(), context=Context())

    def in_a_fresh_context() -> None:
        Context().run(function)

    async def makes_a_task_in_a_fresh_context() -> None:
        await Context().run(asyncio.create_task, that_waited())

    async def in_a_fresh_context_that_waited() -> None:
        await asyncio.sleep(0)
        in_a_fresh_context()

    return {
        "task of a fresh context": in_a_task_of_a_fresh_context,
        "fresh context": in_a_fresh_context,
        "fresh context behind a wait": in_a_fresh_context_that_waited,
        "task made in a fresh context": makes_a_task_in_a_fresh_context,
    }


KINDS = [*kinds(None, "")]  # pyright: ignore[reportArgumentType]


class Uses(Agent):
    """Calls durably what uses its context."""

    side_outputs = {"side": int}
    context_class = OwnContext

    def __init__(self, asynchronous: bool = False, settings: str = "") -> None:
        self.asynchronous = asynchronous
        self.settings: dict[str, Any] = {"timeout": 60} if settings == "timeout" else {}

    @tool
    @staticmethod
    def tool(number: int) -> int:
        """Return it."""
        return number

    @client
    def http(self) -> Any:
        raise NotImplementedError

    @action(InputEvent, when=lambda event: event.input[0] == "def")
    def act(self, event: Any, ctx: Any) -> None:
        _, kind, name = event.input
        ctx.durable_execute(kinds(Held(ctx), name)[kind], **self.settings)

    @action(InputEvent, when=lambda event: event.input[0] == "async")
    async def act_async(self, event: Any, ctx: Any) -> None:
        _, kind, name = event.input
        await ctx.durable_execute_async(kinds(Held(ctx), name)[kind], **self.settings)

    @action(InputEvent, when=lambda event: event.input[0] == "gather")
    async def act_gather(self, event: Any, ctx: Any) -> None:
        _, kind, name = event.input
        calls = [ctx.durable_execute_async(kinds(Held(ctx), name)[kind], **self.settings) for _ in "ab"]
        await ctx.gather(*calls)


ACTIONS = {"def": "act", "async": "act_async", "gather": "act_gather"}


@pytest.mark.nightly(beyond=15)
@pytest.mark.parametrize("settings", ["", "timeout"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [*ACTIONS])
def test_the_context_is_refused_inside_a_durable_function(how: str, kind: str, settings: str) -> None:
    names = {"write", "number", "send_event", "durable call"}
    if not settings and "fresh" not in kind:
        # Each other use meets some kind in each way to call.
        names.update([*USES][KINDS.index(kind) :: len(KINDS) // 2])
    for name in sorted(names):
        with OperatorHarness(Uses(settings=settings)) as harness:
            with pytest.raises(ActionFailedError) as caught:
                harness.push((how, kind, name))
            text = str(caught.value)
            assert type(caught.value.__cause__) is ContextMisuseError, text
            assert f"action {ACTIONS[how]!r}" in text and ".<locals>." in text and "fix:" in text
            assert "inside the durable function" in text
            assert harness.memory() == {} and harness.outputs == [] and harness.side_output("side") == []
        assert "used" not in EFFECTS and "nested" not in EFFECTS


# -- what goes on as before -------------------------------------------------------------------


class Constants(Agent):
    """Reads what is the same for the whole run, and uses its context between calls."""

    side_outputs = {"side": int}

    @action(InputEvent, when=lambda event: event.input[0] == "def")
    def act(self, event: Any, ctx: Any) -> OutputEvent:
        held = Held(ctx)
        for read in CONSTANTS.values():
            ctx.durable_execute(lambda read=read: str(read(ctx)))
            held.object.set("y", [str(ctx.uuid4()), held.random.random()])
        return OutputEvent(output="done")

    @action(InputEvent, when=lambda event: event.input[0] == "async")
    async def act_async(self, event: Any, ctx: Any) -> OutputEvent:
        held = Held(ctx)

        async def read_async(read: str) -> str:
            return str(CONSTANTS[read](ctx))

        calls = [ctx.durable_execute_async(read_async, name) for name in CONSTANTS]
        held.random.random()
        for call in calls:
            await call
            held.object.set("y", [str(ctx.uuid4()), held.random.random()])
        return OutputEvent(output="done")


@pytest.mark.parametrize("how", ["def", "async"])
def test_constants_are_read_and_the_context_works_between_calls(how: str) -> None:
    with OperatorHarness(Constants()) as harness:
        assert harness.push((how,)) == ["done"]
        assert harness.push((how,)) == ["done"]


async def reconciled(event: Any, ctx: Any) -> None:
    def ask(value: Any) -> Any:
        ctx.short_term_memory.set("asked", value)
        return NOT_DONE

    await ctx.durable_execute_async(effect, 1, reconciler=ask)


def reconciled_def(event: Any, ctx: Any) -> None:
    def ask(value: Any) -> Any:
        ctx.short_term_memory.set("asked", value)
        return NOT_DONE

    ctx.durable_execute(effect, 1, reconciler=ask)


@pytest.mark.parametrize("act", [reconciled, reconciled_def])
def test_the_context_is_refused_inside_a_reconciler(act: Any) -> None:
    faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED))
    agent = Agent(name="a").add_action("act", [InputEvent], act)
    with OperatorHarness(agent, store=faults.store) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(Exception, match="rejects this append"):
            harness.push(1)
        harness.restore(snapshot)
        with pytest.raises(ActionFailedError, match="inside the durable function '.*ask'"):
            harness.push(1)
    assert EFFECTS == [1]


KEPT: list[Any] = []


class Keeps(Agent):
    """An action that keeps its context, and another one whose durable function uses it."""

    @action(InputEvent)
    async def keep(self, event: Any, ctx: Any) -> None:
        def use_kept() -> None:
            KEPT[0].short_term_memory.set("a", 1)

        if event.input == "keep":
            KEPT[:] = [ctx]
            await asyncio.Event().wait()
        await ctx.durable_execute_async(use_kept)


def test_the_context_of_another_action_is_refused_as_well() -> None:
    with OperatorHarness(Keeps(), lambda record: record, auto_run=False) as harness:
        harness.push("keep")
        while not KEPT:
            harness.advance_time(1)
        with pytest.raises(ActionFailedError, match="inside the durable function"):
            harness.push("use")
            harness.run_until_idle(20)
