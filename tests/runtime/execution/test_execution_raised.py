"""Whatever code of an author raises, wherever it runs: the documented failure, and nothing hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from durable_tools import EFFECTS, crash, effect, effect_async, forget
from raised_tools import KINDS, raise_it

from flink_agents import (
    NOT_DONE,
    Agent,
    InputEvent,
    OutputEvent,
    ResourceType,
    RetryPolicy,
    action,
    client,
    tool,
)
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import ActionFailedError, ActionInterruptedError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.factors import factors

pytestmark = pytest.mark.executes_once

SECONDS = 20.0
"""After so long without an end, something hangs."""

TWICE = RetryPolicy(initial_interval=0, max_attempts=2, retry_on=(BaseException,))


FEW = [
    "StopIteration",
    "GeneratorExit",
    "KeyboardInterrupt",
    "SystemExit",
    "CancelledError",
    "own BaseException",
    "broken text",
    "ValueError",
]
"""Some of each kind, where an operator is made for each."""

ENDS = {"KeyboardInterrupt": KeyboardInterrupt, "GeneratorExit": GeneratorExit}
"""What can end the run of an action whatever its policies."""


def ends(kind: str, path: str) -> bool:
    """Whether no policy handles an exception of that kind.

    Python closes what awaits a task that raised ``GeneratorExit``.
    """
    in_function = "function" in path
    return (kind == "KeyboardInterrupt" and not in_function) or (kind == "GeneratorExit" and "task" in path)


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


# -- where code of an author runs -----------------------------------------------------------


def plain(event: Any, ctx: Any) -> None:
    raise_it(event.input)


def generator(event: Any, ctx: Any) -> Iterator[Any]:
    yield OutputEvent(output="must not leave")
    raise_it(event.input)


def by_result(event: Any, ctx: Any) -> Any:
    return (raise_it(event.input) for _ in "x")


async def coroutine(event: Any, ctx: Any) -> None:
    raise_it(event.input)


async def coroutine_that_waited(event: Any, ctx: Any) -> None:
    await asyncio.sleep(0)
    raise_it(event.input)


async def async_generator(event: Any, ctx: Any) -> AsyncIterator[Any]:
    yield OutputEvent(output="must not leave")
    raise_it(event.input)


async def in_a_task(event: Any, ctx: Any) -> None:
    await asyncio.create_task(coroutine(event, ctx))


async def in_a_thread(event: Any, ctx: Any) -> None:
    await asyncio.to_thread(raise_it, event.input)


def after_a_call(event: Any, ctx: Any) -> None:
    ctx.durable_execute(effect, 1)
    raise_it(event.input)


async def after_a_call_async(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(effect, 1)
    raise_it(event.input)


async def function_async(kind: str) -> None:
    raise_it(kind)


async def function_in_a_thread(kind: str) -> None:
    await asyncio.to_thread(raise_it, kind)


async def function_async_that_waited(kind: str) -> None:
    await asyncio.sleep(0)
    raise_it(kind)


def function_that_returns_a_coroutine(kind: str) -> Any:
    return function_async(kind)


FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "def": raise_it,
    "async def": function_async,
    "async def that waited": function_async_that_waited,
    "async def with a thread": function_in_a_thread,
    "def that returns a coroutine": function_that_returns_a_coroutine,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "": {},
    " with timeout": {"timeout": 60},
    " with retry": {"retry": TWICE},
    " with both": {"timeout": 60, "retry": TWICE},
}


def calling(function: Any, settings: dict[str, Any]) -> Callable[..., Any]:
    def act(event: Any, ctx: Any) -> None:
        ctx.durable_execute(function, event.input, **settings)

    return act


def calling_async(function: Any, settings: dict[str, Any]) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> None:
        await ctx.durable_execute_async(function, event.input, **settings)

    return act


def gathering(function: Any, settings: dict[str, Any]) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> None:
        calls = [ctx.durable_execute_async(effect_async, 1)]
        calls.append(ctx.durable_execute_async(function, event.input, **settings))
        await ctx.gather(*calls)

    return act


def agent_of(act: Any, **options: Any) -> Agent:
    return Agent(name="raises").add_action("act", [InputEvent], act, **options)


class Tools(Agent):
    """Calls a tool."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    @tool
    @staticmethod
    def plain(kind: str) -> None:
        """Raise."""
        raise_it(kind)

    @tool(max_concurrency=1)
    @staticmethod
    def limited(kind: str) -> None:
        """Raise."""
        raise_it(kind)

    @action(InputEvent)
    def act(self, event: Any, ctx: Any) -> None:
        ctx.get_resource(self.name, ResourceType.TOOL)(event.input)


class AsyncTools(Agent):
    """Calls a tool that is awaited."""

    @tool(max_concurrency=1)
    @staticmethod
    async def limited(kind: str) -> None:
        """Raise."""
        raise_it(kind)

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> None:
        await ctx.get_resource("limited", ResourceType.TOOL)(event.input)


@asynccontextmanager
async def opened_async(kind: str, when: str) -> AsyncIterator[int]:
    if when == "open":
        raise_it(kind)
    yield 1
    raise_it(kind)


@contextmanager
def opened(kind: str, when: str) -> Iterator[int]:
    if when == "open":
        raise_it(kind)
    yield 1
    raise_it(kind)


class Plain:
    """A context manager by its methods, which nothing stands between."""

    def __init__(self, kind: str, when: str) -> None:
        self.kind = kind
        self.when = when

    async def __aenter__(self) -> int:
        if self.when == "open":
            raise_it(self.kind)
        return 1

    async def __aexit__(self, *error: object) -> None:
        raise_it(self.kind)


MANAGERS: dict[str, Callable[..., Any]] = {"async": opened_async, "def": opened, "methods": Plain}


class Clients(Agent):
    """Uses a client."""

    def __init__(self, kind: str = "", manager: str = "", when: str = "open") -> None:
        self.arguments = (kind, when)
        self.manager = manager

    @client
    def http(self) -> Any:
        if self.manager == "function":
            raise_it(self.arguments[0])
        return MANAGERS[self.manager](*self.arguments)

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.client("http"))


def condition(event: Any) -> bool:
    raise_it(event.input)


PATHS: dict[str, Callable[[], Agent]] = {
    "def": lambda: agent_of(plain),
    "def in the pool": lambda: agent_of(plain, blocking=True),
    "def with timeout": lambda: agent_of(plain, timeout=60.0),
    "def with retry": lambda: agent_of(plain, retry=TWICE),
    "def with timeout and retry": lambda: agent_of(plain, timeout=60.0, retry=TWICE),
    "generator": lambda: agent_of(generator),
    "generator in the pool": lambda: agent_of(generator, blocking=True),
    "generator that is returned": lambda: agent_of(by_result),
    "async def": lambda: agent_of(coroutine),
    "async def that waited": lambda: agent_of(coroutine_that_waited),
    "async def with timeout": lambda: agent_of(coroutine, timeout=60.0),
    "async def with retry": lambda: agent_of(coroutine, retry=TWICE),
    "async generator": lambda: agent_of(async_generator),
    "async generator with timeout": lambda: agent_of(async_generator, timeout=60.0),
    "task of an action": lambda: agent_of(in_a_task),
    "thread of an action": lambda: agent_of(in_a_thread),
    "def behind a durable call": lambda: agent_of(after_a_call),
    "def behind a durable call, with timeout": lambda: agent_of(after_a_call, timeout=60.0),
    "async def behind a durable call": lambda: agent_of(after_a_call_async),
    "condition": lambda: agent_of(plain, when=condition),
    "condition of an action on the loop": lambda: agent_of(coroutine, when=condition),
    "tool": lambda: Tools("plain"),
    "tool with a limit": lambda: Tools("limited"),
    "async tool with a limit": lambda: AsyncTools(),
    **{
        f"{kind}, function {name}{settings}": lambda make=make, function=function, call_options=options: (
            agent_of(make(function, call_options))
        )
        for kind, make in {"def": calling, "async def": calling_async, "gather": gathering}.items()
        for name, function in FUNCTIONS.items()
        for settings, options in SETTINGS.items()
    },
}


@contextmanager
def fails_with_the_authors_line(path: str = "") -> Iterator[None]:
    with pytest.raises(ActionFailedError) as caught:
        yield
    assert is_authors(str(caught.value).split("\n")[0], path)
    assert caught.value.action == "act" and caught.value.key == 0


def is_authors(text: str, path: str) -> bool:
    """Whether ``text`` names the line that raised."""
    if "task" in path or "thread" in path:
        # asyncio makes others of some exceptions, where the author's code awaits a task or a thread.
        return "tests/runtime/" in text
    return "raised_tools.py" in text and (" in raise_it" in text or " in recursion" in text)


def push(harness: OperatorHarness, record: Any) -> list[Any]:
    harness.push(record)
    return harness.run_until_idle(SECONDS)


# The next test has the paths with retries, in one operator for all kinds.
@pytest.mark.nightly(beyond=12)
@pytest.mark.parametrize("path", [path for path in PATHS if not path.endswith(("with retry", "with both"))])
def test_whatever_is_raised_wherever_is_a_failure_of_the_action(path: str) -> None:
    for kind in KINDS if "function" not in path else FEW:
        with OperatorHarness(PATHS[path](), auto_run=False) as harness:
            with fails_with_the_authors_line(path):
                push(harness, kind)
            assert harness.outputs == [] and harness.sequence_number() == 0


@pytest.mark.nightly(beyond=20)
@pytest.mark.parametrize("path", [*PATHS])
def test_policies_decide_about_all_that_can_be_passed_by(path: str) -> None:
    agent = PATHS[path]
    config = {"actions.on-error": "dead-letter"}
    with OperatorHarness(agent(), auto_run=False, config=config) as harness:
        kinds = [kind for kind in KINDS if not ends(kind, path)]
        for kind in kinds:
            push(harness, kind)
        assert [letter.event.input for letter in harness.dead_letters] == kinds
        assert all(is_authors(letter.where, path) for letter in harness.dead_letters)


@pytest.mark.parametrize("kind", [*ENDS])
@pytest.mark.parametrize("path", [path for path in PATHS if "function" not in path])
def test_no_policy_passes_these_by(path: str, kind: str) -> None:
    if not ends(kind, path):
        return
    config = {"actions.on-error": "ignore"}
    with OperatorHarness(PATHS[path](), auto_run=False, config=config) as harness:
        with pytest.raises(ActionFailedError) as caught:
            push(harness, kind)
        assert isinstance(caught.value, KeyboardInterrupt) == (kind == "KeyboardInterrupt")
        assert (type(caught.value) is ActionInterruptedError) == (kind == "KeyboardInterrupt")


# -- reconcilers ------------------------------------------------------------------------------


class Reconciler:
    raises = False


def ask(kind: str) -> Any:
    return raise_it(kind) if Reconciler.raises else NOT_DONE


async def ask_async(kind: str) -> Any:
    return ask(kind)


@pytest.mark.nightly(beyond=3)
@factors(settings=SETTINGS, reconciler=[ask, ask_async], make=[calling, calling_async])
def test_whatever_a_reconciler_raises_is_how_the_call_failed(
    make: Any, reconciler: Any, settings: str
) -> None:
    for kind in KINDS:
        forget()
        Reconciler.raises = True
        faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED))
        agent = agent_of(make(effect, {**SETTINGS[settings], "reconciler": reconciler}))
        with OperatorHarness(agent, store=faults.store, auto_run=False) as harness:
            snapshot = harness.snapshot()
            with crash():
                push(harness, kind)
            for _ in range(2):
                harness.restore(snapshot)
                with fails_with_the_authors_line():
                    push(harness, kind)
            # Nobody knows what became of the call as long as the reconciler does not answer.
            assert EFFECTS == [kind]
            Reconciler.raises = False
            harness.restore(snapshot)
            push(harness, kind)
            assert EFFECTS == [kind, kind]


# -- clients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("manager", [*MANAGERS, "function"])
def test_whatever_a_client_raises_when_it_is_opened_is_a_failure_of_the_action(manager: str) -> None:
    for kind in KINDS:
        with OperatorHarness(Clients(kind, manager), auto_run=False) as harness:
            with fails_with_the_authors_line():
                push(harness, None)


@pytest.mark.parametrize("manager", [*MANAGERS])
def test_whatever_a_client_raises_when_it_is_closed_is_logged(
    manager: str, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in KINDS:
        caplog.clear()
        with OperatorHarness(Clients(kind, manager, "close"), auto_run=False) as harness:
            assert push(harness, None) == [1]
        (message,) = [record.getMessage() for record in caplog.records]
        assert message.startswith("the client http raised when it was closed") and "raise_it" in message
