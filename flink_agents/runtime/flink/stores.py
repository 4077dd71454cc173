"""Chooses the store in which a job records durable steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flink_agents.api.action_state import ActionStateStore
from flink_agents.api.errors import StoreNotConfiguredError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.api.settings.stores import check_store, open_store
from flink_agents.plan import LoadedAgent
from flink_agents.plan.binding.needs import makes_durable_steps, may_make_durable_steps

LOCAL_FILE = Path(".flink-agents") / "action-state.sqlite"
"""The journal of a local job in its working directory, if no option names a store."""


@dataclass(frozen=True)
class StoreChoice:
    """A store that is not open.

    Attributes:
        name: Its name.
        options: Its options.
        by_default: True if no option names the file of a local job.
    """

    name: str
    options: dict[str, Any]
    by_default: bool = False

    @classmethod
    def for_agent(cls, config: Configuration, agent: LoadedAgent, local: bool) -> StoreChoice | None:
        """Return the store of an agent; None if it needs none.

        Args:
            config: Options of the job.
            agent: The agent.
            local: True if the job runs in a cluster of this process alone.

        Raises:
            StoreNotConfiguredError: It needs one, and the options name none for a real cluster.
            UnknownStoreError: The options name one that is not installed here.
            OptionError: An option of the store is missing or invalid.
        """
        name = config.get(AgentOptions.STORE)
        if name is None:
            if not (may_make_durable_steps if local else makes_durable_steps)(agent):
                return None
            if not local:
                raise _not_configured(agent)
            name = "sqlite"
        options = config.below(f"action-state.{name}")
        by_default = name == "sqlite" and local and "path" not in options
        if by_default:
            options["path"] = str(LOCAL_FILE.absolute())
        check_store(name, options)
        return cls(name, options, by_default)

    def with_path(self, path: str) -> StoreChoice:
        """Return the store in the file ``path``, unless options name its file."""
        return replace(self, options=self.options | {"path": path}) if self.by_default else self

    @property
    def file(self) -> Path | None:
        """The file of the store; None if it has none."""
        return Path(self.options["path"]).expanduser().absolute() if self.name == "sqlite" else None

    def create_store(self) -> ActionStateStore:
        """Return the store for an attempt of a subtask."""
        return open_store(self.name, self.options)


def _not_configured(agent: LoadedAgent) -> StoreNotConfiguredError:
    return StoreNotConfiguredError(
        f"agent {agent.plan.name!r} makes durable steps, but no store is configured for their records",
        expected="the option action-state.store, for a job that runs on a cluster",
        found="no store",
        fix="set action-state.store: 'sqlite' with action-state.sqlite.path if all TaskManagers run on one "
        "host, otherwise a store that all of them can reach",
    )
