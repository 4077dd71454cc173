"""Calls of tools by the code of an action that need an approval first."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from flink_agents.api.common.current import current_context
from flink_agents.api.durable import IDEMPOTENCY_KEY, DurableCallable
from flink_agents.api.errors import ApprovalDeniedError, ContextMisuseError

if TYPE_CHECKING:
    from flink_agents.api.context import RunnerContext
    from flink_agents.api.events.approvals import ApprovalOutcome, Check
    from flink_agents.api.resources import Tool


def call_approved(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Awaitable[Any]:
    """Return a call of ``tool``, to be awaited, that starts when it is approved.

    Args:
        tool: The tool.
        args: Arguments by place.
        kwargs: Arguments by name.

    Raises:
        ContextMisuseError: The code that runs is not that of an ``async def`` action.
    """
    context = current_context()
    if context is None:
        raise ContextMisuseError(
            f"the tool {tool.name!r} needs an approval, but no run can wait for it here",
            expected="a call in an async def action, to be awaited",
            found="a call in a def action, in a durable function, or outside of actions",
            fix=f"write async def, and await {tool.name}(...)",
        )
    # By name: an answer changes arguments by their names.
    bound = inspect.signature(tool.func).bind(*args, **kwargs)
    return _call(context, tool, dict(bound.arguments))


async def _call(context: RunnerContext, tool: Tool, arguments: dict[str, Any]) -> Any:
    given = {name: arguments.pop(name) for name in tool.given if name in arguments}
    if tool.needs_approval(arguments):
        outcome = await ask(
            context, tool.name, arguments, tool.settings.approval_timeout, tool.check_arguments
        )
        if outcome.changed:
            before = outcome.request.arguments
            arguments |= {name: one for name, one in outcome.arguments.items() if one != before.get(name)}
    plain = tool.approved
    if tool.given:
        if tool.takes_key:
            arguments.setdefault(IDEMPOTENCY_KEY, context.uuid4().hex)
        returned = plain(**given, **arguments)
        return await returned if inspect.isawaitable(returned) else returned
    return await context.durable_execute_async(_recorded(plain, arguments), arguments)


async def ask(
    context: RunnerContext,
    tool: str,
    arguments: Mapping[str, Any],
    timeout: float | None,
    check: Check | None = None,
) -> ApprovalOutcome:
    """Wait until a call of a tool is approved.

    Args:
        context: The context of the action.
        tool: Name of the tool.
        arguments: The arguments of the call, as JSON values.
        timeout: Seconds after which it counts as denied; None for never.
        check: Raises ``ValueError`` for arguments that an answer must not bring.

    Raises:
        ApprovalDeniedError: It was not approved.
    """
    outcome = await context.request_approval(f"tool {tool}", arguments, timeout=timeout, check=check)
    if not outcome.approved:
        raise ApprovalDeniedError(
            outcome.text,
            expected="somebody who approves the call",
            found=outcome.decision,
            fix="catch ApprovalDeniedError in the action, and go on without the tool",
            decision=outcome.decision,
        )
    return outcome


def _recorded(tool: Tool, arguments: Mapping[str, Any]) -> DurableCallable:
    async def call_async(arguments: dict[str, Any]) -> Any:
        return await tool(**arguments)

    def call(arguments: dict[str, Any]) -> Any:
        return tool(**arguments)

    function: Any = call_async if inspect.iscoroutinefunction(tool.func) else call
    if tool.takes_key and IDEMPOTENCY_KEY not in arguments:
        function = with_key(function, inspect.iscoroutinefunction(tool.func))
    return DurableCallable(function, name=f"tool:{tool.name}")


def with_key(function: Any, is_async: bool) -> Any:
    """Return a function of one dict of arguments that gets the idempotency key among them."""

    async def call_async(arguments: dict[str, Any], idempotency_key: str) -> Any:
        return await function({**arguments, IDEMPOTENCY_KEY: idempotency_key})

    def call(arguments: dict[str, Any], idempotency_key: str) -> Any:
        return function({**arguments, IDEMPOTENCY_KEY: idempotency_key})

    return call_async if is_async else call
