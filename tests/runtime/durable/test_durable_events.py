"""Events between actions: what one changes in place, others see the same way before and after a crash."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import durable_tools
import pytest
from durable_tools import EFFECTS, SERVICE, counted, effect, effect_async, forget

from flink_agents import Agent, Event, InputEvent, NamedEvent, OutputEvent, RetryPolicy
from flink_agents.api.errors import StoreError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_append

pytestmark = pytest.mark.executes_once

TWICE = RetryPolicy(initial_interval=0, max_attempts=2)


class Load(Event):
    """Carries what can be changed."""

    items: Any


class Failing:
    left = 0


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()
    Failing.left = 0


# -- actions that change what they hold ---------------------------------------------------------


def plain_change(event: Any, ctx: Any) -> None:
    """Change the event, without any call."""
    items(event).append("plain")


def show(event: Any, ctx: Any) -> OutputEvent:
    """Tell what is in the event."""
    return OutputEvent(output=("show", copy.deepcopy(items(event))))


async def change(event: Any, ctx: Any) -> OutputEvent:
    """Change the event around a call."""
    items(event).append("before")
    done = await ctx.durable_execute_async(effect_async, ["change", *items(event)])
    items(event).append("after")
    fail_if_told()
    return OutputEvent(output=("change", done, copy.deepcopy(items(event))))


def change_def(event: Any, ctx: Any) -> OutputEvent:
    """The same in a thread."""
    items(event).append("before")
    done = ctx.durable_execute(effect, ["change", *items(event)])
    items(event).append("after")
    fail_if_told()
    return OutputEvent(output=("change", done, copy.deepcopy(items(event))))


def helper(ctx: Any, value: Any) -> Any:
    """A durable call that is found in another function."""
    return ctx.durable_execute(effect, value)


def change_by_helper(event: Any, ctx: Any) -> OutputEvent:
    items(event).append("before")
    done = helper(ctx, ["change", *items(event)])
    items(event).append("after")
    fail_if_told()
    return OutputEvent(output=("change", done, copy.deepcopy(items(event))))


def change_by_service(event: Any, ctx: Any) -> OutputEvent:
    items(event).append("before")
    done = SERVICE.call(ctx, ["change", *items(event)])
    items(event).append("after")
    fail_if_told()
    return OutputEvent(output=("change", done, copy.deepcopy(items(event))))


def change_by_module(event: Any, ctx: Any) -> OutputEvent:
    items(event).append("before")
    done = durable_tools.Service().call(ctx, ["change", *items(event)])
    items(event).append("after")
    fail_if_told()
    return OutputEvent(output=("change", done, copy.deepcopy(items(event))))


async def change_by_service_async(event: Any, ctx: Any) -> OutputEvent:
    items(event).append("before")
    done = await SERVICE.call_async(ctx, ["change", *items(event)])
    items(event).append("after")
    fail_if_told()
    return OutputEvent(output=("change", done, copy.deepcopy(items(event))))


async def send(event: Any, ctx: Any) -> None:
    """Send what it holds, and change that afterwards."""
    held = [*items(event)]
    await ctx.durable_execute_async(effect_async, ["send", *held])
    ctx.send_event(Load(items=held))
    ctx.send_event(NamedEvent(type="named", attributes={"items": held}))
    output = {"held": held}
    ctx.send_event(OutputEvent(output=output))
    ctx.emit_to("side", held)
    held.append("sent")
    await ctx.durable_execute_async(effect_async, ["sent", *held])
    held.append("ended")
    fail_if_told()


def send_def(event: Any, ctx: Any) -> Iterator[Event]:
    held = [*items(event)]
    ctx.durable_execute(effect, ["send", *held])
    yield Load(items=held)
    yield NamedEvent(type="named", attributes={"items": held})
    yield OutputEvent(output={"held": held})
    ctx.emit_to("side", held)
    held.append("sent")
    ctx.durable_execute(effect, ["sent", *held])
    held.append("ended")
    fail_if_told()


def items(event: Any) -> Any:
    if isinstance(event, InputEvent):
        return event.input["items"]
    return event.attributes["items"] if isinstance(event, NamedEvent) else event.items


def fail_if_told() -> None:
    if Failing.left > 0:
        Failing.left -= 1
        raise ConnectionError("told to fail")


CHANGES: dict[str, Callable[..., Any]] = {
    "async def": change,
    "def": change_def,
    "by a helper": change_by_helper,
    "by an object of another module": change_by_service,
    "by a class of another module": change_by_module,
    "async def, by an object": change_by_service_async,
}
SENDS: dict[str, Callable[..., Any]] = {"async def": send, "def": send_def}


def fan_out(change: Any, **settings: Any) -> Agent:
    """Actions that share the input."""
    agent = Agent(name="fan").add_action("show", [InputEvent], show)
    agent.add_action("change", [InputEvent], change, **settings)
    agent.add_action("show again", [InputEvent], show)
    agent.add_action("change again", [InputEvent], change, **settings)
    return agent.add_action("show at last", [InputEvent], show)


def behind_a_change(change: Any, **settings: Any) -> Agent:
    """An action without calls changes the input in place, before one that makes calls."""
    agent = Agent(name="behind").add_action("plain", [InputEvent], plain_change)
    agent.add_action("change", [InputEvent], change, **settings)
    return agent.add_action("show", [InputEvent], show)


def chained(send: Any, change: Any, **settings: Any) -> Agent:
    """Actions that get what another one sends and goes on to change."""

    class Chained(Agent):
        side_outputs = {"side": list}

    agent = Chained(name="chain").add_action("send", [InputEvent], send, **settings)
    for number, trigger in enumerate((Load, "named")):
        agent.add_action(f"change {number}", [trigger], change, **settings)
        agent.add_action(f"plain {number}", [trigger], plain_change)
        agent.add_action(f"change {number} again", [trigger], change, **settings)
        agent.add_action(f"show {number}", [trigger], show)
    return agent


AGENTS: dict[str, Callable[..., Agent]] = {
    **{
        f"fan out, {kind}": lambda act=act, **options: fan_out(act, **options)
        for kind, act in CHANGES.items()
    },
    **{
        f"behind, {kind}": lambda act=act, **options: behind_a_change(act, **options)
        for kind, act in CHANGES.items()
    },
    **{
        f"chain, {kind}": lambda send=send, kind=kind, **options: chained(send, CHANGES[kind], **options)
        for kind, send in SENDS.items()
    },
}


def observed(harness: OperatorHarness) -> Any:
    side = harness.side_output("side") if "side" in harness.plan.side_outputs else []
    return harness.outputs, side, harness.memory()


def record() -> Any:
    return {"items": ["input"]}


@pytest.mark.nightly(beyond=8)
@pytest.mark.parametrize("failures", [0, 1, 3])
@pytest.mark.parametrize("name", [*AGENTS])
def test_a_crash_at_any_record_and_a_retry_change_nothing(name: str, failures: int) -> None:
    settings = {"retry": TWICE} if failures else {}
    plain = Faults()
    with OperatorHarness(AGENTS[name](), store=plain.store) as harness:
        harness.push(record())
        expected = observed(harness)
        effects = counted_lists()
    for fault in (Fault.REFUSED, Fault.UNACKNOWLEDGED):
        for number in range(len(plain.appends)):
            forget()
            Failing.left = failures if failures < 2 else 1
            faults = Faults(at_append(number, fault))
            with OperatorHarness(AGENTS[name](**settings), store=faults.store) as harness:
                snapshot = harness.snapshot()
                with pytest.raises(StoreError):
                    harness.push(record())
                harness.restore(snapshot)
                Failing.left = failures - 2 if failures > 2 else 0
                harness.push(record())
                assert observed(harness) == expected, (fault, number)
            counts = counted_lists()
            assert set(counts) == set(effects), (fault, number)


def counted_lists() -> dict[str, int]:
    EFFECTS[:] = [repr(value) for value in EFFECTS]
    return dict(counted())


@pytest.mark.parametrize("kind", [*CHANGES])
def test_an_action_gets_the_event_as_it_was_at_each_attempt(kind: str) -> None:
    Failing.left = 1
    agent = Agent(name="retries").add_action("change", [InputEvent], CHANGES[kind], retry=TWICE)
    with OperatorHarness(agent, store=Faults().store) as harness:
        harness.push(record())
        assert harness.outputs == [
            ("change", ["change", "input", "before"], ["input", "before", "after"]),
        ]
    assert EFFECTS == [["change", "input", "before"]]


def retried(event: Any, ctx: Any) -> OutputEvent:
    items(event).append("plain")
    fail_if_told()
    return OutputEvent(output=copy.deepcopy(items(event)))


async def retried_async(event: Any, ctx: Any) -> OutputEvent:
    return retried(event, ctx)


@pytest.mark.parametrize("act", [retried, retried_async])
@pytest.mark.parametrize("options", [{}, {"timeout": 60.0}, {"max_concurrency": 1}])
def test_so_does_one_without_calls(act: Any, options: dict[str, Any]) -> None:
    Failing.left = 1
    agent = Agent(name="retries").add_action("act", [InputEvent], act, retry=TWICE, **options)
    with OperatorHarness(agent) as harness:
        assert harness.push(record()) == [["input", "plain"]]


@pytest.mark.parametrize("kind", [*CHANGES])
def test_a_dead_letter_has_the_event_as_it_was(kind: str) -> None:
    Failing.left = 1
    agent = Agent(name="letters").add_action("act", [InputEvent], CHANGES[kind], on_error="dead-letter")
    with OperatorHarness(agent, store=Faults().store) as harness:
        harness.push(record())
        assert [letter.event.input for letter in harness.dead_letters] == [record()]


CODE: list[str] = []


def code_before_the_call(event: Any, ctx: Any) -> None:
    CODE.append("before")
    ctx.durable_execute(effect, 1)


def test_code_before_the_first_call_of_a_def_action_runs_once() -> None:
    CODE.clear()
    agent = Agent(name="once").add_action("act", [InputEvent], code_before_the_call)
    with OperatorHarness(agent) as harness:
        harness.push_all([1, 2])
    assert CODE == ["before"] * 2


class Live:
    pass


async def with_a_live_event(event: Any, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(effect_async, 1)
    return OutputEvent(output=type(event.items).__name__)


def send_live(event: Any, ctx: Any) -> Event:
    return Load(items=Live())


def test_an_event_that_cannot_be_recorded_reaches_an_action_as_it_is() -> None:
    agent = Agent(name="live").add_action("send", [InputEvent], send_live)
    agent.add_action("take", [Load], with_a_live_event)
    with OperatorHarness(agent) as harness:
        assert harness.push(1) == ["Live"]


# -- configuration ------------------------------------------------------------------------------

CONFIG: dict[str, Any] = {"limits": [1, {"deep": [2]}], "title": "a", "more": {"x": {"y": 1}}}
"""What no execution changes for another one."""


def change_config(event: Any, ctx: Any) -> OutputEvent:
    seen = copy.deepcopy(dict(ctx.action_config))
    config = ctx.action_config
    for do in (
        lambda: config["limits"].append(3),
        lambda: config["limits"][1]["deep"].clear(),
        lambda: config["more"]["x"].update(y=2),
        lambda: config.update(title="b"),
        lambda: config.__setitem__("new", 1),
        lambda: config.pop("more"),
        lambda: ctx.get_action_config_value("limits").append(4),
    ):
        try:
            do()
        except (TypeError, AttributeError):
            pass
    return OutputEvent(output=seen)


async def change_config_async(event: Any, ctx: Any) -> OutputEvent:
    return change_config(event, ctx)


@pytest.mark.parametrize("act", [change_config, change_config_async])
def test_the_configuration_of_an_action_is_the_same_for_each_execution(act: Any) -> None:
    agent = Agent(name="config").add_action("one", [InputEvent], act, **CONFIG)
    agent.add_action("two", [InputEvent], act, **CONFIG)
    with OperatorHarness(agent, forced_serialization=False) as harness:
        assert harness.push_all([1, 2]) == [CONFIG] * 4


# -- time ---------------------------------------------------------------------------------------


async def tell_time(event: Any, ctx: Any) -> OutputEvent:
    first = ctx.now()
    if event.input == "durable":
        await ctx.durable_execute_async(effect_async, 1)
    fail_if_told()
    return OutputEvent(output=(first, ctx.now()))


def test_now_is_the_same_in_all_attempts_of_a_run_that_recorded_something() -> None:
    agent = Agent(name="time").add_action("act", [InputEvent], tell_time)
    for name in ("durable", "plain"):
        Failing.left = 1
        with OperatorHarness(agent) as harness:
            snapshot = harness.snapshot()
            began = harness.current_time
            with pytest.raises(Exception, match="told to fail"):
                harness.push(name)
            harness.restore(snapshot)
            harness.advance_time(5000)
            ((first, second),) = harness.push(name)
            assert first == second
            later = int(first.timestamp() * 1000) - began
            assert later == (0 if name == "durable" else 5000)
