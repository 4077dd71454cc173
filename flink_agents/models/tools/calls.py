"""Outcomes of tool calls, and the interface of all kinds of tools."""

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
    """Settings of tool calls in a conversation.

    Attributes:
        timeout: Timeout of a call in seconds; None for no limit.
        result_limit: Maximum size of a result, in bytes of JSON.
        on_error: Policy if a tool raises an error other than ``ModelRetry`` and similar ones.
        on_unknown: Policy if it is unknown whether a call took effect.
    """

    timeout: float | None = None
    result_limit: int = 100_000
    on_error: OnToolError = OnToolError.FAIL
    on_unknown: OnUnknownOutcome = OnUnknownOutcome.FAIL


class OutcomeUnknown(Exception):
    """Raised inside of a tool if it is unknown whether the call took effect.

    Args:
        reason: The event after which that is unknown, as text: ``it took longer than 5 seconds``.
    """


@dataclass(frozen=True)
class UnknownToolOutcome:
    """A tool call that may or may not have taken effect.

    Attributes:
        what: The tool in words, for messages: ``the tool 'pay'``.
        name: The name by which the model called it.
        reason: The event after which the outcome is unknown, as text.
        arguments: The arguments of the call by name, for the person who decides.
        again: Repeats the call, with its idempotency key.
        error: Class of the error that ends the conversation if the call is not repeated.
    """

    what: str
    name: str
    reason: str
    arguments: Mapping[str, Any]
    again: Callable[[], Awaitable[ToolOutcome | UnknownToolOutcome]]
    error: type[ToolOutcomeUnknownError] = ToolOutcomeUnknownError


@dataclass(frozen=True)
class ToolOutcome:
    """The outcome of a call, for the model.

    Attributes:
        kind: ``success``; ``failed`` if the tool failed; ``retry`` if the call was wrong; ``denied`` if it
            was not approved.
        content: The result, or why there is none; a JSON value.
        cause: For a retry, the error in pydantic-ai's form.
    """

    kind: Literal["success", "failed", "retry", "denied"]
    content: Any
    cause: Literal["validation_error", "model_retry", "unknown_tool"] = "model_retry"


class ModelTool(Protocol):
    """A tool that a model can call: a function, a tool of a server, or another kind.

    Attributes:
        name: The name under which the model calls it.
    """

    name: str

    @property
    def definition(self) -> ToolDefinition:
        """The definition of the tool for the model: name, description, schema of the arguments."""
        ...

    async def call(
        self, ctx: RunnerContext, arguments: Mapping[str, Any], policy: ToolPolicy
    ) -> ToolOutcome | UnknownToolOutcome:
        """Call the tool, as a recorded call, after an approval if it needs one, and return its outcome.

        Args:
            ctx: The context of the action.
            arguments: The arguments of the model by name; JSON values.
            policy: Limits and policies of the conversation. An unknown outcome is left to
                :func:`resolve_outcome`.

        Raises:
            Exception: It ends the conversation.
        """
        ...


class ServedTool(ModelTool, Protocol):
    """A tool of a source, which knows whether its calls need approval."""

    @property
    def needs_approval(self) -> bool:
        """True if :meth:`call` requests an approval first."""
        ...

    @property
    def approved(self) -> ModelTool:
        """The same tool without the need for approvals."""
        ...


class ToolSource(Protocol):
    """A resource that has tools for models, such as a server."""

    async def model_tools(self, ctx: RunnerContext) -> Sequence[ServedTool]:
        """Return the tools of the source; a replay takes their list from records.

        Raises:
            AgentsError: The source cannot list its tools.
        """
        ...


async def resolve_outcome(
    ctx: RunnerContext, outcome: ToolOutcome | UnknownToolOutcome, policy: ToolPolicy
) -> ToolOutcome:
    """Return the outcome of a call. If it is unknown, end the conversation, or wait for a person's decision.

    If the person approves, the call is repeated with its idempotency key. If the person denies, the
    conversation continues, and the model is told that the call is not repeated.

    Args:
        ctx: The context of the action.
        outcome: The outcome of the call, known or unknown.
        policy: Policies of the conversation.

    Raises:
        ToolOutcomeUnknownError: The outcome is unknown, and the policy is not to ask.
    """
    while isinstance(outcome, UnknownToolOutcome):
        if policy.on_unknown is OnUnknownOutcome.FAIL:
            raise outcome.error(
                f"it is unknown whether a call of {outcome.what} took effect",
                expected="a finished call, or a tool whose calls may be repeated",
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
                f"It is unknown whether the call took effect: {outcome.reason}. A person decided not to "
                f"repeat it, so do not call the tool again for this.{reason}",
            )
        outcome = await outcome.again()
    return outcome
