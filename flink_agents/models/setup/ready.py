"""Looks, before the first input of a worker, whether what resources are described with is there.

Code that a description names can be imported, and each secret that it refers to can be read. Nothing is made,
and no service is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flink_agents.models.setup.classes import found
from flink_agents.models.setup.secrets import Secrets

_SECRETS = ("api_key", "auth", "args")
"""Fields that are a reference, or a list with references."""

_WITH_SECRETS = ("env", "environment", "headers", "options", "arguments")
"""Fields that hold references by names of their own."""


def check_ready(what: str, clazz: str, said: Mapping[str, Any]) -> None:
    """Check that the class of a description and its secrets are there.

    Args:
        what: What is described, for errors: ``the chat model 'analyst'``.
        clazz: Its class, as ``module:qualname``; empty if it has none.
        said: The description as JSON, with what the options of the job say in its place.

    Raises:
        ResourceUnavailableError: Its class cannot be imported, or a secret is not there.
    """
    if clazz:
        found(clazz, f"the class of {what}")
    secrets = Secrets(what)
    secrets.resolved({name: said[name] for name in _SECRETS if name in said})
    for name in _WITH_SECRETS:
        if isinstance(values := said.get(name), Mapping):
            secrets.resolved(values)
