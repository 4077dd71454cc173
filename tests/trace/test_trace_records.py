"""What is recorded of runs at each level, with the harness: outcomes, parents, replays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OnError, OutputEvent, RunnerContext
from flink_agents.api.errors import TraceFormatError
from flink_agents.testing import OperatorHarness
from flink_agents.trace.folding import unfold_records
from flink_agents.trace.records import SCHEMA_VERSION, TraceRecord, as_dict
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

PLAIN: dict[str, Any] = {"forced_replay": False, "forced_restart": False, "crash": None}


def charge(amount: int) -> dict[str, Any]:
    if amount < 0:
        raise ValueError("a negative amount")
    return {"paid": amount, "api_key": "sk-not-to-be-seen-1234"}


async def pay(event: Any, ctx: RunnerContext) -> Any:
    if event.input == "wait":
        return OutputEvent(output=await ctx.wait_for_signal("paid", timeout=3600))
    if event.input == "letter":
        raise RuntimeError("no such order")
    return OutputEvent(output=await ctx.durable_execute_async(charge, event.input))


def plain(event: Any, ctx: RunnerContext) -> Any:
    return OutputEvent(output=event.input)


def paying() -> Agent:
    return Agent(name="paying").add_action("pay", [InputEvent], pay, on_error=OnError.DEAD_LETTER)


def replying() -> Agent:
    return Agent(name="replying").add_action("reply", [InputEvent], plain)


def records_in(directory: Path) -> Iterator[TraceRecord]:
    for path in sorted(directory.glob("*.jsonl")):
        yield from unfold_records(map(TraceRecord.from_json, path.read_text("utf-8").splitlines()))


def traced(directory: Path, inputs: list[Any], config: dict[str, Any] | None = None) -> list[TraceRecord]:
    """The records of a job that handles ``inputs``."""
    options = {"trace.level": "calls", "trace.directory": str(directory)} | (config or {})
    with OperatorHarness(paying(), lambda value: str(value), config=options, **PLAIN) as harness:
        harness.push_all(inputs)
    return list(records_in(directory))


def outcomes(records: list[TraceRecord]) -> list[tuple[str, str]]:
    return [(record.kind, record.outcome) for record in records if record.outcome != "started"]


RUN = ("run", "completed")
CALL = ("call", "ok")
ACTION = ("action", "ok")
LETTERED = [("event", "dead-lettered"), ("run", "dead-lettered")]


@each_case(
    "name, level, inputs, wanted",
    [
        ("off", "off", [1], []),
        ("runs", "runs", [1], [RUN]),
        ("calls", "calls", [1], [CALL, ACTION, RUN]),
        ("content", "content", [1], [CALL, ACTION, RUN]),
        ("failed call", "calls", [-1], [("call", "failed"), ("action", "failed"), *LETTERED]),
        ("suspended", "calls", ["wait"], [("run", "suspended")]),
        ("dead letter", "runs", ["letter"], LETTERED),
    ],
)
def test_each_level_records_what_it_says(
    name: str, level: str, inputs: list[Any], wanted: list[tuple[str, str]], tmp_path: Path
) -> None:
    assert outcomes(traced(tmp_path / name, inputs, {"trace.level": level})) == wanted


@each_case(
    "name, options, wanted",
    [
        ("agent off", {"trace.levels.paying": "off"}, set()),
        ("agent on", {"trace.level": "off", "trace.levels.paying": "runs"}, {RUN}),
        ("other agent", {"trace.level": "off", "trace.levels.others": "calls"}, set()),
        ("action", {"trace.levels.paying.pay": "runs"}, {RUN}),
        ("only an action", {"trace.level": "off", "trace.levels.paying.pay": "calls"}, {RUN, ACTION, CALL}),
    ],
)
def test_levels_of_agents_and_actions_win(
    name: str, options: dict[str, Any], wanted: set[tuple[str, str]], tmp_path: Path
) -> None:
    assert set(outcomes(traced(tmp_path / name, [1], options))) == wanted


def test_off_attaches_nothing() -> None:
    with OperatorHarness(replying(), config={"trace.level": "off"}, **PLAIN) as harness:
        assert harness.push_all([1]) == [1]
        assert harness.observers == []


def test_the_records_of_a_run_are_a_tree(tmp_path: Path) -> None:
    records = traced(tmp_path, [5, 6])
    assert len({record.run_id for record in records}) == 2
    for run in {record.run_id for record in records}:
        spans = {
            record.span_id: record
            for record in records
            if record.run_id == run and record.outcome != "started"
        }
        (root,) = [span for span in spans.values() if span.parent_id is None]
        call = next(span for span in spans.values() if span.kind == "call")
        assert call.parent_id is not None and root.kind == "run"
        assert spans[call.parent_id].kind == "action"
        assert spans[call.parent_id].parent_id == root.span_id


def test_content_is_redacted_and_only_at_its_level(tmp_path: Path) -> None:
    (call,) = [
        record for record in traced(tmp_path / "a", [7], {"trace.level": "content"}) if record.kind == "call"
    ]
    assert "7" in call.attributes["request"] and "paid" in call.attributes["result"]
    # A field that is named like a secret.
    assert "sk-not-to-be-seen" not in str(call.attributes) and "api_key" in call.attributes["result"]
    (call,) = [record for record in traced(tmp_path / "b", [7]) if record.kind == "call"]
    assert not {"request", "result"} & call.attributes.keys()


def test_content_is_cut_at_its_limit(tmp_path: Path) -> None:
    options = {"trace.level": "content", "trace.max-content": 20}
    (call,) = [record for record in traced(tmp_path, [10**60], options) if record.kind == "call"]
    for name in ("request", "result"):
        assert 16 <= len(call.attributes[name]) < 60, call.attributes[name]


def test_a_suspended_run_says_what_ends_it(tmp_path: Path) -> None:
    (run,) = [record for record in traced(tmp_path, ["wait"]) if record.outcome == "suspended"]
    (wait,) = run.attributes["waits"]
    assert (wait["kind"], wait["name"]) == ("signal", "paid") and wait["deadline"] > 0


def test_a_failure_has_the_line_of_the_author(tmp_path: Path) -> None:
    (run,) = [
        record
        for record in traced(tmp_path, [-1])
        if record.outcome == "dead-lettered" and record.kind == "run"
    ]
    error = run.attributes["error"]
    assert error["error"] == "ValueError" and error["message"] == "a negative amount"
    assert Path(__file__).name in error["where"]


def test_replayed_work_has_no_second_record(tmp_path: Path) -> None:
    """A run that is repeated has the ids that it had, and says that it was replayed."""
    options = {"trace.level": "calls", "trace.directory": str(tmp_path)}
    with OperatorHarness(
        paying(), config=options, forced_replay=True, forced_restart=False, crash=None
    ) as harness:
        harness.push_all([1, 2])
    records = list(records_in(tmp_path))
    for kind in ("call", "action", "run"):
        ended = [record for record in records if record.kind == kind and record.outcome != "started"]
        assert len({record.id for record in ended}) == 2, kind
    assert len([record for record in records if record.kind == "call" and not record.replayed]) == 2
    assert [record.replayed for record in records if record.outcome == "completed"].count(True) == 2


def test_sampling_takes_all_runs_of_a_key_or_none(tmp_path: Path) -> None:
    options = {"trace.level": "runs", "trace.directory": str(tmp_path), "trace.sample-percent": 30}
    with OperatorHarness(replying(), lambda value: value % 40, config=options, **PLAIN) as harness:
        harness.push_all(list(range(120)))
    keys = [record.key for record in records_in(tmp_path) if record.outcome == "completed"]
    assert 0 < len(set(keys)) < 40
    assert {keys.count(key) for key in keys} == {3}


def test_records_survive_json_and_know_newer_versions() -> None:
    record = TraceRecord("run", "a", "ok", "j", "a", 0, 0, "k\ud800", 1, "r" * 24, "s" * 16, None, 1.5)
    assert TraceRecord.from_json(record.to_json()) == record
    newer = record.to_json().replace(
        f'"version":{SCHEMA_VERSION}', f'"version":{SCHEMA_VERSION + 1},"more":1'
    )
    for line in (newer, "[]", "nonsense", "{}"):
        with pytest.raises(TraceFormatError):
            TraceRecord.from_json(line)


@each_case(
    "number, is_accepted",
    [
        *[(number, True) for number in (0, 1, 10**15 - 1, 10**15, 1_790_000_000 * 2**20, 2**63 - 1)],
        *[(number, False) for number in (-1, 2**63, 10**30, 1.0, 1.5, True, None, "1", [1])],
    ],
)
@each_case("field", ["sequence_number", "subtask", "attempt"])
def test_numbers_of_runs_are_as_large_as_databases_take(field: str, number: Any, is_accepted: bool) -> None:
    record = TraceRecord("run", "a", "ok", "j", "a", 0, 0, "k", 1, "r" * 24, "s" * 16, None, 1.5)
    values = {**as_dict(record), field: number}
    if is_accepted:
        assert as_dict(TraceRecord.from_dict(values)) == values
    else:
        with pytest.raises(TraceFormatError):
            TraceRecord.from_dict(values)
