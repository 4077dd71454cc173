"""Finds the names in a function's source that it hands on, apart from those it only looks at.

A class behind ``isinstance``, in a comparison, a pattern, an annotation or a ``cast`` is looked at. What is
given to the constructor of an event, to memory or to a side output is content, and no event of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import NamedTuple

from flink_agents.api.identity import IdentityCache
from flink_agents.plan.analysis.source import AnyFunction, node_of

_FIRST_ONLY = frozenset({"isinstance", "issubclass", "hasattr", "getattr"})
"""Functions of which only the first argument is handed on."""

_DURABLE = frozenset({"durable_execute", "durable_execute_async"})

_SENDS = _DURABLE | {"send_event"}
"""Methods of the context whose arguments are more than content."""


class Mention(NamedTuple):
    """A name with attributes behind it, as in ``shop.events.OrderPaid``.

    Attributes:
        root: The name.
        attributes: What stands behind it.
        called: True if it is called.
    """

    root: str
    attributes: tuple[str, ...]
    called: bool


@dataclass
class Mentions:
    """The names and texts that a function mentions.

    Attributes:
        found: What it hands on or calls.
        texts: Text constants that it hands on.
        tags: Side outputs that it writes to.
        durable: Functions that it calls durably, as far as they have names.
        models: Chat models that it talks with, which it does durably.
        clients: Clients that it asks for.
        returned: What is called for what it returns or yields.
        sent: What it calls itself, outside of inner functions, for what it returns, yields or sends.
        bound: Names that it binds itself, its parameters among them.
        imports: Names that it imports, with the module and the name in it, if any.
        loose: Names that are handed on as they are, not only for an attribute.
        unrooted: Attributes of what has no name.
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
    """Return what a function mentions; None if its source is not to be had.

    What is found is shared by all who ask, and must not be changed.

    Args:
        function: The function.
        context: Names of its parameters that are the context.
        is_event: True if a mention is a class of events; asked again for what was found before.
    """
    names = frozenset(context)
    readings = _READINGS.get(function.__code__)
    for one in readings or ():
        if one.holds(names, is_event):
            return one.mentions
    node = node_of(function)
    if node is None:
        return None
    asked = _Asked(is_event)
    visitor = _Visitor(names, asked)
    visitor.read(node)
    made = _CodeReading(names, asked.answers, visitor.mentions)
    _READINGS.put(function.__code__, (made, *(readings or ())[: _MAX_READINGS - 1]))
    return made.mentions


class _Asked:
    """Answers whether mentions are classes of events, and keeps the answers."""

    def __init__(self, is_event: Callable[[Mention], bool]) -> None:
        self.answers: dict[Mention, bool] = {}
        self._is_event = is_event

    def __call__(self, mention: Mention) -> bool:
        if mention not in self.answers:
            self.answers[mention] = self._is_event(mention)
        return self.answers[mention]


class _CodeReading(NamedTuple):
    """What a code object mentions, and what else that depends on: globals and closures can change.

    Attributes:
        context: Names of parameters that are the context.
        answers: Which mentions are classes of events.
        mentions: What was found.
    """

    context: frozenset[str]
    answers: Mapping[Mention, bool]
    mentions: Mentions

    def holds(self, context: frozenset[str], is_event: Callable[[Mention], bool]) -> bool:
        """Return True if a reading with these answers would find the same."""
        return context == self.context and all(
            is_event(mention) is answer for mention, answer in self.answers.items()
        )


_MAX_READINGS = 4
"""How many readings of one code object are kept: one function can be an action and be called by others."""

_READINGS: IdentityCache[tuple[_CodeReading, ...]] = IdentityCache()


def parameters_of(function: FunctionType) -> tuple[str, ...]:
    """Return the names of the parameters that take positional arguments."""
    return function.__code__.co_varnames[: function.__code__.co_argcount]


class _Visitor(ast.NodeVisitor):
    """Collects what is handed on; ``_content`` is set inside of what is only looked at, or content."""

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
        for one in body:
            self.visit(one)
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
        handed = [*node.args, *(one.value for one in node.keywords)]
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
            takes_context = any(isinstance(one, ast.Name) and one.id in self._context for one in handed)
            if takes_context or not self._content:
                self.mentions.found.append(chain._replace(called=True))
        if chain is not None and chain.root in self._context and node.args:
            self._note_use(name or "", node.args[0])
            if name == "send_event" and not self._content:
                self._note_sent(node.args[0])
        of_context = chain is not None and chain.root in self._context and name not in _SENDS
        if chain is not None and (of_context or self._is_event(chain)):
            # A text by which an event without class is named is not a content.
            self._visit_content(handed, texts=not of_context)
        else:
            self._visit_all(handed)

    def _note_use(self, method: str, first: ast.expr) -> None:
        """Note what a method of the context is used for, as its first argument says."""
        if method in _DURABLE:
            if isinstance(first, ast.Call) and first.args:
                # DurableCallable(charge, ...), if it is needed.
                self._note_client_setting(first)
                first = first.args[0]
            found = _chain(first)
            self.mentions.durable += [] if found is None else [found]
        elif isinstance(first, ast.Constant):
            kept = {
                "emit_to": self.mentions.tags,
                "chat": self.mentions.models,
                "client": self.mentions.clients,
            }
            kept.get(method, set[str]()).add(str(first.value))

    def _note_client_setting(self, made: ast.Call) -> None:
        for one in made.keywords:
            if one.arg == "client":
                values = one.value.elts if isinstance(one.value, ast.Tuple) else [one.value]
                names = (each.value for each in values if isinstance(each, ast.Constant))
                self.mentions.clients.update(map(str, names))

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _visit_content(self, nodes: Iterable[ast.AST | None], texts: bool = False) -> None:
        before, self._content = self._content, True
        for node in nodes:
            if isinstance(node, ast.Constant) and texts and not before and isinstance(node.value, str):
                self.mentions.texts.add(node.value)
            elif isinstance(node, ast.Name | ast.Attribute) and texts and not before:
                # The text may be a constant with a name: what it is shows when it is looked up.
                self._content = False
                self.mentions.found.extend(filter(None, [_chain(node)]))
                self._content = True
            elif node is not None:
                self.visit(node)
        self._content = before

    # -- what is only looked at -------------------------------------------------------

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
        self._visit_all([one for one in (node.guard, *node.body) if one is not None])

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._visit_content(one.value for one in node.values if isinstance(one, ast.FormattedValue))

    def visit_arguments(self, node: ast.arguments) -> None:
        self._visit_all([one for one in (*node.defaults, *node.kw_defaults) if one is not None])

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

    # -- what is returned -------------------------------------------------------------

    def visit_Return(self, node: ast.Return) -> None:
        self._note_returned(node.value)
        self.generic_visit(node)

    def visit_Yield(self, node: ast.Yield) -> None:
        self._note_returned(node.value)
        self.generic_visit(node)

    def _note_returned(self, node: ast.expr | None) -> None:
        if isinstance(node, ast.List | ast.Tuple):
            for one in node.elts:
                self._note_returned(one)
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
        for one in node.names:
            module = one.name if one.asname else one.name.partition(".")[0]
            self.mentions.imports[one.asname or module] = (module, None, 0)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for one in node.names:
            self.mentions.imports[one.asname or one.name] = (node.module or "", one.name, node.level)


def _chain(node: ast.AST) -> Mention | None:
    """Return a name with attributes, as a mention; ``super()`` is the object itself."""
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
