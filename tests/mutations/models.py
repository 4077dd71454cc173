"""The mutations of models and tools, which random conversations find."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from tests.mutations.mutation import mutation


def replace_methods(ctx: Any, **instead: Any) -> Any:
    """A context of an action with something in place of some of its methods."""

    def find(self: Any, name: str) -> Any:
        return instead[name] if name in instead else getattr(ctx, name)

    return object.__new__(type("Beside", (type(ctx),), {"__slots__": (), "__getattribute__": find}))


def unrecorded(ctx: Any) -> Any:
    """A context that makes durable calls without a record."""

    async def call(durable: Any, *args: Any) -> Any:
        result = getattr(durable, "function", durable)(*args)
        return await result if hasattr(result, "__await__") else result

    return replace_methods(ctx, durable_execute_async=call)


@mutation("requests-unrecorded", "models.chat.requests:ModelRequests.send", chats=True)
def requests_unrecorded(before: Any) -> Any:
    """Requests to models leave no record."""

    async def send(self: Any, ctx: Any, *rest: Any) -> Any:
        return await before(self, unrecorded(ctx), *rest)

    return send


@mutation("tools-unrecorded", "models.tools.functions:FunctionTool._call_recorded", chats=True)
def tools_unrecorded(before: Any) -> Any:
    """Calls of tools leave no record."""

    async def call(self: Any, ctx: Any, arguments: Any, policy: Any) -> Any:
        return await before(self, unrecorded(ctx), arguments, policy)

    return call


@mutation("agents-unrecorded", "models.engine.durability:_Calls.execute", chats=True)
def agents_unrecorded(before: Any) -> Any:
    """What whole agents do leaves no record."""

    async def execute(self: Any, **given: Any) -> Any:
        return await given["body"]()

    return execute


@mutation("tools-of-agents-unrecorded", "models.engine.durability:_Calls.execute", chats=True)
def tools_of_agents_unrecorded(before: Any) -> Any:
    """Requests of whole agents are recorded, and calls of their tools are not."""

    async def execute(self: Any, **given: Any) -> Any:
        if "tool" in type(given["operation_id"]).__name__.lower():
            return await given["body"]()
        return await before(self, **given)

    return execute


@mutation("messages-by-the-clock", "models.chat.resource:ChatModelResource._hold_conversation", chats=True)
def messages_by_the_clock(before: Any) -> Any:
    """Messages carry the time of the clock, and not that of the run."""

    async def chat(self: Any, ctx: Any, *rest: Any) -> Any:
        return await before(self, replace_methods(ctx, now=lambda: datetime.now(UTC)), *rest)

    return chat


@mutation("agents-by-chance", "models.engine.durability:FlinkDurability.get_default_run_id", chats=True)
def agents_by_chance(before: Any) -> Any:
    """Runs of whole agents have identities that a replay has otherwise."""
    return lambda self: str(uuid.uuid4())


@mutation("told-by-the-end", "models.tools.toolbox:Toolbox.call_all", chats=True)
def told_by_the_end(before: Any) -> Any:
    """Tools of one response are told in the order in which they end."""

    async def call_all(self: Any, calls: Any) -> Any:
        returned_parts: list[Any] = []

        async def call_tool(call: Any) -> None:
            returned_parts.append(self._return_part(call, await self._call_tool(call)))

        await self._ctx.gather(*[call_tool(call) for call in calls])
        return returned_parts

    return call_all


@mutation("history-unrecorded", "models.chat.messages.history:RememberedChat.store_chat", chats=True)
def history_unrecorded(before: Any) -> Any:
    """Histories are kept outside of the memory of the key, which a crash takes back."""
    from flink_agents.models.chat.messages.history import RememberedChat

    histories: dict[str, Any] = {}
    begin = RememberedChat.begin_chat

    def begin_with_history(self: Any, added: Any) -> Any:
        return [*histories.get(self._policy.name, []), *begin(self, added)]

    async def end(self: Any, messages: Any) -> None:
        histories[self._policy.name] = list(messages)
        await before(self, messages)

    RememberedChat.begin_chat = begin_with_history
    return end


@mutation("effects-of-tools-unrecorded", "models.tools.functions:FunctionTool._call_in_action", chats=True)
def effects_of_tools_unrecorded(before: Any) -> Any:
    """Tools that are code of the action make durable calls without a record."""

    async def call(self: Any, ctx: Any, arguments: Any, policy: Any) -> Any:
        return await before(self, unrecorded(ctx), arguments, policy)

    return call
