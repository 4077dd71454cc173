"""The facts that a resuming local job announces to its tasks: its identity, and the paths of its files."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.flink.stores import StoreChoice

KEY = "internal.flink-agents.job-run"
"""Not an option of agents, whose names are checked."""

PARKED_SECONDS = 60.0
"""Maximum time that a second attempt waits for the end of the job."""

_LOOK_SECONDS = 0.05
_FOLLOW_SECONDS = 0.2


@dataclass(frozen=True)
class AnnouncedRun:
    """A job run, in the form for the tasks of a start.

    Attributes:
        identifier: The job identifier, if no option gives one.
        identity: Source of ids and idempotency keys: the identifier and the number of the job run.
        journal: The file of the store ``sqlite``, if no option gives one.
        checkpoints: Directory of this start's checkpoints.
        driver: The process that runs the script.
    """

    identifier: str
    identity: str
    journal: str
    checkpoints: str
    driver: int = 0

    def to_json(self) -> str:
        """Return the JSON for Flink's configuration of the job."""
        return json.dumps(asdict(self))

    @classmethod
    def from_flink(cls, flink: Mapping[str, str]) -> AnnouncedRun | None:
        """Return the announcement in a task's Flink configuration; None if the job does not resume."""
        text = flink.get(KEY)
        return None if not text else cls(**json.loads(text))

    def config(self, config: Configuration) -> Configuration:
        """Return the options of the job, with its identifier."""
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
        twice.
        """
        until = time.monotonic() + PARKED_SECONDS
        while attempt > 0 and not self.has_checkpoint() and time.monotonic() < until:
            check_cancelled()
            time.sleep(_LOOK_SECONDS)


_followed: set[int] = set()


def _die_with_driver(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(_FOLLOW_SECONDS)
    # Records are on the disk; other work of this process would belong to a job that has ended.
    os.kill(os.getpid(), signal.SIGKILL)
