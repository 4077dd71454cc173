"""Names of classes in state: ``module:qualname``, checked when written and when read.

Only data classes can be named (Pydantic models, dataclasses, named tuples, enums), so reading state never
runs a constructor that its bytes chose freely. Nor does the lookup of a class run code that the bytes chose:
no module is imported for a name in them (``type_modules`` lists the modules that are imported), and the
lookup uses the dictionaries of modules and classes, without running computed attributes.

The name of a parametrized model has the names of its generic class and of its arguments, so that it is found
before the program has written it: ``shop.pages:Page[shop.orders:Order]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from types import ModuleType
from typing import Any, NewType

from pydantic import BaseModel

from flink_agents.api.durable.type_texts import UnreadableTypeError, parameters_of, read_type, write_type
from flink_agents.api.durable.upgrades import upgrade_of
from flink_agents.api.errors import UnknownTypeNameError, UnserializableValueError
from flink_agents.runtime.serde import type_modules
from flink_agents.runtime.serde.classes.local_classes import local_class, local_name


def stored_name(cls: type) -> str:
    """Return the name by which values of ``cls`` are written.

    Raises:
        UnserializableValueError: The class cannot be found again by its name, and no declared type gives it.
    """
    try:
        return type_name(cls)
    except UnserializableValueError:
        name = local_name(cls)
        if name is None:
            raise
        return name


@lru_cache(maxsize=4096)
def type_name(cls: type) -> str:
    """Return the name by which ``cls`` is found in every process.

    Raises:
        UnserializableValueError: The class cannot be found again by its name.
    """
    parameters = parameters_of(cls)
    name = (parameters and write_type(cls)) or f"{cls.__module__}:{cls.__qualname__}"
    resolved_class = _find(name)
    # Pydantic may have two classes of the same arguments, whose values are equal.
    if resolved_class is cls or (parameters is not None and parameters_of(resolved_class) == parameters):
        return name
    fix = "define the class at the top level of a module"
    if parameters is not None:
        fix = "define its arguments at the top level of modules; or, for arguments without names, such as "
        fix += f"Annotated, a subclass: class My{parameters[0].__name__}({cls.__name__})"
    raise UnserializableValueError(
        f"values of the class {cls.__qualname__} cannot be written to state",
        expected="a class that can be imported by name",
        found=name,
        fix=fix,
    )


@lru_cache(maxsize=4096)
def resolve_type(name: str) -> type[Any]:
    """Return the class named ``name``.

    Raises:
        UnknownTypeNameError: There is no such class, its module may not be imported, or it is not a data
            class.
    """
    cls = _find_or_import(name)
    if not is_data_class(cls):
        raise _unknown(name, _what_is_wrong(name, cls))
    return cls


def type_that_is_there(name: str) -> type[Any] | None:
    """Return the class named ``name``, if its module is loaded and it is a data class; imports nothing."""
    cls = _find(name)
    return cls if is_data_class(cls) else None


def error_name(cls: type[BaseException]) -> str:
    """Return the name with which an exception's class is written; it may not resolve again."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find_error(name: str) -> type[BaseException] | None:
    """Return the exception class named ``name``; None if it may not be imported."""
    cls = _find_or_import(name)
    return cls if _is_class(cls) and BaseException in _mro(cls) else None


def find_class(name: str) -> type[Any] | None:
    """Return the class named ``name``, of any kind; None if it may not be imported."""
    cls = _find_or_import(name)
    return cls if _is_class(cls) else None


def find_type(name: str) -> type[Any] | None:
    """Return the class named ``name`` like :func:`resolve_type`, or the one of a declared type, or None."""
    try:
        return resolve_type(name)
    except UnknownTypeNameError:
        return local_class(name)


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
    if member_of(cls, "__dataclass_fields__") is not None:
        return Kind.DATACLASS
    if tuple in bases and member_of(cls, "_fields") is not None:
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


def _what_is_wrong(name: str, cls: Any) -> str:
    module, _, qualname = name.partition(":")
    if module not in sys.modules:
        return type_modules.why_not(module[:200])
    if cls is None:
        return f"the module has no such class: {shorten(qualname)}"
    return f"{shorten(qualname)} is not a data class"


def _find_or_import(name: str) -> Any:
    module = name.partition(":")[0]
    if module not in sys.modules:
        type_modules.import_for(module)
    return _find(name, _find_or_import)


def _find(name: str, find_part: Callable[[str], Any] | None = None) -> Any:
    """Return the object with that name in a loaded module, or None.

    Args:
        name: The name.
        find_part: Finds the parts of a parametrized model. Default: this function.
    """
    module_name, _, qualname = name.partition(":")
    module = sys.modules.get(module_name)
    is_module = issubclass(type(module), ModuleType)
    # Not by attribute: a module may compute its attributes, for example by importing.
    content: Any = object.__getattribute__(module, "__dict__") if is_module else {}
    if "[" in qualname:
        # A model whose arguments have no names is there under its own name if the module has written it.
        return content.get(qualname) or _parametrized(name, find_part or _find)
    first, *parts = qualname.split(".")
    value: Any = content.get(first)
    for part in parts:
        if not _is_class(value):
            return None
        value = member_of(value, part)
    return value


def _parametrized(name: str, find_part: Callable[[str], Any]) -> Any:
    """Return the parametrized model with that name, or None."""

    def find(part: str) -> Any:
        resolved_type = find_part(part)
        if resolved_type is None:
            # The class was moved or renamed.
            resolved_type = upgrade_of(part)
        if _is_class(resolved_type) or type(resolved_type) is NewType:
            return resolved_type
        raise UnreadableTypeError(part)

    try:
        model = read_type(name, find)
    except UnreadableTypeError:
        return None
    return model if parameters_of(model) is not None else None


def _is_class(value: Any) -> bool:
    # Not by isinstance, which asks the value for its class.
    return issubclass(type(value), type)


def member_of(cls: Any, name: str) -> Any:
    """Return the attribute that ``cls`` or a base of it defines, without running descriptors."""
    for base in _mro(cls):
        members = _DICT(base)
        if name in members:
            return members[name]
    return None


_DICT = type.__dict__["__dict__"].__get__
_mro = type.__dict__["__mro__"].__get__
