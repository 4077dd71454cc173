"""Compares values with the types that an author declared, and says where they differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from flink_agents.plan.references import type_text
from flink_agents.runtime.serde.typenames import shorten

MOST_PROBLEMS = 3
"""How many differences a text names."""

Check = Callable[[Any], str | None]
"""Returns how a value differs from its type; None if it does not."""


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return what validates values as ``kind``; made once for each type.

    Raises:
        Exception: Pydantic does not describe such values.
    """
    try:
        return _kept_adapter(kind)
    except TypeError:
        return TypeAdapter(kind)  # such a type has no hash


@lru_cache(maxsize=256)
def _kept_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_of(kind: Any) -> Check | None:
    """Return what compares values with ``kind``, which converts nothing; None for any value.

    Types of PyFlink, and others that pydantic cannot describe, stand for any value.
    """
    if kind is None or _module_of(kind).partition(".")[0] == "pyflink":
        return None
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        # Pydantic would make one of a dictionary.
        return partial(_no_instance, kind)
    try:
        validate = strict_adapter(kind).validate_python
    except Exception:  # a foreign type may raise anything when it is described
        return None

    def check(value: Any) -> str | None:
        if type(value) is kind:
            return None
        try:
            validate(value, strict=True)
        except ValidationError as error:
            return problems_text(error, value)
        except Exception:
            return None  # a protocol that cannot be asked for instances, for example
        return None

    return check


def _no_instance(kind: type, value: Any) -> str | None:
    if isinstance(value, kind):
        return None
    return f"{type(value).__qualname__} {shorten(value)}: Input should be an instance of {kind.__name__}"


def problems_text(error: ValidationError, value: Any) -> str:
    """Return how ``value`` differs from the type that it was validated as."""
    problems = error.errors(include_url=False, include_context=False)
    texts = [_problem_text(one["loc"], one["msg"], one["input"]) for one in problems[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        texts.append(f"and {len(problems) - MOST_PROBLEMS} more")
    return f"{type(value).__qualname__} {shorten(value)}: " + "; ".join(texts)


def _problem_text(location: tuple[int | str, ...], message: str, found: Any) -> str:
    if not location:
        return message
    return f"at {'.'.join(map(str, location))}: {message}, not {shorten(found)}"


def strict_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what validates values as ``kind``; a class that pydantic does not know, by its instances."""
    try:
        return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        return TypeAdapter(kind)  # a type with a configuration of its own takes no other


def _module_of(kind: Any) -> str:
    return (kind if isinstance(kind, type) else type(kind)).__module__


__all__ = ["Check", "adapter_of", "check_of", "problems_text", "strict_adapter", "type_text"]
