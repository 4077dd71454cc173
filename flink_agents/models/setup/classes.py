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
    module, _, qualname = clazz.partition(":")
    expected = f"{clazz}, a {kind.__module__.split('.')[0]} {kind.__name__}, or what makes one"
    try:
        # A main script that still runs is there, and cannot be imported: its import would wait for its end.
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
        made = found if isinstance(found, kind) else found(*arguments, **named)
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
