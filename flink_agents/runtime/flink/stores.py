"""Chooses the store in which a job records durable steps, and announces a resuming local job to its tasks.

The announcement has the job's identity and the paths of its journal and checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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


ANNOUNCEMENT_KEY = "internal.flink-agents.job-run"
"""Not an option of agents, whose names are checked."""

PARKED_SECONDS = 60.0
"""Maximum time that a second attempt waits for the end of the job."""

_LOOK_SECONDS = 0.05
"""The interval at which a second attempt checks if it may start."""

_FOLLOW_SECONDS = 0.2
"""The interval at which a process checks if its driver is running."""


@dataclass(frozen=True)
class AnnouncedRun:
    """A job run, in the form for the tasks of a start.

    Attributes:
        identifier: The job identifier, if no option gives one.
        identity: Source of ids and idempotency keys: the identifier and the number of the job run.
        journal: The file of the store ``sqlite``, if no option gives one.
        checkpoints: Directory of this start's checkpoints.
        driver: The process that runs the script.
        ended_jobs: Flink's ids of earlier starts whose processes have ended.
    """

    identifier: str
    identity: str
    journal: str
    checkpoints: str
    driver: int = 0
    ended_jobs: Sequence[str] = ()

    def to_json(self) -> str:
        """Return the JSON for Flink's configuration of the job."""
        return json.dumps(asdict(self))

    @classmethod
    def from_flink(cls, flink: Mapping[str, str]) -> AnnouncedRun | None:
        """Return the announcement in a task's Flink configuration; None if the job does not resume."""
        text = flink.get(ANNOUNCEMENT_KEY)
        return None if not text else cls(**json.loads(text))

    def config(self, config: Configuration) -> Configuration:
        """Return ``config`` with the identifier of the job, unless an option of it gives one."""
        return config.over(Configuration({AgentOptions.JOB_IDENTIFIER: self.identifier}))

    def store(self, choice: StoreChoice | None) -> StoreChoice | None:
        """Return the store of an agent: the journal of the folder, if the options name no file."""
        return None if choice is None else choice.with_path(self.journal)

    def end_with_driver(self) -> None:
        """End this process as soon as the script that started it ends.

        Otherwise Flink's JVM would keep running for some seconds, or forever if another process keeps its
        input open.
        """
        if os.getppid() == self.driver and self.driver not in _followed:
            _followed.add(self.driver)
            threading.Thread(
                target=_die_with_driver, args=(self.driver,), name="script-follower", daemon=True
            ).start()

    def has_checkpoint(self) -> bool:
        """Return True if a checkpoint of this start is complete."""
        return any(Path(self.checkpoints).glob("chk-*/_metadata"))

    def prevent_restart(self, attempt: int, check_cancelled: Callable[[], None]) -> None:
        """Prevent a second attempt before the first checkpoint of a start: the job ends instead.

        The driver cancels the job as soon as it is notified of the failure. Until then, no effect may happen
        twice, so this waits, for at most :data:`PARKED_SECONDS`.

        Args:
            attempt: Number of the attempt, from 0.
            check_cancelled: Raises if Flink has cancelled the task.
        """
        until = time.monotonic() + PARKED_SECONDS
        while attempt > 0 and not self.has_checkpoint() and time.monotonic() < until:
            check_cancelled()
            time.sleep(_LOOK_SECONDS)


_followed: set[int] = set()
"""Ids of the drivers whose end a thread of this process waits for."""


def _die_with_driver(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(_FOLLOW_SECONDS)
    # Records are on the disk; other work of this process would belong to a job that has ended.
    os.kill(os.getpid(), signal.SIGKILL)
