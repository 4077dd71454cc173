"""Finds the names in a function's source that it passes on, apart from names that it only inspects.

A class in ``isinstance``, a comparison, a pattern, an annotation or a ``cast`` is only inspected. Arguments
of an event's constructor, of memory and of side outputs are content, not separate events.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import NamedTuple

from flink_agents.api.common.identity import IdentityCache
from flink_agents.plan.analysis.source import AnyFunction, node_of

_FIRST_ONLY = frozenset({"isinstance", "issubclass", "hasattr", "getattr"})
"""Functions that pass on only their first argument."""

_DURABLE = frozenset({"durable_execute", "durable_execute_async"})

_SENDS = _DURABLE | {"send_event"}
"""Context methods whose arguments are more than content."""


class Mention(NamedTuple):
    """A name with its attributes, as in ``shop.events.OrderPaid``.

    Attributes:
        root: The name.
        attributes: Its attributes.
        called: True if it is called.
    """

    root: str
    attributes: tuple[str, ...]
    called: bool


@dataclass
class Mentions:
    """The names and strings that a function mentions.

    Attributes:
        found: Names that it passes on or calls.
        texts: String constants that it passes on.
        tags: Side outputs that it writes to.
        durable: Functions that it calls as durable steps, as far as they have names.
        models: Chat models that it uses; their requests are durable steps.
        clients: Clients that it uses.
        returned: Callables whose results it returns or yields.
        sent: Callables that it calls itself, outside of inner functions, to return, yield or send the result.
        bound: Names that it assigns itself, its parameters among them.
        imports: Names that it imports, with the module and the name in it, if any.
        loose: Names that it passes on whole, not only for an attribute.
        unrooted: Attributes of expressions that are not names.
    """

    found: list[Mention] = field(default_factory=list[Mention])
    texts: set[str] = field(default_factory=set[str])
    tags: set[str] = field(default_factory=set[str])
    durable: list[Mention] = field(default_factory=list[Mention])
    models: set[str] = field(default_factory=set[str])
    clients: set[str] = field(default_factory=set[str])
    returned: list[Mention] = field(default_factory=list[Mention])
    sent: list[Mention] = field(default_factory=list[Mention])
    bound: set[str] = field(default_factory=set[str])
    imports: dict[str, tuple[str, str | None, int]] = field(
        default_factory=dict[str, tuple[str, str | None, int]]
    )
    loose: set[str] = field(default_factory=set[str])
    unrooted: set[str] = field(default_factory=set[str])


def mentions_of(
    function: FunctionType, context: Iterable[str], is_event: Callable[[Mention], bool]
) -> Mentions | None:
    """Return the mentions of a function; None if its source is not available.

    The result is shared by all callers, and must not be changed.

    Args:
        function: The function.
        context: Names of its parameters that are the context.
        is_event: Returns True if a mention is an event class; called again for earlier mentions.
    """
    names = frozenset(context)
    readings = _READINGS.get(function.__code__)
    for cached_reading in readings or ():
        if cached_reading.holds(names, is_event):
            return cached_reading.mentions
    node = node_of(function)
    if node is None:
        return None
    events = _EventReferences(is_event)
    visitor = _Visitor(names, events)
    visitor.read(node)
    reading = _CodeReading(names, events.answers, visitor.mentions)
    _READINGS.put(function.__code__, (reading, *(readings or ())[: _MAX_READINGS - 1]))
    return reading.mentions


class _EventReferences:
    """Answers whether mentions are event classes, and caches the answers."""

    def __init__(self, is_event: Callable[[Mention], bool]) -> None:
        self.answers: dict[Mention, bool] = {}
        self._is_event = is_event

    def __call__(self, mention: Mention) -> bool:
        if mention not in self.answers:
            self.answers[mention] = self._is_event(mention)
        return self.answers[mention]


class _CodeReading(NamedTuple):
    """The mentions of a code object and the conditions for them: globals and closures can change.

    Attributes:
        context: Names of parameters that are the context.
        answers: Which mentions are event classes.
        mentions: The result.
    """

    context: frozenset[str]
    answers: Mapping[Mention, bool]
    mentions: Mentions

    def holds(self, context: frozenset[str], is_event: Callable[[Mention], bool]) -> bool:
        """Return True if another reading with the present globals would give the same result."""
        return context == self.context and all(
            is_event(mention) is answer for mention, answer in self.answers.items()
        )


_MAX_READINGS = 4
"""Number of readings of one code object that are cached: a function can be an action and also be called."""

_READINGS: IdentityCache[tuple[_CodeReading, ...]] = IdentityCache()


def parameters_of(function: FunctionType) -> tuple[str, ...]:
    """Return the names of the positional parameters."""
    return function.__code__.co_varnames[: function.__code__.co_argcount]


class _Visitor(ast.NodeVisitor):
    """Collects mentions; ``_content`` is set inside of code that only inspects names, or of content."""

    def __init__(self, context: frozenset[str], is_event: Callable[[Mention], bool]) -> None:
        self.mentions = Mentions()
        self._context = context
        self._is_event = is_event
        self._content = False
        self._inner = 0

    def read(self, node: AnyFunction) -> None:
        for inner in ast.walk(node):
            self.mentions.bound.update(_bound_by(inner))
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        for statement in body:
            self.visit(statement)
        if isinstance(node, ast.Lambda):
            self._note_returned(node.body)

    # -- names ------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.mentions.loose.add(node.id)
            self._note(Mention(node.id, (), False))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        chain = _chain(node)
        if chain is not None:
            self._note(chain)
            return
        if not self._content:
            self.mentions.unrooted.update(_attributes_above(node))
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and not self._content:
            self.mentions.texts.add(node.value)

    def _note(self, mention: Mention) -> None:
        if not self._content:
            self.mentions.found.append(mention)

    # -- calls ------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        chain = _chain(node.func)
        name = chain.attributes[-1] if chain is not None and chain.attributes else chain and chain.root
        handed = [*node.args, *(keyword.value for keyword in node.keywords)]
        if chain is None:
            self.visit(node.func)
        elif name in _FIRST_ONLY:
            self._visit_all(handed[:1])
            self._visit_content(handed[1:])
            return
        elif name == "cast":
            self._visit_content(handed[:1])
            self._visit_all(handed[1:])
            return
        else:
            takes_context = any(
                isinstance(argument, ast.Name) and argument.id in self._context for argument in handed
            )
            if takes_context or not self._content:
                self.mentions.found.append(chain._replace(called=True))
        if chain is not None and chain.root in self._context and node.args:
            self._note_use(name or "", node.args[0])
            if name == "send_event" and not self._content:
                self._note_sent(node.args[0])
        of_context = chain is not None and chain.root in self._context and name not in _SENDS
        if chain is not None and (of_context or self._is_event(chain)):
            # A string that names an event without a class is not content.
            self._visit_content(handed, texts=not of_context)
        else:
            self._visit_all(handed)

    def _note_use(self, method: str, first: ast.expr) -> None:
        """Record the use of a context method by its first argument."""
        if method in _DURABLE:
            if isinstance(first, ast.Call) and first.args:
                # DurableCallable(charge, ...), if that is used.
                self._note_client_setting(first)
                first = first.args[0]
            chain = _chain(first)
            self.mentions.durable += [] if chain is None else [chain]
        elif isinstance(first, ast.Constant):
            names_by_method = {
                "emit_to": self.mentions.tags,
                "chat": self.mentions.models,
                "client": self.mentions.clients,
            }
            names_by_method.get(method, set[str]()).add(str(first.value))

    def _note_client_setting(self, call: ast.Call) -> None:
        for keyword in call.keywords:
            if keyword.arg == "client":
                values = keyword.value.elts if isinstance(keyword.value, ast.Tuple) else [keyword.value]
                names = (value.value for value in values if isinstance(value, ast.Constant))
                self.mentions.clients.update(map(str, names))

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _visit_content(self, nodes: Iterable[ast.AST | None], texts: bool = False) -> None:
        was_content = self._content
        self._content = True
        for node in nodes:
            if isinstance(node, ast.Constant) and texts and not was_content and isinstance(node.value, str):
                self.mentions.texts.add(node.value)
            elif isinstance(node, ast.Name | ast.Attribute) and texts and not was_content:
                # The string may be a named constant: the lookup shows its value.
                self._content = False
                self.mentions.found.extend(filter(None, [_chain(node)]))
                self._content = True
            elif node is not None:
                self.visit(node)
        self._content = was_content

    # -- names that are only inspected ------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        self._visit_content([node.left, *node.comparators])

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        self._visit_content([node.slice])

    def visit_Dict(self, node: ast.Dict) -> None:
        self._visit_content(node.keys)
        self._visit_all(node.values)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._visit_all(node.body)

    def visit_match_case(self, node: ast.match_case) -> None:
        self._visit_all([child for child in (node.guard, *node.body) if child is not None])

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._visit_content(part.value for part in node.values if isinstance(part, ast.FormattedValue))

    def visit_arguments(self, node: ast.arguments) -> None:
        self._visit_all([default for default in (*node.defaults, *node.kw_defaults) if default is not None])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_inner([*node.decorator_list, node.args, *node.body])

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_inner([*node.decorator_list, node.args, *node.body])

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_inner([node.args, node.body])

    def _visit_inner(self, nodes: Iterable[ast.AST]) -> None:
        self._inner += 1
        self._visit_all(nodes)
        self._inner -= 1

    # -- return values ----------------------------------------------------------------

    def visit_Return(self, node: ast.Return) -> None:
        self._note_returned(node.value)
        self.generic_visit(node)

    def visit_Yield(self, node: ast.Yield) -> None:
        self._note_returned(node.value)
        self.generic_visit(node)

    def _note_returned(self, node: ast.expr | None) -> None:
        if isinstance(node, ast.List | ast.Tuple):
            for member in node.elts:
                self._note_returned(member)
        elif isinstance(node, ast.IfExp):
            self._note_returned(node.body)
            self._note_returned(node.orelse)
        elif isinstance(node, ast.Call) and (chain := _chain(node.func)) is not None:
            self.mentions.returned.append(chain._replace(called=True))
            self._note_sent(node)

    def _note_sent(self, node: ast.expr) -> None:
        if not self._inner and isinstance(node, ast.Call) and (chain := _chain(node.func)) is not None:
            self.mentions.sent.append(chain._replace(called=True))

    # -- imports ----------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            module = alias.name if alias.asname else alias.name.partition(".")[0]
            self.mentions.imports[alias.asname or module] = (module, None, 0)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.mentions.imports[alias.asname or alias.name] = (node.module or "", alias.name, node.level)


def _chain(node: ast.AST) -> Mention | None:
    """Return a name with attributes as a mention; ``super()`` is the instance itself."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
        return Mention("super", tuple(reversed(attributes)), False)
    return Mention(node.id, tuple(reversed(attributes)), False) if isinstance(node, ast.Name) else None


def _attributes_above(node: ast.AST) -> Iterator[str]:
    while isinstance(node, ast.Attribute):
        yield node.attr
        node = node.value


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
