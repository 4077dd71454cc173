"""Checks, before the first input of a worker, that classes and secrets of resources are available.

It imports the code that a description names, and reads each secret. It creates no resource and calls no
service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flink_agents.models.setup.classes import found
from flink_agents.models.setup.secrets import Secrets

_SECRETS = ("api_key", "auth", "args")
"""Fields that are a reference, or a list with references."""

_WITH_SECRETS = ("env", "environment", "headers", "options", "arguments")
"""Fields that hold references under arbitrary names."""


def check_ready(what: str, clazz: str, said: Mapping[str, Any]) -> None:
    """Check that the class of a description and its secrets are available.

    Args:
        what: The resource, for errors: ``the chat model 'analyst'``.
        clazz: Its class, as ``module:qualname``; empty if it has none.
        said: The description as JSON, overridden by the options of the job.

    Raises:
        ResourceUnavailableError: Its class cannot be imported, or a secret is missing.
    """
    if clazz:
        found(clazz, f"the class of {what}")
    secrets = Secrets(what)
    secrets.resolved({name: said[name] for name in _SECRETS if name in said})
    for name in _WITH_SECRETS:
        if isinstance(values := said.get(name), Mapping):
            secrets.resolved(values)
