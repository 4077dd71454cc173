"""Mutations of ``runtime/operator``."""

from tests.mutations.patches.patch import Room

patch = Room("runtime.operator")

patch(
    "commit-memory-inline",
    "commit:RunCommitter._commit_run",
    "if end.changes and end.frees_key:",
    "if end.changes and end.frees_key and actor is not None:",
    "A run of the inline path does not write its memory to state.",
)
patch(
    "commit-number-repeats",
    "commit:RunCommitter._commit_run",
    "end.seq + 1 if end.frees_key else",
    "end.seq if end.frees_key else",
    "The next run of a key gets the number of the last one.",
)
patch(
    "commit-last-first",
    "processor:AgentProcessor.commit",
    "actor.ended.popleft()",
    "actor.ended.pop()",
    "Finished runs of a key are committed in the reverse order.",
)
patch(
    "commit-head-unwritten",
    "commit:RunCommitter.commit",
    "self._state.write(head)",
    "pass",
    "A commit does not write the head.",
)
patch(
    "commit-unrecorded-forgotten",
    "commit:RunCommitter._mark_records",
    "head.unrecorded = True",
    "pass",
    "The head does not say that a run recorded nothing.",
)
patch(
    "commit-number-goes-back",
    "commit:RunCommitter._commit_run",
    "head.next_seq = max(head.next_seq, end.seq + 1 if end.frees_key else end.seq)",
    "head.next_seq = end.seq + 1 if end.frees_key else end.seq",
    "A recorded run that was overtaken takes the next number back.",
)
patch(
    "commit-begin-of-head",
    "commit:RunCommitter._commit_run",
    "head.begin if actor is None else actor.begin",
    "head.begin",
    "A new incarnation of a key begins anew, although a dead attempt had begun it.",
)
patch(
    "commit-prunes-too-much",
    "commit:RunCommitter._report_prunable",
    "actor.noted, actor.unpruned)",
    "actor.noted + 1, actor.unpruned)",
    "Records of the run behind the last committed one may be pruned.",
)
patch(
    "commit-mark-of-now",
    "commit:RunCommitter.commit",
    "mark(head, ends[0].run.key_text, unpruned, marker)",
    "mark(head, ends[0].run.key_text, unpruned, head.marker)",
    "The mark of an unpruned key lies behind the records that are to be pruned.",
)
patch(
    "aside-memory-unwritten",
    "commit:RunCommitter._commit_run",
    "self._state.write_memory(head, end.changes)",
    "pass",
    "What a part of a run changed in memory is not committed.",
)
patch(
    "commit-stays-forked",
    "commit:RunCommitter.commit",
    "head.origins = ()",
    "pass",
    "A fork keeps asking its origin after it has taken its records over.",
)
patch(
    "feed-same-number",
    "input_dispatch:InputDispatcher._submit",
    "actor.next_seq += 1",
    "pass",
    "Two inputs that wait get the same sequence number.",
)
patch(
    "feed-unknown",
    "input_dispatch:InputDispatcher._choose",
    "order.examine_input(None if packed is None else input_digest(packed))",
    "order.examine_input(None)",
    "No input that waits is known again.",
)
patch(
    "feed-resumed-twice",
    "input_dispatch:InputDispatcher.load",
    "if number in actor.woken:",
    "if False:",
    "The input of a suspended run that resumes runs once more as an input.",
)
patch(
    "mark-behind-records",
    "heads:Heads.mark",
    "if not (unread and self.may_have_records(head, key_text, False)):",
    "if True:",
    "The marker of a key is taken behind records that nobody has read.",
)
patch(
    "store-unchecked",
    "heads:Heads._check_store",
    "check_store(journals, head.store)",
    "pass",
    "A job goes on with another store than that of its state.",
)
patch(
    "records-of-overtaken-unread",
    "heads:Heads.may_have_records",
    "return has_unread or journals",
    "return journals",
    "A key whose recorded runs were overtaken is not read.",
)
patch(
    "forget-overtaken",
    "services.cleanup:IdleKeyExpiry.look_at",
    "head.has_pending or head.skipped or",
    "head.has_pending or",
    "A key is forgotten although recorded runs of it wait for their inputs.",
)
patch(
    "forget-memory",
    "services.cleanup:IdleKeyExpiry.look_at",
    "if self._state.read_memory(head):",
    "if False:",
    "A key is forgotten although it has memory.",
)
patch(
    "forget-same-numbers",
    "services.cleanup:IdleKeyExpiry.new_head",
    "self._clock() // 1000 * RUNS_PER_SECOND",
    "0",
    "The incarnations of a key share their numbers.",
)
patch(
    "forget-records",
    "services.cleanup:IdleKeyExpiry.look_at",
    "elif has_records:",
    "elif False:",
    "A key is forgotten although the store has records of it.",
)
patch(
    "resumed-left-alone",
    "input_dispatch:InputDispatcher.resume_blocking",
    "if blocking is None:",
    "if True:",
    "A suspended run is not resumed when its key gets an actor.",
)
patch(
    "actor-unread",
    "processor:AgentProcessor._new_actor",
    "actor.recover(pending, origins_of(head, self._state) if head.origins else ())",
    "pass",
    "The records of a key are not read when it gets an actor.",
)
patch(
    "released-without-memory",
    "processor:AgentProcessor.release",
    "actor.head, actor.memory, True, searched=False",
    "actor.head, {}, True, searched=False",
    "A key whose actor is done counts as one without memory.",
)
patch(
    "hand-over-same-number",
    "processor:AgentProcessor._hand_over",
    "actor.next_seq += 1",
    "pass",
    "The run behind one that was handed over gets the same number.",
)
patch(
    "end-of-input-as-time",
    "processor:AgentProcessor.process",
    "            timestamp = None",
    "            pass",
    "The time of the timer at the end of the input counts as the time of an input.",
)
patch(
    "kept-drop-half",
    "heads:KeyCache.remove_key",
    "self.older.pop(key_text, None)",
    "pass",
    "What is kept of a key in the older half is not dropped.",
)
patch(
    "kept-without-memory",
    "heads:KeyCache.store_key",
    "whole = False",
    "pass",
    "A key with much memory is kept as one that has none.",
)
patch(
    "wake-up-over-input",
    "services.suspension:SuspendedRuns.wake",
    "head.next_pending += 1",
    "pass",
    "A wake-up has the place of the next input in state.",
)
patch(
    "aside-twice",
    "services.suspension:SuspendedRuns.add",
    "head.suspended = runs if places else [*runs, stored]",
    "head.suspended = [*runs, stored]",
    "A run that is set aside again stands in the head twice.",
)
patch(
    "aside-woken-twice",
    "services.suspension:SuspendedRuns.wake",
    "if run.woken is not None or not is_wanted(run):",
    "if not is_wanted(run):",
    "A run that is set aside is woken twice.",
)
patch(
    "aside-suspension-stays",
    "services.suspension:SuspendedRuns.remove",
    "self._state.pending.end_suspension(run.number)",
    "run.blocks and self._state.pending.end_suspension(run.number)",
    "What is left of a run that was set aside stays in state after its end.",
)
patch(
    "delayed-timer-of-first",
    "services.delayed:Delays.keep_delayed",
    "if first is not None and first != previous_due:",
    "if previous_due is None:",
    "An event that is due before those which wait gets no timer.",
)
patch(
    "delayed-head-unwritten",
    "services.delayed:Delays.come_in",
    "self._state.write(head)",
    "pass",
    "The head does not count delayed events that have come.",
)
patch(
    "delayed-taken-early",
    "services.delayed:AwaitedKeys.pop_due",
    "if self._keys.get(key_text, (None,))[0] == due:",
    "if key_text in self._keys:",
    "A key whose delayed events were put off is still taken at the old time.",
)
patch(
    "signal-twice",
    "services.signal_matching:KeySignals.unmatched_reason",
    "if signal.id is not None and self.mailbox.knows(signal.id):",
    "if False:",
    "A signal that comes again is taken again.",
)
patch(
    "signal-limit-by-one",
    "services.signal_matching:KeySignals._overflow",
    "return UnmatchedReason.OVERFLOW if waiting >= most else None",
    "return UnmatchedReason.OVERFLOW if waiting > most else None",
    "One signal more than allowed may wait.",
)
patch(
    "suspended-number-passed",
    "commit:RunCommitter._commit_run",
    "end.seq + 1 if end.frees_key else end.seq)",
    "end.seq + 1)",
    "The number of a suspended run counts as used before it is committed.",
)
patch(
    "suspended-store-unknown",
    "commit:RunCommitter._mark_records",
    "suspension is not None and suspension.recorded",
    "False",
    "The head does not say in which store a suspended run is recorded.",
)
patch(
    "suspended-without-timer",
    "services.suspension:SuspendedRuns.add",
    "timers.register_processing_time_timer(max(suspension.due, self._clock() + 1))",
    "pass",
    "No timer looks at a suspended run when its wait ends.",
)
patch(
    "suspension-stays",
    "services.suspension:SuspendedRuns.remove",
    "self._state.pending.end_suspension(run.number)",
    "run.blocks or self._state.pending.end_suspension(run.number)",
    "What is left of a suspended run stays in state after its commit.",
)
patch(
    "owed-signal-unseen",
    "services.signals:SignalService._store",
    "signals.mailbox.seen[signal.id] = new.until",
    "pass",
    "A signal whose run took it before a crash is not remembered when it comes again.",
)
patch(
    "returned-signals-last",
    "services.signals:SignalService.remove_taken",
    "mailbox.signals[:0] = waits.returned",
    "mailbox.signals += waits.returned",
    "Signals that a run gave back come behind later ones.",
)
patch(
    "signals-unseen-in-head",
    "services.signals:SignalService._write",
    "head.signals_expire = expires",
    "pass",
    "The head does not say that the key has signals.",
)
patch(
    "signal-for-nobody",
    "services.signal_matching:KeySignals._reserved_for",
    "return signal._replace(run=suspension.seq) if free else signal",
    "return signal",
    "A signal is not reserved for the run that waits for it.",
)
patch(
    "signal-stays-reserved",
    "services.signal_matching:KeySignals.unreserve",
    "if signal.run == run.sequence_number and signal.name not in names:",
    "if False:",
    "A signal stays reserved for a run that does not wait any more.",
)
patch(
    "signal-unoffered",
    "services.signals:SignalService.receive",
    "operator.loop_access.loop.suspender.offer(actor, stored)",
    "pass",
    "A run that is going on is not offered a signal.",
)
patch(
    "suspended-memory-empty",
    "services.suspension:SuspendedRuns.continue_key",
    "operator.cache.store_key(key_text, head, {}, False, searched=False)",
    "operator.cache.store_key(key_text, head, {}, True, searched=False)",
    "The memory of a key with a suspended run counts as empty.",
)
patch(
    "services-swapped",
    "assembly:_operator",
    "[service for service in services if",
    "[service for service in reversed(services) if",
    "The key services are called in the reverse order.",
)
patch(
    "hook-dropped",
    "services.service:Hooks.__init__",
    "for service in self.services]",
    "for service in self.services[1:]]",
    "The hooks of the first key service are not called.",
)
patch(
    "service-sleeps-on",
    "services.delayed:Delays._expect_events",
    "self.operator.has_key_timers = True",
    "True",
    "The hook of timers is not called when the first key needs one.",
)
patch(
    "heartbeat-known-key-expected",
    "heartbeat:Heartbeat._wake_restored",
    "low_watermark.note_restored_inputs(None, key_text)",
    "pass",
    "A restored key with a stored signal holds the low watermark for ever if an input comes first.",
)
patch(
    "other-code-rests",
    "services.suspension:SuspendedRuns._wake_of_other_code",
    "self.suspension(run).submission != self._submission",
    "False",
    "A suspended run keeps the timeout of the code that suspended it.",
)
patch(
    "same-code-wakes",
    "services.suspension:SuspendedRuns._wake_of_other_code",
    "self.suspension(run).submission != self._submission",
    "True",
    "A restart replays all suspended runs.",
)
patch(
    "mark-moves",
    "services.cleanup:UnprunedKeys.mark",
    "if not self._unreported or unpruned.value() is None:",
    "if True:",
    "The mark of an earlier attempt is replaced by a later one.",
)
patch(
    "mark-cleared-early",
    "services.cleanup:UnprunedKeys.clear_marks",
    "if last <= through:",
    "if True:",
    "The mark of a key goes although later runs of it are not pruned.",
)
patch(
    "touched-as-restored",
    "services.cleanup:UnprunedKeys._report",
    "key_text not in self._touched",
    "True",
    "A key that came since the restore counts as one of the restored checkpoint.",
)
patch(
    "handed-over-memory-shared",
    "processor:AgentProcessor._hand_over",
    "head.nodes = head.nodes.copy()",
    "pass",
    "What a run writes before its commit is in the head.",
)
