"""Errors of HTTP clients: a handler reads the same from them as in plain Python, at once and on replay."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpx
import httpx2
import openai
import pydantic
import pytest
import requests
from durable_tools import SEEN, crash_and_replay, effect, forget, one_action
from pydantic_core import PydanticCustomError

from flink_agents import InputEvent, RetryPolicy
from flink_agents.runtime.serde import error_parts, exceptions
from flink_agents.runtime.serde.codec import ValueCodec
from tests.suite.tables import each_case

try:
    import tenacity
except ImportError:
    tenacity = None

pytestmark = pytest.mark.executes_once

ONCE = RetryPolicy(max_attempts=1)
BODY = json.dumps(
    {"error": {"message": "slow down", "code": "limit", "param": None, "type": "rate"}}
).encode()
CREDENTIALS = {"Authorization": "Bearer sk-1234567890abcdefghij", "X-Api-Key": "key-0987654321"}
URL = ""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(429)
        headers = {"Retry-After": "7", "Content-Type": "application/json", "Content-Length": str(len(BODY))}
        for name, value in {**headers, "Set-Cookie": "session=cookie-of-a-session"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(BODY)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(autouse=True, scope="module")
def server() -> Iterator[None]:
    global URL
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        URL = f"http://127.0.0.1:{running.server_port}/orders"
        yield
        running.shutdown()
        thread.join()


async def get_with_aiohttp(url: str) -> None:
    async with aiohttp.ClientSession(headers=CREDENTIALS) as session, session.get(url) as response:
        response.raise_for_status()


def ask_openai(url: str) -> None:
    with openai.OpenAI(base_url=url, api_key="sk-1234567890abcdefghij", max_retries=0) as client:
        client.chat.completions.create(model="m", messages=[])


def get_with_httpx(module: Any, url: str) -> None:
    module.get(url, headers=CREDENTIALS).raise_for_status()


REFUSED = "http://127.0.0.1:9/"
CLIENTS: dict[str, Callable[[str], Any]] = {
    "requests": lambda url: requests.get(url, headers=CREDENTIALS).raise_for_status(),
    "requests, streamed": lambda url: requests.get(url, headers=CREDENTIALS, stream=True).raise_for_status(),
    "httpx": lambda url: get_with_httpx(httpx, url),
    "httpx2": lambda url: get_with_httpx(httpx2, url),
    "openai": ask_openai,
    "aiohttp": lambda url: asyncio.run(get_with_aiohttp(url)),
    "urllib": lambda url: urllib.request.urlopen(url),
}

OF_RESPONSE = "response.status_code", "response.text", "response.json()", "response.headers['retry-after']"
OF_REQUEST = "response.request.method", "str(response.request.url)", "str(request.url)", "request.method"
OF_STATUS: dict[str, tuple[str, ...]] = {
    "requests": (*OF_RESPONSE, *OF_REQUEST, "response.ok", "response.reason", "response.url", "errno"),
    "requests, streamed": (*OF_RESPONSE, *OF_REQUEST, "response.content", "response.apparent_encoding"),
    "httpx": (*OF_RESPONSE, *OF_REQUEST, "response.is_client_error", "response.reason_phrase"),
    "httpx2": (*OF_RESPONSE, *OF_REQUEST, "response.is_client_error", "response.reason_phrase"),
    "openai": (*OF_RESPONSE, *OF_REQUEST, "status_code", "body", "code", "type", "message", "request_id"),
    "aiohttp": ("status", "message", "headers['retry-after']", "request_info.url", "request_info.method"),
    "urllib": (
        "code",
        "status",
        "reason",
        "headers['retry-after']",
        "url",
        "filename",
        "read()",
        "info()['retry-after']",
    ),
}
OF_CONNECTION: dict[str, tuple[str, ...]] = {
    "requests": ("request.url", "response"),
    "requests, streamed": ("request.url", "response"),
    "httpx": ("str(request.url)",),
    "httpx2": ("str(request.url)",),
    "openai": ("str(request.url)", "message", "body"),
    "aiohttp": ("host", "port", "errno", "strerror", "os_error.errno"),
    "urllib": ("reason.errno", "str(reason)"),
}


def read(error: Any, expression: str) -> str:
    """Return what a handler reads, as text."""
    if expression.startswith("str("):
        return str(eval(f"error.{expression[4:-1]}", {"error": error}))
    return repr(eval(f"error.{expression}", {"error": error}))


def describe_error(error: BaseException, expressions: tuple[str, ...]) -> Any:
    return type(error), str(error), [(expression, read(error, expression)) for expression in expressions]


def call(name: str, url: str) -> None:
    CLIENTS[name](url)


async def call_async(name: str, url: str) -> None:
    await asyncio.to_thread(CLIENTS[name], url)


async def handle(event: InputEvent, ctx: Any) -> None:
    name, url, expressions = event.input
    try:
        await ctx.durable_execute_async(call, name, url, retry=ONCE)
    except Exception as error:
        SEEN.append(describe_error(error, tuple(expressions)))
    try:
        await ctx.durable_execute_async(call_async, name, url, retry=ONCE)
    except Exception as error:
        SEEN.append(describe_error(error, tuple(expressions)))
    await ctx.durable_execute_async(effect, "next")


def raised(name: str, url: str) -> Exception:
    try:
        CLIENTS[name](url)
    except Exception as error:
        return error
    raise AssertionError


@each_case("name", CLIENTS)
def test_a_handler_reads_a_status_as_in_plain_python(name: str) -> None:
    forget()
    expected = describe_error(raised(name, URL), OF_STATUS[name])
    crash_and_replay(one_action(handle), (name, URL, list(OF_STATUS[name])))
    assert len(SEEN) == 4
    for each_time in SEEN:
        assert each_time == expected


@each_case("name", CLIENTS)
def test_a_handler_reads_an_error_of_a_connection_as_in_plain_python(name: str) -> None:
    forget()
    expected = describe_error(raised(name, REFUSED), OF_CONNECTION[name])
    crash_and_replay(one_action(handle), (name, REFUSED, list(OF_CONNECTION[name])))
    assert len(SEEN) == 4
    for each_time in SEEN:
        # Texts of connections can have the address of an object.
        assert (each_time[0], each_time[2]) == (expected[0], expected[2])


@each_case("name", CLIENTS)
def test_no_credential_is_recorded(name: str) -> None:
    codec = ValueCodec()
    data = codec.encode(exceptions.describe(codec, raised(name, URL)))
    for secret in (b"1234567890abcdefghij", b"key-0987654321", b"cookie-of-a-session"):
        assert secret not in data


# -- classes of other libraries --------------------------------------------------------------


class Response:
    """A response of a client that only this test knows."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.lock = threading.Lock()
        self.headers = {"Cookie": "cookie-of-a-session", "Retry-After": "7"}

    def retry_after(self) -> float:
        with self.lock:
            return float(self.headers["Retry-After"])


class Session:
    def close(self) -> None:
        pass


class Refused(Exception):
    def __init__(self, response: Response, session: Any = None) -> None:
        super().__init__(f"status {response.status}")
        self.response = response
        self.session = session


class Delegating(Exception):
    def __init__(self, response: Response) -> None:
        self.response = response

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["response"], name)


class OfCall(Exception):
    """As those of gRPC: methods read a private state."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self._state = state

    def code(self) -> int:
        return self._state.status

    def __str__(self) -> str:
        return f"ended with {self._state.status}"


class ClientError(Exception):
    """As that of botocore, which creates its subclasses."""

    def __init__(self, response: dict[str, Any]) -> None:
        super().__init__(f"failed: {response['Error']['Code']}")
        self.response = response


def as_botocore() -> Exception:
    return type("NoSuchKey", (ClientError,), {})({"Error": {"Code": "NoSuchKey"}})


def in_a_cycle() -> Exception:
    error: Any = Refused(Response(500))
    error.response.error = error
    return error


class Order(pydantic.BaseModel):
    number: int
    amount: int = 1

    @pydantic.field_validator("amount")
    @classmethod
    def check(cls, amount: int) -> int:
        if amount == 2:
            raise PydanticCustomError("even", "{amount} is even", {"amount": amount})
        if amount > 2:
            raise ValueError("{many}")
        return amount


def refused(check: Callable[..., Any], *arguments: Any) -> Exception:
    """Return the error of a check."""
    try:
        check(*arguments)
    except Exception as error:
        return error
    raise AssertionError


def tried() -> None:
    """Give up after two attempts."""
    response = Response(503)

    def fail() -> None:
        raise Refused(response)

    assert tenacity is not None
    tenacity.Retrying(stop=tenacity.stop_after_attempt(2))(fail)


MISTAKES = "errors()", "error_count()", "title", "json()"
OTHERS: dict[str, tuple[Callable[[], Exception], type, tuple[str, ...], str | None]] = {
    "own response": (
        lambda: Refused(Response(429)), Refused, ("response.status", "response.retry_after()"), None
    ),
    "session": (
        lambda: Refused(Response(429), Session()), Refused, ("response.status", "session"), "session"
    ),
    "delegating": (lambda: Delegating(Response(429)), Delegating, ("status", "retry_after()"), "args"),
    "call": (lambda: OfCall(Response(14)), OfCall, ("code()",), None),
    "namespace": (lambda: OfCall(types.SimpleNamespace(status=14)), OfCall, ("code()",), None),
    "created class": (as_botocore, ClientError, ("response['Error']['Code']",), None),
    "cycle": (in_a_cycle, Refused, ("response.status",), "response.error"),
    "model": (lambda: refused(Order.model_validate, {}), pydantic.ValidationError, MISTAKES, None),
    "model, JSON": (
        lambda: refused(Order.model_validate_json, '{"number": "x"}'), pydantic.ValidationError,
        MISTAKES, None,
    ),
    "model, own kind": (
        lambda: refused(Order.model_validate, {"number": 1, "amount": 2}), pydantic.ValidationError,
        ("errors()[0]['type']", "errors()[0]['msg']", "errors()[0]['ctx']"), None,
    ),
    "model, own text": (
        lambda: refused(Order.model_validate, {"number": 1, "amount": 3}), pydantic.ValidationError,
        MISTAKES, None,
    ),
    "response of a test": (
        lambda: requests.HTTPError("busy", response=types.SimpleNamespace(status_code=503)),
        requests.HTTPError, ("response.status_code",), None,
    ),
    "error as an attribute": (
        lambda: Refused(Response(1), ValueError("a")), Refused, ("session.args",), None
    ),
}  # fmt: skip


if tenacity is not None:
    OTHERS["last attempt"] = (
        lambda: refused(tried), tenacity.RetryError,
        ("last_attempt.attempt_number", "last_attempt.exception().response.status"), None,
    )  # fmt: skip


@each_case("name", OTHERS)
def test_an_error_has_what_it_had_and_names_what_it_lacks(name: str) -> None:
    make, kind, expressions, lacks = OTHERS[name]
    codec = ValueCodec()
    error = make()
    described = codec.decode(codec.encode(exceptions.describe(codec, error)))
    again = exceptions.rebuild(codec, described)
    # A text can have the address of an object.
    assert type(again) is kind and str(again).partition(" at 0x")[0] == str(error).partition(" at 0x")[0]
    for expression in expressions:
        assert read(again, expression) == (repr(None) if expression == lacks else read(error, expression))
    notes = [] if lacks is None else [f"{exceptions.NOTE} {lacks}"]
    assert getattr(again, "__notes__", []) == notes
    assert not hasattr(again, "nothing")


def test_a_large_body_is_cut_and_the_status_stays() -> None:
    request = httpx.Request("GET", "http://shop/")
    response = httpx.Response(503, text="x" * 4 * exceptions.MAX_BYTES, request=request)
    codec = ValueCodec()
    error = httpx.HTTPStatusError("busy", request=request, response=response)
    described = codec.encode(exceptions.describe(codec, error, 10_000))
    again: Any = exceptions.rebuild(codec, codec.decode(described))
    assert len(described) < 11_000
    assert again.response.status_code == 503 and 5_000 < len(again.response.text) < 10_000


@each_case(
    "kind", ["os:_wrap_close", "subprocess:Popen", "flink_agents.testing:OperatorHarness", "gone:Gone"]
)
def test_a_record_restores_no_class_that_does_something(kind: str) -> None:
    restored = error_parts.Restored(lambda described: ValueError())
    assert restored.restore_part(error_parts.RecordedObject(kind, {"status": 3})) is None
    assert restored.missing == {kind}
