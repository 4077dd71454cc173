"""Makes models of pydantic-ai from descriptions: provider, address, key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class

from flink_agents.api.errors import ResourceUnavailableError
from flink_agents.api.models.chat import ChatModelSpec, Endpoint
from flink_agents.models.setup.bodies import bound_bodies
from flink_agents.models.setup.classes import create_instance
from flink_agents.models.setup.extras import check_installed, extra_of, missing_extra_error
from flink_agents.models.setup.secrets import Secrets, know_models


def make_model(
    name: str,
    spec: ChatModelSpec,
    connection: Endpoint | Provider[Any] | None,
    clazz: str,
    arguments: Mapping[str, Any],
    secrets: Secrets,
) -> Model:
    """Create a chat model from its description.

    Args:
        name: Name of the chat model, for errors.
        spec: The description of the chat model.
        connection: The connection that it names, or a provider that a class created; None without one.
        clazz: The class or function that creates the model, as ``module:qualname``; empty if its provider
            does.
        arguments: Arguments of that class or function, by name; values may be references to secrets.
        secrets: Resolves references to secrets, and hides the secrets in errors.

    Raises:
        MissingExtraError: A package is missing.
        ResourceUnavailableError: The model does not exist, or one of its requirements is missing.
    """
    what = f"the chat model {name!r}"
    if clazz:
        model = create_instance(clazz, Model, what, **secrets.resolve_values(arguments))
    elif spec.model is None:
        raise ResourceUnavailableError(
            f"{what} has no model", expected="'provider:name'", fix="name the model"
        )
    else:
        model = _make_provider_model(what, spec.model, spec, connection, secrets)
        # Without it, a stream of Chat Completions that breaks off looks like a complete answer.
        cast("dict[str, Any]", model.profile)["openai_chat_streaming_requires_finish_reason"] = True
    client = client_of(model)
    know_models([model])
    if hasattr(client, "max_retries"):
        # A repeated request is an attempt of the recorded call, which honours retry-after and is counted.
        client.max_retries = 0
    bound_bodies(client, spec.response_limit)
    return model


def make_provider(name: str, clazz: str, arguments: Mapping[str, Any]) -> Provider[Any]:
    """Create the Pydantic AI provider of a connection that names a class.

    Args:
        name: Name of the connection, for errors.
        clazz: The class, or a function that returns a provider, as ``module:qualname``.
        arguments: Its arguments by name; values may be references to secrets.

    Raises:
        ResourceUnavailableError: It cannot be imported or called, or does not return a provider.
    """
    what = f"the connection {name!r}"
    return create_instance(clazz, Provider, what, **Secrets(what).resolve_values(arguments))


def _make_provider_model(
    what: str, model: str, spec: Endpoint, connection: Endpoint | Provider[Any] | None, secrets: Secrets
) -> Model:
    """Create the model ``provider:name`` with the endpoint of its connection and of its description."""
    provider = model.partition(":")[0]
    check_installed(provider, f"{what}, {model!r},")
    if isinstance(connection, Provider):
        return infer_model(model, lambda _: connection)
    arguments = secrets.arguments(connection, spec)

    def create_provider(name: str) -> Provider[Any]:
        return infer_provider_class(name)(**arguments) if arguments else infer_provider(name)

    try:
        return infer_model(model, create_provider)
    except ImportError as error:
        raise missing_extra_error(extra_of(provider), what, secrets.hide(error)) from error
    except (UserError, ValueError, TypeError) as error:
        raise ResourceUnavailableError(
            f"{what}, {model!r}, cannot be created",
            expected="a provider of pydantic-ai, with arguments that it accepts",
            found=f"{type(error).__name__}: {secrets.hide(error)}",
            fix="correct the name, or set api_key={'env': VARIABLE} if the key is missing",
        ) from None


def client_of(model: Model) -> Any:
    """Return the client of the provider's library that a model sends requests with; None if it has none."""
    provider = getattr(model, "_provider", None)
    return getattr(provider, "client", None)
