"""The trace of a job that fails twice: one tree for each input, and no second span for what is replayed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext
from flink_agents.testing import OperatorHarness
from flink_agents.trace.reading import by_run, read_files
from flink_agents.trace.sinks.otel import spans_of
from tests.trace.test_trace_records import PLAIN


async def charge(amount: int) -> int:
    return amount


async def pay(event: Any, ctx: RunnerContext) -> Any:
    total = ctx.short_term_memory.get("total", 0) + await ctx.durable_execute_async(charge, event.input)
    ctx.short_term_memory.set("total", total)
    return OutputEvent(output=total)


@pytest.mark.own_conditions
@pytest.mark.parametrize("inputs", [120, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_two_failures_leave_one_tree_for_each_input(inputs: int, tmp_path: Path) -> None:
    agent = Agent(name="paying").add_action("pay", [InputEvent], pay)
    options = {"trace.level": "calls", "trace.directory": str(tmp_path), "trace.queue": 10**7}
    third = inputs // 3
    with OperatorHarness(agent, lambda number: number % 10, config=options, **PLAIN) as harness:
        for start in (0, third):
            harness.push_all(range(start, start + third))
            snapshot = harness.checkpoint()
            harness.push_all(range(start + third, start + 2 * third))
            # The attempt fails, and Flink hands over again what the checkpoint lacks.
            harness.restore(snapshot)
        harness.push_all(range(2 * third, inputs))
    records = list(read_files(tmp_path))
    runs = by_run(records)
    assert len(runs) == inputs
    for run in runs.values():
        assert run.status == "completed"
        (root,) = [record for record in run.records if record.kind == "run" and record.is_end]
        (action,) = [record for record in run.records if record.kind == "action"]
        (call,) = [record for record in run.records if record.kind == "call"]
        assert (action.parent_id, call.parent_id) == (root.span_id, action.span_id)
    spans = Counter(format(span.context.span_id, "016x") for span in spans_of(records))
    assert [span for span, times in spans.items() if times > 1] == []
    assert len(spans) == 3 * inputs
