"""What the error about another request than the recorded one shows."""

from __future__ import annotations

from typing import Any

import pytest

from flink_agents import Agent, DurableCallable, InputEvent, OutputEvent
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import AgentsError, NonDeterminismError
from flink_agents.runtime.execution.calls.mismatches import difference
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

LONG = "word " * 200


@each_case(
    ("recorded", "requested", "before", "after"),
    [
        ("amount=5", "amount=6", "amount=5", "amount=6"),
        ("a=1, amount=5, b=2", "a=1, amount=6, b=2", "amount=5, b=2", "amount=6, b=2"),
        (f"a='{LONG}', b=1", f"a='{LONG}', b=2", "b=1", "b=2"),
        (f"a='{LONG}x{LONG}'", f"a='{LONG}y{LONG}'", "a=...", "a=..."),
        ("a=1", "a=1, b=2", "a=1", "a=1, b=2"),
        ("", "a=1", "", "a=1"),
        (f"a=1, b='{LONG}', c=1", f"a=2, b='{LONG}', c=2", "a=1, b=", "a=2, b="),
        ("a='\\n\u20ac'", "a='\\n\ud800'", "a='\\n\u20ac'", "a='\\n\ud800'"),
        ("x" * 5000, "y" * 5000, "xxx", "yyy"),
        (" ".join(map(str, range(3000))), " ".join(map(str, range(1, 6000, 2))), "0 1 2", "1 3 5"),
    ],
)
def test_differences(recorded: str, requested: str, before: str, after: str) -> None:
    shown = difference(recorded, requested)
    assert shown[0].startswith(before) and shown[1].startswith(after), shown
    assert shown[0] != shown[1]
    assert max(map(len, shown)) < 1500, "it is a message for people"


def test_many_differences_are_bounded() -> None:
    values = [
        ", ".join(f"n{index}='{'x' * 60} {index * factor}'" for index in range(30)) for factor in (1, 2)
    ]
    recorded_text, after = difference(*values)
    assert recorded_text.endswith("and 25 more") and after.endswith("and 25 more")
    assert recorded_text.startswith("n1=") and len(recorded_text) < 1500


def charge(order: Any, amount: Any = 0, token: str = "") -> str:
    return "done"


def paying(*arguments: Any, function: Any = charge, **named: Any) -> Agent:
    async def pay(event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(function, *arguments, **named))

    return Agent(name="paying").add_action("pay", [InputEvent], pay)


def replayed(former: Agent, changed: Agent) -> NonDeterminismError:
    """Return the error of the changed agent, which goes on with the records of the former one."""
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    with OperatorHarness(former, store=faults.store) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(AgentsError):
            harness.push("i1")
    with OperatorHarness(changed, store=faults.store) as harness:
        harness.restore(snapshot)
        with pytest.raises(AgentsError) as caught:
            harness.push("i1")
    error = caught.value.__cause__
    assert isinstance(error, NonDeterminismError)
    return error


SECRET = DurableCallable(charge, redact="token")
HIDDEN = "they differ in what the record does not show"


@each_case(
    ("former", "changed", "expected", "found"),
    [
        (paying("a", 5), paying("a", 6), "amount=5", "amount=6"),
        (paying("a", amount=5), paying("a", amount=6), "amount=5", "amount=6"),
        (paying("a"), paying("a", 6), "(order='a')", "amount=6"),
        (paying({"id": 7}), paying({"id": 8}), "'id': 7", "'id': 8"),
        (paying(f"{LONG}a"), paying(f"{LONG}b"), "word a'", "word b'"),
        (paying(f"{LONG * 14}a"), paying(f"{LONG * 14}b"), "word a'", "word b'"),
        (
            paying("a", function=SECRET, token="x1"),
            paying("a", function=SECRET, token="x2"),
            "token=...",
            HIDDEN,
        ),
        (paying(f"{LONG}a{LONG * 14}"), paying(f"{LONG}b{LONG * 14}"), "word a", "word b"),
        (paying(f"{LONG * 14}a{LONG * 14}"), paying(f"{LONG * 14}b{LONG * 14}"), "order=", HIDDEN),
        (paying("a"), paying("a", function=len), "charge(order='a'), arguments", "len"),
    ],
)
def test_arguments_of_a_durable_call(former: Agent, changed: Agent, expected: str, found: str) -> None:
    error = replayed(former, changed)
    assert expected in (error.expected or "") and found in (error.found or ""), (error.expected, error.found)
    assert "x1" not in str(error) and "x2" not in str(error)
    assert len(str(error)) < 3000
