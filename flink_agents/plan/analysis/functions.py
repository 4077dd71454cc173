"""Facts about functions: how they run, and the syntax tree in their source file.

A file is parsed once for all functions in it, and the tree of a function is searched once for each code
object. A code object never changes: a reloaded module or a notebook cell that runs again makes new code
objects, whose source is read again. If a file changes, code that is loaded stays as it was.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from operator import attrgetter
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, get_type_hints

from flink_agents.api.common.identity import IdentityCache

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


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


def node_of(function: FunctionType) -> AnyFunction | None:
    """Return the syntax tree of a function; None if its source is not available or not certain."""
    code = function.__code__
    cached_node = _NODES.get(code)
    if cached_node is not None:
        return cached_node
    try:
        nodes = functions_in("".join(inspect.findsource(function)[0])).get(code.co_firstlineno, ())
    except (OSError, SyntaxError, TypeError):
        return None
    names = _arguments(code)
    fitting = [node for node in nodes if _name(node) == code.co_name and _parameters(node) == names]
    # If a line has several lambdas, it is unknown which one this is.
    return _NODES.put(code, fitting[0]) if len(fitting) == 1 else None


_NODES: IdentityCache[AnyFunction] = IdentityCache()


@functools.lru_cache(maxsize=16)
def functions_in(source: str) -> dict[int, list[AnyFunction]]:
    """Return the functions in a source string, by their first lines; the result is shared."""
    functions: dict[int, list[AnyFunction]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, AnyFunction):
            functions.setdefault(_first_line(node), []).append(node)
    return functions


def _first_line(node: AnyFunction) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min(part.lineno for part in (node, *decorators))


def _name(node: AnyFunction) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _parameters(node: AnyFunction) -> list[str]:
    arguments = node.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _arguments(code: CodeType) -> list[str]:
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
