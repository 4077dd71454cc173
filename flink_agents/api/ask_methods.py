"""Methods of ``RunnerContext`` by which an action asks other agents, and joins several answers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from flink_agents.api.errors import AskedOutputsError

if TYPE_CHECKING:
    from flink_agents.api.agent import Agent

ASKED = "_asked"
"""The object in short-term memory whose fields are the memories of asked agents, by name."""


class AskMethods(ABC):
    """A base of ``RunnerContext``."""

    def ask(self, agent: Agent | type[Agent], event: Any) -> Awaitable[Any]:
        """Let another agent handle ``event`` within this run; gives its output, to be awaited.

        For ``async def`` actions. The actions of the asked agent are executed as code of this one: each of
        their durable calls is recorded, and after a crash none whose end was recorded is made again. The
        agent has a short-term memory of its own for the key. What it does takes effect as a whole when it
        has ended, and not at all where it raises or is cancelled.

        Args:
            agent: An instance, which is best made once, or a class without required arguments.
            event: An event that the agent takes; anything else is the input of an ``InputEvent``.

        Returns:
            What gives the value of its ``OutputEvent``.

        Raises:
            AskedOutputsError: When awaited: it put out nothing, or more than one value.
            Exception: When awaited: what an action of the agent raised in its last attempt.
            AgentCycleError: The agent is asked while it waits for this answer.
            UnknownEventError: No action of the agent takes such an event.
            UnknownSideOutputError: It declares a side output that this agent does not.
            AgentDefinitionError: The agent cannot work.
            ContextMisuseError: The action is no ``async def``, or one of the asked agent needs a thread.
        """
        return _only(self._ask(agent, event))

    def ask_all(self, agent: Agent | type[Agent], event: Any) -> Awaitable[list[Any]]:
        """Ask as :meth:`ask` does, for all outputs in their order, however many there are.

        Args:
            agent: An instance, or a class without required arguments.
            event: An event that the agent takes; anything else is the input of an ``InputEvent``.
        """
        return _values(self._ask(agent, event))

    async def join(
        self, *awaitables: Awaitable[Any], timeout: float | None = None
    ) -> list[Any | BaseException]:
        """Await all of them side by side, as long as time lasts.

        Args:
            *awaitables: What is awaited, such as several :meth:`ask`.
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
    def _ask(self, agent: Agent | type[Agent], event: Any) -> Awaitable[tuple[str, list[Any]]]: ...


async def _only(asked: Awaitable[tuple[str, list[Any]]]) -> Any:
    name, outputs = await asked
    if len(outputs) == 1:
        return outputs[0]
    raise AskedOutputsError(
        f"the asked agent {name!r} gave no answer"
        if not outputs
        else f"the asked agent {name!r} gave several answers",
        expected="one OutputEvent",
        found=f"{len(outputs)} of them",
        fix="let the agent end each way with one OutputEvent, or write await ctx.ask_all(...)",
    )


async def _values(asked: Awaitable[tuple[str, list[Any]]]) -> list[Any]:
    return (await asked)[1]


def _ended(task: asyncio.Future[Any], late: bool, timeout: float | None) -> Any:
    """What one of several came to."""
    if late and task.cancelled():
        return TimeoutError(f"it had not ended after {timeout:g} s")
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()
