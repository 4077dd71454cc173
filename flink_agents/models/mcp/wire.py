"""Messages on the wire: what can be sent as JSON, and which request an unreadable answer belongs to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Set
from typing import Any, cast

from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, RequestId
from pydantic_core import from_json, to_jsonable_python

_MOST_CHARACTERS = 300
"""Maximum number of characters of a reason in errors."""


class NotSentError(Exception):
    """A request holds a value that is no JSON, so it is not sent.

    Args:
        place: The place of the value, such as the name of the argument.
        reason: The problem of the value; only its first line is shown.
    """

    def __init__(self, place: str, reason: object) -> None:
        super().__init__(f"{place}: {str(reason).partition(chr(10))[0]}"[:_MOST_CHARACTERS])


def json_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a request as JSON values, exactly as the server will read them.

    One message that cannot be written would end a connection that all keys share. So each is checked before
    it gets there, by writing and reading it.

    Raises:
        NotSentError: A value has no form in JSON.
    """
    return {_write_value("a name", name): _write_value(f"{name!r}", value) for name, value in values.items()}


def _write_value(place: str, value: Any) -> Any:
    """Return a value as the reader of its JSON gets it; NotSentError, with its place, if there is no JSON."""
    try:
        text = json.dumps(value, allow_nan=False, default=_as_json, ensure_ascii=False)
        # Half of a surrogate pair has no bytes, and a reader rejects nesting that is too deep.
        return from_json(text.encode(), allow_inf_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise NotSentError(ascii(place)[1:-1], error) from None


def _as_json(value: Any) -> Any:
    """Return an object that ``json`` cannot write as values that it can; TypeError for a set."""
    if isinstance(value, Set):
        # Its order differs between processes, so a replay would send another request.
        raise TypeError(f"a {type(value).__name__} has no order, which JSON needs; pass a list")
    return to_jsonable_python(value)


# The id of a message, at the begin or the end of its JSON; requests begin with their method.
_ID = r'"id"\s*:\s*(-?\d+|"[^"\\]{0,200}")'
_VERSION = r'"jsonrpc"\s*:\s*"2\.0"'
_AT_BEGIN = re.compile(rf'\s*\{{\s*(?:{_VERSION}\s*,\s*)?{_ID}\s*,\s*(?!"method")')
_AT_END = re.compile(rf"(?:{_VERSION}\s*,\s*{_ID}|{_ID}\s*,\s*{_VERSION})\s*\}}\s*$")
_REQUEST = re.compile(r'\s*\{\s*"method"')


def answered_by(line: bytes) -> list[RequestId]:
    """Return the ids of the requests that an unreadable line answers; empty if it answers none.

    Args:
        line: The line that a server wrote; the middle of a long one may be missing.
    """
    text = line.decode("utf-8", "replace")
    try:
        # It reads more than the library does: halves of surrogate pairs, other types, deeper nesting.
        values = json.loads(text)
    except (ValueError, RecursionError):
        # Libraries write the id at the begin or at the end. In between, it may be that of anything else.
        match = None if _REQUEST.match(text) else _AT_BEGIN.match(text) or _AT_END.search(text)
        id_text = next(filter(None, match.groups()), None) if match else None
        return [] if id_text is None else _request_ids([json.loads(id_text)])
    messages = cast("list[Any]", values if isinstance(values, list) else [values])
    answers = [message for message in messages if isinstance(message, dict) and "method" not in message]
    return _request_ids(cast("dict[str, Any]", answer).get("id") for answer in answers)


def _request_ids(values: Iterable[Any]) -> list[RequestId]:
    """Return the values that can be ids of requests: integers and strings."""
    return [value for value in values if isinstance(value, int | str) and not isinstance(value, bool)]


def unreadable_answer_error(request: RequestId, reason: object) -> JSONRPCError:
    """Return the error of the protocol that a request gets in place of an answer that cannot be read.

    Args:
        request: Id of the request.
        reason: Why the answer cannot be read.
    """
    text = str(reason)[:_MOST_CHARACTERS]
    return JSONRPCError(jsonrpc="2.0", id=request, error=ErrorData(code=PARSE_ERROR, message=text))
