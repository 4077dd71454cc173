"""Tools that need approval, in the run of a Pydantic AI agent: requests, answers, and errors.

A policy that answers at once is asked in a recorded call. If the capability has ``approvals=True``, each call
becomes an approval request, and so does a question of ``RequestInput``: the run of the action is suspended
until a person answers. Otherwise no run waits for a person: it ends with a named error, or with the requests
as its output.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import JsonValue, TypeAdapter
from pydantic_ai.durable_exec import ExternalEventWaiter, external_event_scope
from pydantic_ai.exceptions import UserError
from pydantic_ai.external_events import ExternalEventError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied

from flink_agents.api.context import RunnerContext
from flink_agents.api.context.current import current_context
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import ApprovalUnavailableError
from flink_agents.api.events.approvals import ApprovalOutcome, Decision, checked_later

_FIX = (
    "ask people: FlinkDurability(approvals=True); or end the run with the requests: output_type=[..., "
    "DeferredToolRequests], and continue in a later run with deferred_tool_results; or answer at once: a "
    "capability HandleDeferredToolCalls or RequestInput"
)

_deferred: ContextVar[list[ToolCallPart] | None] = ContextVar("flink_agents_deferred_tools", default=None)
"""Tool calls that the run of an agent deferred; None outside of runs in actions."""

_RESULTS = TypeAdapter(DeferredToolResults)


@dataclass(frozen=True)
class HumanApproval:
    """Settings of approval requests to people.

    Attributes:
        seconds: Timeout of a request, after which it counts as denied; None for no timeout.
    """

    seconds: float | None = None


@contextmanager
def ask_for_approvals(agent: str, people: HumanApproval | None) -> Iterator[None]:
    """Let a run of an agent in this block ask policies, and people if they are asked.

    Args:
        agent: Name of the agent, for requests and errors.
        people: Settings of requests to people; None if people are not asked.
    """
    token = _deferred.set([])
    try:
        with external_event_scope(_Asking(agent, people)):
            yield
    finally:
        _deferred.reset(token)


def name_deferral_error(agent: str, error: BaseException) -> BaseException:
    """Return the error that ends a run: a named one if the run deferred tools that it cannot return.

    Args:
        agent: Name of the agent, for the error.
        error: The error of pydantic-ai, which is returned if it has another cause.
    """
    deferred = _deferred.get()
    if not deferred or not isinstance(error, UserError):
        return error
    return ApprovalUnavailableError(
        f"the agent {agent!r} of pydantic-ai called a tool that needs an approval or an external result",
        expected="a run that can end with such requests, or a capability that answers them at once",
        found=f"calls of {', '.join(repr(call.tool_name) for call in deferred)}",
        fix=_FIX,
    )


def note_deferred(requests: DeferredToolRequests) -> None:
    """Remember the tool calls that the current run deferred, for requests and errors."""
    deferred = _deferred.get()
    if deferred is not None:
        deferred[:] = [*requests.approvals, *requests.calls]


async def ask_people(
    agent: str, requests: DeferredToolRequests, people: HumanApproval
) -> DeferredToolResults:
    """Request an approval of each call that needs one, concurrently; wait for the answers and return them.

    Args:
        agent: Name of the agent, which the requests show.
        requests: The calls that a run deferred.
        people: Settings of requests to people.
    """
    context = current_context()
    assert context is not None

    async def request_approval(call: ToolCallPart) -> ApprovalOutcome:
        return await context.request_approval(
            f"tool {call.tool_name} of {agent}",
            call.args_as_dict(),
            timeout=people.seconds,
            check=checked_later,
        )

    calls = requests.approvals
    outcomes = await context.gather(*map(request_approval, calls))
    approvals = {
        call.tool_call_id: _tool_decision(outcome) for call, outcome in zip(calls, outcomes, strict=True)
    }
    return requests.build_results(approvals=approvals)


def _tool_decision(outcome: ApprovalOutcome) -> ToolApproved | ToolDenied:
    """Return an outcome in the form of pydantic-ai, with the arguments that the answer changed."""
    if not outcome.approved:
        return ToolDenied(outcome.text)
    return ToolApproved(override_args=dict(outcome.arguments) if outcome.changed else None)


class _Asking(ExternalEventWaiter):
    """Asks in a recorded call. If there is no answer at once, it asks people, or raises an error.

    Args:
        agent: Name of the agent that asks.
        people: Settings of requests to people; None if people are not asked.
    """

    def __init__(self, agent: str, people: HumanApproval | None) -> None:
        self._agent = agent
        self._people = people

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[JsonValue]], timeout: timedelta | None
    ) -> JsonValue:
        """Ask a question in a durable step, and return the answer; wait for a person if it has none yet.

        Args:
            name: Name of the question.
            ask: Asks with a token; returns the answer, or None if it comes later.
            timeout: Longest wait for a person. Default: that of all requests to people.

        Raises:
            ApprovalUnavailableError: There is no answer at once, and people are not asked.
            ExternalEventError: No answer came in time.
        """
        context = current_context()
        assert context is not None
        token = str(context.uuid4())
        answer = await self._ask_durably(context, name, ask, token, timeout)
        if answer is not None:
            return answer
        if self._people is None:
            raise ApprovalUnavailableError(
                f"the agent {self._agent!r} of pydantic-ai waits for an answer to {name!r}",
                expected="an answer at once",
                found="a question that was passed on to a person",
                fix=_FIX,
            )
        seconds = self._people.seconds if timeout is None else timeout.total_seconds()
        calls = [*(_deferred.get() or ())]
        arguments = {"token": token, "calls": {call.tool_call_id: _describe_call(call) for call in calls}}
        outcome = await context.request_approval(
            f"{name} of {self._agent}", arguments, timeout=seconds, check=_check_results
        )
        if outcome.decision in (Decision.EXPIRED, Decision.ENDED):
            raise ExternalEventError(outcome.text)
        return _call_results(outcome, calls)

    async def _ask_durably(
        self,
        context: RunnerContext,
        name: str,
        ask: Callable[[str], Awaitable[JsonValue]],
        token: str,
        timeout: timedelta | None,
    ) -> JsonValue:
        """Call ``ask`` with a token in a durable step, and return its answer; None if it has none yet."""
        step_name = f"{self._agent}__external_event.{name}.ask"
        step = DurableCallable(ask, name=step_name, timeout=timeout)
        return await context.durable_execute_async(step, token)


def _describe_call(call: ToolCallPart) -> dict[str, Any]:
    """Return a tool call as JSON, for the person who decides."""
    return {"tool": call.tool_name, "arguments": call.args_as_dict()}


def _check_results(arguments: Mapping[str, Any]) -> None:
    """Check that results in an answer have a form that pydantic-ai accepts."""
    if "results" in arguments:
        _RESULTS.validate_python(arguments["results"])


def _call_results(outcome: ApprovalOutcome, calls: list[ToolCallPart]) -> JsonValue:
    """Return the results of all waiting calls as JSON of pydantic-ai's ``DeferredToolResults``.

    They are the results in a person's answer; without any, each call is approved, or each is denied.
    """
    if outcome.approved and "results" in outcome.arguments:
        return outcome.arguments["results"]
    approval = ToolApproved() if outcome.approved else ToolDenied(outcome.text)
    answered = DeferredToolResults(approvals={call.tool_call_id: approval for call in calls})
    return _RESULTS.dump_python(answered, mode="json")
