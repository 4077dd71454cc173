"""Reads the source of actions without running it: the events that they emit, and their durable steps.

The walk is shallow. It follows the project's own functions and methods as far as names lead to them: globals,
closures, imports, attributes of the agent and of other objects. It does not read the standard library,
installed packages and this package. If code without source runs, or if the context goes where the walk
cannot follow, the result is *opaque*: other events and steps are possible.

Two results differ in what they take from a mention. *Shown* events are emitted: a class that is only compared
with is not, nor is an event that is content of another event. *Possible* ones are all that the code names.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple

from flink_agents.api.agents.agent import Agent
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import DurableCallable
from flink_agents.api.events import Event, NamedEvent
from flink_agents.plan.analysis.functions import (
    PACKAGE,
    PROPERTIES,
    AnyFunction,
    conditions_of,
    constant_of,
    functions_of,
    holder_of,
    is_chain,
    is_own,
    is_unseen,
    may_leave,
    node_of,
    package_of,
    plain_function,
    root_of,
    with_partial,
)
from flink_agents.plan.analysis.values import (
    COLLECTIONS,
    CONTEXT,
    UNKNOWN,
    Frame,
    Member,
    NamedResource,
    arguments_of,
    events_of_annotation,
)

_MAX_FUNCTIONS = 500
_MAX_DEPTH = 20
"""The most functions that are read for an action, and the most calls inside each other."""

_INSPECTED: dict[str, slice] = {
    **dict.fromkeys(("isinstance", "issubclass", "hasattr", "getattr"), slice(1, None)),
    "cast": slice(1),
}
"""Functions that only inspect some of their arguments."""

_INSPECTED_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Compare: ("left", "comparators"),
    ast.Subscript: ("slice",),
    ast.Dict: ("keys",),
    ast.JoinedStr: ("values",),
}
"""Parts of the syntax that only inspect the values which they name, or are content."""

_SKIPPED_FIELDS = frozenset({"annotation", "returns", "type", "pattern", "type_params"})
"""Parts of the syntax that only say of which type a value is."""

_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

_DURABLE = frozenset({"durable_execute", "durable_execute_async"})
_SENDS = _DURABLE | {"send_event"}
"""Context methods whose arguments are more than content."""

_ASKS = frozenset({"call_agent", "call_agent_all", "call_agent_traced"})
"""Context methods that call another agent, their first argument."""

_REQUESTS = {
    "chat": "chat_model",
    "client": "client",
    "embed": "embedding_model",
    "vector_store": "vector_store",
    "retrieve": "vector_store",
    "mcp_server": "mcp_server",
    "prompt": "prompt",
}
"""Context methods whose first argument is the name of a resource, and its kind."""


@dataclass
class EmittedEvents:
    """The events that functions emit, and the durable steps that they make.

    Attributes:
        events: Event classes.
        texts: String constants, which may be type strings.
        tags: Side outputs that are written to, as far as the code has their tags as literals.
        calls: Functions that are durable steps, and chat models, for display.
        clients: Clients that are used.
        agents: Agents that are called, and their classes.
        certain: Event classes that an action instantiates itself to return, yield or send.
        requests: Resources that an action requests by a constant name, except where that may be optional on
            purpose: if it depends on the agent's arguments (``if self.translator:``), on its options, on a
            global, or if it is inside a ``try`` that handles exceptions.
        opaque: True if the result may be incomplete.
    """

    events: set[type[Event]] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    tags: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    clients: set[str] = field(default_factory=set)
    agents: list[Any] = field(default_factory=list)
    certain: set[type[Event]] = field(default_factory=set)
    requests: list[NamedResource] = field(default_factory=list)
    opaque: bool = False

    def update(self, other_events: EmittedEvents) -> None:
        """Add events and strings of ``other_events``; the result is opaque if either is."""
        self.events |= other_events.events
        self.texts |= other_events.texts
        self.opaque |= other_events.opaque


class SourceReading(NamedTuple):
    """The two results of a walk.

    Attributes:
        shown: The events that it emits, with everything else.
        possible: All events and strings that it names.
    """

    shown: EmittedEvents
    possible: EmittedEvents


def read(
    function: Callable[..., Any], holder: Any = None, context_class: type | None = None
) -> SourceReading:
    """Read the source of an action.

    Args:
        function: The action.
        holder: The agent, if the action is a method of it.
        context_class: The class of its context. Default: ``RunnerContext``.
    """
    reader = _Reader(function, holder, context_class or RunnerContext)
    plain = plain_function(function)
    if plain is None or (isinstance(function, functools.partial) and function.args):
        # With arguments ahead of the event, the walk would take another one for the context.
        reader.mark_opaque()
    if plain is None:
        return SourceReading(reader.shown, reader.possible)
    functions = functions_of(function)
    for wrapper in functions:
        reader.follow(wrapper, next(iter(holder_of(function)), holder), None)
    shown = reader.shown
    if len(functions) > 1:
        # A wrapper may handle the error of a resource that is missing.
        shown.requests.clear()
    if not any(issubclass(event_class, NamedEvent) for event_class in shown.events):
        shown.texts.clear()
    declared = events_of_annotation(plain)
    if not reader.sends and not declared.is_open:
        bases = tuple(declared.events)
        matching = {kind for kind in shown.events if issubclass(kind, bases)} if bases else set()
        shown.events = matching | declared.events | shown.certain
    return SourceReading(shown, reader.possible)


class _Reader:
    """Follows an action to the code that it uses.

    Args:
        function: The action.
        holder: The agent; None if the action is no method of it.
        context_class: The class of its context.

    Attributes:
        shown: The events that are emitted.
        possible: The events that are named.
        sends: True if the action may emit events other than by returning them.
        inspects: True inside of code that only inspects names, or of content.
        context_class: The class of its context.
    """

    def __init__(self, function: Callable[..., Any], holder: Any, context_class: type) -> None:
        self.shown = EmittedEvents()
        self.possible = EmittedEvents()
        self.sends = False
        self.inspects = False
        self.context_class = context_class
        # A builder's agent has this package's class. That does not make its code the user's.
        self._home = {package_of(holder), *map(package_of, holder_of(function))} - {PACKAGE} | {
            package_of(function)
        }
        # What was read is kept alive, so that no other object gets the same id().
        self._read: dict[Any, Any] = {}
        self._depth = 0

    def mark_opaque(self) -> None:
        """Note that other events and steps are possible."""
        self.shown.opaque = self.possible.opaque = True

    def lose_context(self) -> None:
        """Note that any code may use the context from here on."""
        self.sends = True
        self.mark_opaque()

    @contextmanager
    def inspecting(self, inspects: bool) -> Iterator[None]:
        """Return a context manager: inside, names are only inspected if ``inspects`` is True."""
        previous = self.inspects
        self.inspects = inspects
        yield
        self.inspects = previous

    def follow(self, function: FunctionType, holder: Any, call: Mapping[int | str, Any] | None) -> None:
        """Read a function.

        Args:
            function: The function.
            holder: The object or class that has it; None for a function of a module.
            call: The values of its arguments that are known, by position or name; None for the action itself.
        """
        arguments = arguments_of(function, holder, call)
        key = (id(function), self.inspects, *((name, id(value)) for name, value in arguments.items()))
        if key in self._read:
            return
        node = node_of(function)
        if node is None or len(self._read) >= _MAX_FUNCTIONS or self._depth >= _MAX_DEPTH:
            self.mark_opaque()
            return
        self._read[key] = (function, arguments)
        self._depth += 1
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.note_mention(default)
        for event in events_of_annotation(function).events:
            self.note_mention(event)
        frame = Frame(function, node, arguments, self.context_class)
        _Visitor(self, frame, is_action=call is None).read(node)
        self.shown.calls |= frame.library_steps
        if any(is_unseen(module, self._home) for module in frame.unloaded):
            self.mark_opaque()
        self._depth -= 1

    def note_mention(self, value: Any, call: Mapping[int | str, Any] | None = None, depth: int = 2) -> bool:
        """Record a value that the code mentions, and follow it if it is the project's own code.

        Args:
            value: The value.
            call: The values of the arguments with which it is called, as far as they are known.
            depth: The levels of collections in it that are opened.

        Returns:
            True if its code was read.
        """
        holder = None
        if isinstance(value, Member):
            value, holder = value
            holder = None if isinstance(value, staticmethod) else holder
        results = (self.possible,) if self.inspects else (self.possible, self.shown)
        if isinstance(value, str):
            for result in results:
                result.texts.add(value)
        elif isinstance(value, COLLECTIONS):
            # Copies: other threads may change a collection of a module meanwhile.
            for key in list(value) if isinstance(value, dict) and depth else ():
                self.note_mention(key, None, depth - 1)
            items = list(value.values() if isinstance(value, dict) else value)
            return bool(value and depth) and all([self.note_mention(item, call, depth - 1) for item in items])
        elif isinstance(value, type):
            for result in results if issubclass(value, Event) else ():
                result.events.add(value)
        else:
            functions = [part for part in functions_of(value) if is_own(part, self._home)]
            for function in functions:
                self.follow(function, next(iter(holder_of(value)), holder), with_partial(value, call or {}))
            # Of a property that is called, the code that is called is not known.
            return bool(functions) and not isinstance(value, PROPERTIES)
        return False


class _Visitor(ast.NodeVisitor):
    """Reports the values that the code of a function mentions to its reader."""

    def __init__(self, reader: _Reader, frame: Frame, is_action: bool) -> None:
        self._reader = reader
        self._shown = reader.shown
        self._frame = frame
        self._value = frame.value
        self._is_action = is_action
        self._inner = 0
        self._is_certain = is_action

    def read(self, node: AnyFunction) -> None:
        """Read the body of a function."""
        self._visit_all([ast.Return(node.body)] if isinstance(node, ast.Lambda) else node.body)

    def visit(self, node: ast.AST) -> None:
        """Visit a node. Code that conditions may skip is not certain to run, nor is code after it."""
        was_certain = self._is_certain
        conditions = conditions_of(node)
        depends_on_event = conditions is not None and all(map(self._frame.is_event_data, conditions))
        self._is_certain &= depends_on_event
        self._inner += isinstance(node, _INNER)
        super().visit(node)
        self._inner -= isinstance(node, _INNER)
        self._is_certain = was_certain and (depends_on_event or not may_leave(node))

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            value = self._value(node)
            if value is CONTEXT:
                self._reader.lose_context()
            self._reader.note_mention(value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in _DURABLE:
            self._shown.calls.add(node.attr)
        self._reader.sends |= node.attr == "send_event"
        value = self._value(node)
        self._reader.note_mention(value)
        # An attribute of an event class names the event; if it is unknown, it may be the event.
        with self._reader.inspecting(self._reader.inspects or value is not UNKNOWN):
            self._reader.note_mention(self._event_of(node))
        if not is_chain(node):
            self.visit(node.value)

    def _event_of(self, node: ast.AST) -> type[Event] | None:
        """Return the event class that an expression names, or one of whose attributes it is; or None."""
        while True:
            value = self._value(node)
            if isinstance(value, type) and issubclass(value, Event):
                return value
            if not isinstance(node, ast.Attribute):
                return None
            node = node.value

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._reader.note_mention(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        handed = [*node.args, *(keyword.value for keyword in node.keywords)]
        gives_context = any(self._value(argument) is CONTEXT for argument in handed)
        spread = [keyword.value for keyword in node.keywords if keyword.arg is None]
        handed = [part for part in handed if part in spread or self._value(part) is not CONTEXT]
        attribute = node.args[1] if name == "getattr" and len(node.args) > 1 else None
        if gives_context and isinstance(attribute, ast.Constant):
            self.visit_Attribute(ast.Attribute(node.args[0], str(attribute.value), ast.Load()))
        elif name in ("eval", "exec", "locals") or (gives_context and name in ("cast", "getattr")):
            self._reader.lose_context()
        if name in _INSPECTED:
            inspected = handed[_INSPECTED[name]]
            self._inspect(inspected)
            self._visit_all(argument for argument in handed if argument not in inspected)
            return
        is_of_context = self._value(root_of(node.func)) is CONTEXT
        if name in _DURABLE:
            self._note_step(node)
        elif is_of_context:
            self._note_use(name, node.args)
            self._note_request(name, node)
        if name == "send_event" and not self._reader.inspects:
            self._reader.sends = True
            self._note_certain(node.args[:1])
        self._take_called(node, gives_context, is_of_context)
        if is_of_context and name not in _SENDS:
            self._inspect(handed)
        elif self._event_of(node.func) is not None:
            # A string that names an event without a class is not content.
            self._inspect(handed, texts=not self._reader.inspects)
        else:
            self._visit_all(handed)

    def _take_called(self, node: ast.Call, gives_context: bool, is_of_context: bool) -> None:
        """Follow the function that is called. One that gets the context is no content."""
        reader = self._reader
        reader.sends |= gives_context
        call: dict[int | str, Any] = {number: self._value(value) for number, value in enumerate(node.args)}
        call.update({keyword.arg or "": self._value(keyword.value) for keyword in node.keywords})
        with reader.inspecting(reader.inspects and not gives_context):
            is_read = reader.note_mention(self._value(node.func), call)
            if not is_of_context:
                reader.note_mention(self._event_of(node.func))
        if gives_context and not is_read:
            reader.mark_opaque()
        if not is_chain(node.func):
            self.visit(node.func)

    def _note_step(self, node: ast.Call) -> None:
        """Record a durable step by the name of its function."""
        function = node.args[0] if node.args else node
        if isinstance(function, ast.Call) and function.args:
            # DurableCallable(charge, ...), if that is used.
            clients = [keyword.value for keyword in function.keywords if keyword.arg == "client"]
            names = [part for client in clients for part in getattr(client, "elts", [client])]
            self._shown.clients.update(str(part.value) for part in names if isinstance(part, ast.Constant))
            function = function.args[0]
        value = self._value(function)
        if isinstance(value, DurableCallable):
            self._shown.clients.update(value.clients)
            self._shown.calls.add(value.identity.rpartition(":")[2])
        else:
            name = getattr(function, "attr", getattr(function, "id", None))
            self._shown.calls.add(name or "lambda" if isinstance(function, ast.Lambda) else name or "call")

    def _note_use(self, method: str, arguments: list[ast.expr]) -> None:
        """Record the use of a context method by its first argument."""
        first = arguments[0] if arguments else None
        if method in _ASKS and first is not None:
            agent = self._value(first)
            items = [*agent.values()] if isinstance(agent, dict) else agent
            agents = list(items) if isinstance(agent, COLLECTIONS) else [agent]
            self._shown.agents += agents
            if not any(isinstance(named, Agent | type) for named in agents):
                self._reader.mark_opaque()
        elif isinstance(first, ast.Constant):
            shown = self._shown
            names = {"emit_to": shown.tags, "chat": shown.calls, "client": shown.clients}
            text = f"model {first.value}" if method == "chat" else str(first.value)
            names.get(method, set[str]()).add(text)
        elif method == "chat":
            self._shown.calls.add("model")

    def _note_request(self, method: str, node: ast.Call) -> None:
        """Record the resource that a context method is certainly called for, if it has a constant name."""
        is_own = getattr(self._reader.context_class, method, None) is getattr(RunnerContext, method, None)
        if not (is_own and self._is_certain and not self._inner and isinstance(node.func, ast.Attribute)):
            return
        names = [constant_of(argument) for argument in node.args]
        keywords = {keyword.arg: constant_of(keyword.value) for keyword in node.keywords}
        name = names[0] if names else keywords.get("name")
        kind = _REQUESTS.get(method)
        if method == "get_resource":
            kind = names[1] if len(names) > 1 else keywords.get("resource_type")
        if isinstance(node.func.value, ast.Name) and name is not None and kind is not None:
            self._shown.requests.append(NamedResource(kind, name, self._frame.place(node)))

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _inspect(self, nodes: Iterable[ast.AST | None], texts: bool = False) -> None:
        """Visit code that only inspects names, or content; with ``texts``, strings of it count."""
        for node in nodes:
            named = node.value if isinstance(node, ast.Constant) else self._value(node) if node else None
            if texts and isinstance(named, str):
                self._reader.note_mention(named)
            with self._reader.inspecting(True):
                self._visit_all([node])

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def generic_visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            children = value if isinstance(value, list) else [value]
            nodes = [child for child in children if isinstance(child, ast.AST)]
            if name in _INSPECTED_FIELDS.get(type(node), ()):
                self._inspect(nodes)
            elif name not in _SKIPPED_FIELDS:
                self._visit_all(nodes)

    def visit_Return(self, node: ast.Return | ast.Yield) -> None:
        self._note_returned(node.value)
        self._visit_all([node.value])

    visit_Yield: Any = visit_Return

    def _note_returned(self, node: ast.expr | None) -> None:
        """Record the events in an expression that the action returns or yields."""
        if isinstance(node, ast.List | ast.Tuple):
            for member in node.elts:
                self._note_returned(member)
        elif isinstance(node, ast.IfExp):
            self._note_returned(node.body)
            self._note_returned(node.orelse)
        elif isinstance(node, ast.Call) and self._is_action:
            self._note_certain([node])

    def _note_certain(self, nodes: Iterable[ast.expr]) -> None:
        """Record the events that the action itself instantiates to emit them."""
        for node in nodes if self._is_action and not self._inner else ():
            event = self._value(node.func) if isinstance(node, ast.Call) else None
            if isinstance(event, type) and issubclass(event, Event):
                self._shown.certain.add(event)
