"""An agent of pydantic-ai as an action of an agent on a stream, and as a tool of another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.run import AgentRunResult

from flink_agents.api.agents.decorators import ClassAttribute, Trigger, action
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import waits_durably
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.events import Event, InputEvent, OutputEvent
from flink_agents.api.settings import ActionOptions
from flink_agents.models.engine.durability import TOOL_CONFIG, FlinkDurability


def _prompt_of(event: Any) -> str:
    return str(event.input if isinstance(event, InputEvent) else event)


def _output_of(result: AgentRunResult[Any], event: Event) -> Event:
    return OutputEvent(output=result.output)


def action_of(
    agent: Agent[Any, Any],
    *triggers: Trigger,
    name: str | None = None,
    prompt: Callable[[Any], Any] = _prompt_of,
    deps: Callable[[Any, RunnerContext], Any] | None = None,
    output: Callable[[AgentRunResult[Any], Any], Any] = _output_of,
    emits: tuple[Trigger, ...] = (OutputEvent,),
    **settings: Unpack[ActionOptions],
) -> Any:
    """Make an action that runs an agent of pydantic-ai.

    In the body of an agent class: ``decide = action_of(refunds, InputEvent)``.

    Args:
        agent: The agent. It has a name and the capability ``FlinkDurability``.
        *triggers: The events that run it.
        name: Name of the action. Default: the agent's.
        prompt: Makes the user's prompt of an event. Default: its input as text.
        deps: Makes the dependencies of the run of an event and the action's context. Default: none.
        output: Makes what the action returns of the run's result and the event. Default: an ``OutputEvent``
            with the result's output.
        emits: The events that ``output`` makes.
        **settings: Settings of the action, as ``@action`` takes them.

    Raises:
        AgentDefinitionError: The agent has no name, or not the capability.
    """
    called, durability = name or agent.name, FlinkDurability.from_agent(agent)
    if not called or durability is None:
        raise AgentDefinitionError(
            "an action runs an agent of pydantic-ai whose calls nothing would record",
            expected="an agent with a name and the capability FlinkDurability",
            found=f"the agent {agent.name!r}" + ("" if called else ", without a name"),
            fix="make it as Agent(..., name='refunds', capabilities=[FlinkDurability()])",
        )

    async def run(event: Any, ctx: RunnerContext) -> Any:
        made = None if deps is None else deps(event, ctx)
        return output(await agent.run(prompt(event), deps=made), event)

    if durability.asks_people:
        waits_durably(run)
    return ClassAttribute(action(*triggers, name=called, emits=emits, **settings)(run))


def as_tool(
    agent: Agent[None, Any],
    *,
    name: str | None = None,
    description: str | None = None,
    step_by_step: bool = False,
) -> Tool[Any]:
    """Make a tool of an agent of pydantic-ai, by which another one hands over a request.

    Args:
        agent: The agent. It has a name.
        name: Name of the tool. Default: the agent's.
        description: Tells the model what the tool is for. Default: the agent's description.
        step_by_step: Record each call of ``agent``, which has ``FlinkDurability`` then. Default: its whole
            run is one durable call of the other agent's, which a crash in the middle repeats.

    Raises:
        AgentDefinitionError: There is no name, or its calls are to be recorded and it has not the capability.
    """
    called = name or agent.name
    if not called:
        raise AgentDefinitionError(
            "an agent of pydantic-ai becomes a tool without a name",
            fix="make it as Agent(..., name='research'), or pass as_tool(agent, name='research')",
        )
    if step_by_step and FlinkDurability.from_agent(agent) is None:
        raise AgentDefinitionError(
            f"the tool {called!r} is to be recorded step by step, but nothing would record its agent's calls",
            expected="an agent with the capability FlinkDurability",
            fix="make it as Agent(..., capabilities=[FlinkDurability()]), or leave step_by_step out",
        )

    async def ask(ctx: RunContext[Any], request: str) -> Any:
        # Inside a durable call what is used there would not be counted again on replay.
        usage = ctx.usage if step_by_step else None
        return (await agent.run(request, usage=usage)).output

    return Tool(
        ask,
        name=called,
        description=description or f"Hands a request over to {called}, and returns the answer.",
        metadata={TOOL_CONFIG: False} if step_by_step else None,
    )
