"""Creates objects from the class in a description.

Before the first input of a worker, it checks that classes and secrets of resources are available: it imports
the code that a description names, and reads each secret. It creates no resource and calls no service.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from flink_agents.api.common.places import no_collection
from flink_agents.api.errors import ResourceUnavailableError
from flink_agents.api.resources.providers import NamedCode
from flink_agents.models.setup.secrets import Secrets

T = TypeVar("T")

_RUNS_AGENTS = ("flink_agents.runtime.", "flink_agents.testing.")
"""Modules in which a thread waits for agents to run."""


def create_instance(clazz: str, kind: type[T], what: str, *arguments: Any, **named: Any) -> T:
    """Return the object that ``clazz`` names, or the result of the class or function of that name.

    Args:
        clazz: Its name, ``module:qualname``.
        kind: The required type.
        what: The resource that needs it, for errors.
        *arguments: Arguments for it.
        **named: Arguments for it by name.

    Raises:
        ResourceUnavailableError: The result has another type, or the call failed.
    """
    expected = f"{clazz}, a {kind.__module__.split('.')[0]} {kind.__name__}, or a function that returns one"
    try:
        there = _import_class(clazz)
        instance = there if isinstance(there, kind) else there(*arguments, **named)
    except Exception as error:  # foreign code can raise anything
        raise ResourceUnavailableError(
            f"{what} cannot be created",
            expected=expected,
            found=f"{type(error).__name__}: {error}"[:500],
            fix="correct the class and its arguments",
        ) from error
    if not isinstance(instance, kind):
        raise ResourceUnavailableError(
            f"{what} has a class or function of the wrong type",
            expected=expected,
            found=type(instance).__qualname__,
        )
    return instance


def import_object(name: str, what: str) -> Any:
    """Return the object with a name.

    Args:
        name: Its name, ``module:qualname``.
        what: The kind of object, for errors.

    Raises:
        ResourceUnavailableError: It does not exist, or cannot be imported.
    """
    try:
        return _import_class(name)
    except Exception as error:  # a module can raise anything when it is imported
        raise ResourceUnavailableError(
            f"{what} cannot be imported",
            expected=f"{name}, 'module:qualname', on the workers",
            found=f"{type(error).__name__}: {error}"[:500],
            fix="correct its name, or install its module on the workers",
        ) from error


def _import_class(name: str) -> Any:
    if isinstance(name, NamedCode) and name.target is not None:
        return name.target
    module, _, qualname = name.partition(":")
    there: Any = sys.modules.get(module)
    if there is None or not _waits_for_agents(there):
        # Another thread may have imported only a part of it so far; this waits for the rest.
        there = importlib.import_module(module)
    for part in qualname.split("."):
        there = getattr(there, part)
    return there


def _waits_for_agents(module: Any) -> bool:
    """Return True if the module still runs and waits for its agents: an import would wait forever."""
    if not getattr(module.__spec__, "_initializing", False):
        return False
    with no_collection():
        for innermost in sys._current_frames().values():
            frame = innermost
            of_agents = False
            while frame is not None:
                of_agents = of_agents or str(frame.f_globals.get("__name__")).startswith(_RUNS_AGENTS)
                if frame.f_globals is vars(module) and frame.f_code.co_name == "<module>":
                    return of_agents
                frame = frame.f_back
    return False


_SECRETS = ("api_key", "auth", "args")
"""Fields that are a reference, or a list with references."""

_WITH_SECRETS = ("env", "environment", "headers", "options", "arguments")
"""Fields that hold references under arbitrary names."""


def check_ready(what: str, clazz: str, description: Mapping[str, Any]) -> None:
    """Check that the class of a description and its secrets are available.

    Args:
        what: The resource, for errors: ``the chat model 'analyst'``.
        clazz: Its class, as ``module:qualname``; empty if it has none.
        description: The description as JSON, overridden by the options of the job.

    Raises:
        ResourceUnavailableError: Its class cannot be imported, or a secret is missing.
    """
    if clazz:
        import_object(clazz, f"the class of {what}")
    secrets = Secrets(what)
    secrets.resolve_values({name: description[name] for name in _SECRETS if name in description})
    for name in _WITH_SECRETS:
        if isinstance(values := description.get(name), Mapping):
            secrets.resolve_values(values)
