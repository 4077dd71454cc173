"""The built-in actions: one answers requests to chat models, the other one requests for tool calls."""

from __future__ import annotations

from pydantic_ai.messages import ToolCallPart
from pydantic_core import to_jsonable_python

from flink_agents.api.context import RunnerContext
from flink_agents.api.models.chat_events import (
    CallResult,
    ChatRequestEvent,
    ChatResponseEvent,
    RequestedCall,
    ToolRequestEvent,
    ToolResponseEvent,
)
from flink_agents.api.models.history import ChatTranscript
from flink_agents.models.chat.messages.converting import to_json
from flink_agents.models.tools.calls import ToolPolicy
from flink_agents.models.tools.skills.resource import with_skills
from flink_agents.models.tools.toolbox import Toolbox, tool_named, tools_of


async def answer_chat_request(event: ChatRequestEvent, ctx: RunnerContext) -> ChatResponseEvent:
    """Hold the conversation that an event requests, and return the response event."""
    result = await ctx.chat(
        event.model,
        event.messages,
        output_type=event.output_schema,
        tools=event.tools,
        variables=event.variables,
        history=event.history,
        run_tools=event.run_tools,
    )
    return ChatResponseEvent(
        request_id=event.id or "",
        tag=event.tag,
        model=result.model,
        output=result.output,
        messages=ChatTranscript(to_json(result.messages)),
        usage=result.usage,
        tool_calls=tuple(_requested_call(call) for call in result.tool_calls),
    )


async def answer_tool_request(event: ToolRequestEvent, ctx: RunnerContext) -> ToolResponseEvent:
    """Call the tools that an event names, concurrently, and return the response event with the results.

    A call of an unknown tool, or with invalid arguments, has the problem as its result.
    """
    requested_sources, _ = with_skills(ctx, event.tools)
    source_tools = await tools_of(ctx, requested_sources)
    source_tool_names = {tool.name for tool in source_tools}
    other_names = dict.fromkeys(call.name for call in event.calls if call.name not in source_tool_names)
    tools = [*source_tools, *filter(None, (tool_named(ctx, name) for name in other_names))]
    toolbox = Toolbox(ctx, tools, ToolPolicy(), len(event.calls), ctx.now())
    calls = [ToolCallPart(call.name, call.arguments, call.id) for call in event.calls]
    outcomes = await toolbox.outcomes(calls)
    return ToolResponseEvent(
        request_id=event.id or "",
        tag=event.tag,
        results=tuple(
            CallResult(
                name=call.name, id=call.id, kind=outcome.kind, content=to_jsonable_python(outcome.content)
            )
            for call, outcome in zip(event.calls, outcomes, strict=True)
        ),
    )


def _requested_call(call: ToolCallPart) -> RequestedCall:
    return RequestedCall(name=call.tool_name, arguments=call.args_as_dict(), id=call.tool_call_id)
