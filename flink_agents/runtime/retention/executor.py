"""Prunes the store on the event loop, a batch of journals at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from itertools import islice

from flink_agents.api.action_state import ActionStateStore, JournalKey
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import FencedOwnerError
from flink_agents.runtime.metrics.run_metrics import RunMetrics

_log = bounded_logger("flink_agents.pruning")

BATCH_SIZE = 100
"""The least journals of a batch, which are pruned concurrently, so that a store can group them."""
PAUSE_SECONDS = 0.02
"""The pause, in seconds, between two batches, in which appends have their turn."""

SHARE = 20
"""A batch has at least this fraction of the waiting journals, 1 in 20, so that many keys are kept up with."""

MAX_FAILED = 100_000
"""The most journals that are retried after an error. Others are pruned with a later commit."""


class PruneProgress:
    """The progress of pruning, shared by Flink's task thread and the event loop.

    Attributes:
        journals: The journals whose pruning is reported in ``pruned``.
        markers: By journal, the position of its first record of earlier attempts, as far as state knows it.
        pruned: Journals that were pruned, each with the sequence number of the last removed run.
    """

    def __init__(self) -> None:
        self.journals: set[JournalKey] = set()
        self.markers: dict[JournalKey, bytes] = {}
        self.pruned: deque[tuple[JournalKey, int]] = deque()


class PruneExecutor:
    """Prunes on the event loop, a batch of journals at a time.

    Args:
        store: The store that has the journals.
        metrics: Counts pruned runs and errors.
        progress: Is told of pruned journals.
    """

    def __init__(self, store: ActionStateStore, metrics: RunMetrics, progress: PruneProgress) -> None:
        self._store = store
        self._metrics = metrics
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._due: dict[JournalKey, tuple[int, int]] = {}
        self._failed: dict[JournalKey, tuple[int, int]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._warned = False
        self._scheduled = self._added = 0

    def schedule(self, journals: Mapping[JournalKey, tuple[int, int]], delay: float) -> None:
        """Schedule journals to be pruned. For any thread.

        Args:
            journals: By journal, the last run to prune, and the number of runs with records up to it.
            delay: The seconds after which to prune them.
        """
        self._scheduled += 1
        with contextlib.suppress(RuntimeError):  # the loop is closed
            # All state of the executor belongs to the loop's thread.
            self._loop.call_soon_threadsafe(self._loop.call_later, delay, self._add, journals)

    def wait_until_pruned(self, seconds: float) -> None:
        """Block until all scheduled journals were pruned, or failed; for tests, not on the loop's thread."""
        asyncio.run_coroutine_threadsafe(self._wait_for_rest(), self._loop).result(seconds)

    async def _wait_for_rest(self) -> None:
        while not self._closed and (self._added < self._scheduled or self._task is not None):
            await asyncio.sleep(PAUSE_SECONDS / 10)

    async def close(self) -> None:
        """Stop pruning: cancel the running batch, and wait until it has ended."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _add(self, journals: Mapping[JournalKey, tuple[int, int]]) -> None:
        """Add journals to the due ones, with those of earlier errors. On the loop."""
        self._added += 1
        if self._closed:
            return
        # Retry with the next batch. The store may have recovered.
        failed = self._failed
        self._failed = {}
        for waiting_journals in (journals, failed):
            for journal, (through, runs) in waiting_journals.items():
                add_note(self._due, journal, through, runs)
        if self._task is None:
            self._task = self._loop.create_task(self._prune_batches())

    async def _prune_batches(self) -> None:
        """Prune all due journals, batch by batch."""
        due = self._due
        while due and not self._closed:
            number = max(BATCH_SIZE, len(due) // SHARE)
            batch = [(journal, *due.pop(journal)) for journal in list(islice(due, number))]
            await asyncio.gather(*(self._prune(*arguments) for arguments in batch))
            await asyncio.sleep(PAUSE_SECONDS)
        self._task = None

    async def _prune(self, journal: JournalKey, through: int, runs: int) -> None:
        """Prune a journal through a run; after an error, it is pruned with a later batch."""
        progress = self._progress
        marker = progress.markers.pop(journal, None)
        try:
            if marker is not None:
                # With the marker, the store need not read all of its records.
                await self._store.rebuild(journal, marker)
            await self._store.prune(journal, through)
        except FencedOwnerError:
            # Another attempt took over and prunes. This attempt ends with its next append.
            self._closed = True
        except Exception as error:
            if len(self._failed) < MAX_FAILED:
                add_note(self._failed, journal, through, runs)
            self._metrics.count("prune_errors")
            if not self._warned:
                self._warned = True
                _log.warning(
                    "a journal could not be pruned, and is tried again with the next ones: %s", error
                )
        else:
            self._metrics.group.get_counter("runs_pruned").inc(runs)
            if journal in progress.journals:
                progress.pruned.append((journal, through))


def add_note(notes: dict[JournalKey, tuple[int, int]], journal: JournalKey, through: int, runs: int) -> None:
    """Merge a commit into the notes of all journals.

    Args:
        notes: By journal, the last committed run, and the number of runs with records up to it.
        journal: The journal of the commit.
        through: The sequence number of the last run of the commit.
        runs: The number of its runs with records.
    """
    noted_through, noted_runs = notes.get(journal, (through, 0))
    notes[journal] = max(noted_through, through), noted_runs + runs
