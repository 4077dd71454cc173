"""Describes an exception of a durable call for its record, and restores it.

It has to fit next to the other parts of a record: an error that could not be recorded would make
the next success unrecordable, as both are recorded together. So large parts are trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flink_agents import redaction
from flink_agents.api.errors import RecordedFailureError, StateError
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.tracebacks import text_of
from flink_agents.runtime.serde.typenames import error_name, find_error, shorten

FRAME = 16
"""An upper bound for the bytes of a value's encoding besides those of its parts."""

LEAST = 64
"""A part is dropped if it would be cut below this size."""


def encoded_size(codec: ValueCodec, value: Any) -> int | None:
    """Return the size of the encoding of ``value``; None if it cannot be encoded."""
    try:
        return len(codec.encode(value))
    except (StateError, RecursionError):
        return None


def shares(wanted: list[int], limit: int) -> list[int]:
    """Divide ``limit`` bytes among parts: each gets its size, if all of them fit.

    Small parts get their size; large ones share the rest.
    """
    given, left = [0] * len(wanted), max(0, limit)
    for number, position in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[position] = min(wanted[position], left // (len(wanted) - number))
        left -= given[position]
    return given


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


def trimmed(codec: ValueCodec, value: Any, limit: int) -> Any:
    """Return ``value`` with its larger parts cut, so that its encoding has about ``limit`` bytes at most.

    Strings and bytes keep their start, lists and dictionaries as many entries as fit. A value
    of another class becomes the start of its representation.

    Raises:
        StateError: A part of it cannot be encoded.
    """
    if len(codec.encode(value)) <= limit:
        return value
    room = limit - FRAME
    if type(value) is str:
        return cut(value, room)
    if type(value) in (bytes, bytearray):
        return bytes(value[: max(0, room)])
    if type(value) in (list, tuple):
        return type(value)(_items(codec, list(value), room))
    if type(value) is dict:
        return _entries(codec, value, room)
    return cut(shorten(value), room)


def _items(codec: ValueCodec, items: list[Any], room: int) -> list[Any]:
    sizes = _fitting((len(codec.encode(item)) for item in items), room, 0)
    return [trimmed(codec, item, share) for item, share in zip(items, shares(sizes, room), strict=False)]


def _entries(codec: ValueCodec, entries: dict[Any, Any], room: int) -> dict[Any, Any]:
    """Return the first entries; their keys stay whole, since a cut key is a different one."""
    keys = {key: len(codec.encode(key)) for key in entries}
    longest = max(keys.values())
    sizes = _fitting((len(codec.encode(entries[key])) + size for key, size in keys.items()), room, longest)
    return {
        key: trimmed(codec, entries[key], share - size)
        for (key, size), share in zip(keys.items(), shares(sizes, room), strict=False)
        if share > size
    }


def _fitting(sizes: Iterable[int], room: int, whole: int) -> list[int]:
    """Return the sizes of as many parts as fit, each of which may be cut to ``whole + LEAST`` bytes."""
    fitting = list[int]()
    for size in sizes:
        room -= min(size, whole + LEAST) + 1
        if room < 0:
            break
        fitting.append(size)
    return fitting


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
"""If this many characters of its message are equal, a trimmed exception counts as the same one."""

_FRAMES = 96
"""An upper bound for the bytes of the names of the parts."""


def room(limit: int, taken: int) -> int:
    """Return the number of bytes that a failure may have in a record.

    Args:
        limit: The largest size of a record.
        taken: The bytes that its other parts take.
    """
    return max(LEAST_BYTES, min(MAX_BYTES, limit - taken))


def describe(codec: ValueCodec, error: BaseException, limit: int = MAX_BYTES) -> dict[str, Any]:
    """Return the recorded form of ``error``; with arguments and attributes as far as they can be encoded.

    Args:
        codec: Encodes them.
        error: The exception.
        limit: The largest size of the encoded result, at least ``LEAST_BYTES``.
    """
    return _fitted(codec, _weighed(codec, error, 0), limit)


@dataclass(slots=True)
class _Weighed:
    """An exception with its size.

    Attributes:
        kind: Name of its class.
        message: Its message, up to the maximum.
        parts: Its arguments and attributes, by name.
        sizes: Bytes of each part; None if it cannot be encoded.
        members: The members of a group; None for any other exception.
        total: Bytes of everything.
    """

    kind: str
    message: str
    parts: dict[str, Any]
    sizes: dict[str, int | None]
    members: list[_Weighed] | None
    total: int


def _weighed(codec: ValueCodec, error: BaseException, depth: int) -> _Weighed:
    kind, message = error_name(type(error)), text_of(error)
    parts: dict[str, Any] = {
        "args": redaction.hidden(_arguments(error)),
        "state": _encodable(codec, _raw(error, "__dict__", {})),
    }
    fields = _encodable(codec, _fields(error))
    if fields:
        parts["fields"] = fields
    sizes = {name: encoded_size(codec, value) for name, value in parts.items()}
    members = None
    total = _FRAMES + _utf8(kind) + _utf8(message) + sum(size or 0 for size in sizes.values())
    if isinstance(error, BaseExceptionGroup) and depth < MAX_DEPTH:
        members = [_weighed(codec, one, depth + 1) for one in _members(error)]
        total += sum(member.total for member in members)
    return _Weighed(kind, message, parts, sizes, members, total)


def _fitted(codec: ValueCodec, error: _Weighed, limit: int) -> dict[str, Any]:
    """Return the recorded form of an exception, within a number of bytes."""
    kind = cut(error.kind, limit // 2)
    message = error.message if error.total <= limit else cut(error.message, max(limit // 4, 64))
    described: dict[str, Any] = {"type": kind, "message": message}
    wanted = {name: size for name, size in error.sizes.items() if size is not None}
    if error.members is not None:
        wanted["members"] = sum(member.total for member in error.members)
    rest = limit - _FRAMES - _utf8(kind) - _utf8(message)
    given = dict(zip(wanted, shares(list(wanted.values()), rest), strict=True))
    cuts = [name for name, size in wanted.items() if given[name] < size]
    for name, value in error.parts.items():
        described[name] = _encoded(codec, value, given[name]) if name in given else None
    if error.members is not None:
        described["members"] = _members_fitted(codec, error.members, given["members"])
    if cuts:
        described["trimmed"] = True
    return described


def _members_fitted(codec: ValueCodec, members: list[_Weighed], limit: int) -> bytes | None:
    """Return the bytes of as many members of a group as fit; None if none fits."""
    if sum(member.total for member in members) > limit:
        members = members[: limit // LEAST_BYTES]
    given = shares([member.total for member in members], limit)
    described = [_fitted(codec, member, share) for member, share in zip(members, given, strict=True)]
    return codec.encode(described) if described else None


def _encoded(codec: ValueCodec, value: Any, limit: int) -> bytes | None:
    data = codec.encode(trimmed(codec, value, limit))
    return data if len(data) <= limit else None


def _utf8(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _encodable(codec: ValueCodec, content: dict[str, Any]) -> dict[str, Any]:
    """Return the entries that can be encoded; attributes such as clients are left out."""
    if _can_be_stored(codec, content):
        return dict(content)
    return {name: value for name, value in content.items() if _can_be_stored(codec, value)}


def _can_be_stored(codec: ValueCodec, value: Any) -> bool:
    """Return True if a value can be encoded, and no object inside contains a secret."""
    try:
        data = codec.encode(value)
    except (StateError, RecursionError):
        return False
    return not redaction.knows_any() or not redaction.shows(data.decode("utf-8", "replace"))


def _fields(error: BaseException) -> dict[str, Any]:
    """Return the attributes of ``error`` in slots, and keyword arguments of builtin classes."""
    names = [name for base in _KEYWORDS if isinstance(error, base) for name in _KEYWORDS[base]]
    for cls in type(error).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{cls.__name__.lstrip('_')}{name}" if private else name)
    found = {name: _raw(error, name, None) for name in names if name != "__dict__"}
    return {name: value for name, value in found.items() if value is not None}


def _arguments(error: Any) -> list[Any]:
    if isinstance(error, OSError):
        # It stores the name of its file separately from its arguments.
        return list(OSError.__reduce__(error)[1])
    # The second argument of a group is its members.
    return [error.message] if isinstance(error, BaseExceptionGroup) else list(_raw(error, "args", ()))


def _raw(error: BaseException, name: str, default: Any) -> Any:
    """Return an attribute, bypassing the class of ``error``."""
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
        among: The classes that it may have.
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


def first_time(made: BaseException, error: BaseException) -> BaseException:
    """Return the exception that an action first gets for ``error``: as on replay, with its traceback.

    An action that checks the type or the attributes of an error must behave the same now and
    after a crash. The original error is the cause.

    Args:
        made: The result of :func:`rebuild`.
        error: The original error.
    """
    # Not through the class itself, which may override attribute access.
    BaseException.with_traceback(made, error.__traceback__)
    BaseException.__setattr__(made, "__cause__", error)
    return made


def _rebuilt(codec: ValueCodec, described: dict[str, Any]) -> BaseException | None:
    try:
        kind: Any = find_error(described["type"])
        if kind is None or described.get("args") is None:
            return None
        args, builtin = codec.decode(described["args"]), _builtin(kind)
        if issubclass(kind, BaseExceptionGroup):
            args.append([rebuild(codec, one, (BaseException,)) for one in codec.decode(described["members"])])
            error = builtin.__new__(kind, *args)
        else:
            error = kind.__new__(kind, *args)
        # Some builtin classes have more state than their arguments; their constructor sets it. The own
        # constructor of the class may take other arguments, and is not called.
        builtin.__init__(error, *args)
        if described.get("state") is not None:
            _raw(error, "__dict__", {}).update(codec.decode(described["state"]))
        if described.get("fields") is not None:
            for name, value in codec.decode(described["fields"]).items():
                object.__setattr__(error, name, value)
        # A group of class BaseExceptionGroup has become another one if none of its members needs that.
        same = type(error) is kind or not isinstance(error, BaseExceptionGroup)
        return (
            error if same and (text_of(error) == described["message"] or _alike(error, described)) else None
        )
    except BaseException:
        # Foreign classes run their own code here; whatever it raises, the record counts.
        return None


def _alike(error: BaseException, described: dict[str, Any]) -> bool:
    """Return True if an exception is the one that was trimmed, as far as can be determined."""
    if not described.get("trimmed"):
        return False
    kind = type(error)
    # Python's own messages follow from the arguments, some of which were trimmed.
    return kind.__str__ is _builtin(kind).__str__ or text_of(error)[:ALIKE] == described["message"][:ALIKE]


def _builtin(kind: type[BaseException]) -> Any:
    """Return the first builtin class that ``kind`` is or inherits from."""
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")
