"""Finds the values of names in a function, as far as they are known without running it."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.util import resolve_name
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, get_args

from flink_agents.api.common.places import short_path
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import is_known_to_call_durably
from flink_agents.api.events import Event, InputEvent, NamedEvent
from flink_agents.plan.analysis.functions import (
    METHODS,
    PROPERTIES,
    AnyFunction,
    annotation_of,
    attribute_of,
    plain_function,
)

UNKNOWN: Any = object()
"""A value that is only known when the code runs."""

CONTEXT: Any = object()
"""The context of the action."""

COLLECTIONS = (dict, list, tuple, set, frozenset)

_ANY_EVENT = (Event, InputEvent, NamedEvent)
"""Classes that do not identify the emitted event."""


class Member(NamedTuple):
    """A function or property, with the object or class that has it."""

    function: Any
    holder: Any


class Instance(NamedTuple):
    """An object of which only the class is known."""

    kind: type


class NamedResource(NamedTuple):
    """A resource that an action requests.

    Attributes:
        kind: Its kind, such as ``chat_model``.
        name: Its name.
        place: Its place in the author's code.
    """

    kind: str
    name: str
    place: str


def arguments_of(function: FunctionType, holder: Any, call: Mapping[int | str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a function whose values are known, by their names.

    Args:
        function: The function.
        holder: The object or class that has it; None for a function of a module.
        call: Arguments of the call, by position or name; None for an action, whose second one is the context.
    """
    code = function.__code__
    named = code.co_argcount + code.co_kwonlyargcount
    names = list(code.co_varnames[:named])
    # A function that is called through its class gets its object as an argument.
    is_unbound = isinstance(holder, type) and call is not None and len(call) >= code.co_argcount
    arguments: dict[str, Any] = {}
    if holder is not None and names and not is_unbound:
        arguments[names.pop(0)] = holder
    positional = len(names) - code.co_kwonlyargcount
    for number, name in enumerate(names):
        if call is None:
            # An action gets the event, and then the context.
            argument = CONTEXT if number == 1 else UNKNOWN
        else:
            position = number if number < positional else name
            argument = call.get(position, call.get(name, UNKNOWN))
        kind = _annotated_class(function, name)
        if argument is CONTEXT or name == "ctx" or issubclass(kind, RunnerContext):
            arguments[name] = CONTEXT
        elif argument is not UNKNOWN:
            arguments[name] = argument
        elif issubclass(kind, Event):
            arguments[name] = Instance(kind)
    passed = dict(call or {})
    others = passed.keys() - {*names, *range(positional)}
    if any(passed[place] is CONTEXT for place in others):
        # It is in *args or **kwargs.
        variadic = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        arguments.update(dict.fromkeys(code.co_varnames[named : named + variadic], CONTEXT))
    return arguments


def _annotated_class(function: FunctionType, name: str) -> type:
    """Return the class in the annotation of a parameter; ``object`` if it has none, or another annotation."""
    annotation: Any = function.__annotations__.get(name)
    if isinstance(annotation, str):
        annotation = function.__globals__.get(annotation)
    return annotation if isinstance(annotation, type) else object


class Frame:
    """The values of the names in a function, as far as they are known.

    Args:
        function: The function.
        node: The syntax tree of the function.
        arguments: Its arguments whose values are known.
        context_class: The class of the context.

    Attributes:
        library_steps: Names of objects of libraries that make durable steps.
        unloaded: Modules that the function imports as it runs, and that are not loaded yet.
    """

    def __init__(
        self, function: FunctionType, node: AnyFunction, arguments: dict[str, Any], context_class: type
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._context_class = context_class
        self._free = closure_of(function)
        self.library_steps: set[str] = set()
        self.unloaded: set[str] = set()
        self._bound: Counter[str] = Counter()
        self._assigned: dict[str, ast.expr] = {}
        self._imports: dict[str, Any] = {}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                self._imports.update(_imported(inner, function.__globals__, self.unloaded))
            self._bound.update(_bound_by(inner))
            if isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Name):
                self._assigned[inner.targets[0].id] = inner.value
        if "ctx" in self._bound:
            arguments.setdefault("ctx", CONTEXT)
        parameters = (*inspect.signature(function, follow_wrapped=False).parameters,)
        holders = {name for name in parameters if name in ("self", "cls") or arguments.get(name) is CONTEXT}
        self._data = frozenset(vars(builtins)).union(parameters) - holders

    def value(self, node: ast.AST) -> Any:
        """Return the value of an expression: of a new object its class, of an item the whole collection."""
        value = self._evaluate(node)
        named = value.function if isinstance(value, Member) else value
        items = [*named.values()] if isinstance(named, dict) else named
        for item in items if isinstance(items, COLLECTIONS) else [named]:
            if is_known_to_call_durably(item):
                self.library_steps.add(getattr(item, "name", None) or getattr(item, "__name__", "agent"))
        return value

    def _evaluate(self, node: ast.AST) -> Any:
        """Return the value of an expression; see :meth:`value`."""
        if isinstance(node, ast.Name):
            return self._value_of(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            container = self.value(node.value)
            return container if isinstance(container, COLLECTIONS) else UNKNOWN
        if isinstance(node, ast.Call) and isinstance(kind := self.value(node.func), type):
            return kind
        return UNKNOWN

    def _value_of(self, name: str) -> Any:
        """Return the value of a name: argument, import, variable assigned once, or name of an outer scope."""
        if name in self._arguments:
            return self._arguments[name]
        if name in self._imports:
            return self._imports[name]
        if name in self._bound:
            # Not if it is assigned twice, or in terms of itself.
            self._arguments[name] = UNKNOWN
            value = self._assigned_once(name)
            if value is not None:
                self._arguments[name] = self.value(value)
            return self._arguments[name]
        return self._free.get(name, self._function.__globals__.get(name, UNKNOWN))

    def _assigned_once(self, name: str) -> ast.expr | None:
        """Return the expression that a local variable has its only value from."""
        return self._assigned.get(name) if self._bound[name] == 1 else None

    def is_event_data(self, node: ast.AST, variables: frozenset[str] = frozenset()) -> bool:
        """Return True if the value of an expression depends on the event alone.

        Args:
            node: The expression.
            variables: The variables that it is assigned to, in turn.
        """
        return all(
            inner.id in self._data
            or (inner.id not in variables and (value := self._assigned_once(inner.id)) is not None)
            and self.is_event_data(value, variables | {inner.id})
            for inner in ast.walk(node)
            if isinstance(inner, ast.Name)
        )

    def place(self, node: ast.expr) -> str:
        """Return the place of an expression in the author's code."""
        file = short_path(self._function.__code__.co_filename)
        return f"{file}:{node.lineno} in {self._function.__qualname__}"

    def _attribute(self, node: ast.Attribute) -> Any:
        """Return the value of an attribute, without running descriptors; a method comes with its object."""
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", None) == "super":
            holder = next(iter(self._arguments.values()), None)
            kind = holder if isinstance(holder, type) else type(holder)
            members = [vars(base)[node.attr] for base in kind.__mro__ if node.attr in vars(base)]
            overridden = [member for member in members if plain_function(member) is not self._function]
            return Member(overridden[0], holder) if overridden else UNKNOWN
        value = self.value(node.value)
        holder = value
        if value is CONTEXT:
            value = self._context_class
        elif isinstance(value, Member | Instance):
            value = value.kind if isinstance(value, Instance) else UNKNOWN
        member = UNKNOWN if value is UNKNOWN else attribute_of(value, node.attr)
        if isinstance(member, (FunctionType, *METHODS, *PROPERTIES)) and not isinstance(value, ModuleType):
            return Member(member, holder)
        return UNKNOWN if member is None else member


def _imported(
    node: ast.Import | ast.ImportFrom, names: Mapping[str, Any], unloaded: set[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the names that an import inside a function binds, with their values; modules are not imported."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            module = alias.name if alias.asname else alias.name.partition(".")[0]
            unloaded.update({alias.name} - sys.modules.keys())
            yield alias.asname or module, sys.modules.get(module, UNKNOWN)
            continue
        name = "." * node.level + (node.module or "")
        try:
            module = resolve_name(name, str(names.get("__package__") or "")) if node.level else name
        except ImportError:
            module = ""
        value = attribute_of(sys.modules.get(module), alias.name)
        value = sys.modules.get(f"{module}.{alias.name}") if value is None else value
        unloaded.update({module} if value is None and module else ())
        yield alias.asname or alias.name, UNKNOWN if value is None else value


def _bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds, except by imports."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name


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


class AnnotatedEvents(NamedTuple):
    """The event classes of an annotation; it is open if other values or events are possible."""

    events: set[type[Event]]
    is_open: bool


def events_of_annotation(function: FunctionType) -> AnnotatedEvents:
    """Return the event classes in the return annotation of ``function``."""
    waiting = [annotation_of(function, "return")]
    events: set[type[Event]] = set()
    is_open = False
    while waiting:
        hint = waiting.pop()
        if isinstance(hint, type) and issubclass(hint, Event):
            events.add(hint)
            is_open |= hint in _ANY_EVENT
        elif get_args(hint):
            waiting.extend(get_args(hint))
        else:
            is_open |= hint not in (None, type(None))
    return AnnotatedEvents(events, is_open)
