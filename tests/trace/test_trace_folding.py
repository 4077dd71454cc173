"""Runs that begin and end on Flink's thread have one record, from which readers get all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OnError, OutputEvent, RunnerContext
from flink_agents.testing import OperatorHarness
from flink_agents.trace.folding import FOLDED, unfold_records
from flink_agents.trace.reading import by_run, read_files
from flink_agents.trace.records import TraceRecord, span_id
from tests.suite.tables import each_case
from tests.trace.test_trace_records import PLAIN

pytestmark = pytest.mark.own_conditions


class Checked(Event):
    value: Any


def check(event: Any, ctx: RunnerContext) -> Any:
    if event.input == "bad":
        raise ValueError("not this one")
    ctx.send_event(Checked(value=event.input))
    if event.input == "two":
        ctx.send_event(Checked(value=event.input))


def reply(event: Any, ctx: RunnerContext) -> Any:
    if event.value == "late":
        raise ValueError("not that one")
    return OutputEvent(output=event.value)


async def reply_async(event: Any, ctx: RunnerContext) -> Any:
    return OutputEvent(output=await ctx.durable_execute_async(str, event.value))


def checking(last: Any) -> Agent:
    agent = Agent(name="checking").add_action("check", [InputEvent], check, on_error=OnError.DEAD_LETTER)
    return agent.add_action("reply", [Checked], last, on_error=OnError.DEAD_LETTER)


def traced(directory: Path, last: Any, value: Any, **options: Any) -> list[dict[str, Any]]:
    """The lines of a job that handles one input."""
    config = {"trace.level": "calls", "trace.directory": str(directory)} | options
    with OperatorHarness(checking(last), lambda value: "k", config=config, **PLAIN) as harness:
        harness.push_all([value])
    (file,) = directory.iterdir()
    return [json.loads(line) for line in file.read_text().splitlines()]


ACTIONS = [("check", "ok"), ("reply", "ok")]


@each_case(
    "name, last, value, options, lines, actions",
    [
        ("inline", reply, "one", {}, ["run completed"], ACTIONS),
        ("twice", reply, "two", {}, ["run completed"], [*ACTIONS, ("reply", "ok")]),
        ("fails", reply, "bad", {}, ["action failed", "event", "run dead-lettered"], [("check", "failed")]),
        (
            *("fails later", reply, "late", {}),
            ["action ok", "action failed", "event", "run dead-lettered"],
            [("check", "ok"), ("reply", "failed")],
        ),
        (
            *("goes to the loop", reply_async, "one", {}),
            ["run completed"],
            ACTIONS,
        ),
        ("one action", reply, "one", {"trace.levels.checking.reply": "runs"}, ["run completed"], ACTIONS[:1]),
        ("runs alone", reply, "one", {"trace.level": "runs"}, ["run completed"], []),
        (
            *("one action of an agent without records", reply, "one"),
            {"trace.level": "off", "trace.levels.checking.reply": "calls"},
            *(["run completed"], ACTIONS[1:]),
        ),
    ],
)
def test_one_record_tells_of_a_run_on_flinks_thread(
    name: str,
    last: Any,
    value: str,
    options: dict[str, Any],
    lines: list[str],
    actions: list[tuple[str, str]],
    tmp_path: Path,
) -> None:
    directory = tmp_path / name
    summaries = [f"{line['kind']} {line['outcome']}" for line in traced(directory, last, value, **options)]
    assert sorted(summaries) == sorted(line if " " in line else _whole(line) for line in lines)
    (run,) = by_run(read_files(directory)).values()
    action_records = [record for record in run.records if record.kind == "action"]
    assert [(record.name, record.outcome) for record in action_records] == actions
    assert [record.span_id for record in action_records] == [
        span_id(
            run.run_id,
            "action",
            name,
            [earlier_record.name for earlier_record in action_records[:number]].count(name),
        )
        for number, name in enumerate(record.name for record in action_records)
    ]
    (root,) = [record for record in run.records if record.kind == "run" and record.is_end]
    assert {record.parent_id for record in action_records} <= {root.span_id}
    assert all(record.time <= root.time + 1e-6 for record in action_records) and FOLDED not in root.attributes


def _whole(kind: str) -> str:
    return {"event": "event dead-lettered", "call": "call ok"}[kind]


@each_case("name, last", [("inline", reply), ("loop", reply_async)])
def test_actions_name_the_events_that_they_sent(name: str, last: Any, tmp_path: Path) -> None:
    traced(tmp_path / name, last, "two")
    sent = [
        (record.name, record.attributes.get("sent"))
        for record in read_files(tmp_path / name)
        if record.kind == "action"
    ]
    checked = Checked.EVENT_TYPE
    output = OutputEvent.EVENT_TYPE
    assert sorted(sent) == [("check", {checked: 2}), ("reply", {output: 1}), ("reply", {output: 1})]


@pytest.mark.parametrize(
    "actions",
    [
        7,
        [7],
        [{}],
        [{"name": 3, "seconds": 1}],
        [{"name": "a", "seconds": "1"}],
        [{"name": "a", "seconds": 1e300}],
    ],
)
def test_actions_that_are_none_are_left_out(actions: Any) -> None:
    run = TraceRecord("run", "a", "completed", "j", "a", 0, 0, "k", 1, "r" * 24, "s" * 16, None, 1.5, 1.0)
    run.attributes = {FOLDED: actions}
    assert [record.kind for record in unfold_records([run])] == ["run"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parent_id": "p" * 16, "trace": "t" * 32, "replayed": True, "seconds": 1e-7},
        {"key": 'k\ud800"\\\u2028<é', "name": "\x00"},
        {"time": float("inf"), "seconds": float("nan")},
        {"attributes": {"bad": "\ud800", "many": [1, {"a": None}], "x": object}},
        {"attributes": {"big": 10**30, "flag": True}},
        {"time": 5, "seconds": 0},
    ],
)
def test_bytes_and_text_of_a_record_say_the_same(changes: dict[str, Any]) -> None:
    record = TraceRecord("run", "a", "ok", "j", "a", 0, 0, "k", 1, "r" * 24, "s" * 16, None, 1.5)
    for name, value in changes.items():
        setattr(record, name, value)
    assert repr(json.loads(record.to_bytes())) == repr(json.loads(record.to_json()))
