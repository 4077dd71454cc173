"""Which errors are retried, and after which pause."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest

from flink_agents import RetryPolicy
from flink_agents.api.errors import (
    ActionTimeoutError,
    MemoryPathError,
)
from flink_agents.runtime.execution.retry import is_retryable, next_attempt, pause, retry_after


class Unstable(Exception):
    pass


class Gone(Unstable):
    pass


# -- which errors --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(), True),
        (OSError(), True),
        (TimeoutError(), True),
        (RuntimeError(), True),
        (Unstable(), True),
        (ActionTimeoutError("x"), True),
        (TypeError(), False),
        (AttributeError(), False),
        (NameError(), False),
        (KeyError(), False),
        (IndexError(), False),
        (AssertionError(), False),
        (SyntaxError(), False),
        (ModuleNotFoundError(), False),
        (NotImplementedError(), False),
        (MemoryPathError("x"), False),
        (SystemExit(), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_what_is_tried_again_by_default(error: BaseException, expected: bool) -> None:
    assert is_retryable(RetryPolicy(), error) is expected


def test_what_is_tried_again_by_choice() -> None:
    policy = RetryPolicy(retry_on=(Unstable, KeyError), non_retryable=(Gone,))
    errors = [Unstable(), KeyError(), Gone(), OSError()]
    assert [is_retryable(policy, error) for error in errors] == [True, True, False, False]
    assert is_retryable(RetryPolicy(retry_on=Unstable), Unstable())  # type: ignore[arg-type]


def test_group_is_tried_again_where_each_of_its_errors_is() -> None:
    group: Any = ExceptionGroup
    assert is_retryable(RetryPolicy(), group("all", [OSError(), group("inner", [Unstable()])]))
    assert not is_retryable(RetryPolicy(), group("some", [OSError(), TypeError()]))
    slow = Unstable()
    slower = Unstable()
    slow.retry_after, slower.retry_after = 1, 2  # type: ignore[attr-defined]
    assert retry_after(group("all", [slow, slower, OSError()])) == 2


# -- when ----------------------------------------------------------------------------


def test_pauses_grow_up_to_the_cap() -> None:
    policy = RetryPolicy(initial_interval=1, factor=3, max_interval=10, jitter=0)
    assert [pause(policy, number, "s") for number in (1, 2, 3, 4, 5000)] == [1, 3, 9, 10, 10]


def test_jitter_shortens_by_a_chance_that_replay_gets_again() -> None:
    policy = RetryPolicy(initial_interval=8, max_interval=8, jitter=0.5)
    pauses = [pause(policy, 1, f"run {number}") for number in range(50)]
    assert all(4 <= seconds <= 8 for seconds in pauses)
    assert len(set(pauses)) == 50
    assert pauses == [pause(policy, 1, f"run {number}") for number in range(50)]


def asking(value: Any) -> Exception:
    error = Unstable()
    error.retry_after = value  # type: ignore[attr-defined]
    return error


def answering(header: Any) -> Exception:
    error = Unstable()
    error.response = SimpleNamespace(headers={"Retry-After": header})  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unstable(), None),
        (asking(7), 7.0),
        (asking(timedelta(minutes=1)), 60.0),
        (asking("2.5"), 2.5),
        (asking(-3), 0.0),
        (asking(float("nan")), None),
        (asking(float("inf")), None),
        (asking(True), None),
        (asking(object()), None),
        (asking("soon"), None),
        (answering("12"), 12.0),
        (answering("Wed, 21 Oct 2015 07:28:00 GMT"), 0.0),
        (answering(None), None),
    ],
)
def test_what_an_error_asks_for(error: Exception, expected: float | None) -> None:
    assert retry_after(error) == expected


def test_date_that_an_error_asks_for() -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    delay_seconds = retry_after(answering(format_datetime(later, usegmt=True)))
    assert delay_seconds is not None
    assert 3000 < delay_seconds <= 3600


def test_longer_pause_that_the_error_asks_for_wins() -> None:
    policy = RetryPolicy(initial_interval=1, jitter=0)
    longer = next_attempt(policy, None, asking(9), "s")
    shorter = next_attempt(policy, None, asking(0.1), "s")
    assert longer is not None and shorter is not None
    assert (longer.delay, shorter.delay) == (9, 1)
    assert longer.failed[0].delay == 9
    assert next_attempt(RetryPolicy(max_duration=5), None, asking(9), "s") is None
