"""Methods of ``RunnerContext`` by which an action asks other agents, and joins several answers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from flink_agents.api.common.awaited import AwaitedMethods, noted
from flink_agents.api.errors import AgentOutputsError

ASKED = "_asked"
"""The object in short-term memory whose fields are the memories of sub-agents, by name."""


class SubAgent(Protocol):
    """An :class:`Agent`, as another agent calls it: agents are built on the context."""

    agent_name: str | None


class TranscriptEntry(BaseModel):
    """One step of a sub-agent on its way to the answer.

    Attributes:
        agent: Name of the agent; of one that it asked itself, that one's.
        action: Name of the action.
        kind: ``event`` for an event that the action sent, ``chat`` for a conversation with a model.
        name: Type of the event, or name of the chat model.
        content: The event's fields, or the messages that the conversation added; JSON values.
    """

    model_config = ConfigDict(frozen=True)

    agent: str
    action: str
    kind: Literal["event", "chat"]
    name: str
    content: Any


@dataclass(frozen=True)
class Answer:
    """The result of a sub-agent.

    Attributes:
        agent: Name of the agent.
        outputs: Its outputs, in order.
        transcript: Its steps, in order; empty unless you asked for them.
    """

    agent: str
    outputs: list[Any]
    transcript: list[TranscriptEntry]

    @property
    def output(self) -> Any:
        """Its only output.

        Raises:
            AgentOutputsError: It has no output, or several.
        """
        if len(self.outputs) == 1:
            return self.outputs[0]
        raise AgentOutputsError(
            f"the asked agent {self.agent!r} gave {'several answers' if self.outputs else 'no answer'}",
            expected="one OutputEvent",
            found=f"{len(self.outputs)} of them",
            fix="let the agent end each way with one OutputEvent, or write await ctx.call_agent_all(...)",
        )


class AskMethods(AwaitedMethods, ABC):
    """A base of ``RunnerContext``."""

    def call_agent(self, agent: SubAgent | type[SubAgent], event: Any) -> Awaitable[Any]:
        """Let another agent handle ``event`` within this run; gives its output, to be awaited.

        For ``async def`` actions. The actions of the sub-agent are executed as code of this one: each of
        their durable calls is recorded, and after a crash none whose end was recorded is made again. The
        agent has a short-term memory of its own for the key. What it does takes effect as a whole when it
        has ended, and not at all where it raises or is cancelled.

        Args:
            agent: An instance, which is best made once, or a class without required arguments.
            event: An event that the agent takes; anything else is the input of an ``InputEvent``.

        Returns:
            What gives the value of its ``OutputEvent``.

        Raises:
            AgentOutputsError: When awaited: it has no output, or more than one.
            Exception: When awaited: what an action of the agent raised in its last attempt.
            AgentCycleError: The agent is asked while it waits for this answer.
            UnknownEventError: No action of the agent takes such an event.
            UnknownSideOutputError: It declares a side output that this agent does not.
            AgentDefinitionError: The agent cannot work.
            ContextMisuseError: The action is no ``async def``, or one of the sub-agent needs a thread.
        """
        return noted("ctx.call_agent", _only(self._ask(agent, event)))

    def call_agent_all(self, agent: SubAgent | type[SubAgent], event: Any) -> Awaitable[list[Any]]:
        """Ask as :meth:`call_agent` does, for all outputs in their order, however many there are.

        Args:
            agent: An instance, or a class without required arguments.
            event: An event that the agent takes; anything else is the input of an ``InputEvent``.
        """
        return noted("ctx.call_agent_all", _values(self._ask(agent, event)))

    def call_agent_traced(
        self, agent: SubAgent | type[SubAgent], event: Any, transcript: bool = True
    ) -> Awaitable[Answer]:
        """Ask as :meth:`call_agent` does; gives all outputs, and what the agent did on its way to them.

        Args:
            agent: An instance, or a class without required arguments.
            event: An event that the agent takes; anything else is the input of an ``InputEvent``.
            transcript: Whether to tell what it did.
        """
        return noted("ctx.call_agent_traced", self._ask(agent, event, transcript))

    async def join(
        self, *awaitables: Awaitable[Any], timeout: float | None = None
    ) -> list[Any | BaseException]:
        """Await all of them concurrently, until the timeout.

        Args:
            *awaitables: What is awaited, such as several :meth:`call_agent`.
            timeout: Seconds after which those that have not ended are cancelled; None for as long as it
                takes.

        Returns:
            In the order of the arguments: the result of each, the error that it raised, or a
            ``TimeoutError``.
        """
        tasks = [asyncio.ensure_future(one) for one in awaitables]
        if not tasks:
            return []
        try:
            _, late = await asyncio.wait(tasks, timeout=timeout)
        finally:
            for task in tasks:
                task.cancel()
        if late:
            await asyncio.wait(late)
        return [_ended(task, task in late, timeout) for task in tasks]

    @abstractmethod
    def _ask(
        self, agent: SubAgent | type[SubAgent], event: Any, traced: bool = False
    ) -> Awaitable[Answer]: ...


async def _only(asked: Awaitable[Answer]) -> Any:
    return (await asked).output


async def _values(asked: Awaitable[Answer]) -> list[Any]:
    return (await asked).outputs


def _ended(task: asyncio.Future[Any], late: bool, timeout: float | None) -> Any:
    """What one of several came to."""
    if late and task.cancelled():
        return TimeoutError(f"it had not ended after {timeout:g} s")
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()
