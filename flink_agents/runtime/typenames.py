"""Names of classes in state: ``module:qualname``, checked when written and when read.

Only data classes can be named (pydantic models, dataclasses, named tuples, enums), so reading
state never runs a constructor that its bytes chose freely.
"""

from __future__ import annotations

import dataclasses
import sys
from enum import Enum
from functools import lru_cache
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from flink_agents.api.errors import UnknownTypeNameError, UnserializableValueError

GROUPS: tuple[Any, ...] = (BaseExceptionGroup,)
"""The class of all groups of exceptions."""


@lru_cache(maxsize=4096)
def type_name(cls: type) -> str:
    """The name by which ``cls`` is written.

    Raises:
        UnserializableValueError: The class cannot be found again by its name.
    """
    name = f"{cls.__module__}:{cls.__qualname__}"
    if not _is_found(name, cls):
        raise UnserializableValueError(
            f"values of the class {cls.__qualname__} cannot be written to state",
            expected="a class that can be imported by name",
            found=name,
            fix="define the class at the top level of a module",
        )
    return name


@lru_cache(maxsize=4096)
def resolve_type(name: str) -> type[Any]:
    """The class named ``name``.

    Raises:
        UnknownTypeNameError: There is none, or it is no data class.
    """
    try:
        found = _find(name)
    except (ImportError, ValueError) as error:
        raise _unknown(name, str(error)) from error
    if found is None:
        raise _unknown(name, "the module has no such class")
    if not is_data_class(found):
        raise _unknown(name, f"{found!r} is no data class")
    return found


def error_name(cls: type[BaseException]) -> str:
    """The name by which an exception's class is written; it may not be found again."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find_error(name: str) -> type[BaseException] | None:
    """The class of exceptions named ``name``; None where there is none."""
    try:
        found = _find(name)
    except (ImportError, ValueError):
        return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def is_data_class(cls: Any) -> bool:
    """Whether state may hold values of ``cls`` by name."""
    if not isinstance(cls, type):
        return False
    return (
        issubclass(cls, BaseModel | Enum)
        or dataclasses.is_dataclass(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def shorten(value: object) -> str:
    """``value`` for an error text: its representation, or what that raised, in few characters."""
    try:
        text = repr(value)
    except Exception as error:
        return f"{type(value).__qualname__} (its repr raised {type(error).__name__})"
    return text if len(text) <= 200 else text[:200] + "..."


def _unknown(name: str, found: str) -> UnknownTypeNameError:
    return UnknownTypeNameError(
        f"state holds a value of class {name!r}, which this program does not have",
        expected="the class under the name that it had when the value was written",
        found=found,
        fix="keep the class importable under that name, if only as an alias of its new place",
    )


def _is_found(name: str, cls: type) -> bool:
    try:
        return _find(name) is cls
    except (ImportError, ValueError):
        # The class tells a module that never was one.
        return False


def _find(name: str) -> Any:
    module_name, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module_name) or import_module(module_name)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found
