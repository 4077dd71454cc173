"""Checks the options of a job for named resources: names, fields and values, before the job starts.

A misspelt name would have no effect, and a request would go to the service that the code names. A wrong field
or value would be found at the first request only, perhaps for each input again.
"""

from __future__ import annotations

from collections.abc import Iterable

from flink_agents.api.agents.agent import Agent
from flink_agents.api.errors import OptionError
from flink_agents.api.errors.base import suggest
from flink_agents.api.resources.providers import provider_of
from flink_agents.api.settings.options import Configuration, environment_name
from flink_agents.plan.binding.called_agents import called_agents
from flink_agents.plan.binding.loaded import LoadedAgent
from flink_agents.plan.compile.literal_secrets import RESOURCE_OPTIONS


class ResourceOptions:
    """The options of a job for named resources, while its agents are applied.

    Args:
        config: The options of the job.
    """

    def __init__(self, config: Configuration) -> None:
        self._config = config
        self._entries = {option.key: set(config.below(option.key)) for option in RESOURCE_OPTIONS.values()}
        self._known: dict[str, set[str]] = {key: set() for key in self._entries}
        self._has_unknown_agents = False

    def add(self, agent: LoadedAgent, instance: Agent) -> None:
        """Check the options for the resources of an agent and its sub-agents.

        Raises:
            OptionError: A field is unknown, or a value is invalid.
        """
        if not any(self._entries.values()):
            return
        self._add(agent)
        for _, plan, code in called_agents(instance):
            if plan is None or code is None:
                self._has_unknown_agents = True
            else:
                self._add(LoadedAgent(plan, code))

    def _add(self, agent: LoadedAgent) -> None:
        for resource in agent.plan.resources:
            option = RESOURCE_OPTIONS.get(resource.type)
            provider = provider_of(resource.type) if option is not None else None
            if option is None or provider is None or not self._config.below(option.key):
                continue
            checked = provider.check_options(agent.declared(resource), self._config)
            if checked is not None:
                self._entries[option.key] -= set(checked.entries)
                self._known[option.key].update(f"{resource.name}.{field}" for field in checked.fields)

    def check(self, all_agents: bool = True) -> None:
        """Check that each option is for a resource of an agent.

        Args:
            all_agents: True if all agents of the job were added. Otherwise, options are not checked if these
                agents have no resource of their kind: they may be for another agent.

        Raises:
            OptionError: There is no resource of that name.
        """
        # The agents that code passes arguments to are known only when it calls them.
        if self._has_unknown_agents:
            return
        for key, entries in self._entries.items():
            for entry in sorted(entries) if all_agents or self._known[key] else ():
                raise self._unknown(key, entry)

    def _unknown(self, key: str, entry: str) -> OptionError:
        option_names = self._known[key]
        names = sorted({name.rpartition(".")[0] for name in option_names})
        if "." in entry:
            text = f"{key}.{entry}"
            candidates = [f"{key}.{name}" for name in option_names]
        else:
            # An entry of the environment: it has neither dots nor hyphens.
            text = environment_name(f"{key}.{entry}")
            candidates = [environment_name(f"{key}.{name}") for name in option_names]
        return OptionError(
            f"the option {text} is for no resource of the job",
            expected=_listed(names),
            found=entry.partition(".")[0] if "." in entry else text,
            fix=suggest(text, candidates, "correct the name of the resource, or remove the option"),
        )


def _listed(names: Iterable[str]) -> str:
    return "the name of a resource of this kind: " + (", ".join(names) or "the agents have none")
