"""What a call of a tool comes to, and what every kind of tool can do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic_ai.tools import ToolDefinition

from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import ToolOutcomeUnknownError
from flink_agents.api.models.chat import OnToolError, OnUnknownOutcome


@dataclass(frozen=True)
class ToolPolicy:
    """How tools of a conversation are called.

    Attributes:
        timeout: Seconds that a call may take; None for no limit.
        result_limit: Bytes of JSON that a call may return.
        on_error: What happens where a tool raises something that is meant for nobody in particular.
        on_unknown: What happens if nobody knows whether a call took effect.
    """

    timeout: float | None = None
    result_limit: int = 100_000
    on_error: OnToolError = OnToolError.FAIL
    on_unknown: OnUnknownOutcome = OnUnknownOutcome.FAIL


class OutcomeUnknown(Exception):
    """Raised inside of a tool if nobody knows whether the call took effect.

    Args:
        reason: Why.
    """


@dataclass(frozen=True)
class Unsettled:
    """A call whose outcome is unknown.

    Attributes:
        what: The tool, for people: ``the tool 'pay'``.
        name: The name by which the model called it.
        reason: Why nobody knows the outcome.
        arguments: The arguments of the call.
        again: Makes the call once more, with its idempotency key.
        error: The class of the error that ends the conversation.
    """

    what: str
    name: str
    reason: str
    arguments: Mapping[str, Any]
    again: Callable[[], Awaitable[ToolOutcome | Unsettled]]
    error: type[ToolOutcomeUnknownError] = ToolOutcomeUnknownError


@dataclass(frozen=True)
class ToolOutcome:
    """What the model is told of a call.

    Attributes:
        kind: ``success``; ``failed``, where the tool cannot do it; ``retry``, where the call was wrong;
            ``denied``, where nobody approved it.
        content: The result, or why there is none; a JSON value.
        cause: Of a retry, what was wrong, in pydantic-ai's words.
    """

    kind: Literal["success", "failed", "retry", "denied"]
    content: Any
    cause: Literal["validation_error", "model_retry", "unknown_tool"] = "model_retry"


class ModelTool(Protocol):
    """A tool that a model can call: of a function, of a server, of anything else.

    Attributes:
        name: The name by which the model calls it.
    """

    name: str

    @property
    def definition(self) -> ToolDefinition:
        """What the model is told of it."""
        ...

    async def call(
        self, ctx: RunnerContext, arguments: Mapping[str, Any], policy: ToolPolicy
    ) -> ToolOutcome | Unsettled:
        """Call it, in a way that a replay takes from records. :func:`settled` ends a call that is unsettled.

        Raises:
            Exception: What ends the conversation.
        """
        ...


class ServedTool(ModelTool, Protocol):
    """A tool of a source, which knows whether somebody has to approve its calls."""

    @property
    def needs_approval(self) -> bool:
        """Whether :meth:`call` asks before it calls."""
        ...

    @property
    def approved(self) -> ModelTool:
        """The same tool, which asks nobody."""
        ...


class ToolSource(Protocol):
    """A resource that has tools for models, such as a server."""

    async def model_tools(self, ctx: RunnerContext) -> Sequence[ServedTool]:
        """Its tools, in a way that a replay takes from records.

        Raises:
            AgentsError: It cannot say which it has.
        """
        ...


async def settled(ctx: RunnerContext, outcome: ToolOutcome | Unsettled, policy: ToolPolicy) -> ToolOutcome:
    """Return the outcome of a call. If nobody knows it, end the conversation, or let a person decide.

    A person who approves lets the call be made once more, with the idempotency key that it had. A person who
    denies that lets the conversation go on: the model is told that the call is not repeated.

    Raises:
        ToolOutcomeUnknownError: Nobody knows the outcome, and nobody is asked.
    """
    while isinstance(outcome, Unsettled):
        if policy.on_unknown is OnUnknownOutcome.FAIL:
            raise outcome.error(
                f"nobody knows whether a call of {outcome.what} took effect",
                expected="an end of the call, or a tool whose calls may be repeated",
                found=outcome.reason,
                fix="find out whether it took effect. Declare the tool idempotent if a repeated call does no "
                "harm; or set on_unknown_outcome='ask', so that a person decides",
            )
        answer = await ctx.request_approval(
            f"repeat tool {outcome.name}", {"call": dict(outcome.arguments), "reason": outcome.reason}
        )
        if not answer.approved:
            reason = f" {answer.reason}" if answer.reason else ""
            return ToolOutcome(
                "failed",
                f"Nobody knows whether the call took effect: {outcome.reason}. A person decided not to "
                f"repeat it, so do not call the tool again for this.{reason}",
            )
        outcome = await outcome.again()
    return outcome
