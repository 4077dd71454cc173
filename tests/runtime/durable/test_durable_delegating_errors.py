"""Exceptions that look for missing attributes elsewhere: handlers read the same at once and on replay.

The classes of clients do that with a response, whose stream is closed, or with a dictionary that is empty.
"""

from __future__ import annotations

import asyncio
import io
import urllib.error
from collections.abc import Callable
from email.message import Message
from typing import Any

import pytest
from durable_tools import SEEN, crash_and_replay, effect, forget, one_action

from flink_agents import InputEvent, RetryPolicy
from flink_agents.api.errors import ActionFailedError, RecordedFailureError
from flink_agents.models.setup.model_failures import requested_wait
from flink_agents.runtime.serde import exceptions
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

READ = "absent", "fp", "file", "read", "code", "msg", "headers", "__notes__", "status", "method"


def http_error(stream: Any = None) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://example.org", 503, "busy", Message(), stream)


class Uninitialized(urllib.error.HTTPError):
    """Has none of the attributes in which its base looks for others."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)

    def __str__(self) -> str:
        return "uninitialized"


class Connection:
    def method(self) -> int:
        return 1

    def close(self) -> None:
        pass


class OfResponse(Exception):
    def __init__(self, text: str, response: Any) -> None:
        super().__init__(text)
        self._response = response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)


class OfDictionary(Exception):
    def __init__(self, text: str, **values: Any) -> None:
        super().__init__(text)
        self.values = values

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["values"][name]


class Raising(Exception):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Slotted(Exception):
    __slots__ = ("_response",)

    def __init__(self, text: str, response: Any) -> None:
        super().__init__(text)
        self._response = response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)


def closed(error: urllib.error.HTTPError) -> Exception:
    error.close()
    return error


def partly_read(error: urllib.error.HTTPError) -> Exception:
    error.read(2)
    return error


ERRORS: dict[str, Callable[[], Exception]] = {
    "without a body": http_error,
    # The body of an error without one, before Python 3.11.5.
    "with a body of text": lambda: http_error(io.StringIO("")),
    "with a body": lambda: http_error(io.BytesIO(b"body")),
    "with a buffered body": lambda: http_error(io.BufferedReader(io.BytesIO(b"body"))),
    "closed": lambda: closed(http_error(io.BytesIO(b"body"))),
    "partly read": lambda: partly_read(http_error(io.BytesIO(b"body"))),
    "a subclass that does not initialize its base": lambda: Uninitialized("text"),
    "to a dictionary": lambda: OfDictionary("text", code=3),
    "to nothing": lambda: Raising("text"),
    "a slot": lambda: Slotted("text", None),
}
LEFT_OUT: dict[str, Callable[[], Exception]] = {
    "to an object without attributes": lambda: OfResponse("text", object()),
    "to a connection": lambda: OfResponse("text", Connection()),
    "to a dictionary of connections": lambda: OfDictionary("text", code=Connection()),
    "a slot of a connection": lambda: Slotted("text", Connection()),
}
"""Their records lack a part, so that a handler cannot read the same."""


def has(error: BaseException, name: str) -> Any:
    try:
        return hasattr(error, name)
    except Exception as raised:
        return type(raised)


def describe_error(error: BaseException) -> Any:
    return type(error), str(error), [(name, has(error, name)) for name in READ]


def fail(name: str) -> None:
    raise {**ERRORS, **LEFT_OUT}[name]()


async def fail_async(name: str) -> None:
    fail(name)


def handle(event: InputEvent, ctx: Any) -> None:
    try:
        ctx.durable_execute(fail, event.input)
    except Exception as error:
        SEEN.append(describe_error(error))
    ctx.durable_execute(effect, "next")


async def handle_async(event: InputEvent, ctx: Any) -> None:
    try:
        await ctx.durable_execute_async(fail_async, event.input)
    except Exception as error:
        SEEN.append(describe_error(error))
    await ctx.durable_execute_async(effect, "next")


async def handle_branches(event: InputEvent, ctx: Any) -> None:
    calls = [ctx.durable_execute_async(function, event.input) for function in (fail, fail_async)]
    for error in await asyncio.gather(*calls, return_exceptions=True):
        SEEN.append(describe_error(error))
    await ctx.durable_execute_async(effect, "next")


@each_case("act", [handle, handle_async, handle_branches])
@each_case("name", ERRORS)
def test_a_handler_reads_the_same_as_in_plain_python(name: str, act: Any) -> None:
    forget()
    crash_and_replay(one_action(act), name)
    assert SEEN == [describe_error(ERRORS[name]())] * len(SEEN)
    assert len(SEEN) in (2, 4)


@each_case("act", [handle, handle_async, handle_branches])
@each_case("name", LEFT_OUT)
def test_an_error_whose_record_lacks_a_part_keeps_its_class(name: str, act: Any) -> None:
    forget()
    crash_and_replay(one_action(act), name)
    assert SEEN == [SEEN[0]] * len(SEEN)
    assert SEEN[0][:2] == describe_error(LEFT_OUT[name]())[:2]


async def uncaught(event: InputEvent, ctx: Any) -> None:
    await ctx.durable_execute_async(fail, event.input, retry=RetryPolicy(max_attempts=2, initial_interval=0))


def uncaught_in_action(event: InputEvent, ctx: Any) -> None:
    fail(event.input)


@each_case("act", [uncaught, uncaught_in_action])
@each_case("name", {**ERRORS, **LEFT_OUT})
def test_the_error_of_the_action_is_the_one_that_was_raised(name: str, act: Any) -> None:
    retried = RetryPolicy(max_attempts=2, initial_interval=0)
    with OperatorHarness(one_action(act, retry=retried)) as harness:
        with pytest.raises(ActionFailedError) as caught:
            harness.push(name)
    cause = caught.value.__cause__
    expected = {**ERRORS, **LEFT_OUT}[name]()
    assert (type(cause), str(cause)) == (type(expected), str(expected))


def test_methods_that_the_class_found_elsewhere_are_those_of_the_restored_object() -> None:
    codec = ValueCodec()
    error: Any = exceptions.rebuild(
        codec, exceptions.describe(codec, partly_read(http_error(io.BytesIO(b"body"))))
    )
    assert error.read() == b"dy"


def test_a_cut_record_does_not_make_attributes_recursive() -> None:
    codec = ValueCodec()
    described = exceptions.describe(
        codec, OfResponse("text", {f"name {at}": "x" * 100 for at in range(90)}), 512
    )
    for state in (described["state"], None):
        error = exceptions.rebuild(codec, {**described, "state": state})
        assert isinstance(error, OfResponse | RecordedFailureError)
        assert has(error, "absent") is False


@each_case("name", ERRORS)
def test_a_wait_that_an_error_of_a_provider_requests_is_read_without_raising(name: str) -> None:
    assert requested_wait(ERRORS[name]()) is None
