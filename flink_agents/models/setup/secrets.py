"""Resolves references to secrets, and keeps the values out of texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flink_agents import redaction
from flink_agents.api.errors import ResourceUnavailableError
from flink_agents.api.models.chat import Endpoint, Public, Secret

_CREDENTIALS = ("api_key", "auth_token", "_api_key", "_token", "token")
"""Attributes in which clients of providers keep their credentials."""


class Secrets:
    """Resolves the secrets of one resource.

    After that, no exception, record or log of the process shows them.

    Args:
        what: The resource in words, for errors: ``the chat model 'analyst'``.
    """

    def __init__(self, what: str) -> None:
        self._resource = what
        redaction.install_log_filter()

    def read_secret(self, secret: Secret, of: str = "") -> str:
        """Return the value that a reference names in this process, and hide it in texts from then on.

        Args:
            secret: The reference to the secret.
            of: The part of the resource that needs it, for the error; empty for the resource itself.

        Raises:
            ResourceUnavailableError: The worker does not have it.
        """
        try:
            value = os.environ[secret.env] if secret.env is not None else _read_file(secret.file)
        except (KeyError, OSError, UnicodeDecodeError):
            value = ""
        if not value:
            source = f"the variable {secret.env}" if secret.env is not None else f"the file {secret.file}"
            raise ResourceUnavailableError(
                f"a secret of {self._resource}{of and ', ' + of + ','} is missing",
                expected=f"{source}, with the secret, in the process of the worker",
                found="no value, or an unreadable one",
                fix="set it in the environment that starts the TaskManagers; for a job on this machine, or "
                "a test, in the process that runs it",
            )
        redaction.add_secrets(value)
        return value

    def text(self, value: str | Secret | Public, of: str = "") -> str:
        """Return the text of a field: the secret that it refers to, or the text itself.

        Args:
            value: The text, or a reference to it.
            of: The part of the resource that has the field, for the error.

        Raises:
            ResourceUnavailableError: The worker does not have the secret.
        """
        if isinstance(value, Secret):
            return self.read_secret(value, of)
        return value.public if isinstance(value, Public) else value

    def headers(self, headers: Mapping[str, str | Secret | Public]) -> dict[str, str]:
        """Return headers, or variables, by name, with secrets in place of references.

        Raises:
            ResourceUnavailableError: The worker does not have a secret.
        """
        return {name: self.text(value, f"header {name!r}") for name, value in headers.items()}

    def resolve_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values for a service, with secrets in place of their references, at any depth.

        Args:
            values: JSON. ``{"env": "NAME"}`` and ``{"file": "PATH"}`` are references, and
                ``{"public": "text"}`` is the text.

        Raises:
            ResourceUnavailableError: The worker does not have a secret.
        """
        return {name: self._resolve_value(value, name) for name, value in values.items()}

    def _resolve_value(self, value: Any, of: str) -> Any:
        """Return a value with secrets in place of references; ``of`` is the field that has it, for errors."""
        if isinstance(value, list | tuple):
            return [self._resolve_value(member, of) for member in value]
        if not isinstance(value, Mapping):
            return value
        kind = {"env": Secret, "file": Secret, "public": Public}.get(next(iter(value), ""))
        if kind is not None and len(value) == 1 and isinstance(next(iter(value.values())), str):
            return self.text(kind(**value), of)
        return {name: self._resolve_value(member, str(name)) for name, member in value.items()}

    def arguments(self, *endpoints: Endpoint | None) -> dict[str, Any]:
        """Return the arguments of a provider's class by name, with secrets in place of references.

        Args:
            *endpoints: Endpoints, of which the later ones take precedence; None is no endpoint.

        Raises:
            ResourceUnavailableError: The worker does not have a secret.
        """
        arguments: dict[str, Any] = {}
        for endpoint in filter(None, endpoints):
            arguments |= self.resolve_values(endpoint.options)
            if endpoint.base_url is not None:
                arguments["base_url"] = endpoint.base_url
            if endpoint.api_key is not None:
                arguments["api_key"] = self.read_secret(endpoint.api_key)
        return arguments

    def shown_in(self, text: object) -> bool:
        """Return True if a text, or the text of an object such as an error, contains a secret."""
        return redaction.shows(str(text))

    def hide(self, text: object, longest: int | None = None) -> str:
        """Return the text of an object with asterisks in place of each secret, cut to ``longest`` characters.

        None does not cut it.
        """
        return redaction.hide(text) if longest is None else redaction.hide_beyond(text, longest)


def know_models(models: Iterable[Any]) -> None:
    """Hide the credentials of models of pydantic-ai in texts from now on, whatever their source.

    Args:
        models: The models; models inside of wrappers and fallbacks are included.
    """
    stack = list(models)
    seen_ids = set[int]()
    while stack:
        model = stack.pop()
        if model is None or id(model) in seen_ids:
            continue
        seen_ids.add(id(model))
        stack.append(getattr(model, "wrapped", None))
        inner_models = getattr(model, "models", None)
        if isinstance(inner_models, list | tuple):
            stack += inner_models
        client = getattr(getattr(model, "_provider", None), "client", None)
        for name in _CREDENTIALS:
            redaction.add_secrets(getattr(client, name, None))
        for name in ("default_headers", "_custom_headers", "headers"):
            redaction.know_headers(getattr(client, name, None))
    redaction.install_log_filter()


def _read_file(file: Any) -> str:
    """Return the text of a file without white space around it."""
    return Path(file).read_text(encoding="utf-8").strip()
