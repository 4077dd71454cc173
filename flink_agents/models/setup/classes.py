"""Makes what the class of a description names."""

from __future__ import annotations

import importlib
import sys
from typing import Any, TypeVar

from flink_agents.api.errors import ResourceUnavailableError
from flink_agents.api.resources.providers import NamedCode

T = TypeVar("T")

_RUNS_AGENTS = ("flink_agents.runtime.", "flink_agents.testing.")
"""Where a thread is that waits for agents to run."""


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
    if isinstance(name, NamedCode) and name.there is not None:
        return name.there
    module, _, qualname = name.partition(":")
    there: Any = sys.modules.get(module)
    if there is None or not _waits_for_agents(there):
        # Another thread may have imported only a part of it so far, for which this waits.
        there = importlib.import_module(module)
    for part in qualname.split("."):
        there = getattr(there, part)
    return there


def _waits_for_agents(module: Any) -> bool:
    """Whether a module still runs, and waits for its agents: an import of it would wait for its end."""
    if not getattr(module.__spec__, "_initializing", False):
        return False
    for innermost in sys._current_frames().values():
        frame, of_agents = innermost, False
        while frame is not None:
            of_agents = of_agents or str(frame.f_globals.get("__name__")).startswith(_RUNS_AGENTS)
            if frame.f_globals is vars(module) and frame.f_code.co_name == "<module>":
                return of_agents
            frame = frame.f_back
    return False
