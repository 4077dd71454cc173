"""Tools that are Python functions.

A function without a context parameter is one recorded call: a replay does not call it again. A function with
``RunnerContext`` or memory parameters is code of the action: a replay executes it again, and its durable
steps are recorded.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_ai.exceptions import ModelRetry, ToolFailed
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

from flink_agents import redaction
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import IDEMPOTENCY_KEY, DurableCallable, TerminalError, UnknownOutcome
from flink_agents.api.errors import ActionTimeoutError, AgentsError, ToolResultError
from flink_agents.api.events.approvals import ApprovalOutcome
from flink_agents.api.models.chat import OnToolError
from flink_agents.api.resources import Tool
from flink_agents.api.resources.memory import MemoryObject, MemoryScope
from flink_agents.api.resources.tools import with_key
from flink_agents.models.setup.failures import text_of
from flink_agents.models.tools.calls import OutcomeUnknown, ToolOutcome, ToolPolicy, UnknownToolOutcome
from flink_agents.models.tools.results import for_model as result_for_model

Described = dict[Literal["success", "retry", "failed", "unknown"], Any]
"""The record of a call's outcome: its kind, and the result for the model. If the kind is ``unknown``, the
reason and the idempotency key."""


class FunctionTool:
    """A tool that is a Python function, as models call it in conversations.

    Args:
        tool: The function with its name, schema and settings.
    """

    def __init__(self, tool: Tool) -> None:
        self.name = tool.name
        self._declared_tool = tool
        self._tool = tool.approved
        self._is_async = inspect.iscoroutinefunction(tool.func)

    @property
    def needs_approval(self) -> bool:
        """True if :meth:`call` may request an approval first."""
        return bool(self._declared_tool.settings.needs_approval)

    @property
    def definition(self) -> ToolDefinition:
        """The definition of the tool for the model: name, description, schema of the arguments."""
        return ToolDefinition(
            name=self.name,
            description=self._tool.description or None,
            parameters_json_schema=self._tool.parameters,
        )

    async def call(
        self, ctx: RunnerContext, arguments: Mapping[str, Any], policy: ToolPolicy
    ) -> ToolOutcome | UnknownToolOutcome:
        """Call the function with a model's arguments, after an approval if it needs one.

        Args:
            ctx: The context of the action.
            arguments: The arguments of the model by name; JSON values. Invalid ones are a ``retry``.
            policy: Limits and policies of the conversation.

        Raises:
            Exception: The function raised it, and it ends the conversation.
            ToolResultError: JSON cannot hold the result.
        """
        try:
            self._tool.check_arguments(arguments)
        except (ValidationError, RecursionError) as error:
            return ToolOutcome("retry", _argument_errors(error), "validation_error")
        arguments = self._tool.by_name(arguments)
        if self._declared_tool.needs_approval(arguments):
            outcome = await self._ask_approval(ctx, arguments)
            if not outcome.approved:
                return ToolOutcome("denied", outcome.text)
            arguments = self._tool.by_name(outcome.arguments)
        return await self._call_function(ctx, arguments, policy, None)

    async def _call_function(
        self, ctx: RunnerContext, arguments: Mapping[str, Any], policy: ToolPolicy, key: str | None
    ) -> ToolOutcome | UnknownToolOutcome:
        """Call the function; ``key`` is the idempotency key of the call that this one repeats."""
        try:
            if self._tool.given:
                record = await self._call_in_action(ctx, arguments, policy, key)
            else:
                record = await self._call_recorded(ctx, arguments, policy, key)
        except (AgentsError, TerminalError):
            raise
        except Exception as error:
            if policy.on_error is OnToolError.FAIL:
                raise
            return ToolOutcome("failed", f"{type(error).__name__}: {text_of(error)}")
        ((kind, content),) = record.items()
        if kind != "unknown":
            return ToolOutcome(kind, content)
        reason, call_key = content
        repeat_call = partial(self._call_function, ctx, arguments, policy, call_key)
        return UnknownToolOutcome(f"the tool {self.name!r}", self.name, reason, arguments, repeat_call)

    async def _ask_approval(self, ctx: RunnerContext, arguments: Mapping[str, Any]) -> ApprovalOutcome:
        timeout = self._declared_tool.settings.approval_timeout
        check = self._tool.check_arguments
        return await ctx.request_approval(f"tool {self.name}", arguments, timeout=timeout, check=check)

    async def _call_recorded(
        self, ctx: RunnerContext, arguments: Mapping[str, Any], policy: ToolPolicy, key: str | None
    ) -> Described:
        """Call the function in a durable step, and return the record of the outcome."""
        function = _recorded_function(self._tool, self._is_async, policy.result_limit)
        if self._tool.takes_key:
            function = with_key(function, self._is_async)
        step = DurableCallable(
            function,
            name=f"tool:{self.name}",
            timeout=policy.timeout,
            retry=_IF_TIMED_OUT if self._tool.is_repeatable else None,
            reconciler=None if self._tool.settings.idempotent is not False else _answer_lost_call,
            unknown=UnknownOutcome(_unknown_record, repeats=self._tool.is_repeatable),
        )
        repeats_call = key is not None and self._tool.takes_key
        key_argument: dict[str, Any] = {IDEMPOTENCY_KEY: key} if repeats_call else {}
        return await ctx.durable_execute_async(step, dict(arguments), **key_argument)

    async def _call_in_action(
        self, ctx: RunnerContext, arguments: Mapping[str, Any], policy: ToolPolicy, key: str | None
    ) -> Described:
        """Call a function with context or memory parameters as code of the action; nothing is recorded."""
        injected_arguments = {
            name: _runtime_argument(ctx, annotation) for name, annotation in self._tool.given.items()
        }
        if self._tool.takes_key:
            key = injected_arguments[IDEMPOTENCY_KEY] = key or ctx.uuid4().hex
        try:
            returned = self._tool(**injected_arguments, **arguments)
            if inspect.isawaitable(returned):
                returned = await _limit_time(policy.timeout, returned)
            return _describe_outcome(self._tool, self.name, returned, policy.result_limit)
        except (ModelRetry, ToolFailed) as raised:
            return _failure_record(raised)
        except OutcomeUnknown as unknown:
            return _unknown_record(str(unknown), key)


_IF_TIMED_OUT = RetryPolicy(retry_on=(ActionTimeoutError,))
"""Retries a timed-out call of an idempotent tool; all attempts have the same key."""


def _recorded_function(tool: Tool, is_async: bool, limit: int) -> Callable[[dict[str, Any]], Any]:
    """Return the function of a tool's durable step, from arguments as one dict to the outcome's record.

    Args:
        tool: The tool, which needs no approval.
        is_async: True if its function is a coroutine function; the result is one, too.
        limit: Maximum size of its result, in bytes of JSON.
    """

    async def call_async(arguments: dict[str, Any], started: Awaitable[Any] | None = None) -> Described:
        try:
            return _describe_outcome(tool, tool.name, await (started or tool(**arguments)), limit)
        except (ModelRetry, ToolFailed) as raised:
            return _failure_record(raised)
        except OutcomeUnknown as unknown:
            return _unknown_record(str(unknown), arguments.get(IDEMPOTENCY_KEY))

    def call(arguments: dict[str, Any]) -> Described | Awaitable[Described]:
        try:
            returned = tool(**arguments)
            if inspect.isawaitable(returned):
                # The function wraps an async one. The durable step awaits it on the event loop.
                return call_async(arguments, returned)
            return _describe_outcome(tool, tool.name, returned, limit)
        except (ModelRetry, ToolFailed) as raised:
            return _failure_record(raised)
        except OutcomeUnknown as unknown:
            return _unknown_record(str(unknown), arguments.get(IDEMPOTENCY_KEY))

    return call_async if is_async else call


def _unknown_record(reason: str, key: str | None) -> Described:
    return {"unknown": [reason, key]}


def _answer_lost_call(arguments: dict[str, Any], idempotency_key: str) -> Described:
    """Return the record of a call that must not be repeated after the worker crashed during it."""
    return _unknown_record("the worker died during the call", idempotency_key)


def _argument_errors(error: Exception) -> Any:
    """Return the problems of a model's arguments as JSON values, for the model."""
    if isinstance(error, ValidationError):
        return to_jsonable_python(error.errors(include_url=False, include_context=False))
    return "The arguments are nested too deep."


async def _limit_time(seconds: float | None, awaitable: Any) -> Any:
    """Await the result of a tool; OutcomeUnknown after ``seconds``. None is no limit."""
    if seconds is None:
        return await awaitable
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await awaitable
    except TimeoutError:
        # The tool itself may have raised one.
        if not deadline.expired():
            raise
        raise OutcomeUnknown(f"it took longer than {seconds:g} seconds") from None


def _runtime_argument(ctx: RunnerContext, annotation: Any) -> Any:
    """Return the value of a tool's context or memory parameter, by its annotation.

    Memory is short-term memory, unless it is ``Annotated[MemoryObject, MemoryScope.SENSORY]``.
    """
    kind, *metadata = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if not issubclass(kind, MemoryObject):
        return ctx
    return ctx.sensory_memory if MemoryScope.SENSORY in metadata else ctx.short_term_memory


def _failure_record(raised: ModelRetry | ToolFailed) -> Described:
    """Return the record of a call that ended with an exception for the model, without secrets."""
    return {"retry" if isinstance(raised, ModelRetry) else "failed": redaction.hide(raised.message)}


def _describe_outcome(tool: Tool, name: str, value: Any, limit: int) -> Described:
    """Return the record of a call that returned ``value``.

    Args:
        tool: The tool.
        name: Its name, for the error.
        value: The value that it returned.
        limit: Maximum size of the value, in bytes of JSON.

    Raises:
        ToolResultError: JSON cannot hold the value.
    """
    try:
        kind, content = result_for_model(value, limit, _plain_value)
    except (ValueError, TypeError) as error:
        raise ToolResultError(
            f"the tool {name!r} returned a value that JSON cannot hold",
            expected="a value for JSON: strings, numbers, lists, dicts, dataclasses, pydantic models",
            found=f"{type(value).__qualname__}: {error}"[:500],
            fix="return a value that the model can read",
        ) from None
    if kind == "retry" and tool.settings.idempotent is False:
        # A model that gets an error for an invalid call makes another call.
        return {"success": f"The call was made; do not repeat it. {content.partition('. ')[0]}."}
    return {kind: content}


def _plain_value(value: Any) -> Any:
    """Return a value as JSON values, without secrets."""
    return redaction.hidden(to_jsonable_python(value), known_only=True)
