"""Mutations of ``runtime/state``."""

from tests.mutations.patches.patch import Room

patch = Room("runtime.state")

patch(
    "ahead-uncounted",
    "keyed_state:Head.finish",
    "self.ahead += 1",
    "pass",
    "An input that was committed before older ones is not counted.",
)
patch(
    "gone-inputs-stay",
    "keyed_state:Head.finish",
    "while self.ahead and is_gone(self.first_pending):",
    "while False:",
    "The head does not pass inputs that were committed before.",
)
patch(
    "settled-through-overtaken",
    "keyed_state:Head.committed_through",
    "min(self.skipped)",
    "max(self.skipped)",
    "Records of overtaken runs may be pruned.",
)
patch(
    "fork-of-later-inputs",
    "keyed_state:Head.fork",
    "self.journal_id, self.marker, self.next_pending",
    "self.journal_id, self.marker, self.first_pending",
    "A fork does not look for records of the inputs that wait.",
)
patch(
    "fork-keeps-overtaken",
    "keyed_state:Head.fork",
    "self.skipped = {}",
    "pass",
    "A fork waits for overtaken runs of its origin.",
)
patch(
    "fork-keeps-marker",
    "keyed_state:Head.fork",
    "self.marker = None",
    "pass",
    "A fork reads its journal from a marker of its origin.",
)
patch(
    "start-without-number",
    "keyed_state:Head.start",
    "self.next_seq = self.begin = begin",
    "self.begin = begin",
    "The first run of an incarnation has another number than the incarnation.",
)
patch(
    "leave-keeps-origins",
    "keyed_state:Head.leave_store",
    "self.origins = ()",
    "pass",
    "A key that leaves its store still looks for records of its origins.",
)
patch(
    "unused-with-signals",
    "keyed_state:Head.is_unused",
    "not (self.next_seq or extra)",
    "not self.next_seq",
    "The head of a key that has nothing but signals is removed.",
)
patch(
    "mail-expiry-stays",
    "keyed_state:Head._from_fields",
    "for name, value in (extra or {}).items():",
    'for name, value in ((name, value) for name, value in (extra or {}).items() if name != "mail"):',
    "The head does not say when the first signal expires.",
)
patch(
    "taken-signal-not-owed",
    "mailbox:Mailbox.remove_taken",
    "self.owed.append((identity, until))",
    "pass",
    "A signal that a replayed run took is kept when it comes again.",
)
patch(
    "taken-signal-not-seen",
    "mailbox:Mailbox.remove_taken",
    "self.seen[signal.id] = until",
    "pass",
    "A signal that a run took is taken once more when it comes again.",
)
patch(
    "owed-for-ever",
    "mailbox:Mailbox.absorb",
    "del self.owed[place]",
    "pass",
    "All later signals that equal an owed one are dropped.",
)
patch(
    "expires-late",
    "mailbox:Mailbox.expire",
    "signal.until <= now and",
    "signal.until < now and",
    "A signal that expires now stays.",
)
patch(
    "waiting-id-unknown",
    "mailbox:Mailbox.knows",
    "return id in self.seen or any(signal.id == id for signal in self.signals)",
    "return id in self.seen",
    "A signal that comes twice before a run takes it is kept twice.",
)
patch(
    "undecided-miscounted",
    "mailbox:Mailbox.undecided",
    "ended + later[signal.name]",
    "ended",
    "A signal is decided about without those that came behind the crash.",
)
patch(
    "equal-for-any-wait",
    "mailbox:identity_of",
    "repr((signal.name, signal.wait, value))",
    "repr((signal.name, value))",
    "Signals for two waits count as one if they say the same.",
)
patch(
    "reservation-unpacked",
    "mailbox:Mailbox.pack",
    "pack((self.signals, self.seen, self.owed))",
    "pack(([signal[:6] for signal in self.signals], self.seen, self.owed))",
    "For which run a signal is reserved is not in state.",
)
patch(
    "mailbox-stays",
    "pending:PendingInputs.put_mailbox",
    "self._entries.remove(_MAILBOX)",
    "pass",
    "The last signal of a key stays in state.",
)
patch(
    "runs-as-inputs",
    "pending:PendingInputs.items",
    " if number >= 0]",
    "]",
    "Suspended runs and signals count as inputs.",
)
patch(
    "deadline-unheeded",
    "suspended:Suspension.due",
    "ends = [self.last_deadline, *",
    "ends = [*",
    "A suspended run is not woken by its deadline.",
)
patch(
    "left-swapped",
    "suspended:Suspension._from_fields",
    "(counts[0], counts[1])",
    "(counts[1], counts[0])",
    "A resumed run counts its outputs as side outputs.",
)
patch(
    "wait-of-any-key",
    "suspended:run_of",
    "parts[0] != key_text or ",
    "False or ",
    "A signal for a wait of another key is taken.",
)
patch(
    "delayed-last-first",
    "delayed:DelayedEvents.add",
    "return agenda.first[0][0]",
    "return due",
    "The time of the first delayed event is that of the last one which was sent.",
)
patch(
    "delayed-second-page-lost",
    "delayed:DelayedEvents.pop",
    "if not agenda.first and agenda.pages:",
    "if False:",
    "Delayed events behind the first page do not come.",
)
patch(
    "delayed-at-the-time",
    "delayed:DelayedEvents.pop",
    "if until is not None and due > until:",
    "if until is not None and due >= until:",
    "A delayed event does not come in at its time.",
)
patch(
    "delayed-page-stays",
    "delayed:DelayedEvents._take_first_page",
    "self._entries.remove(_entry_of(page))",
    "pass",
    "A page of delayed events stays in state after its events came.",
)
patch(
    "delayed-page-order",
    "delayed:DelayedEvents._add_to_page",
    "self._put_page(agenda, place + 1, times[half:])",
    "self._put_page(agenda, place, times[half:])",
    "The pages of delayed events are out of order.",
)
patch(
    "undo-of-new-node",
    "memory:MemoryTree.write_node",
    "path in written, written.get(path)",
    "True, written.get(path)",
    "A node that a failed attempt wrote first is removed in place of taken back.",
)
patch(
    "objects-unloaded",
    "memory:MemoryTree.paths_below",
    "self._load()",
    "pass",
    "An object shows only those of its fields that were read.",
)
patch(
    "load-overwrites",
    "memory:MemoryTree._load",
    "self.cached.setdefault(unescape(key), data)",
    "self.cached[unescape(key)] = data",
    "Loading all of memory replaces what earlier runs of the key left.",
)
patch(
    "fork-shares-writes",
    "memory:MemoryTree.fork",
    "forked_tree._written = dict(self._written)",
    "forked_tree._written = self._written",
    "An attempt that timed out writes to the memory of the run.",
)
patch(
    "expiry-not-renewed",
    "memory:MemoryTree.changes",
    "or (expires and data is not None)",
    "or False",
    "Writing an equal value does not renew its time to live.",
)
patch(
    "inline-memory-unknown",
    "memory:MemoryTree.committed",
    "self.cached.update(changes)",
    "pass",
    "The next run of the inline path does not see what the last one wrote.",
)
patch(
    "delete-leaves-fields",
    "memory:MemoryTree.delete",
    "self.paths_below(path) if data == OBJECT else []",
    "[]",
    "The fields of a deleted object stay.",
)
patch(
    "removed-node-stays",
    "keyed_state:write_nodes",
    "slot.remove(state_key(path))",
    "pass",
    "A removed node stays in state.",
)
patch(
    "commit-input-stays",
    "keyed_state:KeyedState.finish_input",
    "if head.inputs.pop(number, None) is None:",
    "if False:",
    "The input of a committed run stays in state.",
)
patch(
    "head-of-key-at-work-stays",
    "keyed_state:KeyedState.write",
    "self._busy.clear()",
    "pass",
    "The head of a key that has ended its work is not the one that a restore reads.",
)
patch(
    "head-at-rest-first",
    "keyed_state:KeyedState.read",
    "self._busy.value()",
    "None",
    "A restore reads the head from before a key's work.",
)
patch(
    "key-with-signals-is-not-listed",
    "keyed_state:KeyedState.write",
    "or head.signals_expire is not None",
    "",
    "A key that only signals wait for is not found after a restart.",
)
patch(
    "key-with-suspended-runs-is-not-listed",
    "keyed_state:KeyedState.write",
    "or head.suspended or",
    "or",
    "A key whose runs sleep is not found after a restart.",
)
patch(
    "moved-memory-lost",
    "keyed_state:KeyedState._move_memory",
    "self.write_memory(head, nodes or {})",
    "pass",
    "Memory that becomes large is lost.",
)
patch(
    "returned-memory-doubled",
    "keyed_state:KeyedState.return_memory",
    "self.memory.clear()",
    "pass",
    "Memory that became small stays in the map as well.",
)
