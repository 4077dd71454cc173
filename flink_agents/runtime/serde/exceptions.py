"""Describes an exception of a durable call for its record, and restores it.

It has to fit next to the other parts of a record: an error that could not be recorded would make
the next success unrecordable, as both are recorded together. So large parts are trimmed.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ErrorType

from flink_agents.api.errors import RecordedFailureError, StateError
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.error_parts import (
    ERROR,
    Copies,
    RecordedObject,
    Restored,
    read_response,
    slots_of,
)
from flink_agents.runtime.serde.raised_texts import text_of
from flink_agents.runtime.serde.typenames import find_error, member_of, name_of, shorten

_ARGUMENTS: Any = vars(BaseException)["args"].__set__

_UNSET = object()
"""The value of an attribute in a slot that is not set."""


def cut(text: str, limit: int) -> str:
    """Return the beginning of ``text``, in at most ``limit`` bytes of UTF-8."""
    text = text[: max(0, limit)]
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= limit:
        return text
    end = max(0, limit)
    while end and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end].decode("utf-8", "surrogatepass")


CALL_FAILURES: tuple[type[BaseException], ...] = (Exception, SystemExit, BaseExceptionGroup)
"""Exceptions that a durable call can raise in an action. Others become a ``RecordedFailureError``."""

_KEYWORDS: dict[type[BaseException], tuple[str, ...]] = {
    ImportError: ("name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
}

MAX_BYTES = 2 * 1024 * 1024
"""The largest size of a recorded exception, members of a group included."""

MAX_DEPTH = 10
"""Maximum depth of nested groups; members of deeper ones are not recorded."""

LEAST_BYTES = 512
"""The minimum size for an exception: its type, and the start of its message."""

ALIKE = 40
"""A trimmed exception is recognized by this number of characters at the start of its message."""

NOTE = "The recorded form of this error lacks:"
"""The start of the note that names what is missing."""

MOST_NAMES = 8
"""The largest number of parts that a note names."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address in the default representation of an object."""

_KINDS_OF_PROBLEMS = frozenset(get_args(ErrorType))
"""The kinds of problems whose text Pydantic makes itself; others carry their text."""


def room(limit: int, used_bytes: int) -> int:
    """Return the number of bytes that the recorded form of an exception may have in a record.

    Args:
        limit: The largest size of a record.
        used_bytes: The bytes that its other parts take.
    """
    return max(LEAST_BYTES, min(MAX_BYTES, limit - used_bytes))


def describe(codec: ValueCodec, error: BaseException, limit: int = MAX_BYTES) -> dict[str, Any]:
    """Return the recorded form of an exception, with its arguments and attributes as far as possible.

    It reads the body of an open response, which may wait.

    Args:
        codec: Encodes the parts of the exception.
        error: The exception.
        limit: The largest size of the encoded result, at least ``LEAST_BYTES``.
    """
    try:
        return _fitted(codec, _contents_of(codec, error, ()), limit)
    except Exception:
        # Foreign classes run their own code here. Without a record, the call would have no end.
        return _without_parts(_recorded_class(type(error)), text_of(error), limit)


def _without_parts(kind: str, message: str, limit: int) -> dict[str, Any]:
    """Return the recorded form of an exception of which only class and message are recorded."""
    return {"type": cut(kind, limit // 2), "message": cut(message, limit // 4), "args": None}


@dataclass(slots=True)
class _Contents:
    """The parts of an exception for its record.

    Attributes:
        kind: Name of its class, or of the base that a replay finds.
        message: Its message, up to the maximum.
        parts: Its arguments and attributes, by name.
        members: The members of a group; None for any other exception.
        left_out: Names of what is not recorded.
    """

    kind: str
    message: str
    parts: dict[str, Any]
    members: list[_Contents] | None
    left_out: list[str]


def _contents_of(codec: ValueCodec, error: BaseException, inside: tuple[int, ...]) -> _Contents:
    """Return the parts of an exception for its record.

    Args:
        codec: Encodes its parts.
        error: The exception.
        inside: Ids of the objects that the exception is a part of.
    """
    read_response(error)
    inside = (*inside, id(error))

    def describe_part(part: BaseException, around: tuple[int, ...]) -> dict[str, Any]:
        return _fitted(codec, _contents_of(codec, part, around), MAX_BYTES // 4)

    copies = Copies(codec, describe_part, inside)
    parts: dict[str, Any] = {
        "args": [copies.copy_part(argument, f"args[{at}]") for at, argument in enumerate(_arguments(error))],
        "state": copies.copy_attributes(_raw(error, "__dict__", {}), delegates=_delegates(type(error))),
    }
    fields = copies.copy_attributes(_fields(error))
    if fields:
        parts["fields"] = fields
    members = None
    if isinstance(error, BaseExceptionGroup) and len(inside) <= MAX_DEPTH:
        members = [_contents_of(codec, member, inside) for member in _members(error)]
    left_out = copies.left_out[:MOST_NAMES]
    return _Contents(_recorded_class(type(error)), text_of(error), parts, members, left_out)


def _fitted(codec: ValueCodec, contents: _Contents, limit: int) -> dict[str, Any]:
    """Return the recorded form of an exception in at most ``limit`` bytes; long parts are cut alike."""
    described = _packed(codec, contents)
    if len(codec.encode(described)) <= limit:
        return described
    lengths = range(max(1, limit))
    fitting = bisect_right(
        lengths, limit, key=lambda longest: len(codec.encode(_packed(codec, contents, longest, limit)))
    )
    if fitting == 0:
        return _without_parts(contents.kind, contents.message, limit)
    return _packed(codec, contents, fitting - 1, limit)


def _packed(
    codec: ValueCodec, contents: _Contents, longest: int | None = None, limit: int = MAX_BYTES
) -> dict[str, Any]:
    """Return the recorded form of an exception.

    Args:
        codec: Encodes its parts.
        contents: Its parts.
        longest: The most bytes of a string among its parts; None if nothing is cut.
        limit: The approximate bytes that the members of a group may have, if something is cut.
    """
    described: dict[str, Any] = {"type": contents.kind, "message": contents.message}
    left_out = contents.left_out
    members = contents.members
    inner_limit = limit
    if longest is not None:
        described = {
            "type": cut(contents.kind, max(longest, LEAST_BYTES // 4)),
            "message": cut(contents.message, max(longest, LEAST_BYTES // 8)),
            "trimmed": True,
        }
        left_out = _cut_parts(left_out, longest)
        members = members and members[: limit // LEAST_BYTES]
        inner_limit = limit - LEAST_BYTES * len(members or ())
    if left_out:
        described["left_out"] = left_out
    for name, value in contents.parts.items():
        described[name] = _encoded(codec, value if longest is None else _cut_parts(value, longest))
    if members:
        described["members"] = codec.encode(
            [_packed(codec, member, longest, inner_limit) for member in members]
        )
    return described


def _cut_parts(value: Any, longest: int) -> Any:
    """Return ``value`` with at most ``longest`` bytes in a string, and an eighth as many items in a list.

    Strings and bytes keep their start, lists and dictionaries their first entries. A value of another class
    becomes the start of its representation.
    """
    kind: Any = type(value)
    most_entries = longest // 8
    if kind is str:
        return cut(value, longest)
    if kind in (bytes, bytearray):
        return bytes(value[:longest])
    if kind in (list, tuple):
        return kind(_cut_parts(item, longest) for item in value[:most_entries])
    if kind is dict:
        # A cut key would be a different one.
        entries = islice(value.items(), most_entries)
        return {key: _cut_parts(item, longest) for key, item in entries if len(repr(key)) <= longest}
    if kind is RecordedObject and value.kind != ERROR:
        return replace(value, content=_cut_parts(value.content, longest))
    return value if kind in (int, float, bool, type(None)) else cut(shorten(value), longest)


def _encoded(codec: ValueCodec, value: Any) -> bytes | None:
    """Return the encoding of a part; None if it cannot be encoded."""
    try:
        return codec.encode(value)
    except (StateError, RecursionError):
        return None


@lru_cache(maxsize=1024)
def _recorded_class(cls: type[BaseException]) -> str:
    """Return the name by which a replay finds a class, or its nearest base, which handlers name.

    Libraries create classes for the errors of a service, or give a class the name of another one.
    """
    for base in cls.__mro__:
        if base.__module__ == "builtins" or not issubclass(base, BaseException):
            continue
        name = name_of(base)
        if find_error(name) is base:
            return name
        for attribute, value in vars(sys.modules.get(base.__module__, object)).items():
            if value is base:
                return f"{base.__module__}:{attribute}"
    return name_of(cls)


def _fields(error: BaseException) -> dict[str, Any]:
    """Return the attributes of ``error`` that are not in its dictionary: in slots, and of builtin classes."""
    names = [name for base in _KEYWORDS if isinstance(error, base) for name in _KEYWORDS[base]]
    if isinstance(error, OSError) and error.args[:2] != (error.errno, error.strerror):
        # A class that replaced its arguments, such as those of aiohttp.
        names += ["errno", "strerror", "filename"]
    fields = {name: value for name in names if (value := _raw(error, name, None)) is not None}
    for name in slots_of(type(error)):
        # None as well: a slot that is not set is an AttributeError.
        if name != "__dict__" and (value := _raw(error, name, _UNSET)) is not _UNSET:
            fields[name] = value
    return fields


def _arguments(error: Any) -> list[Any]:
    """Return the arguments with which the builtin class of ``error`` can be created again."""
    if isinstance(error, ValidationError):
        # It has no arguments. Those of its pickles have objects in place of some kinds.
        title, _, *options = error.__reduce__()[1]
        return [title, error.errors(include_url=False), *options]
    if isinstance(error, OSError):
        # It stores the name of its file separately from its arguments.
        return list(OSError.__reduce__(error)[1])
    # The second argument of a group is its members.
    return [error.message] if isinstance(error, BaseExceptionGroup) else list(_raw(error, "args", ()))


def _raw(error: BaseException, name: str, default: Any) -> Any:
    """Return an attribute without the attribute access of its class; ``default`` if there is none."""
    try:
        return object.__getattribute__(error, name)
    except BaseException:
        # A property of a foreign class runs its own code anyway.
        return default


def _members(group: Any) -> tuple[BaseException, ...]:
    return group.exceptions


def rebuild(
    codec: ValueCodec, described: dict[str, Any], among: tuple[type[BaseException], ...] = CALL_FAILURES
) -> BaseException:
    """Return an exception of the same type and message; for a group, with restored members.

    If it cannot be restored, since its class is gone or needs more than was recorded, the result is a
    ``RecordedFailureError`` that names both.

    Args:
        codec: Decodes its parts.
        described: The result of :func:`describe`.
        among: The classes that the caller can raise; others become a ``RecordedFailureError``.
    """
    error = _rebuilt(codec, described)
    if isinstance(error, among):
        return error
    return RecordedFailureError(
        described["message"],
        error_type=described["type"],
        expected="an exception class that can be created from its recorded arguments",
        found=described["type"],
        fix="define a constructor that passes all of its arguments to super().__init__",
    )


def first_time(rebuilt_error: BaseException, error: BaseException) -> BaseException:
    """Return the exception that an action gets before any replay: that of a replay, with the traceback.

    An action that checks the type or the attributes of an error must behave the same now and
    after a crash. The original error is the cause.

    Args:
        rebuilt_error: The result of :func:`rebuild`.
        error: The original error.
    """
    # Not through the class itself, which may override attribute access.
    BaseException.with_traceback(rebuilt_error, error.__traceback__)
    BaseException.__setattr__(rebuilt_error, "__cause__", error)
    return rebuilt_error


def _rebuilt(codec: ValueCodec, described: dict[str, Any]) -> BaseException | None:
    """Return the exception for its recorded form; None if it cannot be restored."""
    try:
        kind: Any = find_error(described["type"])
        if kind is None or described.get("args") is None:
            return None
        restored = Restored(lambda inner: rebuild(codec, inner, (BaseException,)))
        args = restored.restore_part(codec.decode(described["args"]))
        builtin = _builtin(kind)
        if issubclass(kind, BaseExceptionGroup):
            args.append(
                [rebuild(codec, member, (BaseException,)) for member in codec.decode(described["members"])]
            )
            error = builtin.__new__(kind, *args)
        elif kind is ValidationError:
            error = _validation(*args)
            _note(error, described.get("left_out", ()))
            return error
        else:
            error = kind.__new__(kind, *args)
        # Some builtin classes have more state than their arguments; their constructor sets it. The own
        # constructor of the class may take other arguments, and is not called.
        builtin.__init__(error, *args)
        if described.get("state") is not None:
            _raw(error, "__dict__", {}).update(restored.restore_part(codec.decode(described["state"])))
        if described.get("fields") is not None:
            for name, value in restored.restore_part(codec.decode(described["fields"])).items():
                object.__setattr__(error, name, value)
        left_out = [*described.get("left_out", ()), *sorted(restored.missing)]
        # A group of class BaseExceptionGroup has become another one if none of its members needs that.
        if type(error) is not kind and isinstance(error, BaseExceptionGroup):
            return None
        is_alike = text_of(error) == described["message"] or _seems_same(error, described)
        if not is_alike and kind.__str__ is not BaseException.__str__:
            if _without_addresses(text_of(error)) != _without_addresses(described["message"]):
                return None
        elif not is_alike:
            # Its text has an argument that is not restored, or the address of one, which differs each time.
            _ARGUMENTS(error, (described["message"],))
            left_out.append("args")
        _note(error, left_out)
        is_partial = described.get("trimmed") or described.get("state") is None
        return None if is_partial and _delegates(kind) and not _can_miss_attributes(error) else error
    except BaseException:
        # Foreign classes run their own code here; whatever it raises, the record counts.
        return None


def _delegates(cls: type) -> bool:
    """Return True if a class defines ``__getattr__``, such as to read from a response."""
    return member_of(cls, "__getattr__") is not None


def _can_miss_attributes(error: BaseException) -> bool:
    """Return True if a missing attribute is an ``AttributeError``, so that ``hasattr`` works."""
    try:
        getattr(error, "_flink_agents_no_such_attribute", None)
    except Exception:
        return False
    return True


def _validation(title: str, problems: list[dict[str, Any]], *options: Any) -> ValidationError:
    """Return an error of Pydantic with these problems, in the form of ``ValidationError.errors``."""
    details = list[Any]()
    for problem in problems:
        detail = {name: problem[name] for name in ("type", "loc", "input", "ctx") if name in problem}
        if problem["type"] not in _KINDS_OF_PROBLEMS:
            template = problem["msg"].replace("{", "{{").replace("}", "}}")
            detail["type"] = PydanticCustomError(problem["type"], template, problem.get("ctx"))
        details.append(detail)
    error = ValidationError.from_exception_data(title, details, *options)
    # As that of a model.
    error.args = ()
    return error


def _note(error: BaseException, left_out: Iterable[str]) -> None:
    """Add a note to an exception that names what its record lacks, if it lacks anything."""
    if left_out:
        # Not by its method, which looks for earlier notes where the class looks for missing attributes.
        notes = _raw(error, "__dict__", {}).setdefault("__notes__", [])
        notes.append(f"{NOTE} {', '.join(dict.fromkeys(left_out))}")


def _without_addresses(text: str) -> str:
    """Return a text without addresses of objects, which differ each time."""
    return _ADDRESS.sub("", text)


def _seems_same(error: BaseException, described: dict[str, Any]) -> bool:
    """Return True if a restored exception seems to be the one that was trimmed for its record."""
    if not described.get("trimmed"):
        return False
    kind = type(error)
    # Python's own messages follow from the arguments, some of which were trimmed.
    return kind.__str__ is _builtin(kind).__str__ or text_of(error)[:ALIKE] == described["message"][:ALIKE]


def _builtin(kind: type[BaseException]) -> Any:
    """Return the first builtin class that ``kind`` is or inherits from."""
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")
