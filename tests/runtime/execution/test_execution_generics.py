"""Generic events and values in a running agent, with the parametrizations written inside functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel

from flink_agents import Agent, AgentCallEvent, Event, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import (
    AgentDefinitionError,
    EventNeverEmittedError,
    FunctionReferenceError,
    OutputTypeError,
)
from flink_agents.plan import LoadedAgent, compile_agent, load_yaml
from flink_agents.plan.model import AgentPlan
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

T = TypeVar("T")


class Order(BaseModel):
    n: int


class Page(BaseModel, Generic[T]):
    items: list[T]


class Wrapped(Event, Generic[T]):
    item: T


class Titled(Event, Generic[T]):
    EVENT_TYPE = "titled"

    item: T


class Request(AgentCallEvent, Generic[T]):
    item: T


def page(n: int) -> Any:
    return Page[Order](items=[Order(n=n)])


def fetch(n: int) -> Any:
    return page(n)


class Callee(Agent):
    @action(Request[int])
    async def answer(self, event: Request[int], ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=page(event.item))

    @action(InputEvent)
    async def ignore(self, event: InputEvent, ctx: RunnerContext) -> None: ...


class EachPlace(Agent):
    """Puts a page into the place that its input names, and out again."""

    side_outputs: Any = {"side": Page[Order]}

    @action(InputEvent, emits=[Wrapped[int]])
    async def start(self, event: InputEvent[str], ctx: RunnerContext) -> None:
        place: str = event.input
        value: Any
        if place == "event":
            ctx.send_event(Wrapped[Page[Order]](item=page(1)))
        elif place == "delayed":
            ctx.send_event(Wrapped[Page[Order]](item=page(1)), delay=5)
        elif place == "generator":
            ctx.send_event(Titled[int](item=1))
        elif place == "memory":
            ctx.short_term_memory.set("page", page(1))
            ctx.send_event(Titled[int](item=2))
        elif place == "sensory":
            ctx.sensory_memory.set("page", page(1))
            ctx.send_event(Titled[int](item=3))
        elif place == "result":
            value = await ctx.durable_execute_async(fetch, 1)
            ctx.send_event(OutputEvent(output=value))
        elif place == "signal":
            ctx.send_event(OutputEvent(output=await ctx.wait_for_signal("go")))
        elif place == "typed signal":
            value = await ctx.wait_for_signal("go", Page[Order])
            ctx.send_event(OutputEvent(output=value))
        elif place == "call":
            value = await ctx.call_agent(Callee, Request[int](item=1))
            ctx.send_event(OutputEvent(output=value))
        elif place == "side":
            ctx.emit_to("side", page(1))

    @action(Wrapped[Page[Order]])
    async def take(self, event: Wrapped[Page[Order]], ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(fetch, event.item.items[0].n))

    @action(Titled[int])
    def follow(self, event: Titled[int], ctx: RunnerContext) -> OutputEvent:
        memory = ctx.short_term_memory if event.item == 2 else ctx.sensory_memory
        return OutputEvent(output=memory.get("page") if event.item > 1 else page(1))

    @action(Wrapped[int])
    def never(self, event: Wrapped[int], ctx: RunnerContext) -> None:
        raise AssertionError(event)


@each_case(
    "place",
    [
        *("event", "delayed", "generator", "memory", "sensory", "result"),
        *("signal", "typed signal", "call", "side"),
    ],
)
def test_a_page_comes_out_of_each_place(place: str) -> None:
    with OperatorHarness(EachPlace, crash="everywhere") as harness:
        harness.push(place)
        if place == "signal":
            harness.signal(0, "go", page(1))
        elif place == "typed signal":
            harness.signal(0, "go", {"items": [{"n": 1}]})
        harness.advance_time(10_000)
        outputs = harness.side_output("side") if place == "side" else harness.outputs
        assert outputs == [page(1)]
        assert type(outputs[0]) is Page[Order]


class OtherPage(EachPlace):
    output_type: Any = Page[int]


def test_an_output_type_with_other_arguments_is_another_type() -> None:
    with OperatorHarness(OtherPage) as harness, pytest.raises(Exception) as caught:
        harness.push("event")
    assert isinstance(caught.value.__cause__, OutputTypeError)
    assert "Page[int]" in str(caught.value.__cause__.expected)


# -- what the plan knows ---------------------------------------------------------------------


class Types(Agent):
    output_type: Any = Page[Order]

    @action(InputEvent)
    def start(self, event: InputEvent[Order], ctx: RunnerContext) -> None:
        ctx.send_event(Wrapped[Order](item=event.input))
        if event.input.n:
            ctx.send_event(Titled[int](item=1))

    @action(Wrapped[Order], Titled[int])
    def take(self, event: Wrapped[Order] | Titled[int], ctx: RunnerContext) -> None:
        ctx.send_event(OutputEvent(output=page(1)))


def test_a_plan_with_generic_events_is_read_from_its_file() -> None:
    plan = compile_agent(Types)
    assert [event.type for event in plan.events] == [
        *("Titled", "Wrapped", "Wrapped[Order]", "_input_event", "_output_event", "titled", "titled[int]"),
    ][1:]
    emits = {plan_action.name: plan_action.emits for plan_action in plan.actions}
    assert set(emits["start"]) >= {"Wrapped[Order]", "titled[int]"}
    loaded = LoadedAgent(AgentPlan.model_validate_json(plan.model_dump_json()))
    assert loaded.output_type is Page[Order]
    assert loaded.event_types["Wrapped[Order]"] is Wrapped[Order]
    assert loaded.event_types["titled[int]"] is Titled[int]
    assert loaded.actions[1].trigger_classes == (Wrapped[Order], Titled[int])


class NeverSent(Agent):
    @action(InputEvent)
    def start(self, event: InputEvent, ctx: RunnerContext) -> None:
        ctx.send_event(Wrapped[int](item=1))

    @action(Titled[int])
    def take(self, event: Titled[int], ctx: RunnerContext) -> None: ...


def test_a_generic_event_that_no_code_names_is_never_emitted() -> None:
    with pytest.raises(EventNeverEmittedError, match=r"titled\[int\]"):
        compile_agent(NeverSent)


class Unparametrized(Agent):
    @action(InputEvent)
    def start(self, event: InputEvent, ctx: RunnerContext) -> None:
        ctx.send_event(Wrapped(item=1))

    @action(Wrapped[int])
    def take(self, event: Wrapped[int], ctx: RunnerContext) -> None: ...


def test_a_generic_event_without_arguments_is_not_one_with_them() -> None:
    with pytest.raises(AgentDefinitionError, match="emits 'Wrapped', which no action of the agent handles"):
        compile_agent(Unparametrized)


class OfInputs(Agent):
    @action(InputEvent[Order])
    def typed(self, event: InputEvent[Order], ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input.n)

    @action(InputEvent)
    def untyped(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        assert type(event) is InputEvent and InputEvent[int] is InputEvent
        return OutputEvent(output=event.input)


def test_the_type_of_an_input_is_for_type_checkers() -> None:
    with OperatorHarness(OfInputs) as harness:
        assert harness.push(Order(n=3)) == [3, Order(n=3)]


# -- YAML -------------------------------------------------------------------------------------

YAML = """
agents:
  - name: Generic
    output_type: {output}
    side_outputs: {{side: "{output}"}}
    actions:
      - name: start
        triggers: [_input_event]
        function: {module}:start
      - name: take
        triggers: ["{trigger}"]
        function: {module}:take
"""


def start(event: InputEvent[str], ctx: RunnerContext) -> None:
    ctx.send_event(Wrapped[Order](item=Order(n=1)))


def take(event: Wrapped[Order], ctx: RunnerContext) -> OutputEvent:
    return OutputEvent(output=Page[Order](items=[event.item]))


@each_case(
    ("trigger", "output"),
    [
        ("{module}:Wrapped[{module}:Order]", "{module}:Page[{module}:Order]"),
        ("{module}:Wrapped[Order]", "{module}:Page[Order]"),
        ("Wrapped[Order]", "object"),
    ],
)
def test_yaml_names_parametrized_classes(trigger: str, output: str, tmp_path: Path) -> None:
    agent = _loaded(tmp_path, trigger, output)
    assert agent.output_type in (Page[Order], object)
    with OperatorHarness(agent) as harness:
        assert harness.push("a") == [page(1)]


@each_case(
    ("trigger", "problem"),
    [
        ("{module}:Wrapped[Missing]", "no 'Missing'"),
        ("{module}:Wrapped[int", "missing or unexpected"),
        ("{module}:Order[int]", "is not generic"),
    ],
)
def test_yaml_tells_what_is_wrong_with_a_type(trigger: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(FunctionReferenceError) as caught:
        _loaded(tmp_path, trigger, "object")
    assert problem in str(caught.value.found)
    assert "agents.yaml:11" in str(caught.value.where)


def _loaded(folder: Path, trigger: str, output: str) -> Agent:
    names = {"trigger": trigger.format(module=__name__), "output": output.format(module=__name__)}
    path = folder / "agents.yaml"
    path.write_text(YAML.format(module=__name__, **names))
    return load_yaml(path)["Generic"]
