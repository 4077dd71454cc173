"""Facts about functions: how they run, and the source of a lambda."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from operator import attrgetter
from types import CodeType, SimpleNamespace
from typing import Any, get_type_hints

from flink_agents.plan.analysis.source import functions_in


def called(function: Callable[..., Any]) -> Any:
    """Return the function that runs when ``function`` is called; for a callable object, its ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


def has_async_code(function: Callable[..., Any]) -> bool:
    """Return True if ``function`` is a coroutine function or an asynchronous generator."""
    target = called(function)
    return inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)


def annotation_of(function: Callable[..., Any], name: str) -> Any:
    """Return the annotation of a parameter or of ``return``; ``Any`` if it is unknown."""
    annotations: dict[str, Any] = getattr(function, "__annotations__", {})
    if name not in annotations:
        return Any
    # Without the others: one of them may have a name that only type checkers see.
    alone = SimpleNamespace(__annotations__={name: annotations[name]})
    try:
        return get_type_hints(alone, getattr(function, "__globals__", None))[name]
    except Exception:  # This one may have such a name as well, or name a class of an enclosing function.
        return Any


def is_generator(function: Callable[..., Any]) -> bool:
    """Return True if ``function`` is a generator."""
    return inspect.isgeneratorfunction(called(function))


def is_async_generator(function: Callable[..., Any]) -> bool:
    """Return True if ``function`` is an asynchronous generator."""
    return inspect.isasyncgenfunction(called(function))


def lambda_text(function: Callable[..., Any]) -> str | None:
    """Return the source of a lambda in one line; None if it is another function or the source is unknown."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_name != "<lambda>":
        return None
    try:
        source = "".join(inspect.findsource(function)[0])
        nodes = functions_in(source).get(code.co_firstlineno, ())
    except (OSError, SyntaxError):
        return None
    lambdas = [node for node in nodes if isinstance(node, ast.Lambda)]
    if len(lambdas) > 1:
        lambdas = [node for node in lambdas if _looks_like(node, code)]
    return ast.unparse(lambdas[0]) if lambdas else None


def _looks_like(node: ast.Lambda, code: CodeType) -> bool:
    compiled = compile(ast.Expression(node), "", "eval").co_consts[0]
    facts = attrgetter("co_code", "co_names", "co_consts", "co_varnames")
    return facts(compiled) == facts(code)
