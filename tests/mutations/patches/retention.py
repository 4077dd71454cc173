"""Mutations of ``runtime/retention``."""

from tests.mutations.patches.patch import Room

patch = Room("runtime.retention")

patch(
    "bound-by-two-changes",
    "pruning:PendingCommits.answered",
    "if self.changes >= CHANGES:",
    "if self.changes >= CHANGES - 1:",
    "An answer that was on its way counts as one that knows the commit.",
)
patch(
    "older-answer-counts",
    "pruning:PendingCommits.answered",
    "if self.connection != view.connection or is_older:",
    "if self.connection != view.connection:",
    "An answer of an old JobManager counts as news.",
)
patch(
    "other-connection-counts",
    "pruning:PendingCommits.answered",
    "if self.connection != view.connection or is_older:",
    "if is_older:",
    "Answers of two connections count as one history.",
)
patch(
    "merged-too-old",
    "pruning:PendingCommits.merge",
    "self.at = max(self.at, other_commits.at)",
    "pass",
    "PendingCommits that are merged keep the older time.",
)
patch(
    "pruned-at-the-highest",
    "pruning:Pruner._schedule_due",
    "notes.bound <= self._discarded",
    "notes.bound <= self._highest",
    "Records go when a later checkpoint has begun.",
)
patch(
    "retention-ignored",
    "pruning:Pruner._schedule_due",
    "if covered and now - notes.at >= self._retention",
    "if covered",
    "Records go before their retention is over.",
)
patch(
    "committed-as-restored",
    "pruning:Pruner.restored",
    "or journal in self._noted_journals",
    "",
    "What was committed since the restore counts as part of the restored checkpoint.",
)
patch(
    "committed-unknown",
    "pruning:Pruner.committed",
    "self._noted_journals.add(journal)",
    "pass",
    "A key that was committed since the restore is pruned as a restored one.",
)
patch(
    "restored-after-answers",
    "pruning:Pruner._note_reachable",
    "self._restored.clear()",
    "pass",
    "Restored keys are pruned without Flink's answers although it answers.",
)
patch(
    "highest-goes-back",
    "pruning:Pruner.answered",
    "self._highest = max(self._highest, view.highest)",
    "self._highest = view.highest",
    "The highest checkpoint goes back with an old answer.",
)
patch(
    "disabled-keeps-notes",
    "pruning:Pruner._handle_disabled",
    "self._noted.clear()",
    "pass",
    "PendingCommits pile up in a job that takes no checkpoints.",
)
patch(
    "discarded-latest",
    "checkpoints:CheckpointView.from_answer",
    'if entry["discarded"] and entry["id"] < newest',
    'if entry["discarded"]',
    "A checkpoint counts as discarded although none behind it is kept.",
)
patch(
    "savepoints-count",
    "checkpoints:CheckpointView.from_answer",
    'entry["status"] == "COMPLETED" and not entry["is_savepoint"]',
    'entry["status"] == "COMPLETED"',
    "Savepoints count as checkpoints that are kept.",
)
patch(
    "poller-not-restarted",
    "checkpoints:CheckpointPoller._end",
    "self._stop = None",
    "pass",
    "A thread that asks and has died is not started again.",
)
patch(
    "poller-stays",
    "checkpoints:CheckpointPoller.forget",
    "self._stop.set()",
    "pass",
    "The thread that asks goes on after the last task.",
)
patch(
    "stale-owner-prunes",
    "executor:PruneExecutor._prune",
    "self._closed = True",
    "pass",
    "A task that lost its journals goes on pruning.",
)
patch(
    "failed-not-again",
    "executor:PruneExecutor._add",
    "failed = self._failed",
    "failed: dict[JournalKey, tuple[int, int]] = {}",
    "A journal that could not be pruned is not tried again.",
)
patch(
    "note-goes-back",
    "executor:add_note",
    "max(noted_through, through)",
    "through",
    "An older note takes a newer one back.",
)
patch(
    "pruned-untold",
    "executor:PruneExecutor._prune",
    "progress.pruned.append((journal, through))",
    "pass",
    "The mark of a key that was pruned stays.",
)
patch(
    "markers-unheeded",
    "executor:PruneExecutor._prune",
    "await self._store.rebuild(journal, marker)",
    "pass",
    "A restored key is pruned without the records that the store has not read.",
)
