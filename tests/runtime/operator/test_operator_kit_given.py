"""Slips of a test in what it gives to the harness are named, and look like none of the agent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.errors import (
    HarnessUseError,
    JobDefinitionError,
    UnknownSideOutputError,
    UnserializableValueError,
)
from flink_agents.testing import OperatorHarness

pytestmark = pytest.mark.executes_once


class Desk(Agent):
    side_outputs = {"audit": str}

    @action(InputEvent)
    def act(self, event: Any, ctx: Any) -> OutputEvent:
        ctx.emit_to("audit", "seen")
        return OutputEvent(output=MAKE.get(event.input, lambda: event.input)())


MAKE: dict[Any, Callable[[], Any]] = {
    "lock": threading.Lock,
    "generator": lambda: (character for character in "ab"),
}


def check_place(error: Any) -> None:
    assert "test_operator_kit_given.py:" in (error.where or "")
    assert error.expected and error.found and error.fix


def test_a_side_output_that_is_not_declared_is_named() -> None:
    with OperatorHarness(Desk) as harness:
        harness.push("a")
        assert harness.side_output("audit") == ["seen"]
        assert harness.dead_letters == harness.side_output("dead-letter") == harness.late_outputs == []
        with pytest.raises(UnknownSideOutputError) as caught:
            harness.side_output("audti")
    check_place(caught.value)
    assert caught.value.fix == "did you mean 'audit'?"


@pytest.mark.parametrize("time", ["1 d", 1.5, None, True])
def test_a_time_that_is_none_is_named(time: Any) -> None:
    with OperatorHarness(Desk) as harness:
        for act in (harness.advance_time, harness.watermark):
            with pytest.raises(HarnessUseError) as caught:
                act(time)
            check_place(caught.value)
        harness.advance_time(timedelta(seconds=1))
        harness.advance_time(1)


def test_an_answer_to_no_request_is_named() -> None:
    with OperatorHarness(Desk) as harness:
        for act in (harness.approve, harness.deny):
            request_id: Any = "id"
            with pytest.raises(HarnessUseError, match="not an approval request") as caught:
                act(request_id)
            check_place(caught.value)


def test_a_harness_that_was_closed_says_so() -> None:
    with OperatorHarness(Desk) as harness:
        snapshot = harness.snapshot()
        harness.push("a")
    for act in (
        lambda: harness.push("b"),
        lambda: harness.push_all(["b"]),
        lambda: harness.signal(0, "x"),
        lambda: harness.advance_time(1),
        lambda: harness.watermark(1),
        lambda: harness.end_input(),
        lambda: harness.run_until_idle(),
        lambda: harness.memory(),
        lambda: harness.waits(),
        lambda: harness.restore(snapshot),
    ):
        with pytest.raises(HarnessUseError, match="the harness is closed") as caught:
            act()
        check_place(caught.value)
    assert harness.outputs == ["a"]
    harness.close()


def test_a_key_selector_is_a_function() -> None:
    selector: Any = "customer"
    with pytest.raises(
        JobDefinitionError, match="key_selector of OperatorHarness is not a function"
    ) as caught:
        OperatorHarness(Desk, selector)
    check_place(caught.value)


@pytest.mark.parametrize("kind", ["lock", "generator"])
def test_an_output_that_lives_cannot_leave(kind: str) -> None:
    with OperatorHarness(Desk) as harness, pytest.raises(UnserializableValueError) as caught:
        harness.push(kind)
    assert "an output cannot be pickled" in str(caught.value)
    assert "emit plain data" in str(caught.value)
