"""Checks a test's arguments for the harness, so that mistakes in the test do not look like the agent's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from flink_agents.api.common.places import authors_place, describe
from flink_agents.api.common.policies import DEAD_LETTER_TAG
from flink_agents.api.errors import HarnessUseError, JobDefinitionError, UnknownSideOutputError
from flink_agents.api.errors.base import suggest
from flink_agents.api.events.approvals import APPROVALS_TAG, ApprovalRequest
from flink_agents.api.events.event_time import LATE_TAG
from flink_agents.api.events.signals import UNMATCHED_SIGNALS_TAG

_OF_THE_RUNTIME = frozenset({APPROVALS_TAG, DEAD_LETTER_TAG, LATE_TAG, UNMATCHED_SIGNALS_TAG})


def check_selector(value: Any) -> Callable[[Any], Any]:
    """Return the key selector of a test, if it is a function.

    Raises:
        JobDefinitionError: It is not.
    """
    if callable(value):
        return value
    raise JobDefinitionError(
        "the key_selector of OperatorHarness is not a function",
        expected="a function that returns the key of a record",
        found=describe(value)[:200],
        fix="pass a function, such as lambda record: record.name",
        where=authors_place(),
    )


def check_tag(tag: str, declared: Iterable[str]) -> None:
    """Check that an agent has the side output that a test reads.

    Args:
        tag: Name of the side output.
        declared: Names of the side outputs that the agent declares.

    Raises:
        UnknownSideOutputError: The agent does not declare it, and the runtime does not have it.
    """
    names = sorted(declared)
    if tag not in names and tag not in _OF_THE_RUNTIME:
        raise UnknownSideOutputError(
            f"the agent has no side output {tag!r}",
            expected=", ".join(map(repr, names)) or "a declared one; the agent declares none",
            found=repr(tag),
            fix=suggest(str(tag), names, "declare it: side_outputs = {'late': Order}"),
            where=authors_place(),
        )


def to_milliseconds(time: object, called: str) -> int:
    """Return a test's time in milliseconds.

    Args:
        time: Milliseconds as an int, or a timedelta.
        called: Name of the method that got it, for the error.

    Raises:
        HarnessUseError: It is not a time.
    """
    if isinstance(time, timedelta):
        return int(time.total_seconds() * 1000)
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    raise HarnessUseError(
        f"{called} got an invalid time",
        expected="milliseconds as an int, or a timedelta",
        found=describe(time)[:200],
        fix=f"write {called}(1000)"
        + (" or advance_time(timedelta(seconds=1))" if called == "advance_time" else ""),
        where=authors_place(),
    )


def check_request(request: Any, called: str) -> ApprovalRequest:
    """Return the approval request that a test answers.

    Args:
        request: The test's argument.
        called: Name of the method that got it, for the error.

    Raises:
        HarnessUseError: It is not a request.
    """
    if isinstance(request, ApprovalRequest):
        return request
    raise HarnessUseError(
        f"{called} got a value that is not an approval request",
        expected="one of harness.approvals",
        found=describe(request)[:200],
        fix=f"write harness.{called}(harness.approvals[0])",
        where=authors_place(),
    )


def check_open(is_open: bool) -> None:
    """Check that a harness was not closed.

    Raises:
        HarnessUseError: It was closed.
    """
    if not is_open:
        raise HarnessUseError(
            "the harness is closed",
            expected="a harness that is open: within its `with` block, before close()",
            found="no operator",
            fix="do this before the block ends; emitted values stay in harness.outputs",
            where=authors_place(),
        )
