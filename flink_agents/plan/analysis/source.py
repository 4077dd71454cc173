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
    known = _NODES.get(code)
    if known is not None:
        return known
    try:
        nodes = functions_in("".join(inspect.findsource(function)[0])).get(code.co_firstlineno, ())
    except (OSError, SyntaxError, TypeError):
        return None
    names = _arguments(code)
    fitting = [one for one in nodes if _name(one) == code.co_name and _parameters(one) == names]
    # If a line has several lambdas, it is unknown which one this is.
    return _NODES.put(code, fitting[0]) if len(fitting) == 1 else None


_NODES: IdentityCache[AnyFunction] = IdentityCache()


@functools.lru_cache(maxsize=16)
def functions_in(source: str) -> dict[int, list[AnyFunction]]:
    """Return the functions in a source string, by their first lines; the result is shared."""
    found: dict[int, list[AnyFunction]] = {}
    for one in ast.walk(ast.parse(source)):
        if isinstance(one, AnyFunction):
            found.setdefault(_first_line(one), []).append(one)
    return found


def _first_line(node: AnyFunction) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min(one.lineno for one in (node, *decorators))


def _name(node: AnyFunction) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _parameters(node: AnyFunction) -> list[str]:
    arguments = node.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _arguments(code: CodeType) -> list[str]:
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
