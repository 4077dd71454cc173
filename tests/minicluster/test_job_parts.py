"""What a job is put together of: streams, tables, key selectors, signals, agents that ask for approvals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, Signal, action
from flink_agents.api.errors import ApprovalsNotAnsweredError, JobDefinitionError, JobFailedError

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]


class Waits(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.wait_for_signal("answer"))


def itself(record: Any) -> Any:
    return record


def test_parts_of_another_kind_are_refused_where_they_are_given(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    stream, table = env.stream_env.from_collection([1]), env.table_env.from_elements([(1,)], ["a"])
    inputs = env.from_datastream(stream, itself)
    applied = inputs.apply(Waits)
    misuses: list[tuple[str, Callable[[], Any]]] = [
        ("with_signals", lambda: inputs.with_signals([Signal("answer")])),
        ("with_signals", lambda: inputs.with_signals(None)),
        ("with_signals", lambda: inputs.with_signals(applied)),
        ("with_signals", lambda: inputs.with_signals(table)),
        ("with_signals", lambda: inputs.with_signals(stream, "key")),  # pyright: ignore[reportArgumentType]
        ("from_datastream", lambda: env.from_datastream([1], itself)),
        ("from_datastream", lambda: env.from_datastream(applied, itself)),
        ("from_datastream", lambda: env.from_datastream(table, itself)),
        ("from_datastream", lambda: env.from_datastream(stream, "a")),  # pyright: ignore[reportArgumentType]
        ("from_table", lambda: env.from_table(stream, "a")),
        ("from_table", lambda: env.from_table(table, 1)),  # pyright: ignore[reportArgumentType]
        ("from_list", lambda: env.from_list([1], "a")),  # pyright: ignore[reportArgumentType]
        ("collect", lambda: env.collect(applied)),
    ]
    for called, misuse in misuses:
        with pytest.raises(JobDefinitionError, match=f"{called} got a value that is not") as refused:
            misuse()
        assert "test_job_parts.py" in str(refused.value).splitlines()[0]
    with pytest.raises(JobDefinitionError, match="from_list needs a key selector") as missing:
        env.from_list([1], None)  # pyright: ignore[reportArgumentType]
    assert "test_job_parts.py" in str(missing.value).splitlines()[0]


class NoKey:
    """A key selector of signals that handles none."""

    def __call__(self, signal: Signal) -> Any:
        return signal.value["key"]


def unsaid(number: int) -> Signal:
    return Signal("answer", {}, key=number)


def test_a_key_selector_of_signals_that_raises_is_named(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    signals = env.stream_env.from_collection([1]).map(unsaid)
    env.from_list([1], itself).with_signals(signals, NoKey()).apply(Waits).to_list()
    with pytest.raises(JobFailedError, match="the key selector of signals raised KeyError") as failed:
        env.execute()
    assert "test_job_parts.py" in str(failed.value).splitlines()[0]


class Pays(Agent):
    @action(InputEvent, needs_approval=True)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


class AsksPays(Agent):
    """Has no mark of its own."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(Pays, event.input))


def test_a_job_with_an_asked_agent_that_nobody_answers_is_refused(
    agents_environment: MakeEnvironment,
) -> None:
    env = agents_environment()
    env.from_list([1], itself).apply(AsksPays).to_list()
    with pytest.raises(ApprovalsNotAnsweredError, match="agent 'AsksPays' needs approvals"):
        env.execute()
