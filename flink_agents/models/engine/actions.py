"""A Pydantic AI agent as an action of an agent on a stream, and as a tool of another agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.run import AgentRunResult

from flink_agents.api.agents.decorators import ClassAttribute, Trigger, action
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.events import Event, InputEvent, OutputEvent
from flink_agents.api.settings import ActionOptions
from flink_agents.models.engine.durability import TOOL_CONFIG, FlinkDurability


def _prompt_of(event: Any) -> str:
    """Return the input of an event, or the event itself, as text."""
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
        agent: The agent of pydantic-ai. It needs a name and the capability ``FlinkDurability``.
        *triggers: Event classes or type strings; the agent runs for each event that matches one.
        name: Name of the action. Default: the agent's.
        prompt: Returns the user's prompt for an event. Default: its input as a string.
        deps: Returns the dependencies of a run, from the event and the action's context. Default: none.
        output: Returns the action's result, from the run's result and the event. Default: an ``OutputEvent``
            with the result's output.
        emits: Event classes or type strings of the events that ``output`` returns.
        **settings: Settings of the action, as ``@action`` takes them.

    Raises:
        AgentDefinitionError: The agent has no name, or lacks the capability.
    """
    action_name = name or agent.name
    durability = FlinkDurability.from_agent(agent)
    if not action_name or durability is None:
        raise AgentDefinitionError(
            "an action runs an agent of pydantic-ai whose calls would not be recorded",
            expected="an agent with a name and the capability FlinkDurability",
            found=f"the agent {agent.name!r}" + ("" if action_name else ", without a name"),
            fix="create it as Agent(..., name='refunds', capabilities=[FlinkDurability()])",
        )

    async def run(event: Any, ctx: RunnerContext) -> Any:
        dependencies = None if deps is None else deps(event, ctx)
        return output(await agent.run(prompt(event), deps=dependencies), event)

    return ClassAttribute(action(*triggers, name=action_name, emits=emits, **settings)(run))


def as_tool(
    agent: Agent[None, Any],
    *,
    name: str | None = None,
    description: str | None = None,
    step_by_step: bool = False,
) -> Tool[Any]:
    """Make a tool of a Pydantic AI agent, with which another agent delegates a request.

    Args:
        agent: The agent of pydantic-ai that gets the requests.
        name: Name of the tool. Default: the agent's.
        description: Description of the tool for the model. Default: a sentence with the tool's name.
        step_by_step: True to record each call of ``agent``, which needs ``FlinkDurability`` then. Default:
            its whole run is one durable step of the other agent; after a crash in the middle, it runs again.

    Raises:
        AgentDefinitionError: The tool has no name, or ``step_by_step`` is set and the agent lacks the
            capability.
    """
    tool_name = name or agent.name
    if not tool_name:
        raise AgentDefinitionError(
            "an agent of pydantic-ai becomes a tool without a name",
            fix="create it as Agent(..., name='research'), or pass as_tool(agent, name='research')",
        )
    if step_by_step and FlinkDurability.from_agent(agent) is None:
        raise AgentDefinitionError(
            f"the tool {tool_name!r} is to be recorded step by step, but its agent's calls would not be "
            "recorded",
            expected="an agent with the capability FlinkDurability",
            fix="create it as Agent(..., capabilities=[FlinkDurability()]), or leave step_by_step out",
        )

    async def ask_agent(ctx: RunContext[Any], request: str) -> Any:
        # Usage inside of a durable step would not be counted again on replay.
        usage = ctx.usage if step_by_step else None
        return (await agent.run(request, usage=usage)).output

    return Tool(
        ask_agent,
        name=tool_name,
        description=description or f"Hands a request over to {tool_name}, and returns the answer.",
        metadata={TOOL_CONFIG: False} if step_by_step else None,
    )
