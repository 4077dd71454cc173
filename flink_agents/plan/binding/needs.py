"""Finds what an agent needs in a job: a store, answers to approvals, and the resources that options name.

The needs of sub-agents count, too. An agent is a sub-agent if code of an action or a tool names it in
``ctx.call_agent`` or a similar method: a class, a global, an attribute of the agent, a variable of an
enclosing function, or an item of a collection of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.decorators import ACTION_MARK, RESOURCE_MARK
from flink_agents.api.durable import is_known_to_call_durably
from flink_agents.api.errors import OptionError
from flink_agents.api.errors.base import suggest
from flink_agents.api.resources.providers import provider_of
from flink_agents.api.settings.options import Configuration, environment_name
from flink_agents.plan.analysis.functions import plain_function
from flink_agents.plan.analysis.reading import read
from flink_agents.plan.binding.loaded import LoadedAgent
from flink_agents.plan.compile.compiler import compile_with_code
from flink_agents.plan.compile.configuration import is_agent
from flink_agents.plan.compile.literal_secrets import RESOURCE_OPTIONS


def makes_durable_steps(agent: LoadedAgent) -> bool:
    """Return True if the plan of an agent, or of a sub-agent, shows durable steps."""
    return agent.plan.makes_steps or any(
        _has_known_steps(called) if sub_agent is None else sub_agent.plan.makes_steps
        for called, sub_agent in called_agents(agent)
    )


def may_make_durable_steps(agent: LoadedAgent) -> bool:
    """Return False if the code of an agent certainly makes no durable steps, and calls no other agent."""
    return agent.plan.may_make_steps or any(True for _ in _called_by(agent))


def needs_approvals(agent: LoadedAgent) -> bool:
    """Return True if an agent or a sub-agent needs approvals, as far as plans and declarations show.

    The requests of a sub-agent belong to the calling agent, whose streams emit and answer them.
    """
    return agent.plan.needs_approvals or any(
        _is_marked(called) if sub_agent is None else sub_agent.plan.needs_approvals
        for called, sub_agent in called_agents(agent)
    )


def called_agents(agent: LoadedAgent) -> Iterator[tuple[Agent | type[Agent], LoadedAgent | None]]:
    """Yield the sub-agents of an agent, at any depth.

    Each comes with its loaded form; None if it cannot be loaded, for example without arguments.
    """
    unvisited = [agent]
    # Visited objects are kept alive, so that no other object gets the same id().
    seen: dict[int, Any] = {}
    while unvisited:
        for called in _called_by(unvisited.pop()):
            if id(called) in seen:
                continue
            seen[id(called)] = called
            try:
                sub_agent = LoadedAgent(*compile_with_code(called))
            except Exception:  # Whatever the user's code raises.
                # The calling action gets the error, unless it passes the arguments that the class needs.
                yield called, None
                continue
            yield called, sub_agent
            unvisited.append(sub_agent)


def _called_by(agent: LoadedAgent) -> Iterator[Agent | type[Agent]]:
    """Yield the sub-agents that the code of an agent names."""
    functions: list[tuple[Any, Any]] = [(function, None) for function in agent.functions]
    for plan, action in zip(agent.plan.actions, agent.actions, strict=True):
        functions.append((action.function, agent.instance if plan.kind == "instance" else None))
    for function, holder in functions:
        yield from filter(is_agent, read(function, holder, agent.context_class).shown.agents)


def _members(agent: Agent | type[Agent]) -> Iterator[Any]:
    """Yield the members of an agent's class and its bases."""
    kind = agent if isinstance(agent, type) else type(agent)
    yield from (member for base in kind.__mro__ for member in vars(base).values())


def _has_known_steps(agent: Agent | type[Agent]) -> bool:
    """Return True if a library declares that methods of a class make durable steps."""
    return any(map(is_known_to_call_durably, _members(agent)))


def _is_marked(agent: Agent | type[Agent]) -> bool:
    """Return True if an action or a tool of a class is declared with an approval."""
    functions = filter(None, map(plain_function, _members(agent)))
    marks = [getattr(function, name, None) for function in functions for name in (ACTION_MARK, RESOURCE_MARK)]
    return any(mark.settings.needs_approval for mark in marks if mark is not None)


class ResourceOptions:
    """Checks the options of a job for named resources: names, fields and values, before the job starts.

    A misspelt name would have no effect, and a request would go to the service that the code names. A wrong
    field or value would be found at the first request only, perhaps for each input again.

    Args:
        config: The options of the job.
    """

    def __init__(self, config: Configuration) -> None:
        self._config = config
        self._entries = {option.key: set(config.below(option.key)) for option in RESOURCE_OPTIONS.values()}
        self._fields_by_key: dict[str, set[str]] = {key: set() for key in self._entries}
        self._has_unknown_agents = False

    def add(self, agent: LoadedAgent) -> None:
        """Check the options for the resources of an agent and its sub-agents.

        Raises:
            OptionError: A field is unknown, or a value is invalid.
        """
        if not any(self._entries.values()):
            return
        self._add(agent)
        for _, sub_agent in called_agents(agent):
            if sub_agent is None:
                self._has_unknown_agents = True
            else:
                self._add(sub_agent)

    def _add(self, agent: LoadedAgent) -> None:
        """Note which options are for resources of an agent."""
        for resource in agent.plan.resources:
            option = RESOURCE_OPTIONS.get(resource.type)
            provider = provider_of(resource.type) if option is not None else None
            if option is None or provider is None or not self._config.below(option.key):
                continue
            checked = provider.check_options(agent.declared(resource), self._config)
            if checked is not None:
                self._entries[option.key] -= set(checked.entries)
                self._fields_by_key[option.key].update(f"{resource.name}.{field}" for field in checked.fields)

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
            for entry in sorted(entries) if all_agents or self._fields_by_key[key] else ():
                raise self._unknown(key, entry)

    def _unknown(self, key: str, entry: str) -> OptionError:
        """Return the error of an option that is for no resource.

        Args:
            key: The key of the option, such as ``chat-models``.
            entry: The rest of its name: resource and field.
        """
        option_names = self._fields_by_key[key]
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
    """Return the expected names of resources, as text for the error."""
    return "the name of a resource of this kind: " + (", ".join(names) or "the agents have none")
