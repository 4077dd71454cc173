"""The run of a sub-agent for one event, inside the run of the action that called it.

The end of each attempt of its actions is an outcome that the calling action waits for. So it has its place in
the order of the outcomes of the calling action, and a replay delivers it there. If the attempt failed, a
replay takes the error from the record, as with a durable call, and does not execute it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Literal

from pydantic_core import to_jsonable_python
from typing_extensions import override

from flink_agents.api.action_state import RecordKind
from flink_agents.api.context.asking import ASKED, TranscriptEntry
from flink_agents.api.events import AskLineage, Event, InputEvent, lineage_of_sent, stamp
from flink_agents.runtime.concurrency.bridge import Outcome as CodeOutcome, carried, thrown
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.calls.delivery import Delivery, outside
from flink_agents.runtime.execution.calls.pending import FutureOutcome
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.waits.approvals import asked_inside, forget_asked
from flink_agents.runtime.journal.calls import Mismatch, Outcome, attempts_task, sub_agent_path
from flink_agents.runtime.journal.records import FAILED, WaitRecord
from flink_agents.runtime.journal.run_journal import RunJournal
from flink_agents.runtime.serde import exceptions as failures
from flink_agents.runtime.state.memory import MemoryTree, Undo

_TRANSCRIPT = "\x00transcript"
"""The tag of entries of the transcript among the side outputs of a sub-agent."""


class ScopedTree(MemoryTree):
    """The memory of a sub-agent: the nodes below one object of its caller's memory, as a separate tree.

    Writes stay in it until the hand-over.

    Args:
        outer: The memory of the caller.
        path: Path of the object in that. The object need not exist.
        undo: Log of the writes to this tree.
    """

    __slots__ = ("_outer", "_root")

    def __init__(self, outer: MemoryTree, path: str, undo: Undo) -> None:
        super().__init__(outer.scope, outer.codec, None, undo, outer.expires)
        self._outer = outer
        self._root = path

    @override
    def raw(self, path: str) -> bytes | None:
        written = self._written
        return written[path] if path in written else self._outer.raw(f"{self._root}.{path}")

    @override
    def paths_below(self, path: str) -> list[str]:
        start = len(self._root) + 1
        nodes = {node[start:] for node in self._outer.paths_below(self._root)} | self._written.keys()
        prefix = path + "." if path else ""
        return sorted(node for node in nodes if node.startswith(prefix) and self.raw(node) is not None)

    def hand_over(self) -> None:
        """Write the changes of this tree to the memory of the caller.

        Raises:
            MemoryPathError: By now, a plain value is where an object was.
        """
        for path, data in self._written.items():
            full = f"{self._root}.{path}"
            if data is not None:
                self._outer.make_parents(full)
            if data is not None or self._outer.raw(full) is not None:
                self._outer.write_node(full, data)


class SubAgentRun(Run):
    """One call of a sub-agent. Nothing of it reaches the run of the caller before :meth:`hand_over`.

    Args:
        shared: The shared objects of the sub-agent.
        caller: The action run that calls.
        traced: True if the answer includes a transcript.

    Attributes:
        caller: The action run that calls.
        root: The action run of the job's agent to which all of it belongs.
        agents: Names of the agents that wait for each other's answers, the job's agent first.
        traced: True if the answer includes a transcript, or that of an enclosing sub-agent does.
        outer: The attempts of the enclosing sub-agents, as numbers with dots; empty for the outermost one.
        attempt_end: The end of the attempt that is executed; None before the first one, and in a run that has
            no records.
    """

    __slots__ = (
        "_call",
        "_memory",
        "_places",
        "_task",
        "agents",
        "attempt_end",
        "caller",
        "outer",
        "root",
        "traced",
    )

    def __init__(self, shared: RunEnvironment, caller: ActionRun, traced: bool) -> None:
        outer = caller.run
        super().__init__(
            shared,
            outer.journal_id,
            outer.key_text,
            outer.sequence_number,
            outer.timestamp,
            outer.started_at,
            None,
            identity=outer.identity,
            state=outer.state,
        )
        # The run of the caller waits, not this one.
        self.ended = None
        self._memory = ScopedTree(outer.short_term, f"{ASKED}.{_field(shared.agent.name)}", self.undo)
        self.short_term = self._memory
        # Code that reads an id of this run has read the number of the outer run.
        self.lineage = outer.lineage
        self.caller = caller
        self.root: ActionRun = root_of(caller)
        self.agents: tuple[str, ...] = (*agents_of(caller), shared.agent.name)
        self.traced = traced or (isinstance(outer, SubAgentRun) and outer.traced)
        self.attempt_end: AttemptEnd | None = None
        around = outer.attempt_end if isinstance(outer, SubAgentRun) else None
        self.outer = "" if around is None else around.attempt
        self._task = ""
        self._call = self._places = 0

    def receive_event(self, event: Any, task: str, number: int) -> Event:
        """Return the event that the sub-agent handles, with its place in the run.

        Args:
            event: An event, which stays unchanged, or an input.
            task: The task that calls.
            number: The number of earlier calls from that task.
        """
        self._task = task
        self._call = number
        received = self._shared.received.as_received(event)
        input_event = received.model_copy() if isinstance(received, Event) else InputEvent(input=received)
        parent = lineage_of_sent(self.caller.event)
        stamp(input_event, AskLineage(parent, self.caller.action.name, self._shared.agent.name, task, number))
        return input_event

    def next_path(self) -> str:
        """Return the path of the action that is executed next; see ``journal.calls``."""
        path = sub_agent_path(self._task, self._call, self._places)
        self._places += 1
        return path

    def note(self, step: ActionRun, kind: Literal["event", "chat"], name: str, content: Any) -> None:
        """Add an entry to the transcript, if there is one. It counts if the attempt succeeds.

        Args:
            step: The action run.
            kind: "event" for an event that the action sent, "chat" for a conversation with a model.
            name: Type of the event, or name of the chat model.
            content: The content; it becomes JSON.
        """
        if self.traced:
            plain = to_jsonable_python(content, fallback=repr, inf_nan_mode="constants")
            agent = self._shared.agent.name
            action = step.action.name
            entry = TranscriptEntry(agent=agent, action=action, kind=kind, name=name, content=plain)
            step.side = [*(step.side or ()), (_TRANSCRIPT, entry)]

    def hand_over(self) -> list[TranscriptEntry]:
        """Move the writes and side outputs of the agent, which has ended, to the action that called it.

        Returns:
            The events and chats of the agent and of its own sub-agents; nothing if they are not traced.

        Raises:
            ContextMisuseError: That action has ended.
            MemoryPathError: By now, a plain value is where the agent wrote below an object.
        """
        caller = self.caller
        caller.guard()
        mark = len(caller.run.undo)
        try:
            self._memory.hand_over()
        except BaseException:
            caller.run.rollback(mark)
            raise
        entries = [value for tag, value in self.side_outputs if tag == _TRANSCRIPT]
        handed = self.side_outputs
        if not (isinstance(caller.run, SubAgentRun) and caller.run.traced):
            handed = [entry for entry in handed if entry[0] != _TRANSCRIPT]
        if handed:
            caller.side = [*(caller.side or ()), *handed]
        return entries


def run_of(step: ActionRun) -> SubAgentRun:
    """Return the run of a sub-agent to which ``step`` belongs."""
    assert isinstance(step.run, SubAgentRun)
    return step.run


def root_of(step: ActionRun) -> ActionRun:
    """Return the action run of the job's agent that ``step`` belongs to: itself outside of sub-agents."""
    return step.run.root if isinstance(step.run, SubAgentRun) else step


def agents_of(step: ActionRun) -> tuple[str, ...]:
    """Return the names of the agents that wait for the result of ``step``, the job's agent first."""
    return step.run.agents if isinstance(step.run, SubAgentRun) else (step.shared.agent.name,)


def _field(name: str) -> str:
    """Return the name of an agent as one part of a path, with its dots and percent signs escaped."""
    return name.replace("%", "%25").replace(".", "%2E")


WHAT = "an action of a sub-agent"
"""The object of the wait, as text. It has no name, so that a sub-agent and its actions can be renamed."""

_ROOM = 256
"""An upper bound for the bytes of a record besides its error and the requests for approvals."""


class AttemptEnd(FutureOutcome):
    """The end of an attempt of a sub-agent's action.

    Args:
        root: The action of the job's agent.
        delivery: Delivers outcomes to that action, in order.
        path: The path of the action of the sub-agent; see ``journal.calls``.
        outer: The attempts of the enclosing sub-agents, as numbers with dots; or empty.

    Attributes:
        path: The path of the action of the sub-agent.
        attempt: The attempt, after those of the enclosing sub-agents.
        name: The name of the attempt in state.
    """

    encloses = True

    __slots__ = (
        "_delivery",
        "_error",
        "_root",
        "_starting",
        "attempt",
        "name",
        "path",
    )

    def __init__(self, root: ActionRun, delivery: Delivery, path: str, outer: str) -> None:
        super().__init__(delivery.number(RecordKind.WAIT, attempts_task(path)))
        self._root = root
        self._delivery = delivery
        self._error: BaseException | None = None
        self._starting = False
        self.path = path
        self.attempt = f"{outer}.{self.number.nth}" if outer else str(self.number.nth)
        self.name = f"{path}!{self.attempt}"

    @property
    def recorded(self) -> Outcome | None:
        """The recorded end of the attempt, or None."""
        return self._delivery.recorded(self.number)

    @property
    def has_succeeded(self) -> bool:
        """True if the attempt has succeeded according to its record."""
        return isinstance(self.recorded, WaitRecord) and self.recorded.end is None

    @property
    def has_to_continue(self) -> bool:
        """True if the attempt cannot fail here: by its records, it succeeded, or got further outcomes."""
        return self.has_succeeded or self._delivery.is_replaying(self.path)

    @property
    def outlasts(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True while the user's code is executed: then its own waits decide if the run can be suspended."""
        inner = self.future.inner
        return inner is not None and not inner.done()

    @property
    def in_transit(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if the attempt is about to start, or has just ended."""
        return self.performing is not None and not self.performing.done() and not self.outlasts

    def start(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Start the attempt, or skip its outcomes if it failed according to its record.

        Raises:
            Mismatch: The record is that of another action.
        """
        recorded = self.recorded
        if recorded is not None and not (isinstance(recorded, WaitRecord) and recorded.what == WHAT):
            recorded_wait = recorded.what if isinstance(recorded, WaitRecord) else recorded.call
            raise self._delivery.note_mismatch(Mismatch(self.number, recorded_wait, WHAT))
        if recorded is not None and not self.has_succeeded:
            self._delivery.pass_over(self.path, recorded.order)
            return
        self.restart(self.attempt.strip("0.") != "")
        # The calling action is not at rest before the code has started, so that all of it happens in order.
        self._delivery.ready += 1
        self._starting = True
        context = outside()
        self.perform(make(), context).add_done_callback(self._end, context=context)

    def let_rest(self) -> None:
        """Note that the code of the attempt has started, or that the attempt waits before that."""
        if self._starting:
            self._starting = False
            self._delivery.unready()

    def restart(self, repeats: bool = True) -> None:
        """Prepare for the code of the attempt, with what the attempts before it, if any, have got."""
        # The requests of a failed attempt are those of the next one.
        forget_asked(self._root, self.path)
        self._delivery.restart(self.path, repeats)

    async def cancel(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Cancel the attempt, and wait for the end of its code: its clean-up goes first.

        Args:
            tasks: Tasks that its code started.
        """
        self._delivery.detach_wait(self)
        self._delivery.forget_repeated(self.path)
        self._delivery.end_attempt(self.path)
        inner = self.future.inner
        if inner is None or inner.done():
            self.stop()
            return
        # Here and not from outside, so that it happens in order.
        running = [inner, *(task for task in tasks if not task.done())]
        for task in running:
            task.cancel()
        # If its code swallows that, further cancellations reach it as well: it must not outlive this action.
        end_of_code: Any = asyncio.gather(*running, return_exceptions=True)
        end_of_code.inner = inner
        await end_of_code

    def is_there(self) -> bool:
        """Return True if the attempt has ended. Its code has to be executed again if it succeeded."""
        return self.performing is None or self.performing.done()

    def result(self) -> ActionRun:
        """Return the execution that has succeeded; raise the error of one that has failed."""
        outcome = None
        record = self.future.result()
        if self.performing is not None:
            outcome = self.performing.result()
        if record.end is None:
            self._delivery.end_attempt(self.path)
            assert outcome is not None
            return outcome.result()
        # What it asked for before it failed stays, as with other actions.
        self._delivery.end_failed_attempt(self.path, record.order)
        if self._root.run.waits is not None:
            self._root.run.waits.forget_unawaited(self._delivery, self.path)
        codec = self._root.shared.codec
        described, encoded_requests = codec.decode(record.value)
        rebuilt = failures.rebuild(codec, described)
        if outcome is None:
            self._root.side = [*(self._root.side or ()), *((tag, value) for tag, value in encoded_requests)]
            raise rebuilt
        error = self._error
        self._error = None
        assert error is not None
        # Code that catches it must behave in the same way on replay, which has the record only.
        raise error if type(rebuilt) is type(error) else failures.first_time(rebuilt, error)

    def _end(self, task: asyncio.Task[CodeOutcome]) -> None:
        """Queue the end of the attempt as an outcome; if the replay cannot continue, raise in the code."""
        self.let_rest()
        if task.cancelled() or self.gone or self._delivery.closed:
            return
        delivery = self._delivery
        code_outcome = task.result()
        error = code_outcome.raised
        if error is not None:
            delivery.forget_repeated(self.path)
        if delivery.mismatch is not None or (self.recorded is not None and error is not None):
            # The replay cannot continue, or it differs from its record for good.
            self.gone = True
            self.future.set_exception(carried(error) if error is not None else asyncio.CancelledError())
        elif self.recorded is not None:
            delivery.deliver_next()
        else:
            self._error = error
            delivery.end(self, self._record(error))

    def _record(self, error: BaseException | None) -> WaitRecord:
        """Return the record of an end: with the error and the approval requests of an attempt that failed."""
        delivery = self._delivery
        root = self._root
        record = WaitRecord(WHAT, int(time.time() * 1000), delivery.next_place(), delivery.elapsed())
        if error is None:
            return record
        codec = root.shared.codec
        journal = root.run.journal
        assert isinstance(journal, RunJournal)
        requests = [list(entry) for entry in asked_inside(root, self.path)]
        used_bytes = _ROOM + len(codec.encode(requests))
        described = failures.describe(codec, thrown(error), failures.room(journal.limit, used_bytes))
        return record._replace(end=FAILED, value=codec.encode([described, requests]))
