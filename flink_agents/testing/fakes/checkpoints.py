"""Flink's REST interface for checkpoints, with those that a test has taken, completed and aborted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import count

from flink_agents.api.durable import Prune
from flink_agents.api.errors import AgentConfigurationError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.retention.checkpoints import CheckpointPoller, CheckpointView, Listener
from flink_agents.runtime.retention.pruning import CHANGES, Pruner

PRUNE_SECONDS = 60.0
"""Time that the harness waits until records are pruned."""


class FakeFlink(CheckpointPoller):
    """Reports a test's checkpoints to pruners, as Flink's REST interface does.

    Of completed checkpoints, the latest is retained.
    """

    def __init__(self) -> None:
        super().__init__((), "")
        self._told: list[Pruner] = []
        self._numbers = count(1)
        self._answers = count(1)
        self._triggered = self._discarded = 0
        self._aborted: set[int] = set()

    def create_pruner(
        self, config: Configuration, clock: Callable[[], int], metrics: RunMetrics
    ) -> Pruner | None:
        """Return the pruner of a subtask, on the clock of the harness; None if the options prune nothing."""
        policy = Prune(config.get(AgentOptions.PRUNE))
        retention = config.get(AgentOptions.RETENTION)
        if policy is Prune.NEVER:
            return None
        retention_period: timedelta = retention
        return Pruner(policy, retention_period.total_seconds(), metrics, self, True, lambda: clock() / 1000)

    def listen(self, listener: Listener) -> None:
        """Report checkpoints to ``listener`` from now on. A job has a thread that polls Flink for that."""
        assert isinstance(listener, Pruner)
        self._told.append(listener)

    def forget(self, listener: Listener) -> None:
        """Stop reporting checkpoints to ``listener``."""
        self._told = [other_listener for other_listener in self._told if other_listener is not listener]

    def trigger_checkpoint(self) -> int:
        """Take a checkpoint of everything committed so far, and return its number."""
        number = next(self._numbers)
        for _ in range(CHANGES + 1):
            # Its id is the smallest one to which earlier commits can be bound.
            self._triggered = number
            self._notify_listeners()
        return number

    def complete_checkpoint(self, number: int) -> None:
        """Complete a checkpoint, and wait until the records that only earlier ones need are pruned.

        Raises:
            AgentConfigurationError: It was aborted.
        """
        self.check_checkpoint(number)
        self._discarded = max(self._discarded, number)
        self._notify_listeners()
        for pruner in list(self._told):
            pruner.wait_until_pruned(PRUNE_SECONDS)

    def abort_checkpoint(self, number: int) -> None:
        """Abort a checkpoint: pruners learn that it will not complete."""
        self._aborted.add(number)

    def check_checkpoint(self, number: int) -> None:
        """Check that a checkpoint can be restored.

        Raises:
            AgentConfigurationError: It was aborted.
        """
        if number in self._aborted:
            raise AgentConfigurationError(
                "the checkpoint was aborted",
                expected="a snapshot that may complete, or has completed",
                found=f"the aborted checkpoint {number}",
                fix="take another snapshot",
            )

    def _notify_listeners(self) -> None:
        view = CheckpointView(
            1, next(self._answers), highest=self._triggered, discarded=self._discarded, progress=()
        )
        for pruner in list(self._told):
            pruner.asking()
            pruner.answered(view)
