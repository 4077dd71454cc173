"""The run of a sub-agent for one event, inside the run of the action that called it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_jsonable_python
from typing_extensions import override

from flink_agents.api.context.asking import ASKED, TranscriptEntry
from flink_agents.api.events import AskLineage, Event, InputEvent, lineage_of_sent, stamp
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.journal.calls import sub_agent_path
from flink_agents.runtime.state.memory import MemoryTree, Undo

if TYPE_CHECKING:
    from flink_agents.runtime.execution.sub_agents.attempt_end import AttemptEnd


_TRANSCRIPT = "\x00transcript"
"""The tag of entries of the transcript among the side outputs of a sub-agent."""


class ScopedTree(MemoryTree):
    """The memory of a sub-agent: the nodes below one object of its caller's memory, as a separate tree.

    Writes stay in it until the hand-over.

    Args:
        outer: The other tree.
        path: Path of the object in it. The object need not exist.
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
    def below(self, path: str) -> list[str]:
        start = len(self._root) + 1
        nodes = {node[start:] for node in self._outer.below(self._root)} | self._written.keys()
        prefix = path + "." if path else ""
        return sorted(node for node in nodes if node.startswith(prefix) and self.raw(node) is not None)

    def hand_over(self) -> None:
        """Write the changes of this tree to the other tree.

        Raises:
            MemoryPathError: By now, a plain value is where an object was.
        """
        for path, data in self._written.items():
            full = f"{self._root}.{path}"
            if data is not None:
                self._outer.make_parents(full)
            if data is not None or self._outer.raw(full) is not None:
                self._outer.put(full, data)


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
            kind: The kind of the entry.
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
    """Return the name of an agent as one part of a path."""
    return name.replace("%", "%25").replace(".", "%2E")
