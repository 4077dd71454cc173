"""Finds the resources that an action requests by a constant name: ``ctx.chat("analyst", ...)``.

It is known before the job runs if the agent has them. Only requests of the action itself count. A request may
be optional on purpose: if it depends on the agent's arguments (``if self.translator:``), on its options, or
on a global, or if it is inside a ``try`` that handles exceptions.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from flink_agents.api.common.identity import IdentityCache
from flink_agents.api.common.places import short_path
from flink_agents.plan.analysis.functions import AnyFunction, node_of

METHODS = {
    "chat": "chat_model",
    "client": "client",
    "embed": "embedding_model",
    "vector_store": "vector_store",
    "retrieve": "vector_store",
    "mcp_server": "mcp_server",
    "prompt": "prompt",
}
"""Methods of the context whose first argument is the name of a resource, and the kind of that."""


class NamedResource(NamedTuple):
    """A resource that an action requests.

    Attributes:
        kind: Its kind.
        name: Its name.
        method: The method of the context.
        place: Its place in the author's code.
    """

    kind: str
    name: str
    method: str
    place: str


def named_resources(action: Callable[..., Any]) -> tuple[NamedResource, ...]:
    """Return the resources that an action requests in any case, if the code is reached.

    Args:
        action: Its function; the result is empty if it is wrapped in another one.
    """
    function = action if isinstance(action, FunctionType) else None
    if function is None or hasattr(function, "__wrapped__"):
        return ()
    cached_resources = _FOUND.get(function.__code__)
    if cached_resources is not None:
        return cached_resources
    node = node_of(function)
    context = _context_of(function)
    if node is None or context is None:
        return ()
    finder = _Finder(node, context)
    finder.read([ast.Expr(node.body)] if isinstance(node, ast.Lambda) else node.body)
    file = short_path(function.__code__.co_filename)
    name = function.__qualname__
    resources = (
        NamedResource(kind, called, method, f"{file}:{line} in {name}")
        for kind, called, method, line in finder.found
    )
    return _FOUND.put(function.__code__, tuple(resources))


_FOUND: IdentityCache[tuple[NamedResource, ...]] = IdentityCache()

_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_PLAIN_NAMES = frozenset(vars(builtins))


class _Finder:
    """Collects uses of resources, without those that may be optional on purpose."""

    def __init__(self, node: AnyFunction, context: str) -> None:
        self.found: list[tuple[str, str, str, int]] = []
        self._context = context
        arguments = node.args
        names = {
            argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        }
        self._data = names - {context, "self", "cls"}
        self._bind(node)

    def _bind(self, node: ast.AST) -> None:
        """Add the locals that only hold data of the event to the names that are unknown at deployment."""
        values: dict[str, list[ast.AST | None]] = {}
        for inner_node in ast.walk(node):
            for name, value in _assigned(inner_node):
                values.setdefault(name, []).append(value)
        changed = True
        while changed:
            changed = False
            for name, assigned_values in values.items():
                if name not in self._data and all(
                    assigned_value is not None and self._is_data(assigned_value)
                    for assigned_value in assigned_values
                ):
                    self._data.add(name)
                    changed = True

    def _is_data(self, node: ast.AST) -> bool:
        """Return True if the value of an expression depends on the event alone."""
        names = {inner_node.id for inner_node in ast.walk(node) if isinstance(inner_node, ast.Name)}
        return names <= self._data | _PLAIN_NAMES

    def read(self, block: Iterable[ast.AST]) -> None:
        """Read statements that are executed in sequence."""
        for statement in block:
            if isinstance(statement, ast.If) and not self._is_data(statement.test):
                self._read_expression(statement.test)
                if _jumps(statement.body) or _jumps(statement.orelse):
                    return
            elif isinstance(statement, ast.Assert) and not self._is_data(statement.test):
                return
            else:
                self._read_one(statement)

    def _read_one(self, node: ast.AST) -> None:
        if isinstance(node, _INNER) or self._is_optional(node):
            return
        if isinstance(node, ast.Call):
            self._note(node)
        for _, value in ast.iter_fields(node):
            parts: Sequence[Any] = value if isinstance(value, list) else [value]
            self.read([part for part in parts if isinstance(part, ast.AST)])

    def _read_expression(self, node: ast.AST) -> None:
        if not isinstance(node, ast.BoolOp | ast.IfExp):
            self._read_one(node)

    def _is_optional(self, node: ast.AST) -> bool:
        """Return True if the code inside may be skipped on purpose."""
        if isinstance(node, ast.Try | ast.TryStar):
            return bool(node.handlers)
        if isinstance(node, ast.With | ast.AsyncWith):
            return any("suppress" in ast.unparse(with_item.context_expr) for with_item in node.items)
        if isinstance(node, ast.IfExp | ast.While):
            return not self._is_data(node.test)
        if isinstance(node, ast.BoolOp):
            return not all(map(self._is_data, node.values[:-1]))
        if isinstance(node, ast.For | ast.AsyncFor):
            return not self._is_data(node.iter)
        if isinstance(node, ast.Match):
            return not self._is_data(node.subject)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return not all(self._is_data(generator.iter) for generator in node.generators)
        return False

    def _note(self, call: ast.Call) -> None:
        target = call.func
        if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Name):
            return
        if target.value.id != self._context:
            return
        arguments = [_constant(argument) for argument in call.args]
        keywords = {keyword.arg: _constant(keyword.value) for keyword in call.keywords}
        if target.attr == "get_resource":
            name = arguments[0] if arguments else keywords.get("name")
            kind = arguments[1] if len(arguments) > 1 else keywords.get("resource_type")
        else:
            name = arguments[0] if arguments else None
            kind = METHODS.get(target.attr)
        if name is not None and kind is not None:
            self.found.append((kind, name, target.attr, call.lineno))


def _constant(node: ast.expr) -> str | None:
    """Return a string, or the kind in ``ResourceType.TOOL``; None for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "ResourceType"
    ):
        return node.attr.lower()
    return None


def _assigned(node: ast.AST) -> list[tuple[str, ast.AST | None]]:
    """Return the names that a node binds, each with its value; None for an unknown value."""
    if isinstance(node, ast.Assign):
        return [(name, node.value) for target in node.targets for name in _names(target)]
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return [(name, node.value) for name in _names(node.target)]
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        return [(name, node.iter) for name in _names(node.target)]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [(name, None) for name in _names(node.optional_vars)]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name.partition(".")[0], None) for alias in node.names]
    return []


def _names(target: ast.AST) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _jumps(block: Sequence[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], _JUMPS)


def _context_of(function: FunctionType) -> str | None:
    """Return the parameter of an action that is the context."""
    names = [
        name
        for name in function.__code__.co_varnames[: function.__code__.co_argcount]
        if name not in ("self", "cls")
    ]
    return names[1] if len(names) > 1 else None
