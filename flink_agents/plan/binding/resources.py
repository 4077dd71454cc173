"""Provides the resource kinds of this package: tools, prompts and clients."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from flink_agents.api.errors import ResourceUnavailableError
from flink_agents.api.resources import ChatMessage, Prompt, Tool
from flink_agents.api.resources.providers import DeclaredResource, ResourceProvider


class ToolProvider(ResourceProvider):
    """Creates tools from functions."""

    @override
    def provide(self, declared: DeclaredResource) -> Tool:
        assert declared.function is not None
        options = declared.limits.options()
        return Tool(declared.function, declared.name, declared.description, **options)


class PromptProvider(ResourceProvider):
    """Returns prompts as they were declared."""

    @override
    def provide(self, declared: DeclaredResource) -> Prompt | None:
        prompt = declared.prompt
        if prompt is None:
            return None
        # The plan is the user's own, but values that Pydantic reads from its JSON count as data.
        messages = [ChatMessage(role=message.role, content=message.content) for message in prompt.messages]
        return Prompt(messages=tuple(messages), mcp=prompt.mcp)


class ClientProvider(ResourceProvider):
    """Describes a client: the agent loop opens and closes it."""

    @override
    def provide(self, declared: DeclaredResource) -> Any:
        raise ResourceUnavailableError(
            f"the client {declared.name!r} has to be awaited",
            expected=f"await ctx.client({declared.name!r}) in an async def action",
            found=f"get_resource({declared.name!r}, 'client')",
            fix="call ctx.client",
        )
