"""What an asked agent makes of one event, inside the run of the action that asks."""

from __future__ import annotations

from typing import Any, Literal

from pydantic_core import to_jsonable_python

from flink_agents.api.context.asking import ASKED, TranscriptEntry
from flink_agents.api.events import AskLineage, Event, InputEvent, lineage_of_sent, stamp
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.state.memory import ScopedTree


class SubAgentRun(Run):
    """One ask. Nothing of it reaches the run of who asks before :meth:`hand_over`.

    Args:
        shared: What all runs of the asked agent share.
        asker: The action run that asks.
        traced: Whether the answer says what the agent did.

    Attributes:
        asker: See above.
        root: The action run of the job's agent to which all of it belongs.
        agents: Names of the agents that wait for each other's answers, the job's agent first.
        transcript: What the agent did, and those that it asked; None where nobody wants to know.
    """

    __slots__ = ("_around", "_memory", "agents", "asker", "root", "transcript")

    def __init__(self, shared: RunEnvironment, asker: ActionRun, traced: bool) -> None:
        outer = asker.run
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
        self._memory = ScopedTree(outer.short_term, f"{ASKED}.{_field(shared.agent_name)}", self.undo)
        self.short_term = self._memory
        # Whoever sees an id of this run has seen the number of that one.
        self.lineage = outer.lineage
        self.asker = asker
        self.root: ActionRun = root_of(asker)
        self.agents: tuple[str, ...] = (*agents_of(asker), shared.agent_name)
        self._around = outer.transcript if isinstance(outer, SubAgentRun) else None
        self.transcript: list[TranscriptEntry] | None = None
        if traced or self._around is not None:
            self.transcript = []

    def take(self, event: Any, task: str, number: int) -> Event:
        """The event that the asked agent handles, with its place in the run.

        Args:
            event: An event, which stays as it is, or an input.
            task: The task that asks.
            number: How many asks of that task came before.
        """
        received = self._shared.as_received(event)
        made = received.model_copy() if isinstance(received, Event) else InputEvent(input=received)
        parent = lineage_of_sent(self.asker.event)
        stamp(made, AskLineage(parent, self.asker.action.name, self._shared.agent_name, task, number))
        return made

    def note(self, step: ActionRun, kind: Literal["event", "chat"], name: str, content: Any) -> None:
        """Note something that an action of the agent did, where somebody wants to know.

        Args:
            step: The action run.
            kind: What it did.
            name: Type of the event, or name of the chat model.
            content: What belongs to it; it becomes JSON.
        """
        if self.transcript is not None:
            plain = to_jsonable_python(content, fallback=repr, inf_nan_mode="constants")
            agent, action = self._shared.agent_name, step.action.name
            self.transcript.append(
                TranscriptEntry(agent=agent, action=action, kind=kind, name=name, content=plain)
            )

    def hand_over(self) -> None:
        """Let what the ended agent wrote, and its side outputs, be those of the action that asks.

        Raises:
            ContextMisuseError: That has ended.
            MemoryPathError: A plain value is by now where an object was.
        """
        asker = self.asker
        asker.guard()
        mark = len(asker.run.undo)
        try:
            self._memory.hand_over()
        except BaseException:
            asker.run.rollback(mark)
            raise
        if self._around is not None and self.transcript is not None:
            self._around += self.transcript
        if self.side_outputs:
            asker.side = [*(asker.side or ()), *self.side_outputs]


def root_of(step: ActionRun) -> ActionRun:
    """The action run of the job's agent that ``step`` belongs to: itself, where no agent was asked."""
    return step.run.root if isinstance(step.run, SubAgentRun) else step


def agents_of(step: ActionRun) -> tuple[str, ...]:
    """Names of the agents that wait for what ``step`` does, the job's agent first."""
    return step.run.agents if isinstance(step.run, SubAgentRun) else (step.shared.agent_name,)


def _field(name: str) -> str:
    """The name of an agent as one part of a path."""
    return name.replace("%", "%25").replace(".", "%2E")
