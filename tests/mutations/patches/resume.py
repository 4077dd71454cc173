"""Mutations of ``runtime/flink/resume``."""

from tests.mutations.patches.patch import Room

patch = Room("runtime.flink.resume")

patch(
    "checkpoints-by-number-alone",
    "checkpoints:find_candidates",
    "key=lambda candidate: (candidate.start, candidate.number)",
    "key=lambda candidate: candidate.number",
    "A start resumes from a checkpoint of an earlier start that has a greater number.",
)
patch(
    "checkpoint-content-unchecked",
    "checkpoints:choose_checkpoint",
    "_content_problem(content) or _digest_problem(candidate, digests)",
    "_content_problem(content)",
    "A start resumes from a checkpoint whose bytes have changed.",
)
patch(
    "checkpoint-files-unchecked",
    "checkpoints:_content_problem",
    "if size < file.size:",
    "if False:",
    "A start resumes from a checkpoint whose file is cut off, if nobody noted its checksum.",
)
patch(
    "copied-folder-proves-death",
    "start_decision:_ended_jobs",
    "if start.lock == identity",
    "if start.lock",
    "A start on a copy of the folder takes the store from the job that runs in the other folder.",
)
patch(
    "released-lock-proves-death",
    "local_start:LocalStart._record_end",
    'set_start(lock="", **values)',
    "set_start(**values)",
    "A job whose process released the lock, and may go on, counts as dead.",
)
patch(
    "missing-newest-unnoticed",
    "start_decision:_choose_for_run",
    "elif (all_candidates[0].start, all_candidates[0].number) < _newest_known(run, progress):",
    "elif False:",
    "A start resumes from an older checkpoint after the newest one was deleted.",
)
patch(
    "missing-parent-unnoticed",
    "start_decision:_newest_known",
    "return (last.parent, last.resumed) if last.parent else (int(run.checkpointed), 0)",
    "return (int(run.checkpointed), 0)",
    "A start resumes from an older checkpoint than the last start did, because that one was deleted.",
)
patch(
    "missing-stop-unnoticed",
    "start_decision:_newest_known",
    "if last.stopped:",
    "if False:",
    "A stopped job resumes from an older checkpoint, because its savepoint was deleted.",
)
patch(
    "gone-is-fresh",
    "start_decision:_choose_for_run",
    "if run.checkpointed or _newest_known(run, progress) > _NONE:",
    "if False:",
    "A start begins anew although there were checkpoints.",
)
patch(
    "transactions-unchecked",
    "start_decision:_check_transactions",
    "if age is not None and age + min(RESTORE_SECONDS, timeout / 10) < timeout:",
    "if True:",
    "A job resumes though brokers have aborted its transactions.",
)
patch(
    "same-identity-again",
    "start_decision:_run_identity",
    'return base if generation == 1 else f"{base}@{generation}"',
    "return base",
    "A new job run has the idempotency keys of the one before.",
)
patch(
    "older-journal-accepted",
    "checks:check_journal",
    "if position.number >= seen.position.number:",
    "if True:",
    "An older copy of the journal is accepted, and recorded steps are made again.",
)
patch(
    "other-journal-accepted",
    "checks:check_journal",
    "if position is None or position.store_id != seen.position.store_id:",
    "if position is None:",
    "Another journal is accepted.",
)
patch(
    "changed-list-accepted",
    "checks:check_lists",
    "if present == previous_input:",
    "if present is not None:",
    "A job resumes with another list.",
)

patch(
    "clock-set-back-hides-downtime",
    "job_run:Moment.seconds_until",
    "if self.boot and self.boot == later.boot:",
    "if False:",
    "The clock is set back while a job is down, and nobody notices that its transactions are gone.",
)
patch(
    "late-savepoint-taken-for-the-end",
    "local_start:LocalStart.record_finish",
    'self._stopped or next((f"savepoint {name}" for name in savepoint_names), None)',
    "self._stopped",
    "A job that was stopped with a savepoint too late counts as finished, and starts from the beginning.",
)
patch(
    "savepoint-counts-as-committed",
    "start_decision:_check_transactions",
    "candidate.savepoint and candidate.start in committed",
    "candidate.savepoint",
    "A process dies between its savepoint and the commit, and nobody notices that transactions are gone.",
)
patch(
    "outputs-of-a-passed-over-checkpoint-count",
    "job_run:JobRun.lineage",
    "until = current.resumed",
    "until = None",
    "A list has outputs twice that only a damaged checkpoint had.",
)
patch(
    "another-script-resumes",
    "policy:check_program",
    "if program is None or previous_program is None or program.is_same(previous_program, state_dir):",
    "if True:",
    "A script resumes the job run of another one with the same job name, without a word.",
)
patch(
    "living-start-counts-as-dead",
    "policy:ScriptStart.end_of",
    "return ScriptEnd.NOT_YET",
    "return ScriptEnd.IN_THE_MIDDLE",
    "A job is skipped although the start that finished it still runs.",
)
patch(
    "start-over-ends-with-its-process",
    "policy:ScriptStart.begins_anew",
    "return self._anew and not self._is_fresh(token)",
    "return False",
    "After a start with --fresh was killed, jobs that it had not reached go on with old data.",
)
patch(
    "journal-of-a-deleted-folder-accepted",
    "start_decision:_last_run",
    "if recorded is not None:",
    "if False:",
    "The folder was deleted, and recorded steps are replayed for other inputs.",
)
patch(
    "data-without-a-record-removed",
    "start_decision:_last_run",
    "if remaining_names:",
    "if False:",
    "The record of a job run is gone, and its checkpoints are removed.",
)
patch(
    "rare-checkpoints-accepted",
    "transactions:longest_checkpoint",
    "if is_set and times.timeout_ms < remaining_ms:",
    "if is_set:",
    "Brokers abort the transactions of a sink before a checkpoint ends that may take as long as it likes.",
)
patch(
    "checkpoints-take-all-the-time",
    "transactions:longest_checkpoint",
    "remaining_ms // 2",
    "remaining_ms",
    "A late checkpoint leaves no time to write its outputs again before brokers drop them.",
)
