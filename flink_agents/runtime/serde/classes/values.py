"""Writes values of enums, Pydantic models, dataclasses and named tuples to state.

Each is written with the name of its class, its fields by name, and markers that change when the fields do.
If class and markers are unchanged, the value is restored as it was. Otherwise ``changed`` decides.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from enum import Enum, Flag
from functools import lru_cache, partial
from typing import Any
from zlib import crc32

from pydantic import BaseModel

from flink_agents.api.errors import UnserializableValueError
from flink_agents.api.resources.provenance import ORIGIN, carries_origin, origin_of, set_origin
from flink_agents.runtime.serde.classes.changed import Stored, read_changed, remake_dataclass, remake_model
from flink_agents.runtime.serde.typenames import Kind, find_type, kind_of, type_name

ENUM, MODEL, DATACLASS, NAMED_TUPLE = 11, 12, 13, 14
NAMED = frozenset((ENUM, MODEL, DATACLASS, NAMED_TUPLE))
MARKED = frozenset((DATACLASS, NAMED_TUPLE))
"""Kinds whose content has two parts, followed by markers, which are no part of the value."""

_MARK_BYTES = 2
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MODULE = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])|['\"]")

Writer = Callable[[Any], tuple[int, Any]]


@lru_cache(maxsize=4096)
def writer_of(kind: type) -> Writer | None:
    """Return the function that writes values of a data class; None for another class."""
    if issubclass(kind, Enum):
        return _write_enum
    if issubclass(kind, BaseModel):
        return _write_model
    if dataclasses.is_dataclass(kind):
        _check_constructor(kind)
        return _write_dataclass
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple_writer(kind)
    return None


# -- enums ---------------------------------------------------------------------------


def _write_enum(value: Enum) -> tuple[int, Any]:
    kind = type(value)
    if isinstance(value, Flag) and value.name not in kind.__members__:
        return ENUM, [type_name(kind), value.value]
    return ENUM, [type_name(kind), value.name]


def _read_enum(content: list[Any]) -> Any:
    name, member = content
    cls = find_type(name)
    if cls is not None and kind_of(cls) is Kind.ENUM:
        try:
            return cls[member] if isinstance(member, str) else cls(member)  # pyright: ignore[reportIndexIssue]
        except (KeyError, ValueError):
            pass
    return read_changed(Stored(name, Kind.ENUM, member=member))


# -- pydantic models -----------------------------------------------------------------


def _write_model(value: BaseModel) -> tuple[int, Any]:
    kind = type(value)
    fields, known = value.__dict__, kind.__pydantic_fields__
    origin = fields.get(ORIGIN)
    if len(fields) > len(known):
        # Cached properties are stored there, too.
        fields = {name: item for name, item in fields.items() if name in known}
    given = value.model_fields_set
    unset = [name for name in known if name not in given]
    content: list[Any] = [type_name(kind), shape_of(kind), fields, unset]
    if origin is not None or value.model_extra or value.__pydantic_private__:
        content += [value.model_extra or None, value.__pydantic_private__ or None]
    if origin is not None:
        content.append(origin)
    return MODEL, content


@lru_cache(maxsize=4096)
def shape_of(kind: type[BaseModel]) -> int:
    """Return a number that changes when the fields of a model do."""
    fields = [(name, repr(field.annotation)) for name, field in kind.__pydantic_fields__.items()]
    private = sorted(getattr(kind, "__private_attributes__", None) or ())
    return crc32(repr((fields, private, kind.model_config.get("extra"))).encode("utf-8", "surrogatepass"))


def _read_model(content: list[Any]) -> Any:
    """Return a stored model: it is validated again only if its class has changed since."""
    name, shape, fields, unset, *rest = content
    extra, private, *origin = rest or (None, None)
    cls = find_type(name)
    if cls is None or kind_of(cls) is not Kind.MODEL or shape != shape_of(cls):
        stored = Stored(name, Kind.MODEL, {**fields, **(extra or {})}, private=private, unset=unset)
        return _from(origin, read_changed(stored))
    return _from(origin, remake_model(cls, fields, unset, extra, private))


def _from(origin: list[Any], made: Any) -> Any:
    """Return ``made`` with its stored origin, if there is one."""
    if origin and carries_origin(type(made)):
        set_origin(made, origin[0])
    return made


# -- dataclasses and named tuples ----------------------------------------------------


def _check_constructor(kind: type) -> None:
    """Reject a dataclass that could be written, but not restored from its fields."""
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
            expected="a constructor that accepts the fields",
            fix=f"add a default for {', '.join(missing)}, or make it a field",
        )


@lru_cache(maxsize=4096)
def _marks_of(kind: type) -> tuple[tuple[str, ...], bytes]:
    """Return the fields of a dataclass or named tuple, and two bytes for the type of each."""
    if dataclasses.is_dataclass(kind):
        types = {field.name: field.type for field in dataclasses.fields(kind)}
    else:
        declared = _annotations(kind)
        types = {name: declared.get(name) for name in getattr(kind, "_fields", ())}
    return tuple(types), b"".join(map(_mark, types.values()))


def _annotations(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found.update(inspect.get_annotations(base))
    return found


def _mark(annotation: Any) -> bytes:
    text = annotation.__qualname__ if isinstance(annotation, type) else annotation
    # A class may be imported from another module, and written as a string or not.
    plain = _MODULE.sub("", _ADDRESS.sub("", text if isinstance(text, str) else repr(text)))
    return (crc32(plain.encode("utf-8", "surrogatepass")) & 0xFFFF).to_bytes(_MARK_BYTES, "big")


def fields_of_dataclass(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance by name."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _write_dataclass(value: Any) -> tuple[int, Any]:
    kind = type(value)
    content = [type_name(kind), fields_of_dataclass(value), _marks_of(kind)[1]]
    if carries_origin(kind) and (origin := origin_of(value)) is not None:
        content.append(origin)
    return DATACLASS, content


def _read_dataclass(content: list[Any]) -> Any:
    # Earlier versions wrote no markers.
    name, fields, marks, *origin = content if len(content) > 2 else (*content, None)
    cls = find_type(name)
    if cls is not None and kind_of(cls) is Kind.DATACLASS:
        names, current = _marks_of(cls)
        if marks in (None, current) and len(fields) == len(names) and all(one in fields for one in names):
            return _from(origin, remake_dataclass(cls, fields))
    same = partial(_same_types, list(fields), marks)
    return _from(origin, read_changed(Stored(name, Kind.DATACLASS, fields, same=same)))


def _named_tuple_writer(kind: type) -> Writer:
    names, marks = _marks_of(kind)
    behind = [",".join(names), marks]
    return lambda value: (NAMED_TUPLE, [type_name(kind), list(value), *behind])


def _read_named_tuple(content: list[Any]) -> Any:
    name, values, *rest = content
    cls: Any = find_type(name)
    same_kind = cls is not None and kind_of(cls) is Kind.NAMED_TUPLE
    if not rest:
        # An earlier version wrote no names.
        stored_names, marks = (_marks_of(cls)[0] if same_kind else ()), None
        names = [*stored_names, *(f"field {at}" for at in range(len(stored_names), len(values)))]
    else:
        names, marks = rest[0].split(",") if rest[0] else [], rest[1]
    if cls is not None and same_kind:
        known, current = _marks_of(cls)
        if marks in (None, current) and tuple(names) == known:
            return cls(*values)
    fields = dict(zip(names, values, strict=False))
    same = partial(_same_types, names, marks)
    return read_changed(Stored(name, Kind.NAMED_TUPLE, fields, same=same))


def _same_types(names: list[str], marks: bytes | None, cls: type) -> frozenset[str]:
    """Return the fields whose declared type in ``cls`` is unchanged; all of them if that is unknown."""
    if marks is None:
        return frozenset(names)
    if kind_of(cls) not in (Kind.DATACLASS, Kind.NAMED_TUPLE):
        return frozenset()
    known, current = _marks_of(cls)

    def pieces(of: bytes) -> list[bytes]:
        return [of[at : at + _MARK_BYTES] for at in range(0, len(of), _MARK_BYTES)]

    then = dict(zip(names, pieces(marks), strict=False))
    now = dict(zip(known, pieces(current), strict=True))
    return frozenset(name for name in names if name in now and then.get(name) == now[name])


READERS: dict[int, Callable[[Any], Any]] = {
    ENUM: _read_enum,
    MODEL: _read_model,
    DATACLASS: _read_dataclass,
    NAMED_TUPLE: _read_named_tuple,
}
