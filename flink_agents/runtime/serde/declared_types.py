"""Compares values with declared types, and describes the differences."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from flink_agents.plan.references import type_text
from flink_agents.runtime.serde.typenames import shorten

MOST_PROBLEMS = 3
"""The largest number of differences in a message."""

Check = Callable[[Any], str | None]
"""Returns the difference between a value and its type as text; None if the value has the type."""


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return the Pydantic adapter for ``kind``; created once for each type.

    Raises:
        Exception: Pydantic does not describe such values.
    """
    try:
        return _cached_adapter(kind)
    except TypeError:
        return TypeAdapter(kind)  # Such a type is not hashable.


@lru_cache(maxsize=256)
def _cached_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_of(kind: Any) -> Check | None:
    """Return a function that compares values with ``kind``, without conversions; None if all values fit.

    All values fit types of PyFlink, and others that Pydantic cannot describe.
    """
    if kind is None or _module_of(kind).partition(".")[0] == "pyflink":
        return None
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        # Pydantic would accept a dictionary.
        return partial(_no_instance, kind)
    try:
        validate = strict_adapter(kind).validate_python
    except Exception:  # A foreign type may raise anything when it is described.
        return None

    def check(value: Any) -> str | None:
        if type(value) is kind:
            return None
        try:
            validate(value, strict=True)
        except ValidationError as error:
            return problems_text(error, value)
        except Exception:
            return None  # A protocol without instance checks, for example.
        return None

    return check


def _no_instance(kind: type, value: Any) -> str | None:
    if isinstance(value, kind):
        return None
    return f"{type(value).__qualname__} {shorten(value)}: Input should be an instance of {kind.__name__}"


def problems_text(error: ValidationError, value: Any) -> str:
    """Return the differences between ``value`` and the type that it was validated as."""
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
    """Return a strict Pydantic adapter for ``kind``; for an unsupported class, it checks the instance."""
    try:
        return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        return TypeAdapter(kind)  # A type with its own configuration accepts no other.


def _module_of(kind: Any) -> str:
    return (kind if isinstance(kind, type) else type(kind)).__module__


__all__ = ["Check", "adapter_of", "check_of", "problems_text", "strict_adapter", "type_text"]
