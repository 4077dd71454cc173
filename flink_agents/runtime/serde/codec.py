"""Converts values to bytes for state: a version byte, then MessagePack.

JSON values, bytes, tuples, sets, big integers, dates, decimals, UUIDs, values of libraries (``library``),
enums, dataclasses, named tuples, Pydantic models and PyFlink rows keep their types; classes are written by
name (``typenames``), never as pickled code. https://msgpack.org (specification 2013)

Values with a short string or a few bytes (dates, decimals) are extensions. Values made of other
values (tuples, models) are a map with one entry, whose key is an empty extension that names
the kind. So nesting costs neither copies nor stack, which is small on Flink's threads.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, cast

import msgpack
from pydantic import BaseModel

from flink_agents.api.errors import (
    StateError,
    StateFormatError,
    UnserializableValueError,
    ValueChangedError,
)
from flink_agents.runtime.serde import library, values as class_values
from flink_agents.runtime.serde.changed import ENUM, KINDS, Stored
from flink_agents.runtime.serde.raised_texts import AWAIT_IT, awaitable_text, is_awaitable
from flink_agents.runtime.serde.typenames import shorten
from flink_agents.runtime.serde.values import OWN_FORM, OwnForm

VERSION = b"\x01"

_TUPLE = 1
_SET = 2
_FROZENSET = 3
_BIG_INT = 4
_DATETIME = 5
_DATE = 6
_TIME = 7
_TIMEDELTA = 8
_DECIMAL = 9
_UUID = 10
_ROW, _PICKLE = 15, 16  # 11 to 14 are those of classes.values, 17 and 18 are those of libraries and own forms

_EXPECTED = (
    "JSON values, bytes, tuples, sets, deques, dates, numbers, UUIDs, paths, URLs, IP addresses, secrets, "
    "enums, dataclasses, named tuples or pydantic models"
)


FIX_VERSION = "run the version of flink-agents-python that wrote it, or a newer one"


def unknown_version(content_name: str, data: bytes, version: bytes) -> StateFormatError:
    """Return the error about bytes that do not begin with the expected version byte.

    Args:
        content_name: The content of the bytes, for the message: such as ``the head of a key``.
        data: The bytes.
        version: The expected version byte.
    """
    return StateFormatError(
        f"{content_name} has a format that this version cannot read",
        expected=f"version {version[0]}",
        found=f"version {data[0]}" if data else "no bytes",
        fix=FIX_VERSION,
    )


TUPLE = msgpack.ExtType(_TUPLE, b"")
"""The only key of a map that represents a tuple."""


def unordered(code: int) -> bool:
    """Return True for the extension codes of ``set`` and ``frozenset``, whose items have no order."""
    return code in (_SET, _FROZENSET)


class Packers(threading.local):
    """A packer of MessagePack for each thread: between two parts of a value, another thread may run.

    Args:
        options: Options of ``msgpack.Packer``.
    """

    def __init__(self, **options: Any) -> None:
        self.pack = msgpack.Packer(**options).pack


class ValueCodec:
    """Encodes values of users as bytes for state and journal, and decodes them.

    Args:
        allow_pickle: Write values of other classes by pickle, and read them (the option
            ``state.allow-pickle``).
    """

    def __init__(self, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle
        self._packers = Packers(
            default=self._tagged, strict_types=True, unicode_errors="surrogatepass", autoreset=True
        )

    def encode(self, value: Any) -> bytes:
        """Return ``value`` as a version byte and MessagePack.

        Raises:
            UnserializableValueError: State cannot hold it; the message names the part and its type.
        """
        try:
            data = self._packers.pack(value)
            if _MAY_HAVE_BYTES(data):
                _check_bytes(value)
            return VERSION + data
        except Exception as error:
            raise self._refused(value, error) from error

    def encode_record(self, record: list[Any]) -> bytes:
        """Return a record of this package as bytes. Its values of users are encoded already.

        Raises:
            UnserializableValueError: State cannot hold it.
        """
        try:
            return VERSION + self._packers.pack(record)
        except Exception as error:
            raise self._refused(record, error) from error

    def decode(self, data: bytes) -> Any:
        """Return the value for bytes that :meth:`encode` returned.

        Raises:
            StateFormatError: The bytes are corrupt, or of an unknown version.
            UnknownTypeNameError: A class of the value no longer exists.
        """
        return self._decode_with(data, _untagged)

    def _decode_with(self, data: bytes, restore_map: Callable[[dict[Any, Any]], Any]) -> Any:
        """Return the value for ``data``; ``restore_map`` returns the value that a map stands for."""
        if data[:1] != VERSION:
            raise unknown_version("state", data, VERSION)
        try:
            return msgpack.unpackb(
                data[1:],
                ext_hook=self._extension,
                object_hook=restore_map,
                strict_map_key=False,
                unicode_errors="surrogatepass",
            )
        except StateError:
            raise
        except Exception as error:
            # The bytes are corrupt, or classes have changed: user code runs here, too.
            raise StateFormatError(
                "state bytes cannot be read", found=f"{type(error).__name__}: {error}"
            ) from error

    def decode_fields(self, data: bytes) -> Any:
        """Return the value for ``data``, with a dictionary of fields in place of each model and dataclass.

        Raises:
            StateFormatError: The bytes are corrupt.
            UnknownTypeNameError: An enum of the value no longer exists.
        """
        return self._decode_with(data, _fields_of)

    def copy(self, value: Any) -> Any:
        """Return a deep copy of ``value``, as it would come back from state.

        Raises:
            UnserializableValueError: State cannot hold it.
        """
        try:
            return plain_copy(value)
        except (NotPlain, RecursionError):
            return self.decode(self.encode(value))

    def _tagged(self, value: Any) -> Any:
        """Return a value that MessagePack does not support in types that it does; for ``msgpack.Packer``.

        Raises:
            UnserializableValueError: State has no form for its class.
        """
        kind = type(value)
        leaf = _LEAVES.get(kind)
        if leaf is not None:
            return msgpack.ExtType(leaf[0], leaf[1](value))
        writer = _WRITERS.get(kind) or _writer_of(kind)
        if writer is not None:
            code, content = writer(value)
            return {_TAGS[code]: content}
        if is_awaitable(value):
            raise UnserializableValueError(
                f"state cannot hold {awaitable_text(value)}, which was not awaited",
                expected="the awaited result",
                fix=AWAIT_IT,
            )
        if not self.allow_pickle:
            raise UnserializableValueError(
                f"state cannot hold a value of type {kind.__module__}.{kind.__qualname__}",
                expected=_EXPECTED,
                fix="store such values; or, in a field of a model, one that pydantic writes as JSON and "
                "reads back as an equal value; or set the option state.allow-pickle",
            )
        import cloudpickle

        return msgpack.ExtType(_PICKLE, cloudpickle.dumps(value))

    def _extension(self, code: int, data: bytes) -> Any:
        """Return the value of an extension of MessagePack; a ``_Tag`` for an empty one."""
        if not data:
            return _Tag(code)
        if code == _PICKLE:
            if not self.allow_pickle:
                raise StateFormatError(
                    "state holds a pickled value", fix="set the option state.allow-pickle to read it"
                )
            import cloudpickle

            return cloudpickle.loads(data)
        reader = _LEAF_READERS.get(code)
        if reader is None:
            raise StateFormatError("state holds a value of an unknown kind", found=f"extension {code}")
        return reader(data)

    # -- errors -----------------------------------------------------------------------

    def _refused(self, value: Any, error: Exception) -> UnserializableValueError:
        """Return the error for a value that cannot be encoded, from what the attempt raised."""
        if isinstance(error, RecursionError) or "recursion limit" in str(error):
            return UnserializableValueError(
                "a value is nested too deep for state, or contains itself",
                expected="at most about 500 levels",
                found=shorten(value),
                fix="store references or a flat list instead of nested objects",
            )
        path, culprit = self._culprit(value)
        message = "a value cannot be written to state"
        expected = None
        fix = None
        details = f" ({type(error).__name__}: {error})"
        if isinstance(error, StateError):
            message = error.message
            expected = error.expected
            fix = error.fix
            details = ""
        place = f"at {path}: " if path else ""
        return UnserializableValueError(
            message, expected=expected, found=f"{place}{shorten(culprit)}{details}", fix=fix
        )

    def _culprit(self, value: Any) -> tuple[str, Any]:
        """Return the innermost part of ``value`` that cannot be written, and its path."""
        path = ""
        while True:
            for step, part in _parts(value):
                try:
                    self._packers.pack(part)
                    _check_bytes(part)
                except Exception:
                    path = path + step
                    value = part
                    break
            else:
                return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the direct parts of a value, each after its step in a path, such as ``.name`` or ``[0]``."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"[key {shorten(key)}]", key
            yield f"[{shorten(key)}]", item
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip((f".{name}" for name in value._fields), value, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(value, list | tuple | deque):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((f"{{{shorten(item)}}}", item) for item in value)
    elif isinstance(value, BaseModel):
        fields = {**value.__dict__, **(value.model_extra or {}), **(value.__pydantic_private__ or {})}
        yield from ((f".{name}", item) for name, item in fields.items())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{name}", item) for name, item in class_values.fields_of_dataclass(value).items())
    elif type(value).__name__ == "Row" and type(value).__module__ == "pyflink.common.types":
        yield from ((f"[{index}]", item) for index, item in enumerate(list(cast("Any", value))))


_MAY_HAVE_BYTES = re.compile(rb"[\xc4-\xc6]").search
"""Finds the first byte of what MessagePack writes for bytes; texts may contain it, too."""


def _check_bytes(value: Any) -> None:
    """Reject a ``bytearray`` or ``memoryview`` in a value, which MessagePack would write as ``bytes``."""
    unchecked = [value]
    while unchecked:
        part = unchecked.pop()
        if type(part) in (bytearray, memoryview):
            raise UnserializableValueError(
                f"state cannot hold a value of type {type(part).__name__}",
                expected=_EXPECTED,
                fix="store bytes(value)",
            )
        if type(part) is dict and UNCHANGING.issuperset(map(type, part)):
            part = list(part.values())
        if type(part) in (list, tuple):
            unchecked += part if not UNCHANGING.issuperset(map(type, part)) else ()
        else:
            unchecked += [inner for _, inner in _parts(part)]


class _Tag:
    """The only key of a map that represents a value made of other values."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


def _untagged(content: dict[Any, Any]) -> Any:
    """Return the value that an unpacked map stands for: the map itself, unless its key is a tag."""
    if len(content) != 1:
        return content
    ((key, inner),) = content.items()
    if type(key) is not _Tag:
        return content
    reader = _READERS.get(key.code)
    if reader is None:
        raise StateFormatError("state holds a value of an unknown kind", found=f"tag {key.code}")
    try:
        return reader(inner)
    except StateError:
        raise
    except Exception as error:
        # The user's constructors run here, and may raise anything.
        raise _not_made(key.code, inner, error) from error


def _fields_of(content: dict[Any, Any]) -> Any:
    """Return the value of an unpacked map; for an object of a named class, its fields."""
    for key, inner in content.items():
        if type(key) is _Tag and key.code in KINDS and key.code != ENUM:
            stored = Stored.from_content(key.code, inner)
            return {**stored.fields, **(stored.extra or {})}
        if type(key) is _Tag and key.code == OWN_FORM:
            return inner
    return _untagged(content)


def _not_made(code: int, content: Any, error: Exception) -> StateFormatError:
    """Return the error for a stored value that could not be made, from what its constructor raised."""
    error_text = f"{type(error).__name__}: {error}"
    if code not in KINDS or not (isinstance(content, list) and isinstance(content[0], str)):
        return StateFormatError("state bytes cannot be read", found=error_text)
    name: str = content[0]
    return ValueChangedError(
        f"a stored {shorten(name)} cannot be restored",
        type_name=name,
        expected="a constructor that accepts the stored fields",
        found=error_text,
        fix="let the class accept them, or change the class and return the value from a function with "
        f"@upgrades({name!r})",
    )


def is_of_class(content: dict[Any, Any]) -> bool:
    """Return True if an unpacked map stands for a value of a named class, such as a model."""
    return any(type(key) is _Tag and key.code in KINDS for key in content)


def _order(item: Any) -> str:
    """Return the sort key of an item of a set: equal sets have equal bytes in every process."""
    if isinstance(item, frozenset):
        return f"{{{sorted(map(_order, item))}}}"
    if isinstance(item, tuple):
        return f"({list(map(_order, item))})"
    return hex(item) if type(item) is int else repr(item)


# -- classes -------------------------------------------------------------------------


def is_writable(kind: type) -> bool:
    """Return True if state can hold the values of a class, as far as the class shows."""
    return kind in UNCHANGING or kind in _LEAVES or kind in _WRITERS or _writer_of(kind) is not None


@lru_cache(maxsize=4096)
def _writer_of(kind: type) -> class_values.Writer | None:
    """Return the function that writes composite values of a class; None for another class."""
    if kind.__name__ == "Row" and kind.__module__ == "pyflink.common.types":
        return _write_row
    return class_values.writer_of(kind) or library.writer_of(kind)


def _write_row(value: Any) -> tuple[int, Any]:
    return _ROW, [value.get_row_kind().value, getattr(value, "_fields", None), list(value)]


def _read_row(content: list[Any]) -> Any:
    from pyflink.common import Row, RowKind

    row = Row(*content[2])
    if content[1]:
        row.set_field_names(content[1])
    row.set_row_kind(RowKind(content[0]))
    return row


_TAGS = {
    code: msgpack.ExtType(code, b"")
    for code in (_TUPLE, _SET, _FROZENSET, _ROW, library.LIBRARY, OWN_FORM, *KINDS)
}

_LEAVES: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    int: (_BIG_INT, lambda value: f"{value:x}".encode()),
    datetime: (_DATETIME, library.write_time),
    date: (_DATE, lambda value: value.isoformat().encode()),
    time: (_TIME, library.write_time),
    timedelta: (_TIMEDELTA, lambda value: library.write_timedelta(value).encode()),
    Decimal: (_DECIMAL, lambda value: str(value).encode()),
    uuid.UUID: (_UUID, lambda value: value.bytes),
}

_LEAF_READERS: dict[int, Callable[[bytes], Any]] = {
    _BIG_INT: lambda data: int(data, 16),
    _DATETIME: library.time_reader(datetime.fromisoformat),
    _DATE: lambda data: date.fromisoformat(data.decode()),
    _TIME: library.time_reader(time.fromisoformat),
    _TIMEDELTA: library.read_timedelta,
    _DECIMAL: lambda data: Decimal(data.decode()),
    _UUID: lambda data: uuid.UUID(bytes=data),
}

_WRITERS: dict[type, Callable[[Any], tuple[int, Any]]] = {
    tuple: lambda value: (_TUPLE, list(value)),
    set: lambda value: (_SET, sorted(value, key=_order)),
    frozenset: lambda value: (_FROZENSET, sorted(value, key=_order)),
    OwnForm: lambda value: (OWN_FORM, value.content),
}

_READERS: dict[int, Callable[[Any], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _ROW: _read_row,
    library.LIBRARY: library.read_value,
    OWN_FORM: OwnForm,
    **class_values.READERS,
}


# -- copies without bytes ----------------------------------------------------------------

UNCHANGING = frozenset({str, int, float, bool, bytes, type(None)})
"""Types of immutable values, which need no copy."""


class NotPlain(Exception):
    """A value has a part that is not plain: none of ``UNCHANGING``, and no dict, list or tuple of such."""


def plain_copy(value: Any) -> Any:
    """Return a deep copy of a plain value, without encoding it; see ``NotPlain``.

    Raises:
        NotPlain: A part of it is not plain.
    """
    kind = type(value)
    if kind in UNCHANGING:
        return value
    if kind is dict:
        if not UNCHANGING.issuperset(map(type, value)):
            raise NotPlain
        if UNCHANGING.issuperset(map(type, value.values())):
            return dict(value)
        return {name: plain_copy(part) for name, part in value.items()}
    if kind is list or kind is tuple:
        return kind([plain_copy(part) for part in value])
    raise NotPlain


def is_unchanging(value: Any) -> bool:
    """Return True if ``value`` is immutable and needs no copy."""
    kind = type(value)
    return kind in UNCHANGING or (kind is tuple and are_unchanging(value))


def are_unchanging(values: Collection[Any]) -> bool:
    """Return True if all ``values`` are immutable."""
    # Most have exactly these types, which can be checked without a call for each.
    return UNCHANGING.issuperset(map(type, values)) or all(map(is_unchanging, values))
