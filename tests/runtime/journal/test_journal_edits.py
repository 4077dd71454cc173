"""Changes of an agent's code while a run of it is unfinished: each one that docs/durable.md lists.

The former agent crashes behind its second durable call; the changed one goes on with what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, DurableCallable, Event, InputEvent, OutputEvent, RetryPolicy
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import AgentsError, NonDeterminismError, PlanChangedError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Choose, Fault, Faults, at_record
from tests.suite.written_tables import listed_edits

CALLS: list[str] = []
"""What was called, in order; nothing takes it back."""

PAGE = Path(__file__).parents[3] / "docs" / "durable.md"


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


def charge(order: str, amount: int = 1) -> str:
    CALLS.append(f"charge {order} {amount}")
    return f"charged {amount}"


def bill(order: str, amount: int = 1) -> str:
    CALLS.append(f"bill {order} {amount}")
    return f"billed {amount}"


def ship(order: str) -> str:
    CALLS.append(f"ship {order}")
    return "shipped"


def tell(order: str) -> str:
    CALLS.append(f"tell {order}")
    return "told"


class Billed(Event):
    what: str


class BilledIn(Event):
    """``Billed`` with one more field."""

    EVENT_TYPE = "Billed"
    what: str
    currency: str = "EUR"


class Noted(Event):
    """Takes the place of ``Billed``."""

    what: str


# -- the former code -----------------------------------------------------------------------


def act(event: Any, ctx: Any) -> OutputEvent:
    done = [ctx.durable_execute(charge, event.input), ctx.durable_execute(ship, event.input)]
    return OutputEvent(output=done)


def bill_first(event: Any, ctx: Any) -> Billed:
    return Billed(what=ctx.durable_execute(charge, event.input))


def then_ship(event: Any, ctx: Any) -> OutputEvent:
    return OutputEvent(output=[event.what, ctx.durable_execute(ship, event.what)])


def agent_of(action: Callable[..., Any] = act, name: str = "act") -> Agent:
    return Agent(name="orders").add_action(name, [InputEvent], action)


def chain(
    first: Callable[..., Any] = bill_first,
    second: Callable[..., Any] = then_ship,
    event: type[Event] = Billed,
) -> Agent:
    return Agent(name="orders").add_action("first", [InputEvent], first).add_action("second", [event], second)


def behind_the_first() -> Choose:
    """The end of the first action is recorded, that of the second one is not."""
    return at_record(RecordKind.ACTION, Fault.REFUSED, 1)


def go_on(
    former: Agent, changed: Agent, crash: Choose | None = None, config: dict[str, Any] | None = None
) -> OperatorHarness:
    """What the changed agent makes of an order that the former one was at when it crashed."""
    faults = Faults(crash or at_record(RecordKind.ACTION, Fault.REFUSED))
    with OperatorHarness(former, store=faults.store) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(AgentsError):
            harness.push("o1")
    CALLS.clear()
    harness = OperatorHarness(changed, store=faults.store, config=config)
    harness.restore(snapshot)
    harness.push("o1")
    return harness


# -- changes -------------------------------------------------------------------------------


def other_code(event: Any, ctx: Any) -> OutputEvent:
    charged = ctx.durable_execute(charge, event.input)
    ctx.short_term_memory.set("charged", charged)
    return OutputEvent(output={"charged": charged, "shipped": ctx.durable_execute(ship, event.input)})


async def awaited(event: Any, ctx: Any) -> OutputEvent:
    first = await ctx.durable_execute_async(charge, event.input)
    return OutputEvent(output=[first, await ctx.durable_execute_async(ship, event.input)])


def one_more(event: Any, ctx: Any) -> OutputEvent:
    done = [ctx.durable_execute(function, event.input) for function in (charge, ship, tell)]
    return OutputEvent(output=done)


def one_before(event: Any, ctx: Any) -> OutputEvent:
    done = [ctx.durable_execute(function, event.input) for function in (tell, charge, ship)]
    return OutputEvent(output=done)


def swapped(event: Any, ctx: Any) -> OutputEvent:
    done = [ctx.durable_execute(function, event.input) for function in (ship, charge)]
    return OutputEvent(output=done)


def one_less(event: Any, ctx: Any) -> OutputEvent:
    return OutputEvent(output=[ctx.durable_execute(charge, event.input)])


def other_arguments(event: Any, ctx: Any) -> OutputEvent:
    done = [ctx.durable_execute(charge, event.input, 2), ctx.durable_execute(ship, event.input)]
    return OutputEvent(output=done)


def default_said(event: Any, ctx: Any) -> OutputEvent:
    done = [ctx.durable_execute(charge, event.input, 1), ctx.durable_execute(ship, event.input)]
    return OutputEvent(output=done)


def other_function(event: Any, ctx: Any) -> OutputEvent:
    done = [ctx.durable_execute(bill, event.input), ctx.durable_execute(ship, event.input)]
    return OutputEvent(output=done)


def other_settings(event: Any, ctx: Any) -> OutputEvent:
    tried = DurableCallable(charge, timeout=timedelta(seconds=9), retry=RetryPolicy(max_attempts=2))
    done = [ctx.durable_execute(tried, event.input), ctx.durable_execute(ship, event.input)]
    return OutputEvent(output=done)


def reconcile(order: str) -> str:
    CALLS.append(f"reconcile {order}")
    return "found"


def with_reconciler(event: Any, ctx: Any) -> OutputEvent:
    done = [
        ctx.durable_execute(charge, event.input, reconciler=reconcile),
        ctx.durable_execute(ship, event.input),
        ctx.durable_execute(tell, event.input, reconciler=reconcile),
    ]
    return OutputEvent(output=done)


def wider_type(event: Any, ctx: Any) -> OutputEvent:
    done = [
        ctx.durable_execute(charge, event.input, result_type=str | int),
        ctx.durable_execute(ship, event.input),
    ]
    return OutputEvent(output=done)


NAMED = "charge-order"


def named(event: Any, ctx: Any) -> OutputEvent:
    done = [ctx.durable_execute(charge, event.input, name=NAMED), ctx.durable_execute(ship, event.input)]
    return OutputEvent(output=done)


def named_otherwise(event: Any, ctx: Any) -> OutputEvent:
    done = [ctx.durable_execute(bill, event.input, name=NAMED), ctx.durable_execute(ship, event.input)]
    return OutputEvent(output=done)


def also(event: Any, ctx: Any) -> OutputEvent:
    return OutputEvent(output=ctx.durable_execute(tell, event.input))


# -- safe ----------------------------------------------------------------------------------

RECORDED = ["charged 1", "shipped"]

SAFE: dict[str, tuple[Agent, Agent, list[Any], list[str]]] = {
    "change what an action does with results": (
        agent_of(),
        agent_of(other_code),
        [{"charged": "charged 1", "shipped": "shipped"}],
        [],
    ),
    "make a `def` action `async def`, or the reverse": (agent_of(), agent_of(awaited), [RECORDED], []),
    "add a call after the others of an action": (
        agent_of(),
        agent_of(one_more),
        [[*RECORDED, "told"]],
        ["tell o1"],
    ),
    "add an action": (
        agent_of(),
        agent_of().add_action("also", [InputEvent], also),
        [RECORDED, "told"],
        ["tell o1"],
    ),
    "add an action before the others": (
        agent_of(),
        Agent(name="orders").add_action("also", [InputEvent], also).add_action("act", [InputEvent], act),
        ["told", RECORDED],
        ["tell o1"],
    ),
    "change `timeout` or `retry` of a call": (agent_of(), agent_of(other_settings), [RECORDED], []),
    "add a `reconciler`": (agent_of(), agent_of(with_reconciler), [[*RECORDED, "told"]], ["tell o1"]),
    "give a call a `result_type` that the recorded result fits": (
        agent_of(),
        agent_of(wider_type),
        [RECORDED],
        [],
    ),
    "rename or move a function whose calls have a `name=`": (
        agent_of(named),
        agent_of(named_otherwise),
        [RECORDED],
        [],
    ),
}


@pytest.mark.parametrize("change", SAFE)
def test_safe_change(change: str) -> None:
    former, changed, outputs, calls = SAFE[change]
    harness = go_on(former, changed)
    assert harness.outputs == outputs
    assert CALLS == calls


def bill_in(event: Any, ctx: Any) -> BilledIn:
    return BilledIn(what=ctx.durable_execute(charge, event.input))


def ship_in(event: Any, ctx: Any) -> OutputEvent:
    return OutputEvent(output=[event.what, event.currency, ctx.durable_execute(ship, event.what)])


def note(event: Any, ctx: Any) -> Noted:
    return Noted(what=ctx.durable_execute(charge, event.input))


def other_first(event: Any, ctx: Any) -> Billed:
    return Billed(what=ctx.durable_execute(bill, event.input))


ENDED: dict[str, tuple[Agent, list[Any]]] = {
    "change the calls of an action whose end is recorded": (chain(other_first), ["charged 1", "shipped"]),
    "add a field with a default to an event": (
        chain(bill_in, ship_in, BilledIn),
        ["charged 1", "EUR", "shipped"],
    ),
}


@pytest.mark.parametrize("change", ENDED)
def test_safe_change_behind_the_end_of_an_action(change: str) -> None:
    changed, output = ENDED[change]
    harness = go_on(chain(), changed, behind_the_first())
    assert harness.outputs == [output]
    assert CALLS == []


# -- not safe ------------------------------------------------------------------------------

MISMATCH: dict[str, Agent] = {
    "add a call before recorded ones, or between them": agent_of(one_before),
    "swap two calls": agent_of(swapped),
    "remove a recorded call": agent_of(one_less),
    "change the arguments of a recorded call": agent_of(other_arguments),
    "pass an argument that was left to its default": agent_of(default_said),
    "rename or move a function that is called": agent_of(other_function),
    "give a recorded call another `name=`": agent_of(named),
}


@pytest.mark.parametrize("change", MISMATCH)
def test_change_that_does_not_fit(change: str) -> None:
    with pytest.raises(AgentsError) as caught:
        go_on(agent_of(), MISMATCH[change])
    assert isinstance(caught.value.__cause__, NonDeterminismError)
    assert not [call for call in CALLS if not call.startswith("tell")], "what was recorded was done again"


@pytest.mark.parametrize("change", MISMATCH)
def test_change_that_does_not_fit_with_rerun(change: str) -> None:
    harness = go_on(agent_of(), MISMATCH[change], config={"action-state.on-mismatch": "rerun"})
    with OperatorHarness(MISMATCH[change]) as fresh:
        calls = list(CALLS)
        CALLS[:] = []
        assert harness.outputs == fresh.push("o1")
        # A call in front of the first mismatch was read from its record once, and then made anew.
        assert calls == CALLS


LOST: dict[str, Agent] = {
    "rename an action": agent_of(name="renamed"),
    "remove an action": Agent(name="orders").add_action("other", [InputEvent], also),
}


@pytest.mark.parametrize("change", LOST)
def test_change_that_loses_an_action(change: str) -> None:
    with pytest.raises(PlanChangedError, match="lacks: act"):
        go_on(agent_of(), LOST[change])
    assert CALLS == []


def forward(event: Any, ctx: Any) -> Billed:
    return Billed(what=event.input)


def test_an_action_without_calls_that_is_renamed_before_one_with_calls() -> None:
    former = (
        Agent(name="orders")
        .add_action("first", [InputEvent], forward)
        .add_action("second", [Billed], then_ship)
    )
    changed = (
        Agent(name="orders")
        .add_action("begin", [InputEvent], forward)
        .add_action("second", [Billed], then_ship)
    )
    with pytest.raises(PlanChangedError, match="lacks: first"):
        go_on(former, changed)
    assert CALLS == [], "a recorded call was made again"


class BilledFor(Event):
    """``Billed`` with a field that it did not have."""

    EVENT_TYPE = "Billed"
    what: str
    customer: str


def bill_for(event: Any, ctx: Any) -> BilledFor:
    return BilledFor(what=ctx.durable_execute(charge, event.input), customer="ada")


LOST_EVENTS: dict[str, tuple[Agent, str]] = {
    "remove or rename a class of recorded events": (
        chain(note, then_ship, Noted),
        "takes the event 'Billed'",
    ),
    "add a field without a default to an event": (
        chain(bill_for, then_ship, BilledFor),
        "a new field 'customer'",
    ),
}


@pytest.mark.parametrize("change", LOST_EVENTS)
def test_change_that_loses_an_event(change: str) -> None:
    changed, text = LOST_EVENTS[change]
    with pytest.raises(PlanChangedError, match=text):
        go_on(chain(), changed, behind_the_first())
    assert CALLS == []


def test_any_change_of_the_plan_is_refused_where_the_policy_says_so() -> None:
    changed = SAFE["add an action"][1]
    with pytest.raises(PlanChangedError, match="action also is new"):
        go_on(agent_of(), changed, config={"action-state.on-plan-change": "fail"})
    assert CALLS == []


# -- the page ------------------------------------------------------------------------------


def test_the_page_has_these_rows_and_no_others() -> None:
    expected = (
        dict.fromkeys([*SAFE, *ENDED], "Safe")
        | dict.fromkeys(MISMATCH, "FA4013")
        | dict.fromkeys([*LOST, *LOST_EVENTS], "FA5005")
    )
    assert listed_edits(PAGE) == expected
