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
        clazz: Name of an object, a class or a function, ``module:qualname``.
        kind: The required class of the result.
        what: The resource that needs it, for errors: ``the chat model 'analyst'``.
        *arguments: Arguments of the class or function.
        **named: Its arguments by name.

    Raises:
        ResourceUnavailableError: It cannot be imported, the call failed, or the result has another class.
    """
    expected = f"{clazz}, a {kind.__module__.split('.')[0]} {kind.__name__}, or a function that returns one"
    try:
        target = _import_object(clazz)
        instance = target if isinstance(target, kind) else target(*arguments, **named)
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
    """Import and return the object with a name.

    Args:
        name: Name of the object, ``module:qualname``.
        what: Its role in words, for errors: ``the function of a router``.

    Raises:
        ResourceUnavailableError: It does not exist, or cannot be imported.
    """
    try:
        return _import_object(name)
    except Exception as error:  # a module can raise anything when it is imported
        raise ResourceUnavailableError(
            f"{what} cannot be imported",
            expected=f"{name}, 'module:qualname', on the workers",
            found=f"{type(error).__name__}: {error}"[:500],
            fix="correct its name, or install its module on the workers",
        ) from error


def _import_object(name: str) -> Any:
    """Return the object with a name; it waits for a module that another thread is importing."""
    if isinstance(name, NamedCode) and name.target is not None:
        return name.target
    module_name, _, qualname = name.partition(":")
    target: Any = sys.modules.get(module_name)
    if target is None or not _waits_for_agents(target):
        # Another thread may have imported only a part of it so far; this waits for the rest.
        target = importlib.import_module(module_name)
    for part in qualname.split("."):
        target = getattr(target, part)
    return target


def _waits_for_agents(module: Any) -> bool:
    """Return True if the module still runs and waits for its agents: an import would wait forever."""
    if not getattr(module.__spec__, "_initializing", False):
        return False
    with no_collection():
        for innermost in sys._current_frames().values():
            frame = innermost
            runs_agents = False
            while frame is not None:
                runs_agents = runs_agents or str(frame.f_globals.get("__name__")).startswith(_RUNS_AGENTS)
                if frame.f_globals is vars(module) and frame.f_code.co_name == "<module>":
                    return runs_agents
                frame = frame.f_back
    return False


_SECRETS = ("api_key", "auth", "args")
"""Fields that are a reference, or a list with references."""

_WITH_SECRETS = ("env", "environment", "headers", "options", "arguments")
"""Fields that hold references under arbitrary names."""


def check_ready(what: str, clazz: str, description: Mapping[str, Any]) -> None:
    """Check that the class and the secrets of a resource are available in this process.

    Args:
        what: The resource, for errors: ``the chat model 'analyst'``.
        clazz: Its class, as ``module:qualname``; empty if it has none.
        description: Its description as JSON values by field, overridden by the options of the job.

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
