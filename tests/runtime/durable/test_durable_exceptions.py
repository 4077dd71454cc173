"""An exception of a durable call is the same the first time and on replay, whatever its class."""

from __future__ import annotations

import asyncio
import decimal
import enum
import json
import re
import socket
import subprocess
import xml.etree.ElementTree
import zipfile
from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from durable_tools import EFFECTS, SEEN, crash_and_replay, effect, forget, one_action
from raised_tools import KINDS, OwnBase

from flink_agents import InputEvent, OutputEvent, RetryableError, RetryPolicy, TerminalError
from flink_agents.api.errors import ActionFailedError, RecordedFailureError
from flink_agents.runtime.serde.raised_texts import text_of
from flink_agents.testing import OperatorHarness
from tests.suite.factors import factors

pytestmark = pytest.mark.executes_once

ONCE = RetryPolicy(max_attempts=1)
FEW = RetryPolicy(initial_interval=0, max_attempts=3)


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()
    Made.last = None


class Made:
    last: BaseException | None = None


# -- classes ------------------------------------------------------------------------------------


class Plain(Exception):
    pass


class WithConstructor(Exception):
    def __init__(self, code: int, *, retry: bool = False) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.retry = retry


class WithoutSuper(Exception):
    def __init__(self, code: int, live: Any = None) -> None:
        self.code = code
        self.live = live


class PassesNothing(Exception):
    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class LiveText(Exception):
    def __init__(self, live: Any) -> None:
        super().__init__()
        self.live = live

    def __str__(self) -> str:
        return f"of {self.live.name}"


class Slotted(Exception):
    __slots__ = ("__private", "code", "live")

    def __init__(self, code: int, live: Any = None) -> None:
        super().__init__(f"slot {code}")
        self.code = code
        self.live = live
        self.__private = [code]

    @property
    def private(self) -> Any:
        return self.__private


class SlottedTwice(Slotted):
    __slots__ = "more"

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.more = code


class MadeByNew(Exception):
    def __new__(cls, *args: Any, code: int = 0) -> MadeByNew:
        error = super().__new__(cls, *args)
        error.code = code  # pyright: ignore[reportAttributeAccessIssue]
        return error

    def __init__(self, *args: Any, code: int = 0) -> None:
        super().__init__(*args)


class NeedsCode(Exception):
    def __new__(cls, code: int, text: str) -> NeedsCode:
        return super().__new__(cls, text)

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class ReadOnly(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


class HidesArguments(Exception):
    @property
    def args(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise OwnBase("args")


class Reduces(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> Any:
        return type(self), (self.code, str(self))


class Code(enum.Enum):
    REFUSED = 1


class OwnOSError(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "gone", path)
        self.path = path


class OwnKeyError(KeyError):
    def __str__(self) -> str:
        return f"no key {self.args[0]}"


class OwnRetryable(RetryableError):
    def __init__(self, seconds: float) -> None:
        super().__init__("busy", retry_after=seconds)


class Model(pydantic.BaseModel):
    number: int


class TextSubclass(str):
    pass


class OddText(Exception):
    def __str__(self) -> str:
        return TextSubclass("text")


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error.with_traceback(None)
    raise AssertionError


def attributes(error: Any, **given: Any) -> BaseException:
    for name, value in given.items():
        setattr(error, name, value)
    return error


def noted() -> BaseException:
    error = Plain("noted")
    error.add_note("in passing")
    return error


def caused() -> BaseException:
    def call() -> None:
        try:
            raise ValueError("inner")
        except ValueError as error:
            raise Plain("outer") from error

    return raised(call)


class Live:
    name = "service"


class Connection(Live):
    def close(self) -> None:
        pass


ERRORS: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: Plain("a", 1, (2,), [3], {"k": Code.REFUSED}),
    "empty": lambda: Plain(),
    "constructor": lambda: WithConstructor(3, retry=True),
    "without super": lambda: WithoutSuper(3),
    "without super, live": lambda: WithoutSuper(3, Live()),
    "passes nothing": lambda: PassesNothing(4),
    "connection": lambda: attributes(Plain("a"), response=Connection(), status=404),
    "text of a connection": lambda: LiveText(Connection()),
    "live text": lambda: LiveText(Live()),
    "slots": lambda: Slotted(5),
    "slots, live": lambda: Slotted(5, Live()),
    "slots of two classes": lambda: SlottedTwice(6),
    "made by __new__": lambda: MadeByNew("a", code=7),
    "needs code": lambda: NeedsCode(8, "text"),
    "read only": lambda: ReadOnly("a"),
    "reduces": lambda: Reduces(9, "text"),
    "hides its arguments": lambda: HidesArguments("a"),
    "live argument": lambda: Plain("a", Live()),
    "live attribute": lambda: attributes(Plain("a"), response=Live(), status=404),
    "attributes": lambda: attributes(Plain("a"), status=404, tags={"a", "b"}, code=Code.REFUSED),
    "notes": noted,
    "cause": caused,
    "text of another class": lambda: OddText(),
    "bytes": lambda: Plain(bytearray(b"a"), b"b"),
    "decimal": lambda: decimal.InvalidOperation([decimal.ConversionSyntax]),
    "local class": lambda: type("Local", (Exception,), {})("local"),
    "class without module": lambda: type("Odd", (Exception,), {"__module__": None})("odd"),
    "OSError": lambda: OSError("only a text"),
    "OSError, number": lambda: OSError(2, "no such file"),
    "OSError, file": lambda: OSError(2, "no such file", "x.txt"),
    "OSError, two files": lambda: OSError(18, "other device", "a.txt", None, "b.txt"),
    "PermissionError": lambda: raised(lambda: open("/proc/self/mem/x")),
    "BlockingIOError": lambda: BlockingIOError(11, "would block", 7),
    "ConnectionResetError": lambda: ConnectionResetError(104, "reset"),
    "TimeoutError": lambda: TimeoutError("late"),
    "socket": lambda: socket.gaierror(-2, "unknown"),
    "own OSError": lambda: OwnOSError("x.txt"),
    "UnicodeDecodeError": lambda: raised(lambda: b"\xff".decode()),
    "UnicodeEncodeError": lambda: raised(lambda: "\udc80".encode()),
    "KeyError": lambda: KeyError(("a", 1)),
    "own KeyError": lambda: OwnKeyError("k"),
    "AttributeError": lambda: raised(lambda: Live().missing),  # pyright: ignore[reportAttributeAccessIssue]
    "NameError": lambda: raised(lambda: missing),  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    "ImportError": lambda: raised(lambda: __import__("no_such_module_at_all")),
    "ImportError of a name": lambda: ImportError("no", name="a", path="b"),
    "SyntaxError": lambda: raised(lambda: compile("x = = 1", "a.py", "exec")),
    "ZeroDivisionError": lambda: raised(lambda: 1 / 0),
    "OverflowError": lambda: raised(lambda: 2.0**9999),
    "JSON": lambda: raised(lambda: json.loads("{")),
    "XML": lambda: raised(lambda: xml.etree.ElementTree.fromstring("<")),
    "zip": lambda: zipfile.BadZipFile("no zip"),
    "process": lambda: subprocess.CalledProcessError(3, ["a"], b"out", b"err"),
    "process timeout": lambda: subprocess.TimeoutExpired(["a"], 3.0),
    "pydantic": lambda: raised(lambda: Model(number="a")),  # pyright: ignore[reportArgumentType]
    "incomplete read": lambda: asyncio.IncompleteReadError(b"part", 10),
    "asyncio": lambda: asyncio.LimitOverrunError("over", 3),
    "retryable": lambda: RetryableError("busy", retry_after=0),
    "own retryable": lambda: OwnRetryable(0),
    "terminal": lambda: TerminalError("never"),
    "recorded": lambda: RecordedFailureError("in another job", error_type="a:B"),
    "group": lambda: ExceptionGroup(
        "g", [Plain("a"), WithoutSuper(3, Live()), ExceptionGroup("h", [OSError(2, "x")])]
    ),
    "base group": lambda: BaseExceptionGroup("g", [OwnBase("a"), KeyboardInterrupt(), StopIteration(3)]),
    "group in an attribute": lambda: attributes(Plain("a"), inner=ExceptionGroup("g", [Plain("b")])),
    **KINDS,
}

SAME = [
    "plain", "empty", "constructor", "without super", "passes nothing", "slots", "slots of two classes",
    "made by __new__", "reduces", "attributes", "notes", "cause", "OSError", "OSError, number",
    "OSError, file", "OSError, two files", "PermissionError", "BlockingIOError", "ConnectionResetError",
    "TimeoutError", "socket", "own OSError", "UnicodeDecodeError", "UnicodeEncodeError", "KeyError",
    "own KeyError", "AttributeError", "NameError", "ImportError", "ImportError of a name", "SyntaxError",
    "ZeroDivisionError", "OverflowError", "JSON", "zip", "process", "process timeout", "incomplete read",
    "retryable", "own retryable", "terminal", "recorded", "live attribute", "connection", "live text",
    "pydantic",
]  # fmt: skip
"""Those that are recorded as they are."""


def describe_error(error: Any) -> Any:
    """All that an action can see of an exception."""
    if error is None:
        return None
    if isinstance(error, HidesArguments):
        return type(error), text_of(error)
    inner = (
        [describe_error(exception) for exception in error.exceptions]
        if isinstance(error, BaseExceptionGroup)
        else error.args
    )
    slots = {
        name: getattr(error, name, None)
        for name in ("code", "more", "private", "name", "path", "errno", "filename", "filename2", "value")
    }
    return type(error), text_of(error), inner, dict(vars(error)), slots


def without_addresses(value: Any) -> str:
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def fail_with(name: str) -> None:
    EFFECTS.append(name)
    Made.last = ERRORS[name]()
    raise Made.last


async def fail_with_async(name: str) -> None:
    fail_with(name)


async def go_on(event: InputEvent, ctx: Any) -> None:
    function = {"def": fail_with, "async": fail_with_async}[event.input[0]]
    try:
        await ctx.durable_execute_async(function, event.input[1], retry=ONCE)
    except BaseException as error:
        SEEN.append(describe_error(error))
    await ctx.durable_execute_async(effect, "next")


def go_on_in_a_thread(event: InputEvent, ctx: Any) -> None:
    function = {"def": fail_with, "async": fail_with_async}[event.input[0]]
    try:
        ctx.durable_execute(function, event.input[1], retry=ONCE)
    except BaseException as error:
        SEEN.append(describe_error(error))
    ctx.durable_execute(effect, "next")


@factors(strength=1, name=ERRORS, act=[go_on, go_on_in_a_thread])
def test_an_action_sees_the_same_exception_the_first_time(name: str, act: Any) -> None:
    crash_and_replay(one_action(act), ("def" if act is go_on else "async", name))
    assert EFFECTS == [name, "next"]
    first, second = SEEN
    assert without_addresses(first) == without_addresses(second)
    assert first[:2] == second[:2]


@pytest.mark.parametrize("name", SAME)
def test_what_can_be_recorded_is_what_was_raised(name: str) -> None:
    crash_and_replay(one_action(go_on), ("def", name))
    original = describe_error(Made.last)
    for seen in SEEN:
        assert seen[:3] == original[:3]
        if name != "connection":
            assert without_addresses(seen) == without_addresses(original)
        else:
            note = "The recorded form of this error lacks: response"
            assert seen[3] == {"status": 404, "response": None, "__notes__": [note]}


# -- what goes by the original --------------------------------------------------------------------


class Unrecordable(ConnectionError):
    """Its text is lost with what it hangs on."""

    def __init__(self, live: Any) -> None:
        super().__init__()
        self.live = live

    def __str__(self) -> str:
        return f"{self.live.name} refused"


ERRORS["unrecordable"] = lambda: Unrecordable(Connection())


def cause_it(event: InputEvent, ctx: Any) -> OutputEvent:
    try:
        ctx.durable_execute(fail_with, event.input)
    except BaseException as error:
        return OutputEvent(output=type(error.__cause__).__qualname__)
    raise AssertionError


@pytest.mark.parametrize("name", ["unrecordable", "plain", "KeyboardInterrupt", "StopIteration", "pydantic"])
def test_the_original_is_the_cause_the_first_time(name: str) -> None:
    with OperatorHarness(one_action(cause_it)) as harness:
        assert harness.push(name) == [type(ERRORS[name]()).__qualname__]


def call_with_policy(event: InputEvent, ctx: Any) -> None:
    name, policy = event.input
    ctx.durable_execute(fail_with, name, retry=POLICIES[policy])


def call_it(event: InputEvent, ctx: Any) -> None:
    ctx.durable_execute(fail_with, event.input)


POLICIES = {
    "all": FEW,
    "connections": FEW.model_copy(update={"retry_on": (ConnectionError,)}),
    "others": FEW.model_copy(update={"retry_on": (ValueError,)}),
    "never": FEW.model_copy(update={"non_retryable": (Unrecordable,)}),
}
ATTEMPTS = {"all": 3, "connections": 3, "others": 1, "never": 1}


@pytest.mark.parametrize("policy", [*POLICIES])
def test_policies_of_calls_and_actions_decide_by_the_original(policy: str) -> None:
    with OperatorHarness(one_action(call_with_policy)) as harness, pytest.raises(ActionFailedError):
        harness.push(("unrecordable", policy))
    assert len(EFFECTS) == ATTEMPTS[policy]
    forget()
    with OperatorHarness(one_action(call_it, retry=POLICIES[policy])) as harness:
        with pytest.raises(ActionFailedError) as caught:
            harness.push("unrecordable")
    assert len(EFFECTS) == ATTEMPTS[policy]
    assert type(caught.value.__cause__) is RecordedFailureError
    assert "service refused" in str(caught.value) and " in fail_with: " in str(caught.value)
