"""Finds the syntax tree of a function in its source file.

A file is parsed once for all functions in it, and the tree of a function is searched once for each code
object. A code object never changes: a reloaded module or a notebook cell that runs again makes
new code objects, whose source is read again. If a file changes, code that is loaded stays as it
was.
"""

from __future__ import annotations

import ast
import functools
import inspect
from types import CodeType, FunctionType

from flink_agents.api.common.identity import IdentityCache

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


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
