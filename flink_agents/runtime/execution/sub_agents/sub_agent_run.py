"""The run of a sub-agent for one event, inside the run of the action that called it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic_core import to_jsonable_python

from flink_agents.api.context.asking import ASKED, TranscriptEntry
from flink_agents.api.events import AskLineage, Event, InputEvent, lineage_of_sent, stamp
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.state.memory import ScopedTree


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
        transcript: The events and chats of the agent and of its own sub-agents; None if not traced.
    """

    __slots__ = ("_around", "_memory", "agents", "caller", "root", "transcript")

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
        self._memory = ScopedTree(outer.short_term, f"{ASKED}.{_field(shared.code.name)}", self.undo)
        self.short_term = self._memory
        # Code that reads an id of this run has read the number of the outer run.
        self.lineage = outer.lineage
        self.caller = caller
        self.root: ActionRun = root_of(caller)
        self.agents: tuple[str, ...] = (*agents_of(caller), shared.code.name)
        self._around = outer.transcript if isinstance(outer, SubAgentRun) else None
        self.transcript: list[TranscriptEntry] | None = None
        if traced or self._around is not None:
            self.transcript = []

    def take(self, event: Any, task: str, number: int) -> Event:
        """Return the event that the sub-agent handles, with its place in the run.

        Args:
            event: An event, which stays unchanged, or an input.
            task: The task that calls.
            number: The number of earlier calls from that task.
        """
        received = self._shared.code.as_received(event)
        input_event = received.model_copy() if isinstance(received, Event) else InputEvent(input=received)
        parent = lineage_of_sent(self.caller.event)
        stamp(input_event, AskLineage(parent, self.caller.action.name, self._shared.code.name, task, number))
        return input_event

    def note(self, step: ActionRun, kind: Literal["event", "chat"], name: str, content: Any) -> None:
        """Add an entry to the transcript, if there is one.

        Args:
            step: The action run.
            kind: The kind of the entry.
            name: Type of the event, or name of the chat model.
            content: The content; it becomes JSON.
        """
        if self.transcript is not None:
            plain = to_jsonable_python(content, fallback=repr, inf_nan_mode="constants")
            agent = self._shared.code.name
            action = step.action.name
            self.transcript.append(
                TranscriptEntry(agent=agent, action=action, kind=kind, name=name, content=plain)
            )

    def hand_over(self) -> None:
        """Move the writes and side outputs of the agent, which has ended, to the action that called it.

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
        if self._around is not None and self.transcript is not None:
            self._around += self.transcript
        if self.side_outputs:
            caller.side = [*(caller.side or ()), *self.side_outputs]


def root_of(step: ActionRun) -> ActionRun:
    """Return the action run of the job's agent that ``step`` belongs to: itself outside of sub-agents."""
    return step.run.root if isinstance(step.run, SubAgentRun) else step


def agents_of(step: ActionRun) -> tuple[str, ...]:
    """Return the names of the agents that wait for the result of ``step``, the job's agent first."""
    return step.run.agents if isinstance(step.run, SubAgentRun) else (step.shared.code.name,)


def _field(name: str) -> str:
    """Return the name of an agent as one part of a path."""
    return name.replace("%", "%25").replace(".", "%2E")
