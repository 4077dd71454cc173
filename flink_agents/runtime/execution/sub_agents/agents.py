"""The agents that the actions of a subtask call: each is compiled and bound at its first use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any

from typing_extensions import override

from flink_agents.api.context.asking import Answer, SubAgent
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import (
    AgentCycleError,
    ContextMisuseError,
    UnknownEventError,
    UnknownSideOutputError,
)
from flink_agents.api.events import Event, InputEvent
from flink_agents.plan import AgentCode, AgentPlan, LoadedAgent
from flink_agents.plan.compile.compiler import compile_with_code
from flink_agents.plan.compile.configuration import instance_of
from flink_agents.runtime.concurrency.bridge import CLIENT_CLOSE_SECONDS
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.calls.delivery import current_delivery
from flink_agents.runtime.execution.environment import Durable, RunEnvironment
from flink_agents.runtime.execution.loop_executor import LoopExecutor
from flink_agents.runtime.execution.sub_agents.executor import SubAgentExecutor
from flink_agents.runtime.execution.sub_agents.sub_agent_run import SubAgentRun, agents_of, root_of


@dataclass(frozen=True)
class CompiledSubAgent:
    """A sub-agent that is ready to be called.

    Attributes:
        plan: Its plan.
        functions: The functions of its actions.
        shared: The shared objects of its runs.
        executor: Executes its runs.
    """

    plan: AgentPlan
    functions: tuple[Callable[..., Any], ...]
    shared: RunEnvironment
    executor: SubAgentExecutor


class SubAgents:
    """The sub-agents that actions of a subtask call. Used on the event loop only.

    Args:
        shared: The shared objects of the calling agent.
        loop: The event loop.
        executor: Executes the runs of the calling agent.
    """

    def __init__(
        self, shared: RunEnvironment, loop: asyncio.AbstractEventLoop, executor: LoopExecutor
    ) -> None:
        self._shared = shared
        self._loop = loop
        self._executor = executor
        # The caller's object is kept alive, so that no other object gets its id().
        self._compiled_by_id: dict[int, tuple[SubAgent | type[SubAgent], CompiledSubAgent]] = {}
        self._compiled: list[CompiledSubAgent] = []

    def prepare_call(
        self, caller: ActionRun, agent: SubAgent | type[SubAgent], event: Any, traced: bool
    ) -> Callable[[], Coroutine[Any, Any, Answer]]:
        """Prepare a call of ``agent`` with ``event``; return a function that makes it.

        The call gets its number among those of the running task here, before it is awaited.

        Args:
            caller: The action run that calls.
            agent: An instance, or a class.
            event: An event, or an input.
            traced: True if the answer includes a transcript.

        Raises:
            ContextMisuseError: The caller is a ``def`` action.
            AgentCycleError: The sub-agent is one that waits for this answer.
            UnknownEventError: No action of the sub-agent handles the event.
            UnknownSideOutputError: The caller's agent lacks a side output of the sub-agent.
        """
        if not caller.action.is_async:
            raise ContextMisuseError(
                f"action {caller.action.name!r} calls an agent, but is no async def",
                expected="an async def action: a sub-agent is executed while the action waits",
                found="a def action",
                fix="write async def, and answer = await ctx.call_agent(...)",
            )
        # Without the context of the first caller, which the agent outlives.
        called = Context().run(self._find_compiled, agent)
        self._check(caller, called, event)
        delivery = current_delivery.get()
        task = delivery.task_path() if delivery is not None else ""
        caller.agent_calls = caller.agent_calls or {}
        number = caller.agent_calls.get(task, 0)
        caller.agent_calls[task] = number + 1
        run = SubAgentRun(called.shared, caller, traced)
        return partial(_answer, called, run, run.receive_event(event, task, number))

    async def close(self) -> None:
        """Close the clients and resources of all sub-agents, the latest first."""
        for called in reversed(self._compiled):
            await called.shared.services.clients.close()
            await called.shared.agent.close_resources(CLIENT_CLOSE_SECONDS)

    def _find_compiled(self, agent: SubAgent | type[SubAgent]) -> CompiledSubAgent:
        """Return a sub-agent that is ready to be called; it is compiled if no equal one was."""
        cache_entry = self._compiled_by_id.get(id(agent))
        if cache_entry is not None:
            return cache_entry[1]
        instance = instance_of(agent)
        plan, code = compile_with_code(instance)
        functions = tuple(action.function for action in code.actions.values())
        for called in self._compiled:
            if called.plan == plan and called.functions == functions:
                # If the user creates a new object for each call, the compiled agent is still reused.
                return called
        called = self._bind_agent(plan, code, functions)
        self._compiled.append(called)
        self._compiled_by_id[id(agent)] = agent, called
        return called

    def _bind_agent(
        self, plan: AgentPlan, code: AgentCode, functions: tuple[Callable[..., Any], ...]
    ) -> CompiledSubAgent:
        """Return a compiled sub-agent with the objects that its runs share."""
        shared = self._shared.for_sub_agent(LoadedAgent(plan, code), _OfRoot())
        shared.services.clients.open(self._loop)
        return CompiledSubAgent(plan, functions, shared, SubAgentExecutor(shared, self._executor))

    def _check(self, caller: ActionRun, called: CompiledSubAgent, event: Any) -> None:
        """Reject a cycle, an event that no action of ``called`` takes, and undeclared side outputs."""
        waiting = agents_of(caller)
        name = called.plan.name
        if name in waiting:
            raise AgentCycleError(
                f"agent {name!r} is called while it waits for this answer: "
                f"{' calls '.join((*waiting, name))}",
                expected="agents of which none calls itself, directly or through others",
                fix="loop by events inside one agent, which run.max-events bounds; give a second stage with "
                "the same code another name; or send what goes round through a topic of Kafka",
            )
        sent = event if isinstance(event, Event) else InputEvent(input=event)
        route = called.shared.routes.find_route(sent)
        if route is None or not route.actions:
            raise UnknownEventError(
                f"agent {name!r} is called with {sent.event_type!r}, which none of its actions accepts",
                expected="one of " + ", ".join(sorted(called.shared.routes.known_types())),
                found=sent.event_type,
                fix=f"give {name} an action for {sent.event_type}, or call it with an event that it "
                "accepts; any other value is the input of an InputEvent",
            )
        missing = sorted(called.shared.agent.side_outputs.keys() - caller.shared.agent.side_outputs.keys())
        if missing:
            raise UnknownSideOutputError(
                f"agent {name!r} has side outputs that {caller.shared.agent.name!r} has not declared",
                expected="the tags " + ", ".join(missing),
                found=", ".join(caller.shared.agent.side_outputs) or "none declared",
                fix=f"declare them in side_outputs of {caller.shared.agent.name}, with the types that "
                f"{name} declares: outputs of a sub-agent leave through the agent that calls it",
            )


async def _answer(called: CompiledSubAgent, run: SubAgentRun, event: Event) -> Answer:
    """Execute a sub-agent for one event, report that to observers, and return its answer."""
    root = run.root
    observers = root.shared.telemetry.observers
    if observers.agent_called is None or observers.agent_answered is None:
        outputs = await called.executor.answer(run, event)
    else:
        caller_and_name = root.run.state, root.action.name, called.plan.name
        observers.agent_called(*caller_and_name)
        started = time.monotonic()
        error = None
        try:
            outputs = await called.executor.answer(run, event)
        except BaseException as raised:
            error = raised
            raise
        finally:
            observers.agent_answered(*caller_and_name, time.monotonic() - started, error)
    transcript = run.hand_over()
    outputs = [run.caller.shared.received.as_received(output) for output in outputs]
    return Answer(called.plan.name, outputs, transcript)


class _OfRoot(Durable):
    """Makes the durable calls of sub-agents as calls of the action that called them."""

    @override
    def call(
        self, step: ActionRun, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        root = root_of(step)
        root.guard()
        return root.shared.services.durable.call(root, callable_, args, kwargs)

    @override
    def call_from_thread(
        self, step: ActionRun, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        raise ContextMisuseError(
            f"action {step.action.name!r} of the sub-agent {step.shared.agent.name!r} makes a durable "
            "call, but is no async def",
            expected="an async def action: a sub-agent is executed on the agent loop",
            found="a def action",
            fix="write async def, and await ctx.durable_execute_async(...)",
        )
