"""Facts about functions: how they run, and the source of a lambda."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from typing import Any


def called(function: Callable[..., Any]) -> Any:
    """The function whose code runs when ``function`` is called: of an object its ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


def has_async_code(function: Callable[..., Any]) -> bool:
    """Whether it is a coroutine function or an asynchronous generator."""
    target = called(function)
    return inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether it is a generator."""
    return inspect.isgeneratorfunction(called(function))


def is_async_generator(function: Callable[..., Any]) -> bool:
    """Whether it is an asynchronous generator."""
    return inspect.isasyncgenfunction(called(function))


def lambda_text(function: Callable[..., Any]) -> str | None:
    """The source of a lambda; None of another function, or where it cannot be told."""
    code = getattr(function, "__code__", None)
    if code is None or getattr(function, "__name__", "") != "<lambda>":
        return None
    try:
        source = " ".join(inspect.getsource(function).split())
    except (OSError, TypeError):
        return None
    start = source.find("lambda")
    while start >= 0:
        text = _expression(source[start:])
        if text is not None:
            compiled = compile(text, "", "eval").co_consts[0]
            if compiled.co_code == code.co_code and compiled.co_names == code.co_names:
                return text
        start = source.find("lambda", start + 1)
    return None


def _expression(source: str) -> str | None:
    """The longest beginning of ``source`` that is one lambda expression."""
    for end in range(len(source), 0, -1):
        try:
            tree = ast.parse(source[:end], mode="eval")
        except SyntaxError:
            continue
        if isinstance(tree.body, ast.Lambda):
            return source[:end].strip()
    return None
