"""Mutations of ``runtime/loop``."""

from tests.mutations.patches.patch import Room

patch = Room("runtime.loop")

patch(
    "memory-of-the-last-commit",
    "actor:KeyActor.finish",
    "self.memory.update(changes)",
    "pass",
    "The next run of a key does not see what the last one wrote.",
)
patch(
    "unrecorded-unnoted",
    "actor:KeyActor.finish",
    "self.unrecorded = self.unrecorded or not run.recorded",
    "pass",
    "A run behind one that recorded nothing does not record what it reads.",
)
patch(
    "parked-miscounted",
    "actor:KeyActor.backlog",
    "self.submitted + self.pulled - self.committed",
    "self.submitted + self.pulled",
    "Committed inputs count as those that the loop works on.",
)
patch(
    "done-with-parked",
    "actor:KeyActor.is_done",
    "return bool(self.ended) and not self.backlog",
    "return bool(self.ended)",
    "An actor counts as done while inputs of its key wait in state.",
)
patch(
    "finish-before-marker",
    "actor:KeyActor.finish",
    "run.journal.mark_end()",
    "pass",
    "No marker is taken behind the records of a run.",
)
patch(
    "withdrawn-unmarked",
    "agent_loop:AgentLoop.withdraw",
    "journals.unmark_replayed(actor.journal.key)",
    "pass",
    "The records of inputs that go back to state are not read again.",
)
patch(
    "untraced-behind-unrecorded",
    "agent_loop:AgentLoop._new_run",
    "waiting.ordered or actor.unrecorded or waiting.is_later_part",
    "waiting.ordered or waiting.is_later_part",
    "A run behind one that recorded nothing does not trace its memory.",
)
patch(
    "suspended-goes-on",
    "agent_loop:AgentLoop._begin",
    "if actor.suspended is not None:",
    "if False:",
    "An actor begins another run while its suspended one is not in state.",
)
patch(
    "actor-begun-twice",
    "agent_loop:AgentLoop._drain",
    "if not actor.running and (",
    "if (",
    "Two tasks work on one actor.",
)
patch(
    "closed-with-calls",
    "agent_loop:AgentLoop._stop",
    "await self._drain_calls(self._durable)",
    "pass",
    "A close does not wait for calls in flight.",
)
patch(
    "fresh-reads-its-own",
    "replays:Replays.read",
    "from_seq = None if recovery.fresh else actor.next_seq",
    "from_seq = actor.next_seq",
    "A new incarnation does not find what a dead attempt began.",
)
patch(
    "fresh-begins-anew",
    "replays:Replays.read",
    "actor.continue_generation(recorded.begin_of(recorded.first))",
    "pass",
    "A new incarnation keeps its own numbers beside those that a dead attempt recorded.",
)
patch(
    "cached-unlooked",
    "replays:Replays.read",
    "for number in range(order.looked, actor.loaded):",
    "for number in range(0):",
    "Inputs that were cached while records were read are not looked at.",
)
patch(
    "signals-unreserved",
    "replays:Replays.read",
    "self._reserve(actor, recorded)",
    "pass",
    "A new run takes a signal that a recorded run had taken.",
)
patch(
    "late-number-goes-back",
    "replays:Replays.choose",
    "actor.next_seq = max(actor.next_seq, choice.seq + 1)",
    "actor.next_seq = choice.seq + 1",
    "An overtaken run that comes late takes the next number back.",
)
patch(
    "settled-too-soon",
    "replays:Replays.choose",
    "ends_replay = not order.recorded",
    "ends_replay = True",
    "The marker of a key passes recorded runs whose inputs did not come yet.",
)
patch(
    "overdue-by-an-old-timer",
    "replays:Replays._end_overdue_wait",
    "if actor.held != since:",
    "if False:",
    "A timer of an earlier wait ends the present one.",
)
patch(
    "held-with-work",
    "replays:Replays.hold",
    "if order.next(actor.next_seq, True) is not None:",
    "if False:",
    "Inputs are held back although one of them can run.",
)
patch(
    "drained-place-lost",
    "replays:Replays.end_if_drained",
    "actor.loaded = order.looked",
    "pass",
    "Inputs that were looked at are loaded again.",
)
patch(
    "started-now",
    "actor:restore_begin",
    "run.started_at = RunHeader.unpack(codec, records[0].data).started_at",
    "pass",
    "A replayed run has another time than the recorded one.",
)
patch(
    "reads-of-now",
    "actor:restore_begin",
    "memory.replay(reads)",
    "pass",
    "A replayed run reads what memory is now.",
)
patch(
    "marker-before-others",
    "actor:KeyActor.finish",
    "run.journal.has_records and waiting.ends_replay",
    "run.journal.has_records",
    "The marker of a key passes recorded runs that are left.",
)
patch(
    "resumed-without-records",
    "replays:Replays._resume",
    "waiting.records = order.recorded.resume(waiting.seq)",
    "order.recorded.resume(waiting.seq)",
    "A resumed run makes calls again that were recorded behind its suspension.",
)
patch(
    "suspension-without-reads",
    "suspender:RunSuspender.suspend",
    "journal.keep_reads()",
    "pass",
    "A suspended run does not keep what it read.",
)
patch(
    "taken-again-unknown",
    "suspender:RunSuspender._take_recorded",
    "stored.remove(stored_record)",
    "pass",
    "A run that took two equal signals has taken one in the eyes of state.",
)
patch(
    "settled-not-suspended",
    "suspender:RunSuspender.suspend",
    "self.settle(run, waiting.suspension, waits)",
    "pass",
    "A request that new code does not wait for stays pending.",
)
patch(
    "collected-counted",
    "action_loop:ActionLoop.call_soon_threadsafe",
    "context is None and _collection.thread == threading.get_ident()",
    "False",
    "The end of a generator that Python collects takes the number of a task of another run.",
)
patch(
    "late-waits-without-ends",
    "suspender:RunSuspender.attach_late",
    "ends.append(journal.end_of(ended.path, ActionRecord(*memory, sent, side, 0)))",
    "pass",
    "A run that waits late executes the actions before the wait again when it resumes.",
)
patch(
    "late-waits-latest-memory",
    "suspender:RunSuspender.attach_late",
    "memory = run.written_since(ended.mark, undo_length)",
    "memory = run.written_since(ended.mark)",
    "The end of an action has what later actions have written.",
)
patch(
    "late-waits-uncounted",
    "suspender:RunSuspender.attach_late",
    "waits.put_out(ended.path, [event.output for event in outputs_of(ended)], ended.side or [])",
    "pass",
    "Outputs from before the first wait leave again when the run resumes.",
)
patch(
    "overtaken-for-ever",
    "replays:LateReplays.note_skipped",
    "skipped.pop(seq, None)",
    "pass",
    "A run that was overtaken counts as such after its input came.",
)
patch(
    "overtaken-while-away",
    "replays:LateReplays._is_late",
    "max(skipped[seq], self._began)",
    "skipped[seq]",
    "The time in which no task ran counts against inputs that are late.",
)
