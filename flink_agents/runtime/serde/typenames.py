"""Names of classes in state: ``module:qualname``, checked when written and when read.

Only data classes can be named (Pydantic models, dataclasses, named tuples, enums), so reading state never
runs a constructor that its bytes chose freely. Nor does the lookup of a class run code that the bytes chose:
no module is imported for a name in them (``type_modules`` lists the modules that are imported), and the
lookup uses the dictionaries of modules and classes, without running computed attributes.
"""

from __future__ import annotations

import sys
from enum import Enum
from functools import lru_cache
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from flink_agents.api.errors import UnknownTypeNameError, UnserializableValueError
from flink_agents.runtime.serde import type_modules


@lru_cache(maxsize=4096)
def type_name(cls: type) -> str:
    """Return the name by which ``cls`` is written.

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
    """Return the class named ``name``.

    Raises:
        UnknownTypeNameError: There is no such class, its module may not be imported, or it is not a data
            class.
    """
    found = _find_or_import(name)
    if not is_data_class(found):
        raise _unknown(name, _what_is_wrong(name, found))
    return found


def type_that_is_there(name: str) -> type[Any] | None:
    """Return the class named ``name``, if its module is loaded and it is a data class; imports nothing."""
    found = _find(name)
    return found if is_data_class(found) else None


def error_name(cls: type[BaseException]) -> str:
    """Return the name with which an exception's class is written; it may not resolve again."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find_error(name: str) -> type[BaseException] | None:
    """Return the exception class named ``name``; None if it may not be imported."""
    found = _find_or_import(name)
    return found if _is_class(found) and BaseException in _mro(found) else None


def find_type(name: str) -> type[Any] | None:
    """Return the class named ``name`` like :func:`resolve_type`; None if there is none."""
    try:
        return resolve_type(name)
    except UnknownTypeNameError:
        return None


class Kind(Enum):
    """The kinds of classes whose values state holds by name."""

    ENUM = "an enum"
    MODEL = "a pydantic model"
    DATACLASS = "a dataclass"
    NAMED_TUPLE = "a named tuple"


@lru_cache(maxsize=4096)
def kind_of(cls: type) -> Kind | None:
    """Return the kind of a class; None if state does not hold its values by name."""
    bases = _mro(cls)
    if Enum in bases:
        return Kind.ENUM
    if BaseModel in bases:
        return Kind.MODEL
    if _member(cls, "__dataclass_fields__") is not None:
        return Kind.DATACLASS
    if tuple in bases and _member(cls, "_fields") is not None:
        return Kind.NAMED_TUPLE
    return None


def is_data_class(cls: Any) -> bool:
    """Return True if state may hold values of ``cls`` by name."""
    return _is_class(cls) and kind_of(cls) is not None


def shorten(value: object) -> str:
    """Return ``value`` for an error message: its shortened representation, or the error that it raises."""
    try:
        text = str.__str__(repr(value))
    except BaseException as error:
        return f"{type(value).__qualname__} (its repr raised {type(error).__name__})"
    return text if len(text) <= 200 else text[:200] + "..."


def _unknown(name: str, found: str) -> UnknownTypeNameError:
    return UnknownTypeNameError(
        f"state holds a value of class {shorten(name)}, which this program does not have",
        expected="a data class under the name that it had when the value was written",
        found=found,
        fix=f"if it was moved or renamed, write @upgrades({shorten(name)}) above the new class; otherwise "
        "import its module in the agent's module, or name it in the option state.modules",
    )


def _what_is_wrong(name: str, found: Any) -> str:
    module, _, qualname = name.partition(":")
    if module not in sys.modules:
        return type_modules.why_not(module[:200])
    if found is None:
        return f"the module has no such class: {shorten(qualname)}"
    return f"{shorten(qualname)} is not a data class"


def _is_found(name: str, cls: type) -> bool:
    return _find(name) is cls


def _find_or_import(name: str) -> Any:
    module = name.partition(":")[0]
    if module not in sys.modules:
        type_modules.import_for(module)
    return _find(name)


def _find(name: str) -> Any:
    """Return the object with that name in a loaded module, or None."""
    module_name, _, qualname = name.partition(":")
    module = sys.modules.get(module_name)
    if module is None or not issubclass(type(module), ModuleType):
        return None
    first, *rest = qualname.split(".")
    # Not by attribute: a module may compute its attributes, for example by importing.
    found: Any = object.__getattribute__(module, "__dict__").get(first)
    for part in rest:
        if not _is_class(found):
            return None
        found = _member(found, part)
    return found


def _is_class(value: Any) -> bool:
    # Not by isinstance, which asks the value for its class.
    return issubclass(type(value), type)


def _member(cls: Any, name: str) -> Any:
    """Return the attribute that ``cls`` or a base of it defines, without running descriptors."""
    for base in _mro(cls):
        members = _DICT(base)
        if name in members:
            return members[name]
    return None


_DICT = type.__dict__["__dict__"].__get__
_mro = type.__dict__["__mro__"].__get__
