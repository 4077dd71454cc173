"""``ResourceProvider``: creates the resources of one kind, in this package or in another distribution.

A distribution registers a provider as an entry point of the group ``flink_agents.resource_providers``, whose
name is the kind: then ``@resource("kind")``, ``add_resource(name, "kind", ...)`` and YAML accept it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from flink_agents.api.common.option_values import ConfigOption
from flink_agents.api.common.providers import Providers
from flink_agents.api.errors import ResourceUnavailableError
from flink_agents.api.resources import RESOURCE_PROVIDERS, Prompt, ResourceType
from flink_agents.api.settings import ToolLimits
from flink_agents.api.settings.options import Configuration


class NamedCode(str):
    """The name of a class or function, with the object itself if the job contains it.

    Attributes:
        target: The object; None if it has to be imported.
    """

    target: Any

    def __new__(cls, name: str, target: Any = None) -> NamedCode:
        """Create the string ``name`` with its object."""
        instance = super().__new__(cls, name)
        instance.target = target
        return instance


@dataclass(frozen=True)
class DeclaredResource:
    """A resource as its author declared it.

    Attributes:
        name: Its name in the agent.
        get: Returns another resource of the agent by name and kind.
        clazz: The class of its descriptor, as ``module:qualname``; empty if it has none.
        arguments: The arguments of its descriptor; JSON values.
        function: The function of a tool or client, bound to the agent; None for other kinds.
        description: Description of a tool for models; None for other kinds.
        prompt: The declared prompt, if the resource is one; None for other kinds.
        limits: Limits of concurrency and rate of a tool.
    """

    name: str
    get: Callable[[str, ResourceType | str], Any]
    clazz: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    function: Callable[..., Any] | None = None
    description: str | None = None
    prompt: Prompt | None = None
    limits: ToolLimits = ToolLimits()


@dataclass(frozen=True)
class CheckedOptions:
    """The options of the job for a resource, which are valid.

    Attributes:
        option: The option of type ``dict`` that has entries for resources of this kind.
        entries: Keys of its entries for this resource.
        fields: Names of the fields of the description that its entries can set.
    """

    option: ConfigOption[dict[str, Any]]
    entries: Collection[str]
    fields: Collection[str]


class ResourceProvider(ABC):
    """Creates the resources of one kind.

    It has a constructor without arguments, which is called in each process.

    If a resource has a method ``aclose`` without arguments, the agent loop calls it at the end of the
    attempt, and awaits the result.
    """

    # Not abstract: most arguments are valid if `provide` can use them.
    def check(self, name: str, arguments: Mapping[str, Any]) -> None:  # noqa: B027
        """Check the arguments of a descriptor when the agent is compiled.

        Args:
            name: Name of the resource.
            arguments: The arguments of its descriptor; JSON values.

        Raises:
            ValueError: They are invalid; the message becomes part of an error with the author's place.
        """

    def check_declared(self, name: str, clazz: str, arguments: Mapping[str, Any]) -> None:
        """Check the arguments of a descriptor, if their meaning depends on its class.

        Args:
            name: Name of the resource.
            clazz: The class of its descriptor, ``module:qualname``; empty if it has none.
            arguments: The arguments of its descriptor; JSON values.

        Raises:
            ValueError: They are invalid; the message becomes part of an error with the author's place.
        """
        self.check(name, arguments)

    def check_options(self, declared: DeclaredResource, config: Configuration) -> CheckedOptions | None:
        """Check the options of the job for a resource, before the job starts.

        Args:
            declared: The resource as its author declared it.
            config: The options of the job.

        Returns:
            The options of this resource; None if resources of this kind have none.

        Raises:
            OptionError: An option is unknown, or its value is invalid.
        """
        return None

    # Not abstract: most providers import their libraries when they are imported themselves.
    def load(self) -> None:  # noqa: B027
        """Import slow modules. It is called when a subtask starts, before its first input."""

    # Not abstract: most resources serve any number of hosts.
    def check_cluster(  # noqa: B027
        self, name: str, arguments: Mapping[str, Any], config: Configuration
    ) -> None:
        """Check the arguments again when the agent is applied in a job for a real cluster.

        Args:
            name: Name of the resource.
            arguments: The arguments of its descriptor.
            config: The options of the job.

        Raises:
            AgentsError: The resource cannot serve the hosts of a cluster.
        """

    # Not abstract: a resource may have no requirements on a worker.
    def check_worker(self, declared: DeclaredResource, config: Configuration) -> None:  # noqa: B027
        """Check that a worker meets the requirements of the resource. It is called before the first input.

        Args:
            declared: The resource as its author declared it.
            config: The options of the job.

        Raises:
            AgentsError: A requirement is missing. The job fails, independently of ``on_error``.
        """

    @abstractmethod
    def provide(self, declared: DeclaredResource) -> Any:
        """Create the object that ``ctx.get_resource`` returns, once for each subtask, at the first use."""


PROVIDERS = Providers(RESOURCE_PROVIDERS, "resource", ResourceUnavailableError)
"""Each provider is a subclass of :class:`ResourceProvider`."""


def provider_of(kind: ResourceType) -> ResourceProvider | None:
    """Return a new provider of a kind; None if no distribution provides it.

    Raises:
        ResourceUnavailableError: There are several, or the provider cannot be imported, or is invalid.
    """
    # Entry points are searched in files, so this is avoided for known kinds.
    if kind.value not in PROVIDERS.built_in and kind.value not in PROVIDERS.names():
        return None
    return PROVIDERS.create_object(kind.value, ResourceProvider)
