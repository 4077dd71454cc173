"""Limits, clients, durable calls and other agents: all that actions use on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from typing_extensions import override

from flink_agents.api.context.asking import Answer
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import StoreNotConfiguredError
from flink_agents.plan import LoadedAgent
from flink_agents.runtime.concurrency.clients import Clients
from flink_agents.runtime.execution.limits import Limiters


class Durable(Protocol):
    """Makes durable calls. A ``step`` is an ``action_run.ActionRun``."""

    def call(
        self, step: Any, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> Coroutine[Any, Any, Any]:
        """Make a call for an action that runs on the event loop."""
        ...

    def call_from_thread(
        self, step: Any, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> Any:
        """Make a call for an action that runs in a thread, and block until it ends."""
        ...


class SubAgentCaller(Protocol):
    """Lets actions call other agents. A ``caller`` is an ``action_run.ActionRun``."""

    def ask(
        self, caller: Any, agent: Any, event: Any, traced: bool
    ) -> Callable[[], Coroutine[Any, Any, Answer]]:
        """Prepare a call of ``agent`` with ``event``; return a function that makes it."""
        ...

    async def close(self) -> None:
        """Close the clients and resources of the sub-agents."""
        ...


class NoStore(Durable):
    """Rejects durable calls, because no store is configured."""

    @override
    def call(
        self, step: Any, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        raise StoreNotConfiguredError(
            "a durable call has no store that it could be recorded in",
            expected="the option action-state.store",
            found="no store",
            fix="set action-state.store to 'sqlite', or to another store that all workers reach",
        )

    @override
    def call_from_thread(
        self, step: Any, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        return self.call(step, callable_, args, kwargs)


class LoopServices:
    """All that actions use on the event loop. The loop's thread opens and closes it.

    Flink's task thread creates it. Until the loop exists, there are no durable calls and no other agents.

    Args:
        agent: The agent, bound to its code.
        around_durable: Wraps the object that makes durable calls; for tests.

    Attributes:
        limits: Limits of actions and tools.
        clients: Clients of the subtask.
        durable: Makes durable calls.
        sub_agents: Lets actions call other agents; None before the event loop exists.
    """

    def __init__(
        self, agent: LoadedAgent, around_durable: Callable[[Durable], Durable] = lambda durable: durable
    ) -> None:
        self.limits = Limiters(agent)
        self.clients = Clients(agent)
        self.durable: Durable = NoStore()
        self.sub_agents: SubAgentCaller | None = None
        self._around_durable = around_durable

    def register_durable(self, durable: Durable) -> None:
        """Enable durable calls. The agent loop registers itself when it is created."""
        self.durable = self._around_durable(durable)
