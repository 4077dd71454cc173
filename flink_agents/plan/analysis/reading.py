"""Finds the events that a function can emit by reading its code, without running it.

A function names the events that it emits: the event classes it loads, strings that are type strings, its
return annotation, and the same in the functions it uses. The reader follows functions through globals,
closures, modules, and the methods of classes and objects they mention, as far as the code is
the project's own: the standard library, installed packages and this package are not read.

The result is what *may* be emitted; a class that is only compared with counts too.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any, get_args

from flink_agents.api.events import Event
from flink_agents.plan.analysis.functions import annotation_of
from flink_agents.plan.analysis.imports import imports_of

_MAX_FUNCTIONS = 2000
_PACKAGE = "flink_agents"
_INSTALLED = ("site-packages", "dist-packages")

# As tuples: they are used a million times, and a union would be created each time.
_COLLECTIONS = (dict, list, tuple, set, frozenset)
_PLAIN_VALUES = (int, float, complex, bytes)
_METHODS = (staticmethod, classmethod)
_DEFINITIONS = (type, FunctionType)
_PROPERTIES = (property, functools.cached_property)


@dataclass
class EmittedEvents:
    """The events that functions can emit.

    Attributes:
        events: Event classes that are named.
        texts: String constants, which may be type strings.
        tags: Side outputs that are written to, as far as the code has their tags as literals.
        calls: Functions that are durable steps, and chat models, for display.
        clients: Clients that are used.
        certain: Event classes that an action instantiates itself to return, yield or send.
        opaque: True if some function cannot be read, so the result may be incomplete.
    """

    events: set[type[Event]] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    tags: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    clients: set[str] = field(default_factory=set)
    certain: set[type[Event]] = field(default_factory=set)
    opaque: bool = False

    def update(self, other_events: EmittedEvents) -> None:
        """Add the events that ``other_events`` has."""
        self.events |= other_events.events
        self.texts |= other_events.texts
        self.opaque |= other_events.opaque


def read(function: Callable[..., Any], owners: Iterable[Any] = ()) -> EmittedEvents:
    """Return the events that ``function`` can emit.

    Args:
        function: The function to start with.
        owners: Classes, objects and modules whose methods it may call by attribute: the
            agent's class, for example.
    """
    reader = Reader(function, (*owners, *holder_of(function)))
    plain = plain_function(function)
    if plain is None:
        reader.reading.opaque = True
    else:
        reader.follow(plain)
    return reader.reading


def owners_named_by(function: Callable[..., Any], owners: Iterable[Any] = ()) -> list[Any]:
    """Return the classes and objects that ``function`` mentions, such as those that a constructor stores."""
    reader = Reader(function, owners)
    plain = plain_function(function)
    if plain is not None:
        reader.follow(plain)
    return [owner for owner in reader.owners.values() if not isinstance(owner, ModuleType)]


class Reader:
    """Follows functions to the code that they use, and collects the names in it.

    Args:
        function: The function to start with.
        owners: Classes, objects and modules whose methods may be called by attribute.

    Attributes:
        reading: The result.
        owners: All owners that were found.
    """

    def __init__(self, function: Callable[..., Any], owners: Iterable[Any]) -> None:
        self.reading = EmittedEvents()
        self.owners: dict[int, Any] = {id(owner): owner for owner in owners}
        # A builder's agent has this package's class. That does not make its code the user's.
        self._home = {_top(owner) for owner in self.owners.values()} - {_PACKAGE} | {_top(function)}
        self._seen: set[int] = set()
        self._names: dict[str, None] = {}
        self._tried: set[tuple[int, str]] = set()
        self._known: dict[int, set[str]] = {}
        self._own_packages: dict[str, bool] = {}

    def follow(self, function: FunctionType) -> None:
        """Read ``function`` and all code that it leads to."""
        self._read_function(function)
        while self._try_attributes():
            pass

    def _read_function(self, function: FunctionType) -> None:
        if id(function) in self._seen:
            return
        if len(self._seen) >= _MAX_FUNCTIONS:
            self.reading.opaque = True
            return
        self._seen.add(id(function))
        self._read_new(function)

    def _read_new(self, function: FunctionType) -> None:
        """Read a function that was not read before."""
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for value in (*closure_of(function).values(), *defaults):
            self._take(value)
        for event in events_of_annotation(function):
            self.reading.events.add(event)
        self._read_code(function.__code__, function.__globals__)

    def _read_code(self, code: CodeType, names: dict[str, Any]) -> None:
        for name in code.co_names:
            self._names.setdefault(name)
            if name in names:
                self._take(names[name])
        # Only modules that the function imports: an attribute may have the name of any loaded module.
        for module in imports_of(code, names.get("__package__")):
            self._take(sys.modules.get(module))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._read_code(constant, names)
            else:
                self._take(constant)

    def _try_attributes(self) -> bool:
        """Look up each loaded name in each owner; return True if one is new."""
        previous_count = len(self._tried)
        for owner in list(self.owners.values()):
            # An owner has few of the names.
            attribute_names = self._known.get(id(owner))
            if attribute_names is None:
                attribute_names = self._known[id(owner)] = names_of(owner)
            for name in list(self._names) if self._reaches(owner) else ():
                if name in attribute_names and (id(owner), name) not in self._tried:
                    self._tried.add((id(owner), name))
                    for definition in definitions_of(owner, name):
                        self._take(definition)
        return len(self._tried) > previous_count

    def _reaches(self, owner: Any) -> bool:
        """Return True if a loaded name may be an attribute of ``owner``."""
        return True

    def _take(self, value: Any, depth: int = 2) -> None:
        """Record ``value``, and follow it if it is the project's own code."""
        if isinstance(value, str):
            self.reading.texts.add(value)
        elif isinstance(value, _COLLECTIONS):
            items = (*value.keys(), *value.values()) if isinstance(value, dict) else value
            for item in items if depth else ():
                self._take(item, depth - 1)
        elif isinstance(value, type) and issubclass(value, Event):
            self.reading.events.add(value)
            self._own(value)
        elif (plain := plain_function(value)) is not None:
            if self._is_own(plain):
                self._read_function(plain)
            for holder in holder_of(value):
                self._own(holder)
        elif value is not None and not isinstance(value, _PLAIN_VALUES):
            self._own(value)

    def _own(self, owner: Any) -> None:
        if self._is_own(owner):
            self.owners.setdefault(id(owner), owner)

    def _is_own(self, value: Any) -> bool:
        top = _top(value)
        is_own = self._own_packages.get(top)
        if is_own is None:
            is_own = self._own_packages[top] = self._is_own_package(top)
        return is_own

    def _is_own_package(self, top: str) -> bool:
        if top in self._home:
            return True
        if not top or top in sys.stdlib_module_names or top in (_PACKAGE, "pydantic", "pyflink"):
            return False
        path = getattr(sys.modules.get(top), "__file__", None) or ""
        return not any(part in path for part in _INSTALLED)


def _top(value: Any) -> str:
    """Return the top-level package of a module, class, function or object."""
    if isinstance(value, ModuleType):
        return value.__name__.split(".")[0]
    named = value if isinstance(value, _DEFINITIONS) else plain_function(value) or type(value)
    return (named.__module__ or "").split(".")[0]


def plain_function(value: Any) -> FunctionType | None:
    """Return the Python function in ``value``, or None."""
    for _ in range(20):
        if isinstance(value, FunctionType):
            inner = getattr(value, "__wrapped__", None)
            if inner is None:
                return value
            value = inner
        elif isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, functools.cached_property):
            value = value.func
        elif isinstance(value, _METHODS) or inspect.ismethod(value):
            value = value.__func__
        else:
            break
    if isinstance(value, type):
        return None
    call = attribute_of(type(value), "__call__")
    return call if isinstance(call, FunctionType) else None


def holder_of(value: Any) -> tuple[Any, ...]:
    """Return the ``self`` of a bound method or a callable object; None for a function."""
    while isinstance(value, functools.partial):
        value = value.func
    if inspect.ismethod(value):
        return (value.__self__,)
    plain = inspect.isroutine(value) or isinstance(value, _PROPERTIES)
    return () if plain else (value,)


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Return the names of enclosing functions that ``function`` uses, with the values that exist."""
    closure_values: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            closure_values[name] = cell.cell_contents
        except ValueError:
            # A cell without a value yet.
            continue
    return closure_values


def names_of(owner: Any) -> set[str]:
    """Return the possible attribute names of ``owner``, without running its code."""
    kinds = [*inspect.getmro(type(owner)), *(inspect.getmro(owner) if isinstance(owner, type) else ())]
    names = {name for kind in kinds for name in vars(kind)}
    try:
        attributes: Any = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return names
    return names.union(attributes)


def attribute_of(owner: Any, name: str) -> Any:
    """Return an attribute of ``owner`` without running its descriptor; None if there is none."""
    try:
        return inspect.getattr_static(owner, name)
    except AttributeError:
        return None


def definitions_of(owner: Any, name: str) -> list[Any]:
    """Return an attribute of ``owner`` and the ones that it overrides: ``super()`` leads there."""
    definitions = [attribute_of(owner, name)]
    kind = owner if isinstance(owner, type) else type(owner)
    return definitions + [vars(base)[name] for base in kind.__mro__ if name in vars(base)]


def events_of_annotation(function: FunctionType) -> Iterator[type[Event]]:
    """Yield the event classes in the return annotation of ``function``."""
    waiting = [annotation_of(function, "return")]
    while waiting:
        hint = waiting.pop()
        if isinstance(hint, type) and issubclass(hint, Event):
            yield hint
        waiting.extend(get_args(hint))
