"""What authors write down as models, such as retry policies: a slip has their line, and what to write."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from flink_agents import RateLimit, RetryPolicy
from flink_agents.api.common.policies import RetryTimes
from flink_agents.api.errors import WrongArgumentError
from flink_agents.api.models.chat import Router, Secret, UsageLimits
from flink_agents.api.models.history import ConversationHistory
from tests.suite.tables import each_case

WRONG: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (RetryPolicy, {"attempts": 3}, "did you mean 'max_attempts'?"),
    (RetryPolicy, {"zzz": 3}, "remove it"),
    (RetryPolicy, {"max_attempts": 0}, "correct 'max_attempts'"),
    (RetryPolicy, {"jitter": "much"}, "correct 'jitter'"),
    (RetryTimes, {"factor": 0.5}, "correct 'factor'"),
    (RateLimit, {"calls": 0}, "correct 'calls'"),
    (RateLimit, {}, "write RateLimit(calls=...)"),
    (RateLimit, {"calls": 1, "pre": 2}, "did you mean 'per'?"),
    (UsageLimits, {"request": 3}, "did you mean"),
    (Secret, {"envv": "KEY"}, "did you mean 'env'?"),
    (Router, {"models": {}}, "correct"),
    (ConversationHistory, {"max_byte": 3}, "did you mean 'max_bytes'?"),
]


@each_case(("kind", "given", "fix"), WRONG)
def test_a_slip_has_the_authors_line(kind: Callable[..., Any], given: dict[str, Any], fix: str) -> None:
    with pytest.raises(WrongArgumentError) as caught:
        kind(**given)
    error = caught.value
    assert str(error).startswith("tests/") and "test_api_checked_models.py:" in str(error).splitlines()[0]
    assert error.fix is not None and fix in error.fix
    assert error.expected and error.found
    assert "pydantic.dev" not in str(error)


def test_arguments_stand_by_name() -> None:
    policy: Any = RetryPolicy
    with pytest.raises(WrongArgumentError, match="accepts only keyword arguments") as caught:
        policy(3)
    assert "RetryPolicy(initial_interval=...)" in (caught.value.fix or "")
    assert RateLimit(10, per=1).calls == 10


def test_no_value_is_shown() -> None:
    arguments: Any = {"env": ["hush"]}
    with pytest.raises(WrongArgumentError) as caught:
        Secret(**arguments)
    assert "hush" not in str(caught.value)


def test_inside_of_another_model_it_is_an_error_of_that() -> None:
    class Holder(BaseModel):
        retry: RetryPolicy
        rate: RateLimit | None = None

    with pytest.raises(ValidationError) as caught:
        Holder.model_validate({"retry": {"attempts": 3}, "rate": {"calls": 0}})
    assert [error["loc"] for error in caught.value.errors()] == [("retry", "attempts"), ("rate", "calls")]


def test_they_travel_and_are_copied_as_before() -> None:
    for value in (RetryPolicy(max_attempts=3), RateLimit(3), UsageLimits()):
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
