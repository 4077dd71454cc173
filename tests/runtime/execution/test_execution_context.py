"""The context of an action: what it tells, its lifetime, and what projects add to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from core_agents import Step, action_fails, outputs_of, probe

from flink_agents import (
    Agent,
    Event,
    InputEvent,
    OutputEvent,
    Prompt,
    ResourceType,
    RunnerContext,
    action,
    prompt,
    tool,
)
from flink_agents.api.errors import (
    AgentDefinitionError,
    ContextMisuseError,
    ResourceNotFoundError,
)
from flink_agents.testing import OperatorHarness

# -- where we are --------------------------------------------------------------------


def test_place_of_a_run() -> None:
    def body(record: Any, ctx: Any) -> Any:
        return ctx.agent_name, ctx.action_name, ctx.key, ctx.sequence_number, ctx.timestamp

    harness = probe(body, key_selector=lambda record: record, name="named")
    harness.push("k", timestamp=5)
    harness.push("k")
    assert harness.outputs == [("named", "act", "k", 0, 5), ("named", "act", "k", 1, None)]


def test_configuration_of_job_and_action() -> None:
    def act(event: InputEvent, ctx: Any) -> OutputEvent:
        value = ctx.get_action_config_value
        return OutputEvent(
            output=(
                ctx.config.get("run.max-events"),
                dict(ctx.action_config),
                value("limit"),
                value("none"),
                value("x", 1),
            )
        )

    agent = Agent(name="a").add_action("act", [InputEvent], act, limit=3, tags=["x"])
    harness = OperatorHarness(agent, config={"run.max-events": 7})
    assert harness.push(1) == [(7, {"limit": 3, "tags": ["x"]}, 3, None, 1)]


# -- time and chance -----------------------------------------------------------------


def test_now_is_when_the_run_began() -> None:
    harness = probe(lambda record, ctx: (ctx.now(), ctx.now()))
    first = harness.push(1)[0]
    harness.advance_time(timedelta(seconds=90))
    second = harness.push(2)[0]
    assert first[0] == first[1] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert second[0] - first[0] == timedelta(seconds=90)
    assert first[0].tzinfo is UTC


def draw(record: Any, ctx: Any) -> Any:
    return [str(ctx.uuid4()), str(ctx.uuid4()), ctx.random().random(), ctx.random().random()]


def test_chance_differs_by_call_run_key_job_and_action() -> None:
    class TwoActions(Agent):
        @action(InputEvent)
        def one(self, event: InputEvent, ctx: Any) -> Event:
            return OutputEvent(output=draw(None, ctx))

        @action(InputEvent)
        def two(self, event: InputEvent, ctx: Any) -> Event:
            return OutputEvent(output=draw(None, ctx))

    drawn: list[list[Any]] = []
    for job in ("a", "b"):
        harness = OperatorHarness(TwoActions, lambda record: record, config={"job-identifier": job})
        harness.push_all([1, 1, "1"])
        drawn += harness.outputs
    values = [value for output in drawn for value in output]
    assert len(values) == len(set(values)) == 2 * 3 * 2 * 4


def test_chance_is_the_same_in_every_process() -> None:
    """These values are stored outside: idempotency keys and rows derive from them."""
    assert outputs_of(draw, config={"job-identifier": "job"}) == [CHANCE]


CHANCE = [
    "89218715-22f8-493c-9830-e0b57a95f27c",
    "e4318073-fc15-47f5-9d09-0104cb4b4034",
    0.07037698335849873,
    0.09812119105353534,
]


# -- lifetime ------------------------------------------------------------------------

USES: dict[str, Callable[[Any], Any]] = {
    "send_event": lambda ctx: ctx.send_event(OutputEvent(output=1)),
    "emit_to": lambda ctx: ctx.emit_to("side", 1),
    "read sensory": lambda ctx: ctx.sensory_memory.get("a"),
    "write sensory": lambda ctx: ctx.sensory_memory.set("a", 1),
    "read": lambda ctx: ctx.short_term_memory.get("a"),
    "write": lambda ctx: ctx.short_term_memory.set("a", 1),
    "append": lambda ctx: ctx.short_term_memory.append("l", 1),
    "delete": lambda ctx: ctx.short_term_memory.delete("a"),
    "new_object": lambda ctx: ctx.short_term_memory.new_object("o"),
    "exists": lambda ctx: ctx.short_term_memory.exists("a"),
    "field_names": lambda ctx: ctx.short_term_memory.field_names(),
    "fields": lambda ctx: ctx.short_term_memory.fields(),
    "uuid4": lambda ctx: ctx.uuid4(),
    "random": lambda ctx: ctx.random(),
}

leaked_objects: list[Any] = []


def keep(ctx: Any) -> None:
    leaked_objects[:] = [ctx, ctx.short_term_memory, ctx.short_term_memory.new_object("object")]


class Leaky(Agent):
    """Keeps its context, as code must not."""

    side_outputs = {"side": int}

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Iterator[Event]:
        keep(ctx)
        if event.input is not None:
            yield OutputEvent(output=elsewhere(lambda: USES[event.input](ctx)))


def elsewhere(call: Callable[[], Any]) -> str:
    """What ``call`` raises in another thread."""
    raised: list[str] = []

    def body() -> None:
        try:
            call()
        except Exception as error:
            raised.append(type(error).__name__)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return "".join(raised)


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_use_after_the_action_is_a_named_error(use: Callable[[Any], Any]) -> None:
    harness = OperatorHarness(Leaky, forced_serialization=False)
    harness.push(None)
    state = harness.state()
    with pytest.raises(ContextMisuseError, match="'act' is used after the action ended"):
        use(leaked_objects[0])
    assert harness.state() == state


@pytest.mark.parametrize("use", USES)
def test_use_from_another_thread_is_a_named_error(use: str) -> None:
    harness = OperatorHarness(Leaky, forced_serialization=False)
    assert harness.push(use) == ["ContextMisuseError"]
    assert harness.memory() == {}


def test_memory_objects_end_with_their_action() -> None:
    OperatorHarness(Leaky, forced_serialization=False).push(None)
    for memory in leaked_objects[1:]:
        with pytest.raises(ContextMisuseError):
            memory.get("a")


def test_use_after_a_failed_action_is_a_named_error() -> None:
    def body(record: Any, ctx: Any) -> None:
        keep(ctx)
        raise ValueError

    harness = probe(body, forced_serialization=False, config={"actions.on-error": "ignore"})
    harness.push(1)
    with pytest.raises(ContextMisuseError):
        leaked_objects[0].short_term_memory.set("a", 1)


def test_task_that_an_action_leaves_behind_is_cancelled() -> None:
    async def act(event: InputEvent, ctx: Any) -> OutputEvent:
        leaked_objects[:] = [asyncio.ensure_future(asyncio.sleep(3600))]
        await asyncio.sleep(0)
        return OutputEvent(output="done")

    agent = Agent(name="a").add_action("act", [InputEvent], act)
    harness = OperatorHarness(agent, forced_serialization=False)
    assert harness.push(1) == ["done"]
    assert leaked_objects[0].cancelled()
    harness.close()


# -- a project's own context ---------------------------------------------------------


class ShopContext(RunnerContext):
    def count(self, name: str) -> int:
        number = self.short_term_memory.get(name, 0) + 1
        self.short_term_memory.set(name, number)
        return number

    @property
    def place(self) -> str:
        return f"{self.agent_name}/{self.key}/{self.sequence_number}"


class Shop(Agent):
    context_class = ShopContext

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: ShopContext) -> OutputEvent:
        return OutputEvent(output=(isinstance(ctx, ShopContext), ctx.count("n"), ctx.place))


def test_context_class_adds_methods() -> None:
    harness = OperatorHarness(Shop)
    assert harness.push_all(["a", "b"]) == [(True, 1, "Shop/0/0"), (True, 2, "Shop/0/1")]


class WithConstructor(ShopContext):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(("cls", "text"), [(int, "a subclass of Runner"), (WithConstructor, "constructor")])
def test_context_class_that_cannot_work_is_refused(cls: Any, text: str) -> None:
    agent = type("Wrong", (Shop,), {"context_class": cls, "__module__": __name__})
    with pytest.raises(AgentDefinitionError, match=text):
        OperatorHarness(agent)


# -- resources -----------------------------------------------------------------------


class Connected(Agent):
    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    @tool
    def double(self, number: int) -> int:
        """Multiply."""
        return number * self.factor

    @tool
    @staticmethod
    async def later(text: str) -> str:
        """Say it later."""
        await asyncio.sleep(0)
        return text.upper()

    @prompt
    def ask(self) -> Prompt:
        return Prompt.from_text(f"{{n}} times {self.factor}?")

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        kind, name, *arguments = event.input
        resource = ctx.get_resource(name, kind)
        if name == "later":
            return OutputEvent(output=await resource(*arguments))
        if name == "ask":
            return OutputEvent(output=resource.format_string(n=arguments[0]))
        same = ctx.get_resource(name, ResourceType(kind)) is resource
        return OutputEvent(output=(resource(*arguments), same))


@pytest.fixture
def connected(agent_harness: Callable[..., OperatorHarness]) -> OperatorHarness:
    return agent_harness(Connected(factor=3))


def test_tools_and_prompts(connected: OperatorHarness) -> None:
    inputs = [("tool", "double", 4), ("tool", "double", "5"), ("tool", "later", "hi"), ("prompt", "ask", 7)]
    assert connected.push_all(inputs) == [(12, True), (15, True), "HI", "7 times 3?"]


MISSING = [
    ("tool", "doubel", "did you mean 'double'"),
    ("tool", "ask", "'ask' is a prompt"),
    ("prompt", "nothing", "declare it"),
    ("vector_store", "nothing", "an agent with a vector_store"),
]


@pytest.mark.parametrize(("kind", "name", "text"), MISSING)
def test_resource_that_is_not_there_is_a_named_error(
    connected: OperatorHarness, kind: str, name: str, text: str
) -> None:
    with action_fails(ResourceNotFoundError, text):
        connected.push((kind, name))


# -- metrics -------------------------------------------------------------------------


class Measured(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Step:
        ctx.agent_metric_group.get_counter("orders").inc()
        ctx.action_metric_group.get_counter("calls").inc(event.input)
        ctx.action_metric_group.get_sub_group("inner").get_gauge("last").set(event.input)
        return Step(number=event.input)

    @action(Step)
    def step(self, event: Step, ctx: Any) -> None:
        ctx.action_metric_group.get_meter("calls").mark(2)
        ctx.action_metric_group.get_histogram("numbers").update(event.number)


def test_metrics_of_agent_and_actions() -> None:
    harness = OperatorHarness(Measured, parallelism=2, key_selector=lambda record: record)
    harness.push_all([1, 2, 3])
    assert {name: value for name, value in harness.metrics.items() if "last" not in name} == {
        "orders": 3,
        "act.calls": 6,
        "step.calls": 6,
        "step.numbers": 3,
    }
    assert harness.metrics["act.inner.last"] > 0


def test_metrics_count_attempts() -> None:
    def body(record: Any, ctx: Any) -> None:
        ctx.agent_metric_group.get_counter("tries").inc()
        raise ValueError

    harness = probe(body, config={"actions.on-error": "ignore"})
    harness.push_all([1, 2])
    assert harness.metrics == {"tries": 2}
