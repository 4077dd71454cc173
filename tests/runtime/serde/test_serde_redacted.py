"""No exception shows a secret, whatever its class keeps it in; and it stays an exception of its class."""

from __future__ import annotations

import base64
import html
import json
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_ai.exceptions import ModelHTTPError

from flink_agents import redaction
from flink_agents.api.errors import AgentsError, RecordedFailureError
from flink_agents.runtime.serde import exceptions
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.raised_texts import text_of, users_traceback
from flink_agents.runtime.serde.redacted import LONGEST, redacted
from tests.suite.tables import each_case

SECRET = 'canary-S3cr€t/+="x'

FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "json": json.dumps,
    "json of utf-8": lambda text: json.dumps(text, ensure_ascii=False),
    "json in json": lambda text: json.dumps(json.dumps({"key": text})),
    "json in repr": lambda text: repr({"body": json.dumps(text)}),
    "json four times": lambda text: json.dumps(json.dumps(json.dumps(json.dumps(text)))),
    "url twice": lambda text: quote(quote(text, safe=""), safe=""),
    "url in lower case": lambda text: quote(text, safe="").replace("%2F", "%2f").replace("%E2", "%e2"),
    "mixed": lambda text: text.replace("/", "%2F").replace('"', '\\\\"').replace("€", "\\\\u20ac"),
    "html by numbers": lambda text: "".join(
        character if character.isalnum() else f"&#{ord(character)};" for character in text
    ),
    "ascii": ascii,
    "repr": repr,
    "bytes": lambda text: repr(text.encode()),
    "url": lambda text: quote(text, safe=""),
    "path": quote,
    "form": quote_plus,
    "html": html.escape,
    "hex": lambda text: text.encode().hex(),
    "upper hex": lambda text: text.encode().hex().upper(),
    "hex of a dump": lambda text: text.encode().hex(":"),
    "lines of base64": lambda text: base64.encodebytes(b"x" * 40 + text.encode()).decode().strip(),
    "repr of lines": lambda text: repr(base64.encodebytes(b"x" * 40 + text.encode()))[2:-3],
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for addresses": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "basic": lambda text: "Basic " + base64.b64encode(f"user:{text}".encode()).decode(),
    "basic of another length": lambda text: base64.b64encode(f"u:{text};z".encode()).decode(),
    "in a word": lambda text: f"prefix{text}suffix",
}


@pytest.fixture(autouse=True)
def registered_secret() -> Iterator[None]:
    redaction.add_secrets(SECRET)
    yield
    redaction.forget_all()


def pieces(text: str) -> list[str]:
    """The forms of the secret that stand in ``text``; base64 of what it is a part of as well."""
    return [name for name, form in FORMS.items() if form(SECRET).strip('"') in text]


@each_case(("name", "form"), FORMS.items())
def test_a_secret_is_hidden_in_each_form(name: str, form: Callable[[str], str]) -> None:
    shown = redaction.hide(f"before {form(SECRET)} behind")
    assert pieces(shown) == []
    assert "***" in shown
    assert shown.startswith("before ")
    assert shown.endswith(" behind")


class Slotted(Exception):
    __slots__ = ("said",)

    def __init__(self, said: str) -> None:
        self.said = said

    def __str__(self) -> str:
        return f"it said {self.said}"


class Computed(Exception):
    """Makes its text of an object that nobody can look into."""

    def __init__(self, said: str) -> None:
        super().__init__("computed")
        self._said = lambda: said

    def __str__(self) -> str:
        return f"it said {self._said()}"


class Keeping(Exception):
    def __init__(self, message: str, **kept: Any) -> None:
        super().__init__(message)
        self.__dict__.update(kept)


class Typed(BaseModel):
    number: int


def noted(text: str) -> Exception:
    error = ValueError("noted")
    error.add_note(f"a note with {text}")
    return error


def caused(text: str, *, by: type[Exception] = ValueError, link: str = "cause") -> Exception:
    try:
        try:
            raise by(f"first {text}")
        except Exception as first:
            if link == "cause":
                raise KeyError("second") from first
            raise KeyError("second")  # noqa: B904
    except KeyError as error:
        return error


def invalid(text: str) -> Exception:
    with pytest.raises(ValidationError) as caught:
        Typed(number=text)  # pyright: ignore[reportArgumentType]
    return caught.value


def of_httpx(text: str) -> Exception:
    request = httpx.Request("POST", "http://x/", headers={"Authorization": f"Bearer {text.encode().hex()}"})
    response = httpx.Response(401, request=request, text=f"wrong key {text.encode().hex()}")
    return httpx.HTTPStatusError(
        f"status 401: wrong key {text.encode().hex()}", request=request, response=response
    )


ERRORS: dict[str, Callable[[str], BaseException]] = {
    "argument": ValueError,
    "several arguments": lambda text: ValueError("key", 1, {"a": [text, (text.encode(),)]}),
    "key": KeyError,
    "message of this package": lambda text: AgentsError("said", found=text, fix=f"not {text}"),
    "http": lambda text: ModelHTTPError(401, "x", {"error": {"message": f"key {text} is wrong"}}),
    "httpx": of_httpx,
    "file": lambda text: FileNotFoundError(2, "not there", f"/keys/{text}"),
    "slots": Slotted,
    "computed": Computed,
    "attributes": lambda text: Keeping("kept", body={"key": text}, names=[text]),
    "header": lambda text: Keeping("kept", headers={"Authorization": "Token abcdefgh"}, text=text),
    "note": noted,
    "cause": caused,
    "computed cause": lambda text: caused(text, by=Computed),
    "context": lambda text: caused(text, link="context"),
    "computed context": lambda text: caused(text, by=Computed, link="context"),
    "group": lambda text: ExceptionGroup("all", [ValueError(text), caused(text)]),
    "message of a group": lambda text: ExceptionGroup(text, [ValueError("x")]),
    "computed member": lambda text: ExceptionGroup("all", [TypeError("x"), Computed(text)]),
    "validation": invalid,
    "exit": SystemExit,
    "import": lambda text: ImportError("no", name=text, path=f"/{text}"),
    "syntax": lambda text: SyntaxError("bad", (text, 1, 1, f"x = {text}")),
    "stop": StopIteration,
    "of unicode": lambda text: UnicodeDecodeError("utf-8", text.encode(), 0, 1, f"bad {text}"),
}


@each_case(("name", "make"), ERRORS.items())
def test_an_exception_shows_no_secret(name: str, make: Callable[[str], BaseException]) -> None:
    original = make(SECRET)
    error = redacted(original)
    texts = [text_of(error), users_traceback(error), repr(error), *traceback.format_exception(error)]
    description = exceptions.describe(ValueCodec(), error)
    texts += [str(description), pickle.dumps(description).decode("utf-8", "replace"), str(error.args)]
    assert pieces("\n".join(texts)) == [], texts
    assert "Token abcdefgh" not in "\n".join(texts)
    # A replay raises the same.
    again = exceptions.rebuild(ValueCodec(), description, (BaseException,))
    assert pieces(str(again) + repr(again)) == []
    if name not in ("slots", "computed"):
        assert isinstance(
            error, BaseExceptionGroup if isinstance(original, BaseExceptionGroup) else type(original)
        )
    else:
        assert isinstance(error, RecordedFailureError)
        assert error.error_type.endswith(type(original).__qualname__)


def test_an_exception_without_secrets_is_the_same_object() -> None:
    error = caused("nothing")
    args = error.args
    cause = error.__cause__
    assert redacted(error) is error
    assert error.args is args
    assert error.__cause__ is cause


class Foreign(Exception):
    """An error of a provider's library, with the answer."""

    def __init__(self, message: str, body: Any) -> None:
        super().__init__(message)
        self.message = message
        self.body = body

    def __str__(self) -> str:
        return f"it answered {self.body!r:.50}"


def mistaken(number: int) -> ValidationError:
    try:
        TypeAdapter(list[int]).validate_python(["x"] * number)
    except ValidationError as error:
        return error
    raise AssertionError


LONG = "x" * (LONGEST - 8) + SECRET + "y" * 3_000_000
LONG_ERRORS: list[tuple[str, Callable[[], BaseException]]] = [
    ("message", lambda: ValueError(LONG)),
    ("bytes", lambda: ValueError(LONG.encode())),
    ("nested", lambda: ValueError({"error": [{"message": LONG}]})),
    ("attributes", lambda: Foreign(LONG, {"message": LONG})),
    ("computed", lambda: Computed(LONG)),
    ("slots", lambda: Slotted(LONG)),
    ("cause", lambda: caused(LONG)),
    ("field", lambda: OSError(5, LONG)),
    ("mistakes", lambda: mistaken(50_000)),
    ("group", lambda: ExceptionGroup("all", [ValueError(LONG), mistaken(50_000)])),
]


@each_case(("name", "make"), LONG_ERRORS)
def test_an_exception_with_megabytes_is_cut(name: str, make: Callable[[], BaseException]) -> None:
    error = redacted(make())
    whole = "".join(traceback.format_exception(error)) + repr(error) + str(vars(error)) + repr(error.args)
    assert len(whole) < 12 * LONGEST
    assert pieces(whole) == []
    # Not even the piece in front of the cut.
    assert not any(SECRET[:size] + "..." in whole for size in range(4, len(SECRET)))
    assert name in ("computed", "slots", "group") or type(error) is type(make())


def test_an_exception_with_kilobytes_is_kept() -> None:
    error = ValueError("x" * LONGEST, b"y" * LONGEST)
    assert redacted(error).args == ("x" * LONGEST, b"y" * LONGEST)


def test_a_chain_that_leads_in_a_circle_ends() -> None:
    error = ValueError(SECRET)
    context_error = KeyError(SECRET)
    BaseException.__setattr__(error, "__context__", context_error)
    BaseException.__setattr__(context_error, "__cause__", error)
    assert SECRET not in "".join(traceback.format_exception(redacted(error)))


HEADERS = [
    "Authorization: Bearer abcdefgh1",
    "{'Authorization': 'Bearer abcdefgh1'}",
    '{"authorization": "Basic abcdefgh1=="}',
    "[(b'authorization', b'Bearer abcdefgh1')]",
    "Headers({'x-api-key': 'abcdefgh1'})",
    'curl -H "X-API-Key: abcdefgh1"',
    "Proxy-Authorization=Negotiate abcdefgh1",
    "cookie: session=abcdefgh1",
    "https://user:abcdefgh1@example.com/path",
    "sent Bearer abcdefgh1ijklmnop",
]


@each_case("text", HEADERS)
def test_headers_and_addresses_show_no_credentials(text: str) -> None:
    assert "abcdefgh1" not in redaction.hide(text)


@each_case(
    "text",
    [
        "the authorization of the request failed",
        "a cookie: yes",
        "https://example.com:8080/a@b",
        "Basic understanding of the bearer instruments",
        "x-api-key is missing",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert redaction.hide(text) == text


def test_variables_that_are_named_like_secrets_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "variable-1234567")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "parallel-1234567")
    monkeypatch.setenv("KEY_FILE_TOKEN", "/var/run/token-of-this")
    error = redacted(ValueError("variable-1234567 parallel-1234567 /var/run/token-of-this"))
    assert str(error) == "*** parallel-1234567 /var/run/token-of-this"


def test_no_logger_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    log = logging.getLogger("somebody.else")
    log.info("sent %s with %r", SECRET, {"key": SECRET})
    log.debug(f"sent {quote(SECRET)}")
    try:
        raise Computed(SECRET)
    except Computed:
        log.exception("it failed")
    assert pieces(caplog.text) == []
    assert caplog.text.count("***") >= 4
    assert "Computed: it said ***" in caplog.text


def test_the_first_characters_of_a_long_string_show_no_piece_of_a_secret() -> None:
    for prefix_length in range(90, 120):
        for form in FORMS.values():
            text = "-" * prefix_length + form(SECRET) + "-" * 10_000
            shown = redaction.hide_beyond(text, 110)
            assert pieces(shown) == [] and SECRET[:6] not in shown, shown
            assert len(shown) == 110
    assert redaction.hide_beyond("short", 110) == "short"
    assert redaction.hide_beyond(SECRET, 110) == "***"
    # Secrets that were hidden move the end of the searched part to the front.
    shown = redaction.hide_beyond(SECRET * 5000, 110)
    assert set(shown) == {"*"}


class Later(logging.Logger):
    """A logger of another library, of a class of its own."""


@each_case(
    "log",
    [logging.getLogger("somebody.else"), Later("later"), logging.LoggerAdapter(Later("x"), {"a": SECRET})],
)
def test_no_field_of_a_log_record_shows_a_secret(log: Any) -> None:
    seen: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = seen.append  # type: ignore[method-assign]
    logger = getattr(log, "logger", log)
    logger.addHandler(handler)
    sentinel = object()
    try:
        fields = {
            "body": f"it said {SECRET}",
            "headers": {"x-api-key": "abcdefgh1"},
            "some": [SECRET],
            "kept": sentinel,
        }
        log.warning("sent", extra=fields)
    finally:
        logger.removeHandler(handler)
    [record] = seen
    assert pieces(str(vars(record))) == []
    assert "abcdefgh1" not in str(vars(record))
    if log is logger:
        assert vars(record)["body"] == "it said ***"
        assert vars(record)["kept"] is sentinel
        # What the caller gave is the caller's.
        assert fields["some"] == [SECRET]


def test_what_was_cut_shows_no_piece_of_a_secret() -> None:
    text = f"{SECRET} middle {SECRET}"
    for cut in range(4, len(SECRET)):
        shown = redaction.hide_cut(text[-cut:] + " and " + text[:cut], start=True, end=True)
        assert shown == "*** and ***"
