"""Finds the author's own line in a failure."""

from __future__ import annotations

import os
import sysconfig
import traceback
from types import CodeType, FrameType, TracebackType
from typing import Any

import flink_agents

_LIBRARIES = tuple(
    {sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_PACKAGE = os.path.dirname(os.path.abspath(flink_agents.__file__)) + os.sep


def place(file: str, line: int, name: str) -> str:
    """``file:line in name``, the file relative to the working directory where it lies below."""
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if relative.startswith('..') else relative}:{line} in {name}"


def place_of_code(code: CodeType) -> str:
    """The place where a function is defined."""
    return place(code.co_filename, code.co_firstlineno, getattr(code, "co_qualname", code.co_name))


def is_users(file: str) -> bool:
    """Whether ``file`` belongs neither to a library nor to this package.

    Frames of compiled libraries carry the relative path of their Cython source.
    """
    if file.endswith((".pyx", ".pxd", ".pxi")):
        return False
    return not (file.startswith((_PACKAGE, "<frozen")) or file.startswith(_LIBRARIES))


def users_place(error: BaseException, action: Any) -> str:
    """The innermost line of ``error``'s traceback that is the author's; else the action's own."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_users(frame.f_code.co_filename):
            found = place(frame.f_code.co_filename, line, _qualname(frame))
    return found or action.where


def _qualname(frame: FrameType) -> str:
    code = frame.f_code
    return getattr(code, "co_qualname", None) or code.co_name


def users_traceback(error: BaseException) -> str:
    """``error``'s traceback as text, beginning at the author's first frame."""
    start: TracebackType | None = error.__traceback__
    at = start
    while at is not None and not is_users(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    lines = traceback.format_exception(type(error), error, at or start)
    return "".join(lines)
