"""Provides chat models and their connections. It imports a model library only when a model is requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from typing_extensions import override

from flink_agents.api.models.chat import ChatModelSpec, Endpoint
from flink_agents.api.models.descriptions import problem, two_makers
from flink_agents.api.resources.providers import CheckedOptions, DeclaredResource, ResourceProvider
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.models.setup.classes import check_ready
from flink_agents.models.setup.descriptions import checked_options
from flink_agents.models.setup.extras import check_installed

if TYPE_CHECKING:
    from flink_agents.models.chat.resource import ChatModelResource


class ChatModelProvider(ResourceProvider):
    """Creates chat models from their descriptions."""

    @override
    def check_declared(self, name: str, clazz: str, arguments: Mapping[str, Any]) -> None:
        spec, _ = _split_arguments(arguments, clazz)
        conflict = two_makers(arguments, clazz)
        if conflict is not None:
            raise ValueError(f"it has {conflict}, but only one of them can answer")
        if clazz:
            return
        if spec.router is None and spec.model is None:
            raise ValueError("it has neither a model, as 'provider:name', nor a router")
        if spec.model is not None:
            check_installed(spec.model.partition(":")[0], f"the chat model {name!r}, {spec.model!r},")

    @override
    def check_options(self, declared: DeclaredResource, config: Configuration) -> CheckedOptions:
        from flink_agents.models.chat.options import NESTED, override_spec

        override_spec(declared.name, _split_arguments(declared.arguments, declared.clazz)[0], config)
        fields = ChatModelSpec.model_fields
        return checked_options(AgentOptions.CHAT_MODELS, declared.name, fields, config, NESTED)

    @override
    def load(self) -> None:
        check_installed("", "a chat model")
        import flink_agents.models.chat.resource  # noqa: F401

    @override
    def check_worker(self, declared: DeclaredResource, config: Configuration) -> None:
        self.provide(declared).check_worker(config)

    @override
    def provide(self, declared: DeclaredResource) -> ChatModelResource:
        check_installed("", f"the chat model {declared.name!r}")
        from flink_agents.models.chat.resource import ChatModelResource

        spec, arguments = _split_arguments(declared.arguments, declared.clazz)
        return ChatModelResource(declared, spec, arguments)


class ConnectionProvider(ResourceProvider):
    """Provides connections: endpoints as declared, or the Pydantic AI provider that a class creates."""

    @override
    def check_declared(self, name: str, clazz: str, arguments: Mapping[str, Any]) -> None:
        if not clazz:
            _validate_arguments(Endpoint, arguments)

    @override
    def check_worker(self, declared: DeclaredResource, config: Configuration) -> None:
        check_ready(f"the connection {declared.name!r}", declared.clazz, declared.arguments)

    @override
    def provide(self, declared: DeclaredResource) -> Any:
        if not declared.clazz:
            return _validate_arguments(Endpoint, declared.arguments)
        check_installed("", f"the connection {declared.name!r}")
        from flink_agents.models.chat.endpoint import make_provider

        return make_provider(declared.name, declared.clazz, declared.arguments)


def _split_arguments(arguments: Mapping[str, Any], clazz: str) -> tuple[ChatModelSpec, dict[str, Any]]:
    """Split a descriptor's arguments into the description of a chat model and arguments of its class.

    Without a class, all arguments belong to the description; ValueError if it is invalid.
    """
    spec_names = ChatModelSpec.model_fields
    class_arguments = {name: value for name, value in arguments.items() if clazz and name not in spec_names}
    spec_arguments = {name: value for name, value in arguments.items() if name not in class_arguments}
    return _validate_arguments(ChatModelSpec, spec_arguments), class_arguments


def _validate_arguments(kind: Any, arguments: Mapping[str, Any]) -> Any:
    """Return arguments as a description of class ``kind``; ValueError if they are invalid."""
    try:
        return kind.model_validate(dict(arguments))
    except ValidationError as error:
        raise ValueError(problem(error)) from None
