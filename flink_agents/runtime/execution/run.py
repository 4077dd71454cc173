"""One run: an input, and everything that the agent's actions do because of it.

A run changes nothing outside of itself. The processor commits what it wrote and emitted when the whole run
has succeeded. So a run that fails leaves no trace.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from sys import modules
from typing import Any, Literal

from flink_agents.api.agents.observers import Phase
from flink_agents.api.events import DelayedLineage, Event, InputEvent, InputLineage, OutputEvent, stamp
from flink_agents.api.lineage import message_id_of, traceparent_of
from flink_agents.api.resources.memory import MemoryScope
from flink_agents.api.resources.provenance import LIBRARY
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.execution.waits.run_waits import RunWaits
from flink_agents.runtime.journal.memory_reads import TracedTree
from flink_agents.runtime.journal.run_journal import RunJournal
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.delayed import DelayedInput
from flink_agents.runtime.state.keyed_state import MapSlot
from flink_agents.runtime.state.memory import MemoryTree, Undo, take_back
from flink_agents.runtime.state.pending import UnreadableInput

_MISSING = object()
_UNTRACED = frozenset((tuple, list, dict, str, bytes, int, float, bool, type(None)))
"""Types of inputs that carry no id and no trace context."""


class Run:
    """The state of one run.

    Args:
        shared: The agent's shared objects.
        journal_id: Identity of the job that the key's runs belong to.
        key_text: Canonical text of the key.
        sequence_number: Number of the run within the key.
        timestamp: Event time of the input in milliseconds, or None.
        started_at: Wall-clock time at which the run started, in milliseconds.
        memory: Short-term memory in state; None if all of it is in ``cached_nodes``.
        cached_nodes: Nodes of short-term memory that were read already, by path.
        traced: True to log the reads of short-term memory even if it does not expire.
        identity: Identity of the job that the run started in, from which its ids derive. Default:
            ``journal_id``.
        state: The state of the run. By default, a new one that starts on Flink's task thread.

    Attributes:
        queue: Events that no action has handled yet.
        steps: Yields the next executions in order, each when the one before has ended; None before the first.
        following: The attempt that ``steps`` yields next: a retry, or one that left Flink's thread; or None.
        outputs: The values that the run emitted to the main output.
        side_outputs: Pairs of tag and value that the run emitted to side outputs.
        emitted: Number of events that its actions emitted.
        state: The phase of the run, and what it waits for.
        short_term: Short-term memory of the key, with the writes of this run.
        journal: Its records; None if nothing can be recorded.
        lineage: The base of the ids of its events.
        record: Its input, or the event that another run sent with a delay.
        parent: Id of the message that was its input, if outputs are traced and the input has one.
        undo: Its writes to memory, in order.
        waits: Its durable waits; None as long as it has not waited.
        attach_waits: Attaches them, for the execution that waits first; None if no execution can wait.
        ended: The executions that have ended, each with the length of ``undo`` then; None if it can no longer
            wait for the first time.
        given_up: Paths, outputs and side outputs that :meth:`put_out` has emitted without waits.
        failed: Paths of the executions that failed for good without waits, and side outputs in their place.
        cut_off: Durable calls that must not be repeated: they were cancelled when they may have taken effect.
            Each has the path of the action and the number of the call. None if there are none.
    """

    __slots__ = (
        "_key",
        "_sensory",
        "_shared",
        "attach_waits",
        "cut_off",
        "emitted",
        "ended",
        "failed",
        "following",
        "given_up",
        "identity",
        "journal",
        "journal_id",
        "key_text",
        "lineage",
        "outputs",
        "parent",
        "queue",
        "record",
        "sequence_number",
        "short_term",
        "side_outputs",
        "started_at",
        "state",
        "steps",
        "timestamp",
        "undo",
        "waits",
    )

    def __init__(
        self,
        shared: RunEnvironment,
        journal_id: str,
        key_text: str,
        sequence_number: int,
        timestamp: int | None,
        started_at: int,
        memory: MapSlot[str] | None,
        cached_nodes: dict[str, bytes | None] | None = None,
        traced: bool = False,
        identity: str | None = None,
        state: RunState | None = None,
    ) -> None:
        self._shared = shared
        self.state = state or RunState(key_text, sequence_number, shared.telemetry.observers, Phase.RUNNING)
        self.cut_off: set[tuple[str, Any]] | None = None
        self.journal_id = journal_id
        self.identity = self.state.identity = identity or journal_id
        self.key_text = key_text
        self.sequence_number = sequence_number
        self.timestamp = timestamp
        self.started_at = started_at
        self.undo: Undo = []
        tree = TracedTree if traced or shared.traces_memory else MemoryTree
        self.short_term: MemoryTree = tree(
            MemoryScope.SHORT_TERM,
            shared.codec,
            memory,
            self.undo,
            shared.memory_expires,
            cached_nodes,
        )
        self._sensory: MemoryTree | None = None
        self.queue: deque[Event] = deque()
        self.steps: Iterator[Any] | None = None
        self.following: Any = None
        self.outputs: list[Any] = []
        self.side_outputs: list[tuple[str, Any]] = []
        self.emitted = 0
        self.journal: RunJournal | None = None
        self.waits: RunWaits | None = None
        self.attach_waits: Callable[[Any], None] | None = None
        self.ended: list[tuple[Any, int]] | None = []
        self.given_up: list[tuple[str, list[Any], list[tuple[str, Any]]]] = []
        self.failed: list[tuple[str, list[tuple[str, Any]]]] = []
        self._key: Any = _MISSING
        self.lineage = InputLineage(self.identity, key_text, sequence_number)
        self.parent: str | None = None
        self.record: Any = None

    @property
    def recorded(self) -> bool:
        """True if the store has, or will have, a record of the run."""
        return self.journal is not None and self.journal.has_records

    def identify(self) -> None:
        """Note that an action has read a value that derives from the run's number, and may have passed it on.

        Such values are the number itself, ids of events, UUIDs and random numbers. Outside, another run with
        the same number would look like this one.
        """
        self.lineage.known = True

    @property
    def key(self) -> Any:
        """The key. It is decoded at the first use."""
        if self._key is _MISSING:
            self._key = decode_key(self.key_text)
        return self._key

    @property
    def sensory(self) -> MemoryTree:
        """Memory of the run, created at the first use."""
        if self._sensory is None:
            self._sensory = MemoryTree(MemoryScope.SENSORY, self._shared.codec, None, self.undo)
        return self._sensory

    def begin(self, record: Any) -> Event:
        """Queue the event that starts the run. Its id derives from job, key and sequence number.

        Args:
            record: An input, or an event that another run sent with a delay.

        Raises:
            StateError: The code has changed, so that the event cannot be created.
        """
        kind = type(record)
        if kind is DelayedInput:
            return self._begin_delayed(record)
        if kind is UnreadableInput:
            raise record.error
        shared = self._shared
        is_plain = shared.received.convert is None and LIBRARY not in modules
        event = InputEvent(input=record if is_plain else shared.received.as_received(record))
        self.record = record
        if shared.traces_inputs and kind not in _UNTRACED:
            self.parent = self.state.parent = message_id_of(record)
            self.state.traceparent = traceparent_of(record)
        stamp(event, self.lineage)
        self.queue.append(event)
        return event

    def _begin_delayed(self, sent: DelayedInput) -> Event:
        """Queue the event of a run that another run started with a delay."""
        event = self._shared.events.decode(sent.event)
        self.lineage = DelayedLineage(
            self.identity,
            self.key_text,
            self.sequence_number,
            action=sent.action,
            upstream=sent.upstream,
            run_id=sent.run_id,
            sender=sent.sequence_number,
        )
        self.record = event
        if self._shared.traces_inputs:
            self.parent = self.state.parent = sent.run_id
        stamp(event, self.lineage)
        self.queue.append(event)
        return event

    def put_out(self, path: str, outputs: list[Any], side: list[tuple[str, Any]]) -> None:
        """Emit the outputs of an execution, except those that left when the run was suspended.

        Args:
            path: The path of the execution; empty for outputs that belong to none.
            outputs: Values for the main output.
            side: Pairs of tag and value.
        """
        if self.waits is not None:
            outputs, side = self.waits.put_out(path, outputs, side)
        else:
            self.given_up.append((path, outputs, side))
        self.outputs += outputs
        self.side_outputs += side

    def end_waits(self) -> None:
        """Note that it has ended or was suspended. Executions refer to it, and must not be part of cycles."""
        self.ended = self.attach_waits = None

    def emit_queued(self) -> None:
        """Emit the outputs that are queued among events, as a run with waits does with each execution."""
        self.outputs += [event.output for event in self.queue if isinstance(event, OutputEvent)]
        events = [event for event in self.queue if not isinstance(event, OutputEvent)]
        # The same object, which `steps` reads.
        self.queue.clear()
        self.queue.extend(events)

    def note(self, step: Any, kind: Literal["event", "chat"], name: str, content: Any) -> None:
        """Add nothing to the transcript: only runs of sub-agents have one."""

    def fork(self) -> Run:
        """Return a copy of the run with its own memory, for a step that may be cut off."""
        fork = copy.copy(self)
        fork.undo = undo = list(self.undo)
        fork.short_term = self.short_term.fork(undo)
        copies = {id(self.short_term.written): fork.short_term.written}
        if self._sensory is not None:
            fork._sensory = self._sensory.fork(undo)
            copies[id(self._sensory.written)] = fork._sensory.written
        # The fork can undo earlier writes of the run, in its own trees.
        undo[:] = [(copies.get(id(write[0]), write[0]), *write[1:]) for write in undo]
        return fork

    def adopt(self, fork: Run) -> None:
        """Take over memory and writes of a fork, because its step has succeeded."""
        self.undo = fork.undo
        self.short_term = fork.short_term
        self._sensory = fork._sensory

    def written_since(
        self, mark: int, end: int | None = None
    ) -> tuple[dict[str, bytes | None], dict[str, bytes | None]]:
        """Return the nodes of short-term and of sensory memory that were written since ``mark``.

        Args:
            mark: The length of ``undo`` before the writes.
            end: Its length after them; None if no other writes followed.
        """
        short_term: dict[str, bytes | None] = {}
        sensory: dict[str, bytes | None] = {}
        # What a later write has replaced is in its entry.
        replaced: dict[tuple[int, str], bytes | None] = {}
        for written, _, path, _, data in reversed(self.undo[end:] if end is not None else ()):
            replaced[id(written), path] = data
        for written, scope, path, _, _ in self.undo[mark:end]:
            if scope is not None:
                node = replaced.get((id(written), path), written[path])
                (sensory if scope is MemoryScope.SENSORY else short_term)[path] = node
        return short_term, sensory

    def write(self, scope: MemoryScope, nodes: Mapping[str, bytes | None]) -> None:
        """Write nodes of a memory that :meth:`written_since` returned."""
        tree = self.sensory if scope is MemoryScope.SENSORY else self.short_term
        for path, data in nodes.items():
            tree.write_node(path, data)

    def clear(self) -> None:
        """Undo everything that the run did: writes to memory, queued events, outputs."""
        self.rollback(0)
        self.queue.clear()
        self.outputs = []
        self.side_outputs = []

    def rollback(self, mark: int) -> None:
        """Undo the writes to memory that were made since ``undo`` had the length ``mark``."""
        take_back(self.undo, mark)
