"""Events and helpers for tests that run agents in the harness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent
from flink_agents.api.errors import ActionFailedError, AgentsError
from flink_agents.testing import OperatorHarness


class Step(Event):
    number: int = 0


class BigStep(Step):
    pass


class Other(Event):
    value: Any = None


def probe(body: Callable[[Any, Any], Any], **options: Any) -> OperatorHarness:
    """An agent whose only action puts out what ``body(record, ctx)`` returns."""

    def act(event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=body(event.input, ctx))

    return OperatorHarness(Agent(name="probe").add_action("act", [InputEvent], act), **options)


def outputs_of(body: Callable[[Any, Any], Any], *records: Any, **options: Any) -> list[Any]:
    """The outputs of such an agent for ``records``, or for one None."""
    harness = probe(body, **options)
    harness.push_all(records or (None,))
    harness.close()
    return harness.outputs


@contextmanager
def action_fails(because: type[BaseException], text: str = "") -> Iterator[None]:
    """Expect that an action fails the job because of an error of exactly that class."""
    with pytest.raises(ActionFailedError) as caught:
        yield
    assert type(caught.value.__cause__) is because
    assert text in str(caught.value)
    if issubclass(because, AgentsError):
        assert caught.value.fix or caught.value.expected or caught.value.found
