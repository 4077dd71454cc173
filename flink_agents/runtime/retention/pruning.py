"""Removes records that no checkpoint needs from the store of durable calls.

Flink's task thread notes which runs of a key were committed. The thread that polls Flink's REST interface
(``runtime.retention.checkpoints``) finds out when all retained checkpoints have these commits. Then the event
loop prunes the store.

A commit waits for four answers, each newer than the one before. Two may come from the caches of two
JobManagers, made before the commit. The third was requested after it. Flink made the fourth after that. By
then, no checkpoint that was triggered before the commit has an id above the greatest known one, its *bound*.
If a checkpoint with the id of the bound or a later id was discarded, a later one is retained, and none from
before. ``docs/design/durable.md`` has the proof.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from typing_extensions import override

from flink_agents.api.action_state import ActionStateStore, JournalKey
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import Prune
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.retention.checkpoints import (
    CheckpointPoller,
    CheckpointView,
    Listener,
    RestError,
    poller_of,
    rest_addresses,
)
from flink_agents.runtime.retention.executor import PruneExecutor, PruneProgress, add_note

_log = bounded_logger("flink_agents.pruning")

CHANGES = 3
"""The number of changed answers before a commit gets its bound.

It is one for each cache that may be behind a connection, and one more.
"""

FAILURES = 3
"""After this number of failed requests in a row, Flink counts as unreachable."""

DISABLED_ANSWERS = 10
"""The number of answers in a row that must say that the job takes no checkpoints.

At its start, some are wrong.
"""

MAX_WAITING = 1_000_000
"""The most commits that wait. Others are pruned with a later commit of the same key."""

TOO_MANY = f"more than {MAX_WAITING} journals wait for a checkpoint; some are left as they are"

RETAINED = ("execution.checkpointing.num-retained", "state.checkpoints.num-retained")
"""Flink's option for the number of retained checkpoints, and its former name. The default is 1."""


SEEN_BITS = 2**25
"""The default number of bits of a filter: 4 MB.

After a million items, one in 7,000 others is a false positive; after ten million, one in four.
"""

PROBES = 4
"""The number of bits that a filter sets for each item."""


@dataclass
class PendingCommits:
    """Commits that wait for the same answer of Flink before their records can be pruned.

    Attributes:
        journals: By journal, the last committed run, and the number of runs with records.
        at: The time of the last commit, in seconds of the pruner's clock.
        connection: The connection of the last answer after them; None before the first.
        content: The content of that answer.
        changes: The number of answers since the first one whose content differed from the one before.
        bound: The greatest id of a checkpoint that was triggered before the commits; None if it is not known
            yet.
    """

    journals: dict[JournalKey, tuple[int, int]] = field(default_factory=dict[JournalKey, tuple[int, int]])
    at: float = 0.0
    connection: int | None = None
    content: Hashable = None
    changes: int = 0
    bound: int | None = None

    def add(self, journal: JournalKey, through: int, runs: int) -> None:
        """Add a commit; see :func:`add_note` for the arguments."""
        add_note(self.journals, journal, through, runs)

    def merge(self, other_commits: PendingCommits) -> None:
        """Add other commits at the same stage."""
        for journal, (through, runs) in other_commits.journals.items():
            self.add(journal, through, runs)
        self.at = max(self.at, other_commits.at)

    def answered(self, view: CheckpointView, highest: int, is_older: bool) -> None:
        """Count an answer that came after the commits; the last that is needed sets their bound.

        Args:
            view: The answer.
            highest: The greatest id in this answer and all earlier ones.
            is_older: True if the answer is older than the one before, so that it does not count as a change.
        """
        if self.connection != view.connection or is_older:
            self.connection = view.connection
            self.content = view.content
            self.changes = 0
        elif self.content != view.content:
            self.content = view.content
            self.changes = self.changes + 1
        if self.changes >= CHANGES:
            self.bound = highest

    @property
    def stage(self) -> Hashable:
        """The bound, or the answer, that the commits wait for. Commits with equal stages can be merged."""
        return (self.bound, self.bound is None and (self.connection, self.content, self.changes))

    @property
    def runs(self) -> int:
        """The number of runs with records in all journals."""
        return sum(runs for _, runs in self.journals.values())


class BloomFilter:
    """A set of all items that were ever added, with some false positives. For one thread.

    A job may see an unbounded number of keys, such as one for each order, so a set of them would grow.

    Args:
        bits: The number of bits, a power of two.
    """

    def __init__(self, bits: int = SEEN_BITS) -> None:
        self._mask = bits - 1
        self._bits: bytearray | None = None

    def add(self, item: Hashable) -> None:
        """Add an item, which stays for the life of the filter."""
        if self._bits is None:  # an empty filter takes no memory
            self._bits = bytearray((self._mask + 1) // 8)
        for place in self._places(item):
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, item: Hashable) -> bool:
        bits = self._bits
        return bits is not None and all(bits[place >> 3] >> (place & 7) & 1 for place in self._places(item))

    def _places(self, item: Hashable) -> list[int]:
        """Return the numbers of the bits of an item, by double hashing."""
        first = hash(item)
        step = hash((first, PROBES)) | 1
        return [(first + number * step) & self._mask for number in range(PROBES)]


class Pruner(Listener):
    """Decides which records of a subtask's journals no retained checkpoint needs, and has them pruned.

    Args:
        policy: The policy of the option ``action-state.prune``.
        retention: Seconds for which records are kept after no checkpoint needs them.
        metrics: Counts pruned runs, and errors.
        poller: Polls Flink; None if no address is known.
        one_retained: True if Flink retains one checkpoint, the latest.
        clock: Returns the time in seconds, as ``time.monotonic`` does.

    Attributes:
        schedule: ``PruneExecutor.schedule``; None before the store was opened.
        progress: The progress of pruning, for the marks of unpruned keys.
    """

    def __init__(
        self,
        policy: Prune,
        retention: float,
        metrics: RunMetrics,
        poller: CheckpointPoller | None,
        one_retained: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._retention = retention
        self._metrics = metrics
        self._poller = poller if policy is Prune.CHECKPOINTS else None
        self._one_retained = one_retained
        self._clock = clock
        # Between Flink's thread, which appends, and the one that asks.
        self._noted: deque[tuple[JournalKey, int, int]] = deque()
        self._restored: deque[tuple[JournalKey, int]] = deque()
        # Journals with runs after the restored checkpoint. A false positive of the filter is pruned later, by
        # Flink's answers or after the next restore.
        self._noted_journals = BloomFilter()
        # For the polling thread.
        self.progress = PruneProgress()
        self._notes: list[PendingCommits] = []
        self._highest = self._discarded = 0
        self._failures = self._disabled = 0
        self._last: CheckpointView | None = None
        self._warned: set[str] = set()
        # True if Flink answers; None if that is not known yet.
        self._reached: bool | None = None if self._poller is not None else False
        self._ever_reached = False
        self.schedule: Callable[[Mapping[JournalKey, tuple[int, int]], float], None] | None = None
        self._executor: PruneExecutor | None = None
        self._has_stopped = False
        for name in ("runs_pruned", "prune_errors", "rest_errors", "rest_answers_older"):
            metrics.group.get_counter(name)
        self._update_gauges()
        self._warn_of_missing(policy)

    def _warn_of_missing(self, policy: Prune) -> None:
        """Warn if the policy lacks the address of Flink, or is not for several retained checkpoints."""
        if policy is Prune.CHECKPOINTS and self._poller is None:
            self._fall_back("the address of Flink's REST interface is unknown")
        elif policy is Prune.RESTORE_ONLY and not self._one_retained:
            self._warn(
                "only the latest checkpoint may be retained for the option action-state.prune: restore-only"
            )

    # -- for Flink's thread -----------------------------------------------------------

    def committed(self, journal: JournalKey, through: int, runs: int) -> None:
        """Note that all runs of a key up to ``through`` are committed, or will never run.

        Args:
            journal: The key's journal.
            through: The sequence number of the last of them.
            runs: The number of them that have records and were not noted before.
        """
        # Until Flink answers, only commits that the restored checkpoint has may be pruned. This one is later.
        if runs and not self._ever_reached:
            self._noted_journals.add(journal)
        if self._poller is not None and not self._has_stopped:
            if len(self._noted) < MAX_WAITING:
                self._noted.append((journal, through, runs))
            else:  # the polling thread does not take them
                self._warn(TOO_MANY)

    def restored(self, journal: JournalKey, through: int) -> None:
        """Note commits of a key that may have records of earlier attempts.

        The first time, the runs are in the checkpoint, or savepoint, that the job was restored from.
        """
        # The key has no committed run.
        if through < 0:
            return
        self.committed(journal, through, 0)
        if (
            self._ever_reached
            or not self._one_retained
            or self._has_stopped
            or journal in self._noted_journals
        ):
            return
        self._noted_journals.add(journal)
        self._restored.append((journal, through))
        if self._reached is False:
            self._prune_restored()

    def note_unpruned(self, journal: JournalKey, through: int, marker: bytes | None, untouched: bool) -> None:
        """Note a key of the restored state whose records were not pruned.

        Args:
            journal: The key's journal.
            through: The last run that only a restore needs.
            marker: The position of its first records, from state; None if state has none.
            untouched: True if nothing of the key was committed since the restore.
        """
        if marker is not None:
            self.progress.markers[journal] = marker
        if untouched:
            self.restored(journal, through)
        elif through >= 0:
            self.committed(journal, through, 0)

    # -- for the agent loop -----------------------------------------------------------

    def open(self, store: ActionStateStore) -> None:
        """Start to prune a store, on the running event loop."""
        self._executor = PruneExecutor(store, self._metrics, self.progress)
        self.schedule = self._executor.schedule
        if self._poller is not None:
            self._poller.listen(self)

    async def close(self) -> None:
        """Stop pruning: cancel the running batch, and wait until it has ended."""
        self._has_stopped = True
        if self._poller is not None:
            self._poller.forget(self)
        if self._executor is not None:
            await self._executor.close()

    def wait_until_pruned(self, seconds: float) -> None:
        """Block until all scheduled journals were pruned, at most some seconds; for tests."""
        if self._executor is not None:
            self._executor.wait_until_pruned(seconds)

    # -- for the thread that asks -----------------------------------------------------

    @override
    def asking(self) -> None:
        now = self._clock()
        new = PendingCommits(at=now)
        waiting = sum(len(notes.journals) for notes in self._notes)
        # Not until it is empty: a commit that is added from now on may come after the request.
        for _ in range(len(self._noted)):
            note = self._noted.popleft()
            if waiting + len(new.journals) < MAX_WAITING:
                new.add(*note)
            else:
                self._warn(TOO_MANY)
        if new.journals:
            self._notes.append(new)
        self._update_gauges()

    @override
    def answered(self, view: CheckpointView) -> None:
        self._failures = 0
        if not view.enabled:
            self._handle_disabled()
            return
        self._note_reachable()
        self._disabled = -1
        # Without discarded checkpoints in the history, no commit ever becomes prunable.
        if view.hides:
            self._warn(
                "Flink retains more checkpoints than its history shows, so nothing shows when one is "
                "discarded, and nothing is pruned: raise web.checkpoints.history above the number retained"
            )
        # Answers may be older than others, so the maximum counts.
        self._highest = max(self._highest, view.highest)
        self._discarded = max(self._discarded, view.discarded)
        is_older = self._last is not None and view.is_older(self._last)
        if is_older and self._last is not None and self._last.connection == view.connection:
            self._metrics.count("rest_answers_older")
            self._warn(
                "answers of Flink's REST interface go back in time, as those of two JobManagers behind a "
                "proxy do: less is pruned, and later. Set the option action-state.rest-address to one of them"
            )
        self._last = view
        for notes in self._notes:
            # The bound of a commit is final. Later answers only show what was discarded.
            if notes.bound is None:
                notes.answered(view, self._highest, is_older)
        self._notes = _merged(self._notes)
        self._schedule_due()
        self._update_gauges()

    @override
    def failed(self, error: RestError) -> None:
        self._failures += 1
        self._metrics.count("rest_errors")
        if self._failures == FAILURES:
            self._fall_back(str(error))
        self._update_gauges()

    def ended(self, error: BaseException) -> None:
        """Log that completed checkpoints are unknown from now on, and prune restored keys only."""
        self._metrics.count("rest_errors")
        self._fall_back(f"the thread that asks has ended by {error!r}")
        self._update_gauges()

    def _schedule_due(self) -> None:
        """Schedule the commits that all retained checkpoints have."""
        now = self._clock()
        waiting = list[PendingCommits]()
        due = list[PendingCommits]()
        for notes in self._notes:
            covered = notes.bound is not None and notes.bound <= self._discarded
            (due if covered and now - notes.at >= self._retention else waiting).append(notes)
        self._notes = waiting
        # One hand-over for all, because each costs a call of the loop.
        if due and self.schedule is not None:
            for notes in due[1:]:
                due[0].merge(notes)
            self.schedule(due[0].journals, 0.0)

    def _handle_disabled(self) -> None:
        """Stop pruning after several answers that the job takes no checkpoints: restarts need all records."""
        if self._disabled < 0:
            return  # it did take some, so the job is just restarting
        self._disabled += 1
        if self._disabled >= DISABLED_ANSWERS:
            self._has_stopped = True
            self._note_reachable()
            self._notes = []
            self._noted.clear()
        self._update_gauges()

    def _note_reachable(self) -> None:
        """Note that Flink answers. From now on, only its answers allow pruning."""
        self._reached = self._ever_reached = True
        self._restored.clear()
        self._noted_journals = BloomFilter()

    def _fall_back(self, reason: str) -> None:
        """Prune only the runs of the restored checkpoint as long as Flink does not answer, and warn."""
        self._reached = False
        how = "restored keys only" if self._one_retained else "nothing"
        self._warn(
            f"Completed checkpoints are unknown ({reason}): records in the store of "
            f"durable calls are kept, and {how} pruned. Set the option action-state.rest-address"
        )
        self._prune_restored()

    def _prune_restored(self) -> None:
        """Prune the runs that the checkpoint has that the job was restored from."""
        while self._restored and self.schedule is not None:
            with contextlib.suppress(IndexError):  # another thread took the last one
                journal, through = self._restored.popleft()
                self.schedule({journal: (through, 0)}, self._retention)

    def _warn(self, text: str) -> None:
        """Log a warning, once for each text."""
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    def _update_gauges(self) -> None:
        """Set the gauges of the journals and runs that wait to be pruned."""
        group = self._metrics.group
        group.get_gauge("rest_reachable").set(int(self._reached is True))
        group.get_gauge("journals_unpruned").set(sum(len(notes.journals) for notes in self._notes))
        group.get_gauge("runs_unpruned").set(sum(notes.runs for notes in self._notes))


def pruner_of(
    config: Configuration, flink: Mapping[str, str], job_id: str, metrics: RunMetrics
) -> Pruner | None:
    """Return the pruner of a subtask; None if nothing is to be pruned.

    Args:
        config: Options of the job.
        flink: Flink's configuration, as far as the TaskManager knows it.
        job_id: Flink's id of the job.
        metrics: Counts pruned runs, and errors.
    """
    policy = Prune(config.get(AgentOptions.PRUNE))
    if policy is Prune.NEVER:
        return None
    retention: timedelta = config.get(AgentOptions.RETENTION)
    address = config.get(AgentOptions.REST_ADDRESS)
    addresses = (address,) if address else rest_addresses(flink)
    can_poll = policy is Prune.CHECKPOINTS and bool(addresses and job_id)
    poller = poller_of(addresses, job_id) if can_poll else None
    retained_counts = {flink[name] for name in RETAINED if name in flink}
    return Pruner(
        policy, retention.total_seconds(), metrics, poller, bool(flink) and retained_counts <= {"1"}
    )


def _merged(groups: Iterable[PendingCommits]) -> list[PendingCommits]:
    """Return commits in the same order, with those of equal stages merged."""
    commits_by_stage: dict[Hashable, PendingCommits] = {}
    for notes in groups:
        if notes.stage in commits_by_stage:
            commits_by_stage[notes.stage].merge(notes)
        else:
            commits_by_stage[notes.stage] = notes
    return list(commits_by_stage.values())
