"""Values as bytes for state: a version byte, then MessagePack with tagged extensions.

JSON values, bytes, tuples, sets, big integers, dates, decimals, UUIDs, enums, dataclasses,
named tuples, pydantic models and PyFlink rows keep their types; classes stand there by name
(``typenames``), never as pickled code. Format: https://msgpack.org (specification 2013).
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import msgpack
from pydantic import BaseModel, ValidationError

from flink_agents.api.errors import StateError, StateFormatError, UnserializableValueError
from flink_agents.runtime.typenames import resolve_type, type_name

VERSION = b"\x01"

_TUPLE, _SET, _FROZENSET, _BIG_INT = 1, 2, 3, 4
_DATETIME, _DATE, _TIME, _TIMEDELTA, _DECIMAL, _UUID = 5, 6, 7, 8, 9, 10
_ENUM, _MODEL, _DATACLASS, _NAMED_TUPLE, _ROW, _PICKLE = 11, 12, 13, 14, 15, 16


class ValueCodec:
    """Encodes and decodes values.

    Args:
        allow_pickle: Write values of other classes by pickle, and read them (the option
            ``state.allow-pickle``).
    """

    def __init__(self, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle
        self._pack = msgpack.Packer(
            default=self._extension, strict_types=True, unicode_errors="surrogatepass", autoreset=True
        ).pack

    def encode(self, value: Any) -> bytes:
        """``value`` as bytes.

        Raises:
            UnserializableValueError: State cannot hold it; the text names its type.
        """
        try:
            return VERSION + self._pack(value)
        except StateError:
            raise
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UnserializableValueError(
                "a value cannot be written to state", found=f"{type(value).__qualname__} ({error})"
            ) from error

    def decode(self, data: bytes) -> Any:
        """The value of which ``data`` are the bytes.

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
            return self._unpack(data[1:])
        except StateError:
            raise
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise StateFormatError(
                "state bytes cannot be read", found=f"{type(error).__name__}: {error}"
            ) from error

    def _unpack(self, data: bytes) -> Any:
        return msgpack.unpackb(
            data, ext_hook=self._value, strict_map_key=False, unicode_errors="surrogatepass"
        )

    def _extension(self, value: Any) -> msgpack.ExtType:
        writer = _WRITERS.get(type(value))
        if writer is not None:
            code, content = writer(value)
        elif isinstance(value, Enum):
            code, content = _ENUM, [type_name(type(value)), value.name]
        elif isinstance(value, BaseModel):
            code, content = _MODEL, [type_name(type(value)), {**value.__dict__, **(value.model_extra or {})}]
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            code, content = _DATACLASS, [type_name(type(value)), _dataclass_fields(value)]
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            code, content = _NAMED_TUPLE, [type_name(type(value)), list(value)]
        elif _is_row(value):
            code, content = _ROW, _row_content(value)
        else:
            return self._pickled(value)
        packer = msgpack.Packer(default=self._extension, strict_types=True, unicode_errors="surrogatepass")
        return msgpack.ExtType(code, packer.pack(content))

    def _pickled(self, value: Any) -> msgpack.ExtType:
        if not self.allow_pickle:
            raise UnserializableValueError(
                f"state cannot hold a value of type {type(value).__module__}.{type(value).__qualname__}",
                expected="JSON values, bytes, tuples, sets, dates, decimals, UUIDs, enums, dataclasses, "
                "named tuples or pydantic models",
                found=repr(value)[:200],
                fix="store a pydantic model or plain values; or set the option state.allow-pickle",
            )
        import cloudpickle

        return msgpack.ExtType(_PICKLE, cloudpickle.dumps(value))

    def _value(self, code: int, data: bytes) -> Any:
        if code == _PICKLE:
            if not self.allow_pickle:
                raise StateFormatError(
                    "state holds a pickled value", fix="set the option state.allow-pickle to read it"
                )
            import cloudpickle

            return cloudpickle.loads(data)
        reader = _READERS.get(code)
        if reader is None:
            raise StateFormatError("state holds a value of an unknown kind", found=f"extension {code}")
        return reader(self._unpack(data))


def _dataclass_fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _row_content(row: Any) -> list[Any]:
    return [row.get_row_kind().value, getattr(row, "_fields", None), list(row)]


def _is_row(value: Any) -> bool:
    return type(value).__name__ == "Row" and type(value).__module__ == "pyflink.common.types"


def _read_model(content: list[Any]) -> Any:
    cls = resolve_type(content[0])
    try:
        return cls.model_validate(content[1], by_name=True)
    except ValidationError as error:
        raise StateFormatError(
            f"a stored {content[0]} does not fit the class any more",
            found=str(error),
            fix="give new fields a default, and keep the types of stored fields",
        ) from error


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
    for name, value in values.items():
        if not known[name].init:
            object.__setattr__(made, name, value)
    return made


def _read_row(content: list[Any]) -> Any:
    from pyflink.common import Row, RowKind

    row = Row(*content[2])
    if content[1]:
        row.set_field_names(content[1])
    row.set_row_kind(RowKind(content[0]))
    return row


_WRITERS: dict[type, Callable[[Any], tuple[int, Any]]] = {
    tuple: lambda value: (_TUPLE, list(value)),
    set: lambda value: (_SET, sorted(value, key=repr)),
    frozenset: lambda value: (_FROZENSET, sorted(value, key=repr)),
    int: lambda value: (_BIG_INT, str(value)),
    datetime: lambda value: (_DATETIME, value.isoformat()),
    date: lambda value: (_DATE, value.isoformat()),
    time: lambda value: (_TIME, value.isoformat()),
    timedelta: lambda value: (_TIMEDELTA, [value.days, value.seconds, value.microseconds]),
    Decimal: lambda value: (_DECIMAL, str(value)),
    uuid.UUID: lambda value: (_UUID, value.bytes),
}

_READERS: dict[int, Callable[[Any], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _BIG_INT: int,
    _DATETIME: datetime.fromisoformat,
    _DATE: date.fromisoformat,
    _TIME: time.fromisoformat,
    _TIMEDELTA: lambda content: timedelta(*content),
    _DECIMAL: Decimal,
    _UUID: lambda content: uuid.UUID(bytes=content),
    _ENUM: lambda content: resolve_type(content[0])[content[1]],  # pyright: ignore[reportIndexIssue]
    _MODEL: _read_model,
    _DATACLASS: _read_dataclass,
    _NAMED_TUPLE: lambda content: resolve_type(content[0])(*content[1]),
    _ROW: _read_row,
}
