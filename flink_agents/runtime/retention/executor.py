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

AT_ONCE = 100
"""The number of journals that are pruned concurrently, so that a store can group them."""
PAUSE_SECONDS = 0.02
"""The pause between two batches, which lets appends have their turn."""

SHARE = 20
"""If many journals wait, this fraction of them is pruned at once: 1 in 20.

So a job with many keys keeps up.
"""

MAX_FAILED = 100_000
"""The most journals that are retried after an error. Others are pruned with a later commit."""


class PruneProgress:
    """The progress of pruning, shared by Flink's task thread and the event loop.

    Attributes:
        journals: The journals whose progress is reported.
        markers: The positions of the first records that earlier attempts wrote, as far as state knows them.
        pruned: Journals that were pruned, each with the last run that was removed.
    """

    def __init__(self) -> None:
        self.journals: set[JournalKey] = set()
        self.markers: dict[JournalKey, bytes] = {}
        self.pruned: deque[tuple[JournalKey, int]] = deque()


class PruneExecutor:
    """Prunes on the event loop, a batch of journals at a time.

    Args:
        store: The store.
        metrics: Metrics of the runtime.
        watched: Receives the progress.
    """

    def __init__(self, store: ActionStateStore, metrics: RunMetrics, watched: PruneProgress) -> None:
        self._store = store
        self._metrics = metrics
        self._watched = watched
        self._loop = asyncio.get_running_loop()
        self._due: dict[JournalKey, tuple[int, int]] = {}
        self._failed: dict[JournalKey, tuple[int, int]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._warned = False
        self._given = self._added = 0

    def schedule(self, journals: Mapping[JournalKey, tuple[int, int]], delay: float) -> None:
        """Schedule journals to be pruned after some seconds. For any thread."""
        self._given += 1
        with contextlib.suppress(RuntimeError):  # the loop is closed
            # All state of the executor belongs to the loop's thread.
            self._loop.call_soon_threadsafe(self._loop.call_later, delay, self._add, journals)

    def wait_until_pruned(self, seconds: float) -> None:
        """Block until all scheduled journals were pruned, or failed; for tests, not on the loop's thread."""
        asyncio.run_coroutine_threadsafe(self._at_rest(), self._loop).result(seconds)

    async def _at_rest(self) -> None:
        while not self._closed and (self._added < self._given or self._task is not None):
            await asyncio.sleep(PAUSE_SECONDS / 10)

    async def close(self) -> None:
        """Stop pruning."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _add(self, journals: Mapping[JournalKey, tuple[int, int]]) -> None:
        self._added += 1
        if self._closed:
            return
        # Retry with the next batch. The store may have recovered.
        failed = self._failed
        self._failed = {}
        for notes in (journals, failed):
            for journal, (through, runs) in notes.items():
                add_note(self._due, journal, through, runs)
        if self._task is None:
            self._task = self._loop.create_task(self._work())

    async def _work(self) -> None:
        due = self._due
        while due and not self._closed:
            number = max(AT_ONCE, len(due) // SHARE)
            batch = [(journal, *due.pop(journal)) for journal in list(islice(due, number))]
            await asyncio.gather(*(self._prune(*arguments) for arguments in batch))
            await asyncio.sleep(PAUSE_SECONDS)
        self._task = None

    async def _prune(self, journal: JournalKey, through: int, runs: int) -> None:
        watched = self._watched
        marker = watched.markers.pop(journal, None)
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
            if journal in watched.journals:
                watched.pruned.append((journal, through))


def add_note(notes: dict[JournalKey, tuple[int, int]], journal: JournalKey, through: int, runs: int) -> None:
    """Add a commit to the notes of a journal: its last run, and the number of runs with records before it."""
    noted, previous_runs = notes.get(journal, (through, 0))
    notes[journal] = max(noted, through), previous_runs + runs
