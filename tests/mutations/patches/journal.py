"""Mutations of ``runtime/journal``."""

from tests.mutations.patches.patch import Room

patch = Room("runtime.journal")

patch(
    "order-of-last-again",
    "calls:ExecutionOutcomes.__init__",
    "1 + max(",
    "max(",
    "The first new outcome has the place of the last recorded one.",
)
patch(
    "mismatch-unnoticed",
    "calls:ExecutionOutcomes.match_call",
    "if call is not None and not call.same(identity):",
    "if False:",
    "A call gets the result of another call.",
)
patch(
    "intent-unmatched",
    "calls:ExecutionOutcomes.match_call",
    "recorded.call if recorded is not None else intent",
    "recorded.call if recorded is not None else None",
    "A call whose begin was recorded as another one is made.",
)
patch(
    "intent-forgotten",
    "calls:ExecutionOutcomes.match_call",
    "return number, recorded, intent is not None",
    "return number, recorded, False",
    "A call whose begin was recorded is made without asking the reconciler.",
)
patch(
    "unread-calls-unnoticed",
    "calls:ExecutionOutcomes.check_end",
    "if self.mismatch is None and self.had_outcomes:",
    "if False:",
    "An action may end without the calls that it recorded.",
)
patch(
    "void-ignored",
    "calls:steps_of",
    "steps.pop(name, None)",
    "pass",
    "Records that were made void are replayed.",
)
patch(
    "attempt-calls-again",
    "calls:ExecutionOutcomes.mark_recorded",
    "self._records.outcomes.update(recorded)",
    "pass",
    "A further attempt of an action makes its recorded calls again.",
)
patch(
    "first-mismatch-lost",
    "calls:ExecutionOutcomes.note_mismatch",
    "self.mismatch = self.mismatch or mismatch",
    "self.mismatch = mismatch",
    "The last mismatch of an action is reported in place of the first.",
)
patch(
    "former-job-unclaimed",
    "other_jobs:GroupedStore.claim",
    "if not self._is_foreign(group) or group in self._others:",
    "if True:",
    "A successor does not take the journals of the former job over.",
)
patch(
    "unstored-twice",
    "run_journal:RunJournal._append_all",
    "self._unstored.pop(record, None)",
    "pass",
    "What a suspended run has stored is stored again with each append.",
)
patch(
    "reads-kept-again",
    "run_journal:RunJournal.keep_reads",
    "self._logged = len(self._log.reads)",
    "pass",
    "A suspended run keeps what it read twice.",
)
patch(
    "equal-inputs-reversed",
    "order:RecordedRuns.claim",
    "seq = unclaimed.popleft()",
    "seq = unclaimed.pop()",
    "Equal inputs get the records of each other in the reverse order.",
)
patch(
    "overtaken-awaited",
    "order:RecordedRuns.__init__",
    "deque(seq for seq in sorted(self._records) if seq not in self._skipped)",
    "deque(sorted(self._records))",
    "All inputs wait for those of recorded runs that were overtaken before.",
)
patch(
    "resumed-claimed",
    "order:RecordedRuns.resume",
    "unclaimed.remove(seq)",
    "pass",
    "An equal input gets the records of the suspended run that resumes.",
)
patch(
    "unknown-input-first",
    "order:InputOrder.next",
    "if next_seq < first:",
    "if next_seq <= first:",
    "An input that was never recorded runs in place of a recorded run.",
)
patch(
    "late-unnoticed",
    "order:InputOrder.examine_input",
    "self._late.append(seq)",
    "pass",
    "The input of an overtaken run that comes late does not run.",
)
patch(
    "overtaking-number",
    "order:InputOrder._choose_by_skipping",
    "skips[-1] + 1",
    "skips[-1]",
    "An input that overtakes recorded runs gets the number of the last of them.",
)
patch(
    "overtaken-unnoted",
    "order:InputOrder.start_run",
    "self.recorded.skip(choice.skips)",
    "pass",
    "Recorded runs that are overtaken are still waited for.",
)
patch(
    "drained-too-soon",
    "order:InputOrder.drained",
    "return not self.recorded and self._oldest_unknown() is None",
    "return not self.recorded",
    "Inputs that were looked at are left when the last recorded run is taken.",
)
patch(
    "inherits-twice",
    "other_jobs:inherited",
    "remaining_inputs[digest] -= 1",
    "pass",
    "A fork takes over more runs of its origin than it has inputs of.",
)
patch(
    "inherits-of-later-inputs",
    "other_jobs:origins_of",
    "range(head.first_pending, end_number)",
    "range(head.first_pending, head.next_pending)",
    "A fork takes over records for inputs that came after the fork.",
)
patch(
    "identity-of-the-last-job",
    "other_jobs:_of_origin",
    "step=record.step or journal_id",
    "step=journal_id",
    "A fork of a fork changes the identity of runs that began in the first job.",
)
patch(
    "named-job-admitted",
    "other_jobs:OtherJobs.continues",
    "return self._policy is OnJobChange.FAIL and not self._named and is_flink_job_id(job_id)",
    "return self._policy is OnJobChange.FAIL and is_flink_job_id(job_id)",
    "A job with a job-identifier goes on with the state of another job without asking.",
)
patch(
    "removed-fields-return",
    "memory_reads:overlaid",
    "del nodes[node_path]",
    "pass",
    "A replay sees fields of an object that were not there when the run read it.",
)
patch(
    "read-parts-collide",
    "memory_reads:packed_reads",
    "1 + first + start",
    "1 + start",
    "What a run reads later is recorded in place of what it read first.",
)
patch(
    "read-parts-pile-up",
    "memory_reads:recorded_reads",
    "parts = part if begins else parts + part",
    "parts = parts + part",
    "What a run read is decoded with the parts of an append that failed.",
)
patch(
    "reads-recorded-again",
    "run_journal:RunJournal._append_all",
    "self._logged = max(self._logged, logged)",
    "pass",
    "What a run has read is recorded again with each append.",
)
patch(
    "void-remembered",
    "run_journal:RunJournal.void",
    "self._steps[step] = StepRecords()",
    "pass",
    "An action that runs anew gets the records that it made void.",
)
patch(
    "intent-without-history",
    "run_journal:RunJournal.add_intent",
    "[*self._outcomes(step, outcomes), intent]",
    "[intent]",
    "The begin of a call is recorded without the outcomes that the action had seen.",
)
patch(
    "portion-too-large",
    "records:_split",
    "size + _size(record) > limit",
    "size > limit",
    "An append is larger than the store takes.",
)
patch(
    "overtaken-records-unread",
    "journals:Journals._read",
    "records += await self.store.read(journal, seq)",
    "pass",
    "The records of runs that were overtaken before are not read.",
)
patch(
    "withdrawn-stays-settled",
    "journals:Journals.unmark_replayed",
    "self._replayed.discard(journal)",
    "pass",
    "The records of a run that was suspended before it began are not read again.",
)
patch(
    "inherited-unstored",
    "journals:Journals._inherit",
    "await self.store.append(journal, portion)",
    "pass",
    "What a fork takes over is not in its own journal.",
)
patch(
    "plan-unchecked",
    "journals:Journals.recorded",
    "await self._plans.check(fingerprint)",
    "pass",
    "Records of another plan are replayed without a check.",
)
patch(
    "restored-as-committed",
    "journals:Journals.committed",
    "if runs:",
    "if True:",
    "What a checkpoint has already waits for the next checkpoint to be pruned.",
)
patch(
    "own-writes-as-reads",
    "memory_reads:TracedTree.raw",
    "if path not in self._written:",
    "if True:",
    "What a run reads of its own writes counts as read of earlier runs.",
)
patch(
    "replayed-writes-dropped",
    "memory_reads:TracedTree.changes",
    "return dict(reversed(self._written.items())) if self._replays else super().changes()",
    "return super().changes()",
    "A replay does not write what state seems to have already.",
)
patch(
    "store-identity-unchecked",
    "journals:JournalIdentity.check",
    "elif store_id not in copied:",
    "elif False:",
    "A restore with other journals is not found if keys come whose state names no store.",
)
patch(
    "store-positions-unchecked",
    "journals:JournalIdentity.check",
    "for position in self._positions:",
    "for position in ():",
    "A restore with an older copy of the journals is not found if keys come whose state names no position.",
)
patch(
    "store-identity-of-a-fork",
    "journals:JournalIdentity.check",
    "not self._other_jobs.continues(",
    "not (",
    "A fork that records in another store is rejected.",
)
patch(
    "attempt-counts-on",
    "calls:ExecutionOutcomes.restart_numbers",
    "self._counts[kind, task] = 0",
    "pass",
    "The next attempt of a sub-agent's action makes calls with new numbers, and so again.",
)
patch(
    "attempt-seen-outside",
    "calls:ExecutionOutcomes.seen_by",
    "if not self.attempts:",
    "if True:",
    "Failures of an attempt of a sub-agent's action are recorded with calls of others.",
)
patch(
    "inner-attempts-unrepeated",
    "calls:ExecutionOutcomes.of_attempts",
    "is_inside(number.task, path)",
    "_ATTEMPT not in number.task and is_inside(number.task, path)",
    "An attempt repeats its calls, but not the ends of the sub-agents that it had called.",
)
patch(
    "turn-ignored",
    "run_journal:RunJournal._append_all",
    "if self._part_seq != self._seq:",
    "if False:",
    "The next part of a run that was set aside is recorded under its first number.",
)
patch(
    "part-as-known",
    "run_journal:RunJournal._restore",
    "set[Record]() if is_later else set(suspended)",
    "set(suspended)",
    "Records of a part that equal those of an earlier part are left out.",
)
patch(
    "recent-grows",
    "journals:RecentKeys.add",
    "if len(self.journals) > self._most:",
    "if False:",
    "What a task remembers of keys grows without a bound.",
)
