"""Arguments of recorded calls after an edit: a replay compares their values.

Each edit is a former and a present version of classes and of the call, with what the replay makes of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from durable_tools import EFFECTS, forget, one_action

from flink_agents import NOT_DONE, DurableCallable, OutputEvent, RetryPolicy
from flink_agents.api.action_state import RecordKind
from flink_agents.api.durable import upgrades as upgrades_module
from flink_agents.api.errors import ActionFailedError, NonDeterminismError, StoreError
from flink_agents.runtime.serde.canonical import digest_of
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.typenames import resolve_type
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.factors import factors
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

MODULE = "shop_of_changed_arguments"
HEAD = """
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple
from pydantic import AliasChoices, BaseModel, Field, PrivateAttr
from flink_agents import upgrades

"""


@dataclass(frozen=True)
class Edit:
    """An edit of the code.

    Attributes:
        former: The former classes, and ``call``, which returns the arguments.
        present: The present ones.
        continues: Whether the run continues.
    """

    former: str
    present: str
    continues: bool = True


def model(fields: str, head: str = "class Order(BaseModel):") -> str:
    return f"{head}\n    {fields}\n"


CALL = "def call(): return [Order(id=1)], {}\n"
ORDER = model("id: int") + CALL
NESTED = "class Box(BaseModel):\n    orders: list[Any]\n    by_name: dict[str, Any] = {}\n"
IN_BOX = NESTED + "def call(): return [], {'box': Box(orders=[Order(id=1)], by_name={'a': Order(id=2)})}\n"
LINE = "@dataclass\nclass Order:"
TUPLE = "class Order(NamedTuple):"
TWO = "def call(): return [Order(id=1), Order(id=2)], {}\n"

EDITS: dict[str, Edit] = {
    "no change": Edit(ORDER, ORDER),
    "a default field of a model": Edit(ORDER, model("id: int; note: str = ''") + CALL),
    "a default field before the others": Edit(ORDER, model("note: str = ''; id: int") + CALL),
    "several default fields": Edit(ORDER, model("id: int; a: int = 1; b: list[int] = [1]") + CALL),
    "a default factory": Edit(ORDER, model("id: int; a: list[int] = Field(default_factory=list)") + CALL),
    "a default of another class": Edit(
        ORDER, "class Tax(BaseModel):\n    rate: int = 3\n" + model("id: int; tax: Tax = Tax()") + CALL
    ),
    "a default that is passed": Edit(
        ORDER, model("id: int; note: str = ''") + "def call(): return [Order(id=1, note='')], {}\n"
    ),
    "another value than the default": Edit(
        ORDER, model("id: int; note: str = ''") + "def call(): return [Order(id=1, note='x')], {}\n", False
    ),
    "a private attribute": Edit(ORDER, model("id: int; _seen: int = PrivateAttr(default=1)") + CALL),
    "a default field of a dataclass": Edit(
        model("id: int", LINE) + CALL, model("id: int; note: str = ''", LINE) + CALL
    ),
    "a default factory of a dataclass": Edit(
        model("id: int", LINE) + CALL,
        model("id: int; a: list[int] = field(default_factory=list)", LINE) + CALL,
    ),
    "a default field of a named tuple": Edit(
        model("id: int", TUPLE) + CALL, model("id: int\n    note: str = ''", TUPLE) + CALL
    ),
    "a nested class": Edit(model("id: int") + IN_BOX, model("id: int; note: str = ''") + IN_BOX),
    "two objects": Edit(model("id: int") + TWO, model("id: int; note: str = ''") + TWO),
    "a renamed class": Edit(
        ORDER,
        f"@upgrades('{MODULE}:Order')\n"
        + model("id: int", "class Purchase(BaseModel):")
        + "def call(): return [Purchase(id=1)], {}\n",
    ),
    "a renamed class with a default field": Edit(
        ORDER,
        f"@upgrades('{MODULE}:Order')\n"
        + model("id: int; note: str = ''", "class Purchase(BaseModel):")
        + "def call(): return [Purchase(id=1)], {}\n",
    ),
    "a renamed dataclass": Edit(
        model("id: int", LINE) + CALL,
        f"@upgrades('{MODULE}:Order')\n"
        + model("id: int", "@dataclass\nclass Purchase:")
        + "def call(): return [Purchase(id=1)], {}\n",
    ),
    "a renamed enum": Edit(
        "class Size(Enum):\n    BIG = 1\ndef call(): return [Size.BIG], {}\n",
        f"@upgrades('{MODULE}:Size')\nclass Scale(Enum):\n    BIG = 1\n"
        "def call(): return [Scale.BIG], {}\n",
    ),
    "a renamed class without an upgrade": Edit(
        ORDER,
        model("id: int", "class Purchase(BaseModel):") + "def call(): return [Purchase(id=1)], {}\n",
        False,
    ),
    "a renamed class with another value": Edit(
        ORDER,
        f"@upgrades('{MODULE}:Order')\n"
        + model("id: int", "class Purchase(BaseModel):")
        + "def call(): return [Purchase(id=2)], {}\n",
        False,
    ),
    "a function that upgrades": Edit(
        ORDER,
        model("number: int", "class Purchase(BaseModel):")
        + f"@upgrades('{MODULE}:Order')\ndef purchase(fields): return Purchase(number=fields['id'])\n"
        + "def call(): return [Purchase(number=1)], {}\n",
        False,
    ),
    "a renamed field with an alias": Edit(
        ORDER,
        model("number: int = Field(validation_alias=AliasChoices('number', 'id'))")
        + "def call(): return [Order(number=1)], {}\n",
    ),
    "a renamed field": Edit(
        ORDER, model("number: int") + "def call(): return [Order(number=1)], {}\n", False
    ),
    "a removed field": Edit(model("id: int; note: str = ''") + CALL, ORDER, False),
    "another default of a field": Edit(
        model("id: int; note: str = 'a'") + CALL, model("id: int; note: str = 'b'") + CALL, False
    ),
    "another type of a field": Edit(ORDER, model("id: float") + CALL, False),
    "a dataclass that became a model": Edit(model("id: int", LINE) + CALL, ORDER),
    "another class with the same fields": Edit(
        model("id: int") + model("id: int", "class Refund(BaseModel):") + CALL,
        model("id: int")
        + model("id: int", "class Refund(BaseModel):")
        + "def call(): return [Refund(id=1)], {}\n",
        False,
    ),
    "position to name": Edit(
        "def call(): return [1, 'a'], {}\n", "def call(): return [1], {'second': 'a'}\n"
    ),
    "all positions to names": Edit(
        "def call(): return [1, 'a'], {}\n", "def call(): return [], {'second': 'a', 'first': 1}\n"
    ),
    "name to position": Edit(
        "def call(): return [], {'first': 1, 'second': 'a'}\n", "def call(): return [1, 'a'], {}\n"
    ),
    "some names to positions": Edit(
        "def call(): return [], {'first': 1, 'third': 3}\n", "def call(): return [1], {'third': 3}\n"
    ),
    "position to name with a new field": Edit(
        ORDER, model("id: int; note: str = ''") + "def call(): return [], {'first': Order(id=1)}\n"
    ),
    "position to another name": Edit(
        "def call(): return [1, 2], {}\n", "def call(): return [1], {'third': 2}\n", False
    ),
    "swapped arguments": Edit(
        "def call(): return [1, 2], {}\n", "def call(): return [], {'first': 2, 'second': 1}\n", False
    ),
    "a default that is passed to the function": Edit(
        "def call(): return [1], {}\n", "def call(): return [1, None], {}\n", False
    ),
}


def define(source: str) -> None:
    """Let the module have the classes of a version."""
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module
    resolve_type.cache_clear()
    exec(compile(HEAD + source, f"<{MODULE}>", "exec", dont_inherit=True), vars(module))


@pytest.fixture(autouse=True)
def undefined() -> Iterator[None]:
    yield
    sys.modules.pop(MODULE, None)
    resolve_type.cache_clear()
    forget_upgrades()


def forget_upgrades() -> None:
    for name in [name for name in upgrades_module.all_upgrades() if name.startswith(MODULE)]:
        upgrades_module._upgrades.pop(name)


def call_arguments() -> tuple[list[Any], dict[str, Any]]:
    # The analysis of plans would follow `sys.modules` into all tests of the process.
    return import_module(MODULE).call()


def ship(first: Any = None, second: Any = None, third: Any = None, box: Any = None) -> str:
    EFFECTS.append("shipped")
    return "done"


async def ship_async(first: Any = None, second: Any = None, third: Any = None, box: Any = None) -> str:
    return ship()


def ask(first: Any = None, second: Any = None, third: Any = None, box: Any = None) -> Any:
    return "done" if EFFECTS else NOT_DONE


def with_settings(function: Any) -> Any:
    retry = RetryPolicy(max_attempts=2, initial_interval=0)
    return DurableCallable(function, name="ship", result_type=str, retry=retry, reconciler=ask)


def plainly(event: Any, ctx: Any) -> OutputEvent:
    args, kwargs = call_arguments()
    return OutputEvent(output=ctx.durable_execute(ship, *args, **kwargs))


def with_all_settings(event: Any, ctx: Any) -> OutputEvent:
    args, kwargs = call_arguments()
    return OutputEvent(output=ctx.durable_execute(with_settings(ship), *args, **kwargs))


async def on_loop(event: Any, ctx: Any) -> OutputEvent:
    args, kwargs = call_arguments()
    return OutputEvent(output=await ctx.durable_execute_async(ship_async, *args, **kwargs))


async def on_loop_with_all_settings(event: Any, ctx: Any) -> OutputEvent:
    args, kwargs = call_arguments()
    return OutputEvent(output=await ctx.durable_execute_async(with_settings(ship_async), *args, **kwargs))


async def in_branches(event: Any, ctx: Any) -> OutputEvent:
    args, kwargs = call_arguments()
    calls = [ctx.durable_execute_async(ship_async, *args, **kwargs) for _ in range(2)]
    return OutputEvent(output=(await ctx.gather(*calls))[0])


ACTS: dict[str, Callable[..., Any]] = {
    "a def action": plainly,
    "a def action, all settings": with_all_settings,
    "an async action": on_loop,
    "an async action, all settings": on_loop_with_all_settings,
    "branches": in_branches,
}


def crash_then_edit(act: Any, edit: Edit, kind: RecordKind, fault: Fault) -> tuple[OperatorHarness, int]:
    """Crash at the first record of a kind, and go on with the present code; returns the earlier effects."""
    forget()
    forget_upgrades()
    define(edit.former)
    faults = Faults(at_record(kind, fault))
    harness = OperatorHarness(one_action(act), store=faults.store)
    snapshot = harness.snapshot()
    with pytest.raises(StoreError):
        harness.push(0)
    harness.close()
    effects = len(EFFECTS)
    define(edit.present)
    harness = OperatorHarness(one_action(act), store=faults.store)
    harness.restore(snapshot)
    return harness, effects


@factors(strength=1, name=EDITS, act=ACTS)
def test_a_replay_compares_the_values_of_arguments(name: str, act: str) -> None:
    edit = EDITS[name]
    harness, effects = crash_then_edit(ACTS[act], edit, RecordKind.ACTION, Fault.REFUSED)
    with harness:
        if edit.continues:
            assert harness.push(0) == ["done"]
        else:
            with pytest.raises(ActionFailedError) as caught:
                harness.push(0)
            assert type(caught.value.__cause__) is NonDeterminismError
    assert len(EFFECTS) == effects


@each_case("act", ["a def action, all settings", "an async action, all settings"])
@each_case("name", [name for name, edit in EDITS.items() if edit.continues])
def test_a_reconciler_is_asked_about_a_call_whose_arguments_changed(name: str, act: str) -> None:
    harness, effects = crash_then_edit(ACTS[act], EDITS[name], RecordKind.CALL, Fault.REFUSED)
    assert effects == 1
    with harness:
        assert harness.push(0) == ["done"]
    assert len(EFFECTS) == effects


def test_a_mismatch_says_which_class_changed() -> None:
    harness, _ = crash_then_edit(plainly, EDITS["a removed field"], RecordKind.ACTION, Fault.REFUSED)
    with harness, pytest.raises(ActionFailedError) as caught:
        harness.push(0)
    text = str(caught.value)
    assert "note=''" in text or f"{MODULE}:Order had the fields id, note, and has id" in text


def test_a_digest_follows_values_and_not_how_they_were_given() -> None:
    define(model("id: int; note: str = ''") + CALL)
    order = vars(sys.modules[MODULE])["Order"]
    codec = ValueCodec()
    assert digest_of(codec, order(id=1)) == digest_of(codec, order(id=1, note=""))
    assert digest_of(codec, order(id=1)) != digest_of(codec, order(id=1, note="x"))
