"""Makes what the class of a description names."""

from __future__ import annotations

import importlib
import sys
from typing import Any, TypeVar

from flink_agents.api.errors import ResourceUnavailableError

T = TypeVar("T")


def made_by(clazz: str, kind: type[T], what: str, *arguments: Any, **named: Any) -> T:
    """Return what ``clazz`` names, or what the class or function of that name makes.

    Args:
        clazz: Its name, ``module:qualname``.
        kind: What it is, or has to make.
        what: What asks for it, for errors.
        *arguments: Arguments for it.
        **named: Arguments for it by name.

    Raises:
        ResourceUnavailableError: It makes none.
    """
    expected = f"{clazz}, a {kind.__module__.split('.')[0]} {kind.__name__}, or what makes one"
    try:
        there = _imported(clazz)
        made = there if isinstance(there, kind) else there(*arguments, **named)
    except Exception as error:  # whatever foreign code raises
        raise ResourceUnavailableError(
            f"{what} cannot be made",
            expected=expected,
            found=f"{type(error).__name__}: {error}"[:500],
            fix="correct the class and its arguments",
        ) from error
    if not isinstance(made, kind):
        raise ResourceUnavailableError(
            f"{what} is made by something else", expected=expected, found=type(made).__qualname__
        )
    return made


def found(name: str, what: str) -> Any:
    """Return the object of a name.

    Args:
        name: Its name, ``module:qualname``.
        what: What it is, for errors.

    Raises:
        ResourceUnavailableError: There is none.
    """
    try:
        return _imported(name)
    except Exception as error:  # whatever a module raises while it is imported
        raise ResourceUnavailableError(
            f"{what} cannot be imported",
            expected=f"{name}, 'module:qualname', on the workers",
            found=f"{type(error).__name__}: {error}"[:500],
            fix="correct its name, or install its module on the workers",
        ) from error


def _imported(name: str) -> Any:
    module, _, qualname = name.partition(":")
    # A main script that still runs is there, and cannot be imported: its import would wait for its end.
    there: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in qualname.split("."):
        there = getattr(there, part)
    return there
