"""Values as bytes for state: a version byte, then MessagePack.

JSON values, bytes, tuples, sets, big integers, dates, decimals, UUIDs, enums, dataclasses,
named tuples, pydantic models and PyFlink rows keep their types; classes stand there by name
(``typenames``), never as pickled code. MessagePack itself knows no difference between bytes
and bytearrays: both come back as bytes. https://msgpack.org (specification 2013)

Values with a short text or a few bytes (dates, decimals) are extensions. Values made of other
values (tuples, models) are a map with one entry, whose key is an empty extension that names
the kind. So nesting costs neither copies nor stack, which is small on Flink's threads.
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import lru_cache
from typing import Any
from zlib import crc32
from zoneinfo import ZoneInfo

import msgpack
from pydantic import BaseModel, ValidationError

from flink_agents.api.errors import StateError, StateFormatError, UnserializableValueError
from flink_agents.runtime.serde.awaitables import AWAIT_IT, is_awaitable, told
from flink_agents.runtime.serde.copies import NotPlain, plain_copy
from flink_agents.runtime.serde.typenames import resolve_type, shorten, type_name

VERSION = b"\x01"

_TUPLE, _SET, _FROZENSET, _BIG_INT = 1, 2, 3, 4
_DATETIME, _DATE, _TIME, _TIMEDELTA, _DECIMAL, _UUID = 5, 6, 7, 8, 9, 10
_ENUM, _MODEL, _DATACLASS, _NAMED_TUPLE, _ROW, _PICKLE = 11, 12, 13, 14, 15, 16
_NAMED = frozenset((_ENUM, _MODEL, _DATACLASS, _NAMED_TUPLE))

_EXPECTED = (
    "JSON values, bytes, tuples, sets, dates, decimals, UUIDs, enums, dataclasses, named tuples "
    "or pydantic models"
)


def unordered(code: int) -> bool:
    """Tell whether the parts of a value of that kind have no order."""
    return code in (_SET, _FROZENSET)


class _Packers(threading.local):
    """A packer for each thread: between two parts of a value, another thread may have its turn.

    Args:
        default: Gives a value of another class in terms of what MessagePack knows.
    """

    def __init__(self, default: Callable[[Any], Any]) -> None:
        self.pack = msgpack.Packer(
            default=default, strict_types=True, unicode_errors="surrogatepass", autoreset=True
        ).pack


class ValueCodec:
    """Encodes and decodes values.

    Args:
        allow_pickle: Write values of other classes by pickle, and read them (the option
            ``state.allow-pickle``).
    """

    def __init__(self, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle
        self._packers = _Packers(self._tagged)

    def encode(self, value: Any) -> bytes:
        """Return ``value`` as bytes.

        Raises:
            UnserializableValueError: State cannot hold it; the text names the part and its type.
        """
        try:
            return VERSION + self._packers.pack(value)
        except Exception as error:
            raise self._refused(value, error) from error

    def decode(self, data: bytes) -> Any:
        """Return the value of which ``data`` are the bytes.

        Raises:
            StateFormatError: The bytes are corrupt, or of an unknown version.
            UnknownTypeNameError: A class of the value does not exist any more.
        """
        if data[:1] != VERSION:
            raise StateFormatError(
                "state is of a format that this version cannot read",
                expected=f"version {VERSION[0]}",
                found=f"version {data[0]}" if data else "no bytes",
                fix="run the version of flink-agents-python that wrote it, or a newer one",
            )
        try:
            return msgpack.unpackb(
                data[1:],
                ext_hook=self._extension,
                object_hook=_untagged,
                strict_map_key=False,
                unicode_errors="surrogatepass",
            )
        except StateError:
            raise
        except Exception as error:
            # Bytes that are corrupt, or classes that changed: user code runs here, too.
            raise StateFormatError(
                "state bytes cannot be read", found=f"{type(error).__name__}: {error}"
            ) from error

    def copy(self, value: Any) -> Any:
        """Return the value that :meth:`decode` makes of what :meth:`encode` makes of ``value``.

        Raises:
            UnserializableValueError: State cannot hold it.
        """
        try:
            return plain_copy(value)
        except (NotPlain, RecursionError):
            return self.decode(self.encode(value))

    def _tagged(self, value: Any) -> Any:
        """Return ``value`` in terms of what MessagePack knows, to any depth by being called again."""
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
                f"state cannot hold {told(value)}, which was not awaited",
                expected="what it returns",
                fix=AWAIT_IT,
            )
        if not self.allow_pickle:
            raise UnserializableValueError(
                f"state cannot hold a value of type {kind.__module__}.{kind.__qualname__}",
                expected=_EXPECTED,
                fix="store a pydantic model or plain values; or set the option state.allow-pickle",
            )
        import cloudpickle

        return msgpack.ExtType(_PICKLE, cloudpickle.dumps(value))

    def _extension(self, code: int, data: bytes) -> Any:
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
        if isinstance(error, RecursionError) or "recursion limit" in str(error):
            return UnserializableValueError(
                "a value is nested too deep for state, or contains itself",
                expected="at most about 500 levels",
                found=shorten(value),
                fix="store references or a flat list instead of nested objects",
            )
        path, culprit = self._culprit(value)
        message, expected, fix = "a value cannot be written to state", None, None
        details = f" ({type(error).__name__}: {error})"
        if isinstance(error, StateError):
            message, expected, fix, details = error.message, error.expected, error.fix, ""
        place = f"at {path}: " if path else ""
        return UnserializableValueError(
            message, expected=expected, found=f"{place}{shorten(culprit)}{details}", fix=fix
        )

    def _culprit(self, value: Any) -> tuple[str, Any]:
        """Return the innermost part of ``value`` that cannot be written, and the path to it."""
        path = ""
        while True:
            for step, part in _parts(value):
                try:
                    self._packers.pack(part)
                except Exception:
                    path, value = path + step, part
                    break
            else:
                return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what ``value`` consists of, each with its step in a path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"[key {shorten(key)}]", key
            yield f"[{shorten(key)}]", item
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip((f".{name}" for name in value._fields), value, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((f"{{{shorten(item)}}}", item) for item in value)
    elif isinstance(value, BaseModel):
        fields = {**value.__dict__, **(value.model_extra or {}), **(value.__pydantic_private__ or {})}
        yield from ((f".{name}", item) for name, item in fields.items())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{name}", item) for name, item in _dataclass_fields(value).items())


class _Tag:
    """The only key of a map that stands for a value made of other values."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


def _untagged(content: dict[Any, Any]) -> Any:
    if len(content) != 1:
        return content
    ((key, inner),) = content.items()
    if type(key) is not _Tag:
        return content
    reader = _READERS.get(key.code)
    if reader is None:
        raise StateFormatError("state holds a value of an unknown kind", found=f"tag {key.code}")
    return reader(inner)


def is_of_class(content: dict[Any, Any]) -> bool:
    """Tell whether a map of the format stands for a value of a class that it names."""
    return any(type(key) is _Tag and key.code in _NAMED for key in content)


def _order(item: Any) -> str:
    """Sort the items of a set, so that equal sets have equal bytes, in every process."""
    if isinstance(item, frozenset):
        return f"{{{sorted(map(_order, item))}}}"
    if isinstance(item, tuple):
        return f"({list(map(_order, item))})"
    return hex(item) if type(item) is int else repr(item)


# -- times: what isoformat() cannot say follows after a bar --------------------------


def _write_time(value: datetime | time) -> bytes:
    zone = value.tzinfo
    if isinstance(zone, ZoneInfo) and zone.key:
        return f"{value.replace(tzinfo=None).isoformat()}|{value.fold}|{zone.key}".encode()
    if zone is not None and value.utcoffset() is None:
        raise UnserializableValueError(
            f"state cannot hold a {type(value).__name__} whose time zone has no offset",
            expected="a ZoneInfo or a fixed offset",
            fix="use zoneinfo.ZoneInfo",
        )
    return f"{value.isoformat()}|{value.fold}".encode() if value.fold else value.isoformat().encode()


def _time_reader(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        text, _, rest = data.decode().partition("|")
        value = parse(text)
        if not rest:
            return value
        fold, _, zone = rest.partition("|")
        value = value.replace(fold=int(fold))
        return value.replace(tzinfo=ZoneInfo(zone)) if zone else value

    return read


# -- classes -------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _writer_of(kind: type) -> Callable[[Any], tuple[int, Any]] | None:
    """Return how values of a data class are written; None of another class."""
    if issubclass(kind, Enum):
        return _write_enum
    if issubclass(kind, BaseModel):
        return _write_model
    if dataclasses.is_dataclass(kind):
        _check_constructor(kind)
        return _write_dataclass
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda value: (_NAMED_TUPLE, [type_name(kind), list(value)])
    if kind.__name__ == "Row" and kind.__module__ == "pyflink.common.types":
        return _write_row
    return None


def _write_enum(value: Enum) -> tuple[int, Any]:
    kind = type(value)
    if isinstance(value, Flag) and value.name not in kind.__members__:
        return _ENUM, [type_name(kind), value.value]
    return _ENUM, [type_name(kind), value.name]


def _read_enum(content: list[Any]) -> Any:
    cls = resolve_type(content[0])
    return cls[content[1]] if isinstance(content[1], str) else cls(content[1])  # pyright: ignore[reportIndexIssue]


def _write_model(value: BaseModel) -> tuple[int, Any]:
    kind = type(value)
    fields, known = value.__dict__, kind.__pydantic_fields__
    if len(fields) > len(known):
        # Cached properties live there, too.
        fields = {name: item for name, item in fields.items() if name in known}
    given = value.model_fields_set
    unset = [name for name in known if name not in given]
    content: list[Any] = [type_name(kind), _shape(kind), fields, unset]
    if value.model_extra or value.__pydantic_private__:
        content += [value.model_extra or None, value.__pydantic_private__ or None]
    return _MODEL, content


@lru_cache(maxsize=4096)
def _shape(kind: type[BaseModel]) -> int:
    """Return a number that changes when the fields of a model do."""
    fields = [(name, repr(field.annotation)) for name, field in kind.__pydantic_fields__.items()]
    private = sorted(getattr(kind, "__private_attributes__", None) or ())
    return crc32(repr((fields, private, kind.model_config.get("extra"))).encode("utf-8", "surrogatepass"))


def _read_model(content: list[Any]) -> Any:
    """Return a model as it was stored: validated again only where its class has changed since."""
    name, shape, fields, unset, *rest = content
    extra, private = rest or (None, None)
    cls: type[BaseModel] = resolve_type(name)
    if shape != _shape(cls):
        return _read_changed_model(cls, fields, extra, private)
    made = cls.__new__(cls)
    if extra is None and cls.model_config.get("extra") == "allow":
        extra = {}
    if private is None and cls.__private_attributes__:
        private = {}
    made.__setstate__(
        {
            "__dict__": fields,
            "__pydantic_fields_set__": (fields.keys() | (extra or {}).keys()) - set(unset),
            "__pydantic_extra__": extra,
            "__pydantic_private__": private,
        }
    )
    return made


def _read_changed_model(cls: type[BaseModel], fields: Any, extra: Any, private: Any) -> Any:
    content = fields["root"] if cls.__pydantic_root_model__ else {**fields, **(extra or {})}
    try:
        made = cls.model_validate(content, by_name=True)
    except ValidationError as error:
        raise StateFormatError(
            f"a stored {type_name(cls)} does not fit the class any more",
            found=str(error),
            fix="give new fields a default, and keep the types of stored fields",
        ) from error
    if private and made.__pydantic_private__ is not None:
        known = made.__private_attributes__
        made.__pydantic_private__.update({name: item for name, item in private.items() if name in known})
    return made


def _dataclass_fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _check_constructor(kind: type) -> None:
    """Refuse a dataclass that could be written, but not be made again from its fields."""
    fields = {field.name for field in dataclasses.fields(kind) if field.init}
    parameters = inspect.signature(kind).parameters.values()
    needed = [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    missing = [name for name in needed if name not in fields]
    if missing:
        raise UnserializableValueError(
            f"the constructor of the dataclass {kind.__qualname__} needs more than its fields",
            expected="a constructor that takes the fields",
            fix=f"give {', '.join(missing)} a default, or make it a field",
        )


def _write_dataclass(value: Any) -> tuple[int, Any]:
    return _DATACLASS, [type_name(type(value)), _dataclass_fields(value)]


def _read_dataclass(content: list[Any]) -> Any:
    cls = resolve_type(content[0])
    known = {field.name: field for field in dataclasses.fields(cls)}
    values: dict[str, Any] = content[1]
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise StateFormatError(
            f"a stored {content[0]} has fields that the class does not have any more",
            found=", ".join(unknown),
        )
    made = cls(**{name: value for name, value in values.items() if known[name].init})
    # What __post_init__ made of the fields is stored already.
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _write_row(value: Any) -> tuple[int, Any]:
    return _ROW, [value.get_row_kind().value, getattr(value, "_fields", None), list(value)]


def _read_row(content: list[Any]) -> Any:
    from pyflink.common import Row, RowKind

    row = Row(*content[2])
    if content[1]:
        row.set_field_names(content[1])
    row.set_row_kind(RowKind(content[0]))
    return row


def _read_timedelta(data: bytes) -> timedelta:
    days, seconds, microseconds = data.split()
    return timedelta(int(days), int(seconds), int(microseconds))


_TAGS = {
    code: msgpack.ExtType(code, b"")
    for code in (_TUPLE, _SET, _FROZENSET, _ENUM, _MODEL, _DATACLASS, _NAMED_TUPLE, _ROW)
}

_LEAVES: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    int: (_BIG_INT, lambda value: f"{value:x}".encode()),
    datetime: (_DATETIME, _write_time),
    date: (_DATE, lambda value: value.isoformat().encode()),
    time: (_TIME, _write_time),
    timedelta: (_TIMEDELTA, lambda value: f"{value.days} {value.seconds} {value.microseconds}".encode()),
    Decimal: (_DECIMAL, lambda value: str(value).encode()),
    uuid.UUID: (_UUID, lambda value: value.bytes),
}

_LEAF_READERS: dict[int, Callable[[bytes], Any]] = {
    _BIG_INT: lambda data: int(data, 16),
    _DATETIME: _time_reader(datetime.fromisoformat),
    _DATE: lambda data: date.fromisoformat(data.decode()),
    _TIME: _time_reader(time.fromisoformat),
    _TIMEDELTA: _read_timedelta,
    _DECIMAL: lambda data: Decimal(data.decode()),
    _UUID: lambda data: uuid.UUID(bytes=data),
}

_WRITERS: dict[type, Callable[[Any], tuple[int, Any]]] = {
    tuple: lambda value: (_TUPLE, list(value)),
    set: lambda value: (_SET, sorted(value, key=_order)),
    frozenset: lambda value: (_FROZENSET, sorted(value, key=_order)),
}

_READERS: dict[int, Callable[[Any], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _ENUM: _read_enum,
    _MODEL: _read_model,
    _DATACLASS: _read_dataclass,
    _NAMED_TUPLE: lambda content: resolve_type(content[0])(*content[1]),
    _ROW: _read_row,
}
