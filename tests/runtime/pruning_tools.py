"""A pruner with a model of Flink."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from checkpoint_tools import Flink

from flink_agents.api.action_state import JournalKey
from flink_agents.api.durable import Prune
from flink_agents.connectors.action_state.memory.store import MemoryPlace
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.retention.checkpoints import CheckpointPoller, CheckpointView, RestError
from flink_agents.runtime.retention.pruning import FAILURES, Pruner

JOB = "0123456789abcdef0123456789abcdef"
KEY = JournalKey("job/agent", "skey")
OTHER = JournalKey("job/agent", "sother")
NO_POLLER = CheckpointPoller((), JOB)
"""Is never started: the tests say what is answered."""


class Pruned:
    """A pruner beside a model of Flink; ``through`` is what the store was told to prune."""

    def __init__(
        self,
        flink: Flink | None = None,
        policy: Prune = Prune.CHECKPOINTS,
        retention: float = 0,
        poller: CheckpointPoller | None = NO_POLLER,
        one_retained: bool = True,
    ) -> None:
        self.flink = flink or Flink()
        self.now = 0.0
        self.through: dict[JournalKey, int] = {}
        self.delays: list[float] = []
        self.metrics = RunMetrics(())
        self.pruner = Pruner(policy, retention, self.metrics, poller, one_retained, lambda: self.now)
        self.pruner.schedule = self.take

    def take(self, journals: Mapping[JournalKey, tuple[int, int]], delay: float) -> None:
        for journal, (through, _) in journals.items():
            self.through[journal] = max(self.through.get(journal, -1), through)
            self.delays.append(delay)

    def commit(self, through: int, journal: JournalKey = KEY) -> None:
        self.pruner.committed(journal, through, 1)

    def poll(self, connection: int = 1, **how: bool) -> None:
        self.pruner.asking()
        self.pruner.answered(CheckpointView.from_answer(self.flink.answer(**how), connection))

    def checkpoint(self) -> None:
        """One is triggered, seen, and completes."""
        entry = self.flink.trigger()
        self.poll()
        self.flink.complete(entry)
        self.poll()

    def fail(self, times: int = FAILURES) -> None:
        for _ in range(times):
            self.pruner.asking()
            self.pruner.failed(RestError("refused"))

    def gauge(self, name: str) -> int | float:
        return dict(self.metrics.group.values())[name]


def stored(place: MemoryPlace) -> dict[str, tuple[list[int], int]]:
    """Of each key the runs that have records, and what was pruned."""
    return {
        name.key: (sorted(journal.runs), journal.pruned_through)
        for name, journal in place.journals.items()
        if not name.journal_id.startswith("\x00")
    }


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: It does not in time.
    """

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(wait(), seconds))
