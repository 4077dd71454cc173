"""Fields that state holds in the form in which their own types serialize them.

The format has no form for a type of the author or of another package, such as a phone number. If Pydantic can
write it as JSON and read it back as an equal value, state holds that JSON.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from flink_agents.runtime.serde.classes import library
from flink_agents.runtime.serde.declared_types import strict_adapter
from flink_agents.runtime.serde.typenames import is_data_class

_PLAIN = frozenset(
    (str, int, float, bool, bytes, type(None), object, dict, list, tuple, set, frozenset)
    + (datetime, date, time, timedelta, Decimal, UUID)
)
_NONE: Mapping[str, TypeAdapter[Any]] = MappingProxyType({})


OWN_FORM = 18
"""The code of such a field in the format."""


class OwnForm:
    """A field as JSON.

    Args:
        content: The JSON.
    """

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __repr__(self) -> str:
        return repr(self.content)


@lru_cache(maxsize=4096)
def own_fields(kind: type) -> Mapping[str, TypeAdapter[Any]]:
    """Return the adapters of the fields of a class whose types the format does not have, by name."""
    adapters = {name: own_form_adapter(declared) for name, declared in _types_of_fields(kind).items()}
    return {name: adapter for name, adapter in adapters.items() if adapter is not None} or _NONE


def own_form_adapter(kind: Any) -> TypeAdapter[Any] | None:
    """Return the adapter of a type whose values the format does not have; None if it has them.

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
    if issubclass(kind, BaseModel):
        return {name: _annotation_of(field) for name, field in kind.__pydantic_fields__.items()}
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception:
        # A name that only the author's type checker knows.
        return {}
    names = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "_fields", ())
    return {name: hints[name] for name in names if name in hints}


def _annotation_of(field: FieldInfo) -> Any:
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
    """Return the fields of an object as state holds them."""
    adapters = own_fields(kind)
    return {name: with_own_form(adapters.get(name), value) for name, value in fields.items()}


def with_own_form(adapter: TypeAdapter[Any] | None, value: Any) -> Any:
    """Return a value as JSON; the value itself if JSON would change it."""
    if adapter is None:
        return value
    try:
        written = adapter.dump_python(value, mode="json", warnings=False)
        restored = adapter.validate_python(written)
        is_same = type(restored) is type(value) and bool(restored == value)
    except Exception:  # Code of the type, which may raise anything.
        return value
    return OwnForm(written) if is_same else value


def from_own_forms(kind: type, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an object from the form in which state holds them."""
    adapters = own_fields(kind)
    return {
        name: adapters[name].validate_python(value.content) if isinstance(value, OwnForm) else value
        for name, value in fields.items()
    }


def as_json(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the stored fields of a model whose class has changed, in the form that it validates."""
    return {name: value.content if isinstance(value, OwnForm) else value for name, value in fields.items()}
