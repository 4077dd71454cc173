"""Methods of ``RunnerContext`` with which an action calls other agents and joins their answers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from flink_agents.api.common.awaited import AwaitedMethods, note_result
from flink_agents.api.context.waits import timeout_of
from flink_agents.api.errors import AgentOutputsError

ASKED = "_asked"
"""Object in short-term memory whose fields are the memories of sub-agents, by name."""


class SubAgent(Protocol):
    """An :class:`Agent` that another agent calls.

    This module cannot import the class, which is built on the context.

    Attributes:
        agent_name: Name of the agent; None for the class name.
    """

    agent_name: str | None


class TranscriptEntry(BaseModel):
    """One step of a sub-agent on its way to the answer.

    Attributes:
        agent: Name of the agent, which may be a sub-agent of the sub-agent.
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
        agent: Name of the sub-agent.
        outputs: The values of its ``OutputEvent``, in order.
        transcript: Its steps, in order; empty unless you asked for them.
    """

    agent: str
    outputs: list[Any]
    transcript: list[TranscriptEntry]

    @property
    def output(self) -> Any:
        """Return its only output.

        Raises:
            AgentOutputsError: It has no output, or several.
        """
        if len(self.outputs) == 1:
            return self.outputs[0]
        raise AgentOutputsError(
            f"the sub-agent {self.agent!r} returned {'several outputs' if self.outputs else 'no output'}",
            expected="one OutputEvent",
            found=f"{len(self.outputs)} outputs",
            fix="let the agent emit one OutputEvent in each case, or write await ctx.call_agent_all(...)",
        )


class AskMethods(AwaitedMethods, ABC):
    """Base class of ``RunnerContext`` for calls of other agents."""

    def call_agent(self, agent: SubAgent | type[SubAgent], event: Any) -> Coroutine[Any, Any, Any]:
        """Let another agent handle ``event`` within this run; await the result for its output.

        For ``async def`` actions. The actions of the sub-agent run as code of this action: each of their
        durable steps is recorded, and recorded steps are not repeated after a crash. The agent has its own
        short-term memory for the key. Its effects apply as a whole when it ends, and not at all if it raises
        or is cancelled.

        Args:
            agent: An instance, preferably created once, or a class without required arguments.
            event: An event that the agent handles; any other value becomes the input of an ``InputEvent``.

        Returns:
            An awaitable of the value of its ``OutputEvent``.

        Raises:
            AgentOutputsError: When awaited: it has no output, or more than one.
            Exception: When awaited: an action of the agent raised it in its last attempt.
            AgentCycleError: The agent is called while it waits for this answer.
            UnknownEventError: No action of the agent handles such an event.
            UnknownSideOutputError: It declares a side output that this agent does not.
            AgentDefinitionError: The agent cannot work.
            ContextMisuseError: The action is not ``async def``, or an action of the sub-agent needs a thread.
        """
        return note_result("ctx.call_agent", _only_output(self._prepare_call(agent, event)))

    def call_agent_all(self, agent: SubAgent | type[SubAgent], event: Any) -> Coroutine[Any, Any, list[Any]]:
        """Call an agent as :meth:`call_agent` does, for all its outputs in order.

        Args:
            agent: An instance, or a class without required arguments.
            event: An event that the agent handles; any other value becomes the input of an ``InputEvent``.

        Returns:
            An awaitable of the values of its ``OutputEvent``; empty if it has none.
        """
        return note_result("ctx.call_agent_all", _output_values(self._prepare_call(agent, event)))

    def call_agent_traced(
        self, agent: SubAgent | type[SubAgent], event: Any, transcript: bool = True
    ) -> Coroutine[Any, Any, Answer]:
        """Call an agent as :meth:`call_agent` does, for all its outputs and its steps.

        Args:
            agent: An instance, or a class without required arguments.
            event: An event that the agent handles; any other value becomes the input of an ``InputEvent``.
            transcript: True to include the steps of the agent.

        Returns:
            An awaitable of the :class:`Answer`.
        """
        return note_result("ctx.call_agent_traced", self._prepare_call(agent, event, transcript)())

    async def join(
        self, *awaitables: Awaitable[Any], timeout: float | timedelta | None = None
    ) -> list[Any | BaseException]:
        """Await several awaitables concurrently, until the timeout.

        If the caller is cancelled, all of them are.

        Args:
            *awaitables: The awaitables, such as several :meth:`call_agent`.
            timeout: Time after which unfinished ones are cancelled, in seconds or as a timedelta; None for
                no limit.

        Returns:
            In the order of the arguments: the result of each, the error that it raised, or a
            ``TimeoutError``.

        Raises:
            InvalidDurationError: The timeout is invalid.
        """
        seconds = timeout_of("ctx.join", timeout)
        tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
        if not tasks:
            return []
        try:
            _, late = await asyncio.wait(tasks, timeout=seconds)
        finally:
            for task in tasks:
                task.cancel()
        if late:
            await asyncio.wait(late)
        return [_task_result(task, task in late, seconds) for task in tasks]

    @abstractmethod
    def _prepare_call(
        self, agent: SubAgent | type[SubAgent], event: Any, traced: bool = False
    ) -> Callable[[], Coroutine[Any, Any, Answer]]:
        """Check and number a call of an agent; return a function whose coroutine makes the call.

        The caller creates that coroutine only inside its own. So a task that is cancelled before its start
        closes the only coroutine of the call, and Python warns of no other one.

        Args:
            agent: An instance, or a class without required arguments.
            event: An event that the agent handles; any other value becomes the input of an ``InputEvent``.
            traced: True to include the steps of the agent in the answer.
        """


async def _only_output(call: Callable[[], Awaitable[Answer]]) -> Any:
    return (await call()).output


async def _output_values(call: Callable[[], Awaitable[Answer]]) -> list[Any]:
    return (await call()).outputs


def _task_result(task: asyncio.Future[Any], late: bool, timeout: float | None) -> Any:
    """Return the result or the error of a finished task of :meth:`AskMethods.join`.

    A task that was cancelled counts as timed out if it was ``late``: not finished after ``timeout`` seconds.
    """
    if late and task.cancelled():
        return TimeoutError(f"not finished after {timeout:g} s")
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()
