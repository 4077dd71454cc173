"""Facts about functions: how they run, whose code they are, and the syntax tree in their source file.

A file is parsed once for all functions in it, and the tree of a function is searched once for each code
object. A code object never changes: a reloaded module or a notebook cell that runs again makes new code
objects, whose source is read again. If a file changes, code that is loaded stays as it was.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Set
from importlib.util import find_spec
from operator import attrgetter
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, get_type_hints

from flink_agents.api.common.identity import IdentityCache
from flink_agents.api.common.places import called

PACKAGE = "flink_agents"
METHODS = (staticmethod, classmethod)
PROPERTIES = (property, functools.cached_property)

_INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages."""

_MOST_WRAPPERS = 20
"""The most wrappers of a function that are followed: they can lead in a circle."""

_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def has_async_code(function: Callable[..., Any]) -> bool:
    """Return True if ``function`` is a coroutine function or an asynchronous generator."""
    target = called(function)
    return inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)


def plain_function(value: Any) -> FunctionType | None:
    """Return the Python function in ``value``, without its wrappers; or None."""
    return functions[-1] if (functions := functions_of(value)) else None


def functions_of(value: Any) -> list[FunctionType]:
    """Return the Python function in ``value`` behind its wrappers, outermost first."""
    functions: list[FunctionType] = []
    for _ in range(_MOST_WRAPPERS):
        if isinstance(value, FunctionType):
            functions.append(value)
            value = getattr(value, "__wrapped__", None)
        elif isinstance(value, functools.partial | functools.cached_property):
            value = value.func
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, METHODS) or inspect.ismethod(value):
            value = value.__func__
        else:
            break
    call = None if isinstance(value, type) else attribute_of(type(value), "__call__")
    return [*functions, call] if isinstance(call, FunctionType) else functions


def holder_of(value: Any) -> tuple[Any, ...]:
    """Return the ``self`` of a bound method or a callable object; nothing for a function."""
    while isinstance(value, functools.partial):
        value = value.func
    if inspect.ismethod(value):
        return (value.__self__,)
    is_plain = inspect.isroutine(value) or isinstance(value, (*PROPERTIES, *METHODS))
    return () if is_plain else (value,)


def with_partial(value: Any, call: Mapping[int | str, Any]) -> dict[int | str, Any]:
    """Return the arguments of a call of ``value``, with those that a partial adds to them.

    Args:
        value: The function, or a partial of it.
        call: The arguments of the call, by position or name.
    """
    arguments = dict(call)
    while isinstance(value, functools.partial):
        count = len(value.args)
        moved = {
            place + count if isinstance(place, int) else place: argument
            for place, argument in arguments.items()
        }
        arguments = {**value.keywords, **dict(enumerate(value.args)), **moved}
        value = value.func
    return arguments


def attribute_of(owner: Any, name: str) -> Any:
    """Return an attribute of ``owner`` without running its descriptor; None if there is none."""
    try:
        return inspect.getattr_static(owner, name)
    except AttributeError:
        return None


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
    """Return True if ``function``, behind its wrappers, is a ``def`` function with ``yield``."""
    return inspect.isgeneratorfunction(called(function))


def is_async_generator(function: Callable[..., Any]) -> bool:
    """Return True if ``function``, behind its wrappers, is an ``async def`` function with ``yield``."""
    return inspect.isasyncgenfunction(called(function))


def lambda_text(function: Callable[..., Any]) -> str | None:
    """Return the source of a lambda in one line; None if it is another function or the source is unknown."""
    node = node_of(function) if isinstance(function, FunctionType) else None
    return ast.unparse(node) if isinstance(node, ast.Lambda) else None


def package_of(value: Any) -> str:
    """Return the top-level package of a module, class, function or object."""
    if isinstance(value, ModuleType):
        return value.__name__.split(".")[0]
    named = value if isinstance(value, type | FunctionType) else plain_function(value) or type(value)
    return (named.__module__ or "").split(".")[0]


def is_own(value: Any, home: Set[str] = frozenset()) -> bool:
    """Return True if code is the project's own, not of a library.

    Args:
        value: A module, class, function or object.
        home: Packages that are read in any case.
    """
    top = package_of(value)
    if top in home:
        return True
    if not top or top in sys.stdlib_module_names or top in (PACKAGE, "pydantic", "pyflink"):
        return False
    path = getattr(sys.modules.get(top), "__file__", None) or ""
    return not any(part in path for part in _INSTALLED)


def is_unseen(module: str, home: Set[str] = frozenset()) -> bool:
    """Return True if a module that is not loaded may be the project's own."""
    top = module.partition(".")[0]
    if top in sys.modules:
        return is_own(sys.modules[top], home)
    spec = None if top in sys.stdlib_module_names else find_spec(top)
    places = [] if spec is None else spec.submodule_search_locations or [spec.origin or ""]
    return any(not any(part in place for part in _INSTALLED) for place in places)


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
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    nodes = [node for node in nodes if _name(node) == code.co_name and _parameters(node) == names]
    if len(nodes) > 1:
        # A line may have several lambdas.
        nodes = [node for node in nodes if isinstance(node, ast.Lambda) and _has_code(node, code)][:1]
    return _NODES.put(code, nodes[0]) if nodes else None


def _has_code(node: ast.Lambda, code: CodeType) -> bool:
    """Return True if a lambda compiles to the same code: others may be in the same line."""
    compiled = compile(ast.Expression(node), "", "eval").co_consts[0]
    facts = attrgetter("co_code", "co_names", "co_consts", "co_varnames")
    return facts(compiled) == facts(code)


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
    """Return the line of the first decorator, where Python says that the function starts."""
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min(part.lineno for part in (node, *decorators))


def _name(node: AnyFunction) -> str:
    """Return the name that the code object of a function has."""
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _parameters(node: AnyFunction) -> tuple[str, ...]:
    """Return the parameters of a function, without ``*args`` and ``**kwargs``."""
    arguments = node.args
    return tuple(part.arg for part in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def conditions_of(node: ast.AST) -> list[ast.expr] | None:
    """Return the expressions that decide if the code in a node runs; None if it is unknown."""
    match node:
        case ast.If() | ast.IfExp() | ast.While() | ast.Assert():
            return [node.test]
        case ast.For() | ast.AsyncFor():
            return [node.iter]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return [generator.iter for generator in node.generators]
        case ast.BoolOp():
            return node.values[:-1]
        case ast.Match():
            return [node.subject]
        case ast.Try() | ast.TryStar():
            return None if node.handlers else []
        case ast.With() | ast.AsyncWith():
            suppresses = any("suppress" in ast.unparse(with_item.context_expr) for with_item in node.items)
            return None if suppresses else []
        case _:
            return []


def constant_of(node: ast.expr) -> str | None:
    """Return a string, or the kind in ``ResourceType.TOOL``; None for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    name, _, member = ast.unparse(node).rpartition(".")
    return member.lower() if name == "ResourceType" else None


def may_leave(node: ast.AST) -> bool:
    """Return True if a statement may end the block that it is in."""
    return isinstance(node, ast.Assert) or any(isinstance(inner, _JUMPS) for inner in ast.walk(node))


def is_chain(node: ast.AST) -> bool:
    """Return True for a name, and for a chain of attributes that begins with a name."""
    return isinstance(root_of(node), ast.Name)


def root_of(node: ast.AST) -> ast.AST:
    """Return the name at the begin of a chain of attributes, or the expression that is there instead."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node
