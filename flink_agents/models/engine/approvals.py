"""Tools that somebody has to approve, in the run of an agent of pydantic-ai: who is asked, and how it ends.

What answers at once, as a policy does, is asked in a recorded call. Nothing waits for a person inside of a
run: such a run ends by a named error, or with the requests as its output.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta

from pydantic import JsonValue
from pydantic_ai.durable_exec import ExternalEventWaiter, external_event_scope
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import DeferredToolRequests

from flink_agents.api.current import current_context
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import ApprovalUnavailableError

_FIX = (
    "let the run end with the requests, by output_type=[..., DeferredToolRequests], and go on in a later run "
    "with deferred_tool_results; or answer at once, by a capability HandleDeferredToolCalls or RequestInput"
)

_deferred: ContextVar[list[str] | None] = ContextVar("flink_agents_deferred_tools", default=None)
"""Names of tools that the run of an agent deferred; None outside of runs in actions."""


@contextmanager
def asking(agent: str) -> Iterator[None]:
    """Let the run of ``agent`` inside of this ask who answers at once."""
    token = _deferred.set([])
    try:
        with external_event_scope(_Asking(agent)):
            yield
    finally:
        _deferred.reset(token)


def named(agent: str, error: BaseException) -> BaseException:
    """The error that a run ends by: a named one, where it deferred tools and could not end with them."""
    deferred = _deferred.get()
    if not deferred or not isinstance(error, UserError):
        return error
    return ApprovalUnavailableError(
        f"the agent {agent!r} of pydantic-ai calls a tool that somebody has to approve or make",
        expected="a run that can end with such requests, or something that answers them at once",
        found=f"calls of {', '.join(map(repr, deferred))}",
        fix=_FIX,
    )


def note_deferred(requests: DeferredToolRequests) -> None:
    """Note calls that a run deferred."""
    deferred = _deferred.get()
    if deferred is not None:
        deferred += [call.tool_name for call in (*requests.approvals, *requests.calls)]


class _Asking(ExternalEventWaiter):
    """Asks in a recorded call; what gives no answer at once is refused.

    Args:
        agent: Name of the agent that asks.
    """

    def __init__(self, agent: str) -> None:
        self._agent = agent

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[JsonValue]], timeout: timedelta | None
    ) -> JsonValue:
        """Ask, and return the answer.

        Raises:
            ApprovalUnavailableError: There is none yet.
        """
        context = current_context()
        assert context is not None
        call = DurableCallable(ask, name=f"{self._agent}__external_event.{name}.ask", timeout=timeout)
        answer: JsonValue = await context.durable_execute_async(call, str(context.uuid4()))
        if answer is None:
            raise ApprovalUnavailableError(
                f"the agent {self._agent!r} of pydantic-ai waits for an answer to {name!r}",
                expected="an answer at once",
                found="a question that was handed on to somebody",
                fix=_FIX,
            )
        return answer
