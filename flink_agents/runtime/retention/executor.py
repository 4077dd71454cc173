"""Prunes the store on the agent loop, some journals at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Mapping

from flink_agents.api.action_state import ActionStateStore, JournalKey
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import FencedOwnerError
from flink_agents.runtime.metrics.run_metrics import RunMetrics

_log = bounded_logger("flink_agents.pruning")

AT_ONCE = 100
PAUSE_SECONDS = 0.02
"""So many journals are pruned side by side, which a store can group; then appends have their turn."""

SHARE = 20
"""Where many wait, one in so many is pruned at once: a job with many keys must not leave them behind."""

MAX_FAILED = 100_000
"""How many journals that the store could not prune are tried again; others are pruned with a later commit."""


class PruneProgress:
    """Journals of which somebody wants to hear when they were pruned. Between Flink's thread and the loop.

    Attributes:
        journals: Those journals.
        markers: Where the first records of journals lie that earlier attempts wrote, as far as state says it.
        pruned: Journals that were pruned, each with the last run that was removed.
    """

    def __init__(self) -> None:
        self.journals: set[JournalKey] = set()
        self.markers: dict[JournalKey, bytes] = {}
        self.pruned: deque[tuple[JournalKey, int]] = deque()


class PruneExecutor:
    """Prunes on the agent loop, some journals at a time.

    Args:
        store: The store.
        metrics: Where is counted.
        watched: Is told of what was pruned.
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

    def take(self, journals: Mapping[JournalKey, tuple[int, int]], delay: float) -> None:
        """Prune each of them, in some seconds. For any thread."""
        self._given += 1
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._loop.call_later, delay, self._add, journals)

    def wait(self, seconds: float) -> None:
        """Wait until all was pruned that was given, or could not be; for tests, and no thread of the loop."""
        asyncio.run_coroutine_threadsafe(self._at_rest(), self._loop).result(seconds)

    async def _at_rest(self) -> None:
        while not self._closed and (self._added < self._given or self._task is not None):
            await asyncio.sleep(PAUSE_SECONDS / 10)

    async def close(self) -> None:
        """Stop."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _add(self, journals: Mapping[JournalKey, tuple[int, int]]) -> None:
        self._added += 1
        if self._closed:
            return
        failed, self._failed = self._failed, {}
        for notes in (journals, failed):
            for journal, (through, runs) in notes.items():
                add_note(self._due, journal, through, runs)
        if self._task is None:
            self._task = self._loop.create_task(self._work())

    async def _work(self) -> None:
        due = self._due
        while due and not self._closed:
            number = max(AT_ONCE, len(due) // SHARE)
            some = [(journal, *due.pop(journal)) for journal in list(_first(due, number))]
            await asyncio.gather(*(self._prune(*each) for each in some))
            await asyncio.sleep(PAUSE_SECONDS)
        self._task = None

    async def _prune(self, journal: JournalKey, through: int, runs: int) -> None:
        watched = self._watched
        marker = watched.markers.pop(journal, None)
        try:
            if marker is not None:
                # A store that knows only a part of what was recorded would read all of it.
                await self._store.rebuild(journal, marker)
            await self._store.prune(journal, through)
        except FencedOwnerError:
            # Another attempt took over: it prunes, and this one learns from its next append.
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


def _first(journals: Iterable[JournalKey], number: int) -> Iterable[JournalKey]:
    for _, journal in zip(range(number), journals, strict=False):
        yield journal


def add_note(notes: dict[JournalKey, tuple[int, int]], journal: JournalKey, through: int, runs: int) -> None:
    """Add to what is noted of a journal: its last run, and how many runs with records it stands for."""
    known, before = notes.get(journal, (through, 0))
    notes[journal] = max(known, through), before + runs
