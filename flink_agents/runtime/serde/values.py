"""Writes values of enums, Pydantic models, dataclasses and named tuples to state.

Each is written with the name of its class, its fields by name, and markers that change when the fields do.
If class and markers are unchanged, the value is restored as it was. Otherwise ``changed`` decides.

The format has no form for a type of the author or of another package, such as a phone number. If Pydantic can
write such a field as JSON and read it back as an equal value, state holds that JSON, its *own form*.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic.fields import FieldInfo

from flink_agents.api.errors import UnserializableValueError
from flink_agents.api.resources.provenance import ORIGIN, carries_origin, origin_of, set_origin
from flink_agents.runtime.serde import library
from flink_agents.runtime.serde.changed import (
    DATACLASS,
    ENUM,
    KINDS,
    MODEL,
    NAMED_TUPLE,
    Stored,
    allows_extra_fields,
    hints_of,
    marks_of,
    read_changed,
    remake_dataclass,
    remake_model,
    shape_of,
)
from flink_agents.runtime.serde.declared_types import strict_adapter
from flink_agents.runtime.serde.typenames import Kind, find_type, is_data_class, kind_of, stored_name

Writer = Callable[[Any], tuple[int, Any]]
"""Returns the code of a value's kind in the format, and the content that follows it."""


@lru_cache(maxsize=4096)
def writer_of(kind: type) -> Writer | None:
    """Return the function that writes values of an enum, model, dataclass or named tuple; else None."""
    if issubclass(kind, Enum):
        return _write_enum
    if issubclass(kind, BaseModel):
        return _write_model
    if dataclasses.is_dataclass(kind):
        _check_constructor(kind)
        return _write_dataclass
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _write_named_tuple
    return None


# -- enums ---------------------------------------------------------------------------


def _write_enum(value: Enum) -> tuple[int, Any]:
    kind = type(value)
    if isinstance(value, Flag) and value.name not in kind.__members__:
        return ENUM, [stored_name(kind), value.value]
    return ENUM, [stored_name(kind), value.name]


def _read_enum(content: list[Any]) -> Any:
    name, member = content
    cls = find_type(name)
    if cls is not None and kind_of(cls) is Kind.ENUM:
        try:
            return cls[member] if isinstance(member, str) else cls(member)  # pyright: ignore[reportIndexIssue]
        except (KeyError, ValueError):
            pass
    return _read_changed(ENUM, content, cls)


# -- pydantic models -----------------------------------------------------------------


def _write_model(value: BaseModel) -> tuple[int, Any]:
    kind = type(value)
    fields = value.__dict__
    declared_fields = kind.__pydantic_fields__
    origin = fields.get(ORIGIN)
    if len(fields) > len(declared_fields):
        # Cached properties are stored there, too.
        fields = {name: item for name, item in fields.items() if name in declared_fields}
    if own_fields(kind):
        fields = with_own_forms(kind, fields)
    fields_set = value.model_fields_set
    unset = [name for name in declared_fields if name not in fields_set]
    content: list[Any] = [stored_name(kind), shape_of(kind), fields, unset]
    if origin is not None or value.model_extra or value.__pydantic_private__:
        content += [value.model_extra or None, value.__pydantic_private__ or None]
    if origin is not None:
        content.append(origin)
    return MODEL, content


def _read_model(content: list[Any]) -> Any:
    """Return a stored model: it is validated again only if its class has changed since."""
    name, shape, fields, unset, *optional_parts = content
    extra, private, *origin = optional_parts or (None, None)
    cls = find_type(name)
    if cls is None or kind_of(cls) is not Kind.MODEL or shape != shape_of(cls):
        return _with_origin(origin, _read_changed(MODEL, content, cls))
    if own_fields(cls):
        fields = from_own_forms(cls, fields)
    return _with_origin(origin, remake_model(cls, fields, unset, extra, private))


def _with_origin(origin: list[Any], value: Any) -> Any:
    """Return ``value`` with its stored origin (``api.resources.provenance``), if the list has one."""
    if origin and carries_origin(type(value)):
        set_origin(value, origin[0])
    return value


# -- dataclasses and named tuples ----------------------------------------------------


def _check_constructor(kind: type) -> None:
    """Reject a dataclass that could be written, but not restored from its fields."""
    if is_pydantic_dataclass(kind):
        # Its constructor would validate the fields again, and may call them by other names.
        return
    fields = {field.name for field in dataclasses.fields(kind) if field.init}
    parameters = inspect.signature(kind).parameters.values()
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    missing = [name for name in needed if name not in fields]
    if missing:
        raise UnserializableValueError(
            f"the constructor of the dataclass {kind.__qualname__} needs more than its fields",
            expected="a constructor that accepts the fields",
            fix=f"add a default for {', '.join(missing)}, or make it a field",
        )


def fields_of_dataclass(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance by name."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if allows_extra_fields(type(value)):
        fields.update({name: item for name, item in vars(value).items() if name not in fields})
    return fields


def _marked_fields(kind: type, fields: dict[str, Any]) -> list[Any]:
    """Return the content of a dataclass or named tuple in the format: class, fields and marks."""
    if own_fields(kind):
        fields = with_own_forms(kind, fields)
    return [stored_name(kind), fields, marks_of(kind)[1]]


def _write_dataclass(value: Any) -> tuple[int, Any]:
    kind = type(value)
    content = _marked_fields(kind, fields_of_dataclass(value))
    if carries_origin(kind) and (origin := origin_of(value)) is not None:
        content.append(origin)
    return DATACLASS, content


def _write_named_tuple(value: Any) -> tuple[int, Any]:
    kind = type(value)
    return NAMED_TUPLE, _marked_fields(kind, dict(zip(marks_of(kind)[0], value, strict=True)))


def _reader_of(code: int, remake: Callable[[Any, dict[str, Any]], Any]) -> Callable[[list[Any]], Any]:
    """Return the function that reads dataclasses or named tuples.

    Args:
        code: Their code in the format.
        remake: Returns a value of a class, which has not changed, from its fields.
    """

    def read(content: list[Any]) -> Any:
        name, fields, marks, *origin = content
        cls: Any = find_type(name)
        if cls is not None and kind_of(cls) is KINDS[code]:
            names, current_marks = marks_of(cls)
            is_complete = len(fields) == len(names) or (len(fields) > len(names) and allows_extra_fields(cls))
            if marks == current_marks and is_complete and all(field_name in fields for field_name in names):
                if own_fields(cls):
                    fields = from_own_forms(cls, fields)
                return _with_origin(origin, remake(cls, fields))
        return _with_origin(origin, _read_changed(code, content, cls))

    return read


def _read_changed(code: int, content: list[Any], cls: type | None) -> Any:
    """Return a value whose class has changed; ``cls`` is its class, or None if its name has none.

    Fields in their own form are JSON, which Pydantic validates.
    """
    stored = Stored.from_content(code, content)
    fields = {**stored.fields, **(stored.extra or {})}
    stored.fields = {
        name: value.content if isinstance(value, OwnForm) else value for name, value in fields.items()
    }
    return read_changed(stored, cls)


READERS: dict[int, Callable[[Any], Any]] = {
    ENUM: _read_enum,
    MODEL: _read_model,
    DATACLASS: _reader_of(DATACLASS, remake_dataclass),
    NAMED_TUPLE: _reader_of(NAMED_TUPLE, lambda cls, fields: cls(*(fields[name] for name in cls._fields))),
}


# -- fields in the form in which their own types serialize them ----------------------

_PLAIN = frozenset(
    (str, int, float, bool, bytes, type(None), object, dict, list, tuple, set, frozenset)
    + (datetime, date, time, timedelta, Decimal, UUID)
)
_NONE: Mapping[str, TypeAdapter[Any]] = MappingProxyType({})


OWN_FORM = 18
"""The code, in the format, of a field in its own form."""


class OwnForm:
    """The own form of a field: the JSON that Pydantic writes for it.

    Args:
        content: The JSON values.
    """

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __repr__(self) -> str:
        return repr(self.content)


@lru_cache(maxsize=4096)
def own_fields(kind: type) -> Mapping[str, TypeAdapter[Any]]:
    """Return adapters for those fields of a class that need their own form, by the names of the fields."""
    adapters = {name: own_form_adapter(declared) for name, declared in _types_of_fields(kind).items()}
    return {name: adapter for name, adapter in adapters.items() if adapter is not None} or _NONE


def own_form_adapter(kind: Any) -> TypeAdapter[Any] | None:
    """Return the adapter that writes values of a type in their own form; None if the format has one.

    It does not run the validators of an annotation if it can do without them: the values have passed them.
    """
    if has_form(kind):
        return None
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    for candidate in (inner, kind):
        try:
            adapter = strict_adapter(candidate)
        except Exception:
            # Pydantic cannot describe such values. The codec names the part that it cannot write.
            continue
        if candidate is kind or adapter.core_schema["type"] != "is-instance":
            return adapter
    return None


def _types_of_fields(kind: type) -> dict[str, Any]:
    """Return the declared types of the fields of a class by name, as far as they are known."""
    if issubclass(kind, BaseModel):
        return {name: _annotation_of(field) for name, field in kind.__pydantic_fields__.items()}
    hints = hints_of(kind)
    names = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "_fields", ())
    return {name: hints[name] for name in names if name in hints}


def _annotation_of(field: FieldInfo) -> Any:
    """Return the declared type of a model's field, with its metadata as ``Annotated``."""
    annotation: Any = field.annotation
    for metadata in field.metadata:
        annotation = Annotated[annotation, metadata]
    return annotation


def has_form(kind: Any) -> bool:
    """Return True if the format has a form for the values of a type, as far as the type shows."""
    origin = get_origin(kind)
    if origin is Literal:
        return True
    if origin is Annotated:
        inner, *metadata = get_args(kind)
        # The factory of a defaultdict may be any function.
        return has_form(inner) and not any(getattr(part, "default_factory", None) for part in metadata)
    if origin is not None:
        return has_form(origin) and all(map(has_form, get_args(kind)))
    if typing.is_typeddict(kind):
        return all(map(has_form, typing.get_type_hints(kind, include_extras=True).values()))
    if isinstance(kind, typing.NewType):
        return has_form(kind.__supertype__)
    if not isinstance(kind, type) or kind in _PLAIN or is_data_class(kind):
        return True
    # An abstract class, such as Sequence, stands for others.
    is_abstract = bool(getattr(kind, "__abstractmethods__", None)) or kind.__module__ in ("typing", "types")
    return is_abstract or library.writer_of(kind) is not None


def with_own_forms(kind: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an object of class ``kind``, in their own form where they need it."""
    adapters = own_fields(kind)
    return {name: with_own_form(adapters.get(name), value) for name, value in fields.items()}


def with_own_form(adapter: TypeAdapter[Any] | None, value: Any) -> Any:
    """Return a value in its own form; the value itself without an adapter, or if JSON would change it."""
    if adapter is None:
        return value
    try:
        json_content = adapter.dump_python(value, mode="json", warnings=False)
        restored = adapter.validate_python(json_content)
        is_same = type(restored) is type(value) and bool(restored == value)
    except Exception:  # Code of the type, which may raise anything.
        return value
    return OwnForm(json_content) if is_same else value


def from_own_forms(kind: type, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an object of class ``kind``, from those that :func:`with_own_forms` returned."""
    adapters = own_fields(kind)
    return {
        name: adapters[name].validate_python(value.content) if isinstance(value, OwnForm) else value
        for name, value in fields.items()
    }
