"""Places in the author's code, and values, in the form for error messages."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sysconfig
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import CodeType
from typing import Any, cast

from flink_agents.api.common.identity import IdentityCache

_LIBRARIES = tuple(
    {sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_PACKAGE = os.path.abspath(os.path.join(__file__, *[os.pardir] * 3)) + os.sep
_GENERATED = ("namedtuple_", "<attrs generated")
"""Start of the file names of methods that the standard library and ``attrs`` generate."""


def is_users(file: str) -> bool:
    """Return True if the path of a source file belongs neither to a library nor to this package.

    Frames of compiled libraries have the relative path of their Cython source.
    """
    if file.endswith((".pyx", ".pxd", ".pxi")):
        return False
    return not (file.startswith((_PACKAGE, "<frozen")) or file.startswith(_LIBRARIES))


def is_users_code(code: CodeType) -> bool:
    """Return True if a user wrote this code: no library, and no method that a dataclass generates."""
    is_generated = "__create_fn__" in code.co_qualname or code.co_filename.startswith(_GENERATED)
    return not is_generated and is_users(code.co_filename)


def authors_place() -> str | None:
    """Return the innermost line of the author's code that this thread executes, or None.

    The form is ``file:line in name``.
    """
    frame = inspect.currentframe()
    while frame is not None and not is_users_code(frame.f_code):
        frame = frame.f_back
    if frame is None:
        return None
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def place_of(func: Any) -> str:
    """Return the place of a callable, ``file:line in name``; only its name if it has no Python code."""
    function: Any = inspect.unwrap(unwrap(func))
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    if not hasattr(function, "__qualname__"):
        # An object: its code is in __call__.
        kind = cast("type[Any]", type(function))
        calls = [vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)]
        function = [*calls, kind][0]
    code = getattr(function, "__code__", None)
    name = function.__qualname__
    if code is None:
        return name
    return f"{short_path(code.co_filename)}:{code.co_firstlineno} in {name}"


def place_of_class(target: type) -> str:
    """Return the place of a class, ``file:line in Class``; its full name if the source is unavailable."""
    name = target.__qualname__
    location = _CLASS_LINES.get(target)
    if location is None:
        try:
            _, line = inspect.getsourcelines(target)
            path = inspect.getsourcefile(target) or inspect.getfile(target)
        except (OSError, TypeError):
            return f"{target.__module__}.{name}"
        location = _CLASS_LINES.put(target, (path, line))
    path, line = location
    return f"{short_path(path)}:{line} in {name}"


_CLASS_LINES: IdentityCache[tuple[str, int]] = IdentityCache()
"""Places of classes: to find one, Python parses its whole file."""


def caller_place(depth: int) -> str:
    """Return the place of the caller's caller, as ``file:line in name``; with ``depth`` callers between."""
    frame = inspect.currentframe()
    for _ in range(depth + 2):
        frame = frame.f_back if frame is not None else None
    if frame is None:
        return "<unknown>"
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def short_path(path: str) -> str:
    """Return ``path`` relative to the working directory if it is inside of it, otherwise unchanged."""
    try:
        relative = os.path.relpath(path)
    except ValueError:
        return path
    return path if relative.startswith(os.pardir) or path.startswith("<") else relative


def unwrap(func: Any) -> Any:
    """Return the plain function inside a static or class method, or ``func`` itself."""
    if isinstance(func, staticmethod | classmethod):
        return cast("Any", func).__func__
    return func


def describe(value: object) -> str:
    """Return a value as text for an error message, without memory addresses."""
    if callable(value):
        return f"{type(value).__name__} {getattr(value, '__qualname__', None) or type(value).__qualname__}"
    if type(value).__repr__ is object.__repr__:
        return f"an object of type {type(value).__qualname__}"
    return repr(value)


def call_problem(function: object, count: int, may_be_async: bool = False) -> str | None:
    """Return the problem of calling a function with ``count`` values, for errors; None if there is none.

    Args:
        function: The function.
        count: The number of positional arguments.
        may_be_async: True if it may be a coroutine function.
    """
    if not callable(function):
        return describe(function)
    if not may_be_async and inspect.iscoroutinefunction(called(function)):
        return "a coroutine function"
    try:
        inspect.signature(function).bind(*[None] * count)
    except ValueError:
        return None  # a function of a C extension without a text signature: it cannot be checked
    except TypeError:
        return header_of(function)
    return None


def header_of(function: Any) -> str:
    """Return the line with which a function is defined."""
    return f"def {getattr(function, '__name__', type(function).__name__)}{inspect.signature(function)}"


def called(function: Any) -> Any:
    """Return the function that runs when ``function`` is called; for a callable object, its ``__call__``."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


_collection_lock = threading.Lock()
"""Held while :func:`no_collection` has switched the garbage collector off."""


@contextmanager
def no_collection() -> Generator[None]:
    """Let no garbage collection begin in a block that reads frames which another thread executes.

    Python 3.11 makes the object of a frame when the frame is first read. That may start a collection, which
    may let the other thread run. If it leaves the frame then, the object refers to memory of other frames,
    and the process crashes. The block must not let the thread wait.
    """
    with _collection_lock:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()
