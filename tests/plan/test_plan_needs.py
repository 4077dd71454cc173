"""What the plan of an agent tells of its durable steps: it makes some, it may make some, or it makes none."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.plan import LoadedAgent, compile_with_code
from flink_agents.plan.binding.needs import makes_durable_steps, may_make_durable_steps
from flink_agents.testing import OperatorHarness
from tests.suite import conditions
from tests.suite.tables import each_case

NO_CALL = "def decide(value):\n    return value\n"
CALLS = "async def decide(ctx, value):\n    return await ctx.durable_execute_async(abs, value)\n"


def action_of(code: str, **names: Any) -> Callable[..., Any]:
    """Return an action whose body is ``code``, with a source that can be read."""
    text = f"def decide(event, ctx):\n    {code}\n"
    file = f"<decide {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    known = {"__name__": __name__, **names}
    exec(compile(text, file, "exec"), known)
    return known["decide"]


def needs(code: str, **names: Any) -> tuple[bool, bool]:
    """Return True if an action with that body makes durable steps, and True if it may make some."""
    agent = Agent(name="one").add_action("decide", InputEvent, action_of(code, **names), emits=[OutputEvent])
    loaded = LoadedAgent(*compile_with_code(agent))
    return makes_durable_steps(loaded), may_make_durable_steps(loaded)


MAKES = (True, True)
MAY_MAKE = (False, True)
MAKES_NONE = (False, False)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the author's, in a package, that makes durable calls."""
    package = tmp_path / "author_of_uses"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("calls.py").write_text(CALLS, encoding="utf-8")
    package.joinpath("plain.py").write_text(NO_CALL, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("author_of_uses")]:
        monkeypatch.delitem(sys.modules, name)
    return "author_of_uses.calls"


@each_case(
    "code",
    [
        "from author_of_uses.calls import decide; return decide(ctx, 1)",
        "import author_of_uses.calls as calls; return calls.decide(ctx, 1)",
        "from .calls import decide; return decide(ctx, 1)",
        "from . import calls; return calls.decide(ctx, 1)",
        "def inner():\n        from .calls import decide; return decide(ctx, 1)\n    return inner",
    ],
)
@pytest.mark.parametrize("loaded", [False, True])
def test_an_action_that_imports_as_it_runs(module: str, code: str, loaded: bool) -> None:
    """A module that is not loaded is not imported in order to read it."""
    if loaded:
        importlib.import_module(module)
    assert needs(code, __package__="author_of_uses") == (MAKES if loaded else MAY_MAKE)
    assert (module in sys.modules) == loaded


@each_case(
    "code",
    [
        "return event",
        "import json; return json.dumps(event)",
        "from xml.dom import minidom; return minidom",
        "from pydantic.no_such_module import x",
        "import no_such_module_at_all",
        "from .. import gone",
        "ctx.short_term_memory.set('last', event.input); return OutputEvent(output=ctx.key)",
    ],
)
def test_code_that_keeps_its_context_makes_no_steps(code: str) -> None:
    assert needs(code, OutputEvent=OutputEvent) == MAKES_NONE


def pay(ctx: RunnerContext) -> Any:
    return OutputEvent(output=ctx.key)


def pick(event: Any) -> Any:
    return pay


@each_case(
    "code",
    [
        "import json; return json.dumps(ctx)",
        "work = ctx; return work.run(event)",
        "return [ctx]",
        "return event.input.handle(ctx)",
        "return service.chosen(ctx)",
        "return [pay, divmod][event.input](ctx)",
        "return pick(event)(ctx)",
    ],
)
def test_code_that_passes_its_context_on_may_make_steps(code: str) -> None:
    names: dict[str, Any] = {"service": Service(), "pay": pay, "pick": pick}
    assert needs(code, **names) == MAY_MAKE


def test_a_module_that_an_action_imports_may_make_steps_without_its_context(module: str) -> None:
    code = "from author_of_uses.calls import decide; return decide"
    assert needs(code) == MAY_MAKE
    importlib.import_module(module)
    assert needs(code) == MAKES


def test_code_without_source_may_make_steps() -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec("def decide(event, ctx):\n    return None", names)
    loaded = LoadedAgent(*compile_with_code(Agent(name="one").add_action("a", InputEvent, names["decide"])))
    assert not makes_durable_steps(loaded) and may_make_durable_steps(loaded)


def test_a_loaded_module_without_calls_makes_none(module: str) -> None:
    importlib.import_module("author_of_uses.plain")
    assert needs("from author_of_uses.plain import decide; return decide(event)") == MAKES_NONE


class Service:
    """Makes a durable step in a method."""

    def pay(self, work: RunnerContext, amount: int) -> Any:
        return work.durable_execute(abs, amount)

    @property
    def chosen(self) -> Any:
        return abs


@each_case(
    "code",
    [
        "return ctx.durable_execute(abs, 1)",
        "return ctx.durable_execute(lambda: 1)",
        "return ctx.gather(*map(ctx.durable_execute_async, event.input))",
        "return service.pay(ctx, event.input)",
        "if event.input > 100:\n        service.pay(ctx, event.input)",
    ],
)
def test_a_durable_call_is_seen(code: str) -> None:
    assert needs(code, service=Service()) == MAKES


class Holds(Agent):
    """Has an object whose method makes a durable step."""

    def __init__(self) -> None:
        super().__init__()
        self.service = Service()

    @action(InputEvent)
    def pay(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=self.service.pay(ctx, event.input))


def test_a_durable_call_of_an_object_of_the_agent_is_seen() -> None:
    loaded = LoadedAgent(*compile_with_code(Holds()))
    assert makes_durable_steps(loaded)


NOTED: list[int] = []


class Hands(Agent):
    """Hands its context to code that only runs show."""

    @action(InputEvent)
    def pay(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        NOTED.append(event.input)
        handler = getattr(Service(), "pa" + "y")
        return OutputEvent(output=handler(ctx, event.input) if event.input > 2 else event.input)


@pytest.mark.own_conditions
def test_the_code_before_a_step_that_the_plan_does_not_show_runs_once() -> None:
    """Also if the first runs of the action make no step, and so could end on Flink's thread."""
    NOTED.clear()
    unforced: Any = {**conditions.UNFORCED, "forced_serialization": False}
    with OperatorHarness(Hands(), lambda number: number % 2, **unforced) as harness:
        assert [harness.push(number) for number in range(5)] == [[0], [1], [2], [3], [4]]
    assert NOTED == [0, 1, 2, 3, 4]
