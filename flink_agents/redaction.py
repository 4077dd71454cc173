"""Redacts secrets in strings: those that this process has read, and the values of authentication headers.

It belongs to no layer and imports nothing of the package. Connections register the secrets that they read,
and all code that writes exceptions, records and logs uses it. It hides a secret in each form that a string
can have: as it is, escaped for JSON, Python or a URL, and in base64.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import logging
import os
import re
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

SHORTEST = 6
"""A shorter value occurs in strings by accident, and is hardly a secret."""

SHORTEST_VARIABLE = 12
"""The minimum length of a variable's value that is hidden because of the variable's name."""

HIDDEN = "***"

_DEEPEST = 12
"""Maximum depth of the search in lists and dicts."""

_NAMED_ESCAPES = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}

_VARIABLE = re.compile(
    r"(?i)(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|PAT)$"
)

_HEADER_NAMES = (
    r"(?:proxy-)?authorization|(?:x-)?api-key|[\w-]+-api-key|x-auth-token|x-access-token|x-[\w-]+-token"
    r"|ocp-apim-subscription-key|x-functions-key|set-cookie|cookie"
)
_HEADER_NAME = re.compile(rf"(?i){_HEADER_NAMES}")

_HEADER = re.compile(
    # The name, the separator with its quotes, a scheme such as Bearer, and then the value.
    rf"(?i)(?<![\w-])({_HEADER_NAMES})(\\*[\"']?\s*(?:[:=]|,\s*(?=b?\\*[\"']))\s*b?\\*[\"']?)"
    r"((?:[a-z][a-z0-9]*\s+)?)(?!\*\*\*)([^\s\"'\\,;<>{}()\[\]]{6,})"
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}")
_USER_INFO = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:'\"]*:[^\s/@'\"]+@")


_LONGEST_SECRET = 4096
"""Characters behind a cut that are searched for the rest of a secret."""

_SHORTEST_LINE = 60
"""Minimum number of characters in a line of base64."""


class _Known:
    """The secrets that this process knows. Reading needs no lock: each change replaces the pattern."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: set[str] = set()
        self._variables: set[str] = set()
        self.armed = False
        self.forms: frozenset[str] = frozenset()
        self.anchors: tuple[str, ...] = ()
        self.pattern: re.Pattern[str] | None = None

    def add_secrets(self, values: Iterable[str]) -> None:
        with self._lock:
            new = {value for value in values if len(value) >= SHORTEST and set(value) != {"*"}} - self._values
            if new:
                self._values |= new
                self._compile_pattern()

    def look_at_variables(self) -> None:
        """Add the values of environment variables whose names mark them as secrets."""
        with self._lock:
            values = {value for name, value in os.environ.items() if _is_secret_variable(name, value)}
            if values != self._variables:
                self._variables = values
                self._compile_pattern()

    def forget_secrets(self) -> None:
        with self._lock:
            self._values, self._variables = set(), set()
            self._compile_pattern()

    def _compile_pattern(self) -> None:
        values = self._values | self._variables
        self.forms = frozenset(form for value in values for form in forms_of(value))
        # No escape changes letters and digits: a string without them needs no pattern, which takes longer.
        runs = (max(re.findall("[A-Za-z0-9]+", value) or [""], key=len) for value in values)
        coded = sorted(
            {encoded for value in values for encoded in _base64_of(value.encode("utf-8", "surrogatepass"))}
        )
        parts = [part for encoded in coded for part in _parts_of_lines(encoded)]
        self.anchors = (*runs, *self.forms, *parts)
        longest_first = sorted(values, key=len, reverse=True)
        patterns = [
            *map(_pattern_of, longest_first),
            *map(re.escape, sorted(self.forms, key=len, reverse=True)),
            *map(_pattern_of_lines, coded),
        ]
        self.pattern = re.compile("|".join(patterns)) if patterns else None


known_secrets = _Known()


def _is_secret_variable(name: str, value: str) -> bool:
    if len(value) < SHORTEST_VARIABLE or _VARIABLE.search(name) is None:
        return False
    return not os.path.isabs(value)


def _pattern_of(secret: str) -> str:
    """Return a regular expression for a secret, in which any character may be escaped."""
    return "".join(map(_pattern_of_character, secret))


def _pattern_of_character(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    data = character.encode("utf-8", "surrogatepass")
    percent = "".join(f"%(?:25)*(?i:{byte:02x})" for byte in data)
    units = character.encode("utf-16-be", "surrogatepass")
    of_json = "".join(rf"\\+u(?i:{units[at : at + 2].hex()})" for at in range(0, len(units), 2))
    of_bytes = "".join(rf"\\+x(?i:{byte:02x})" for byte in data)
    forms = [rf"\\*{re.escape(character)}", percent, of_json, of_bytes, f"&(?:amp;)*#0*{ord(character)};"]
    forms += [
        rf"\\+x(?i:{ord(character):02x})",
        rf"\\+U(?i:{ord(character):08x})",
        f"&(?:amp;)*#[xX]0*(?i:{ord(character):x});",
    ]
    if character in _NAMED_ESCAPES:
        forms.append(rf"\\+{_NAMED_ESCAPES[character]}")
    if (named := html.escape(character)) != character:
        forms.append(f"&(?:amp;)*{named[1:]}")
    if character == " ":
        forms.append(re.escape("+"))
    return f"(?:{'|'.join(dict.fromkeys(forms))})"


def forms_of(secret: str) -> set[str]:
    """Return the texts in which a secret can appear: itself, and its encodings.

    In base64 it has several forms, by the number of bytes before it, such as in ``user:secret``.
    """
    data = secret.encode("utf-8", "surrogatepass")
    forms = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    forms |= {repr(secret)[1:-1], repr(data)[2:-1], quote(data), quote(data, safe=""), quote_plus(data)}
    forms |= {html.escape(secret), json.dumps(json.dumps(secret)[1:-1])[1:-1]}
    forms |= {quote(data, safe="").lower() if "%" in quote(data, safe="") else secret}
    in_hex = [data.hex(), *map(data.hex, (" ", ":", "-"))]
    forms |= {*in_hex, *map(str.upper, in_hex), *_base64_of(data)}
    return {form for form in forms if len(form) >= SHORTEST}


def _base64_of(data: bytes) -> set[str]:
    """Return the parts of base64 forms of a secret that do not depend on the bytes around it."""
    parts: set[str] = set()
    if len(data) >= SHORTEST + 2:
        for prefix_length in range(3):
            coded = base64.b64encode(b"\0" * prefix_length + data).decode()
            # The first characters depend on the text before them, and the last ones on the text after them.
            start = (0, 2, 3)[prefix_length]
            end = len(coded) if (prefix_length + len(data)) % 3 == 0 else len(coded.rstrip("=")) - 1
            parts |= {coded[start:end], coded[start:end].replace("+", "-").replace("/", "_")}
    return parts


def _pattern_of_lines(coded: str) -> str:
    """Return a regular expression for base64 that may be broken into lines, as in mails and certificates."""
    return r"(?:\\*[rn]|\s)*".join(map(re.escape, coded))


def _parts_of_lines(coded: str) -> list[str]:
    """Return parts of a base64 text, one of which is complete even if the text is broken into lines."""
    number = min(len(coded) // _SHORTEST_LINE + 2, len(coded) // SHORTEST)
    size = -(-len(coded) // number)
    return [coded[at : at + size] for at in range(0, len(coded), size)]


def add_secrets(*values: object) -> None:
    """Hide values in texts from now on. Values that are no strings, or too short, are ignored."""
    install_log_filter()
    known_secrets.add_secrets(
        part for value in values if isinstance(value, str) for part in _secret_parts(value)
    )


def _secret_parts(value: str) -> Iterator[str]:
    """Yield a secret, and the part of a header value after its scheme: texts may show that alone."""
    yield value.strip()
    scheme, space, credentials = value.strip().partition(" ")
    if space and scheme.isalpha() and len(scheme) < 16 and " " not in credentials:
        yield credentials


def know_headers(headers: Any) -> None:
    """Hide the values of authentication headers from now on; ``headers`` that are no mapping are ignored."""
    try:
        items = list(headers.items())
    except BaseException:  # Whatever foreign objects raise.
        return
    for name, value in items:
        if is_secret_name(name):
            add_secrets(value.decode("latin-1") if isinstance(value, bytes) else value)


def is_secret_name(name: object) -> bool:
    """Return True if ``name`` is that of an authentication header, such as ``Authorization``."""
    text = name.decode("latin-1") if isinstance(name, bytes) else name
    return isinstance(text, str) and _HEADER_NAME.fullmatch(text.replace("_", "-")) is not None


def forget_all() -> None:
    """Forget all known secrets. For tests, which share a process."""
    known_secrets.forget_secrets()


def look_at_variables() -> None:
    """Register the secrets in environment variables again, after variables were set."""
    known_secrets.look_at_variables()


def knows_any() -> bool:
    """Return True if this process knows a secret."""
    return known_secrets.pattern is not None


def hide(text: object) -> str:
    """Replace each known secret, and each value of an authentication header, by three asterisks."""
    shown = hide_known(str(text))
    # Each name of a header has one of these words. Searching for the pattern takes a hundred times as long.
    lower = shown.lower()
    if "-key" in lower or "-token" in lower or "cookie" in lower or "authorization" in lower:
        shown = _HEADER.sub(rf"\1\2\3{HIDDEN}", shown)
    if "bearer" in lower:
        shown = _BEARER.sub(rf"\1{HIDDEN}", shown)
    if "://" in lower and "@" in lower:
        shown = _USER_INFO.sub(rf"\1{HIDDEN}@", shown)
    return shown


def hide_known(text: str) -> str:
    """Replace each secret that this process knows by three asterisks."""
    pattern = known_secrets.pattern
    if pattern is None or not any(anchor in text for anchor in known_secrets.anchors):
        return text
    return pattern.sub(HIDDEN, text)


def hide_cut(text: str, start: bool = False, end: bool = False) -> str:
    """Hide secrets in a part of a text, also pieces of secrets at the ends where it was cut.

    Args:
        text: The part.
        start: True if the text was cut before it.
        end: True if the text was cut after it.
    """
    hidden = hide(text)
    for form in known_secrets.forms:
        for size in range(len(form) - 1, 3, -1):
            if end and hidden.endswith(form[:size]):
                hidden = hidden[:-size] + HIDDEN
            if start and hidden.startswith(form[-size:]):
                hidden = HIDDEN + hidden[size:]
    return hidden


def hide_beyond(text: object, longest: int) -> str:
    """Return the first ``longest`` characters of a text without secrets; most of the rest is not searched."""
    whole = str(text)
    # A secret at the cut is whole in a longer part.
    part = whole[: longest + _LONGEST_SECRET]
    return hide_cut(part, end=len(part) < len(whole))[:longest]


def holds(text: str) -> bool:
    """Return True if ``text`` contains a secret that this process knows."""
    return hide_known(text) != text


def shows(text: str) -> bool:
    """Return True if ``text`` contains a known secret, or a value of an authentication header."""
    return hide(text) != text


def hidden(value: Any, known_only: bool = False, longest: int | None = None) -> Any:
    """Hide secrets in a value: in strings and bytes, also inside of lists, tuples, sets and mappings.

    A value without secrets is returned as the same object.

    Args:
        value: The value.
        known_only: True to hide known secrets only, not values of authentication headers.
        longest: Length at which strings are cut; None for no limit.
    """
    if known_only and known_secrets.pattern is None:
        return value
    return _hide_value(value, known_only, _DEEPEST, longest)


def _cut_text(text: str, longest: int) -> str:
    return f"{hide_cut(text[:longest], end=True)}... ({len(text) - longest} more characters)"


def _hide_value(value: Any, known_only: bool, depth: int, longest: int | None) -> Any:
    kind: Any = type(value)
    if longest is not None and isinstance(value, str | bytes | bytearray) and len(value) > longest:
        if isinstance(value, str):
            return _cut_text(value, longest)
        return kind(
            _cut_text(value.decode("utf-8", "surrogateescape"), longest).encode("utf-8", "surrogateescape")
        )
    if isinstance(value, str):
        text = hide_known(value) if known_only else hide(value)
        return value if text == value else text
    if isinstance(value, bytes | bytearray):
        text = value.decode("utf-8", "surrogateescape")
        shown = hide_known(text) if known_only else hide(text)
        return value if shown == text else kind(shown.encode("utf-8", "surrogateescape"))
    if not depth:
        return value
    if isinstance(value, Mapping):
        hidden_values = {
            _hide_value(name, known_only, depth - 1, longest): HIDDEN
            if not known_only and isinstance(inner_value, str | bytes) and is_secret_name(name)
            else _hide_value(inner_value, known_only, depth - 1, longest)
            for name, inner_value in value.items()
        }
        same = len(hidden_values) == len(value) and all(
            name in value and hidden_values[name] is value[name] for name in hidden_values
        )
        return value if same else hidden_values if kind is dict else _changed_mapping(value, hidden_values)
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_hide_value(part, known_only, depth - 1, longest) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)
    return value


def _changed_mapping(value: Any, changed: dict[Any, Any]) -> Any:
    """Return changed values in a mapping of the same class if that can be created, else in a dict."""
    try:
        copied = value.copy()
        for name, changed_value in changed.items():
            if changed_value is not value[name]:
                copied[name] = changed_value
    except Exception:
        # It has no copy that can be changed, or a name has a secret.
        return changed
    return copied


# -- logs ----------------------------------------------------------------------------


def install_log_filter() -> None:
    """Hide secrets in the records of all loggers from now on."""
    if not known_secrets.armed:
        known_secrets.armed = True
        known_secrets.look_at_variables()
        logging.setLogRecordFactory(_wrap_record_factory(logging.getLogRecordFactory()))
        # A logger sets the values of ``extra`` after the factory.
        setattr(logging.Logger, "makeRecord", _with_extras(logging.Logger.makeRecord))  # noqa: B010


def _wrap_record_factory(factory: Any) -> Any:
    def record_of(*args: Any, **named: Any) -> logging.LogRecord:
        record: logging.LogRecord = factory(*args, **named)
        if known_secrets.pattern is not None:
            _clean_record(record)
        return record

    return record_of


_OF_EVERY_RECORD = frozenset(logging.makeLogRecord({}).__dict__)
"""Attributes of a record that no ``extra`` can set."""


def _with_extras(factory: Any) -> Any:
    @functools.wraps(factory)
    def make_record(*args: Any, **named: Any) -> logging.LogRecord:
        record: logging.LogRecord = factory(*args, **named)
        if known_secrets.pattern is not None:
            for name in record.__dict__.keys() - _OF_EVERY_RECORD:
                record.__dict__[name] = hidden(record.__dict__[name])
        return record

    return make_record


def _clean_record(record: logging.LogRecord) -> None:
    """Hide secrets in a log record, in place, so that no handler formats them."""
    try:
        text = record.getMessage()
        if shows(text):
            record.msg = hide(text)
            record.args = None
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            if shows(trace):
                record.exc_text = hide(trace)
                # Formatters of other libraries build their own message.
                record.exc_info = (Exception, Exception(hide(str(record.exc_info[1]))), None)
    except Exception:
        # A record that cannot be formatted is left to the handler, as usual.
        return
