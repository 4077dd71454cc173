"""The check of the chaos runs finds what it is there for."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from flink_agents.api.action_state import Record, RecordKind
from tests.chaos import chaos_of, parse_arguments, show
from tests.cluster.blows import Blown, blow_plan
from tests.cluster.broker_trouble import Troubles
from tests.cluster.durable_agent import steps_of
from tests.cluster.durable_check import IN_WINDOW, MUST_BE_NONE, Verdict, judge, recorded_twice
from tests.cluster.durable_files import WORK, Files, effect, fill, record, token
from tests.cluster.durable_run import Chaos, Report
from tests.cluster.durable_stores import RunStore


@pytest.fixture
def files() -> Files:
    return Files()


def test_the_model_itself_is_clean(files: Files) -> None:
    verdict = files.judge()
    assert (verdict.clean, verdict.events, verdict.examples()) == (True, 900, {})
    assert files.differences() == {}
    assert len(files.windows) == 3 * WORK.keys


def test_other_orders_of_keys_are_clean(files: Files) -> None:
    for lines in (files.outputs, files.windows):
        lines.sort(key=lambda line: -int(line.split()[0]))
    files.effects.sort(key=lambda line: -int(line.split()[1]))
    assert files.differences() == {}


def test_lost_outputs_windows_effects_and_records(files: Files) -> None:
    del files.outputs[7], files.windows[2]
    files.effects.remove(record(11, "charge"))
    verdict = files.judge()
    assert verdict.lost[0] == "record of (3, 11, 'charge')"
    assert len(verdict.lost) == 3
    assert not verdict.clean

    files = Files()
    files.effects = [line for line in files.effects if f" {token(13, 'settle')}" not in line]
    assert files.judge().lost == ["effect of (1, 13, 'settle')"]


def test_duplicated_outputs_and_windows(files: Files) -> None:
    files.outputs.append(files.outputs[3])
    files.windows.append(files.windows[-1])
    assert files.differences() == {"duplicated": 2}
    assert not files.judge().clean


def test_outputs_of_a_key_in_the_wrong_order(files: Files) -> None:
    files.outputs[0], files.outputs[1] = files.outputs[1], files.outputs[0]
    assert files.differences() == {"out_of_order": 1}
    assert not files.judge().clean


def test_windows_of_a_key_in_the_wrong_order(files: Files) -> None:
    files.windows.sort(key=lambda line: -int(line.split()[1]))
    assert files.differences() == {"out_of_order": 2 * WORK.keys}


def test_effects_of_a_key_in_the_wrong_order(files: Files) -> None:
    early = effect(12, "reserve-0")
    files.effects.remove(early)
    files.insert(early, behind=effect(8, "reserve-0"))
    assert files.differences() == {"out_of_order": len(steps_of(8)) - 1}

    files = Files()
    early = effect(8, "settle")
    files.effects.remove(early)
    files.insert(early, behind=effect(8, "reserve-0"))
    differences = files.differences()
    assert differences == {"out_of_order": 3}, "two parallel calls, and the one behind them"


def test_parallel_effects_have_no_order(files: Files) -> None:
    early = effect(8, "reserve-2")
    files.effects.remove(early)
    files.insert(early, behind=record(4, "settle"))
    assert files.differences() == {}


def test_a_repeat_before_the_record_is_only_counted(files: Files) -> None:
    first = files.effects.index(effect(5, "charge"))
    files.effects.insert(first, effect(5, "charge", again="-killed"))
    verdict = files.judge()
    assert (len(verdict.repeated_in_window_failures), verdict.clean) == (1, True)


@pytest.mark.parametrize(
    ("killed", "lives_on", "counted"),
    [
        (False, False, "repeated_in_window_failures"),
        (False, True, "repeated_in_window_failures"),
        (True, False, "repeated_in_window_kills"),
        (True, True, "repeated_in_window_failures"),
    ],
)
def test_a_repeat_is_counted_by_what_became_of_its_process(
    files: Files, killed: bool, lives_on: bool, counted: str
) -> None:
    """One that took effect afterwards was not killed before."""
    first = files.effects.index(effect(5, "charge"))
    files.effects.insert(first, effect(5, "charge", again="-before", process=99))
    if lives_on:
        files.effects[-2] = files.effects[-2].replace(" 77", " 99")
    verdict = judge(files.outputs, files.windows, files.effects, WORK, {99} if killed else ())
    assert {name: len(getattr(verdict, name)) for name in IN_WINDOW} == {
        **dict.fromkeys(IN_WINDOW, 0),
        counted: 1,
    }


def test_a_repeat_after_the_record(files: Files) -> None:
    files.insert(effect(5, "charge", again="-more"), behind=record(5, "charge"))
    verdict = files.judge()
    assert len(verdict.repeated_after_record) == 1
    assert not verdict.clean


def test_a_repeat_after_a_record_that_nobody_noted_in_time(files: Files) -> None:
    """The store gave back the first result, and the call was made all the same."""
    files.insert(effect(5, "charge", again="-more"), behind=effect(5, "charge"))
    verdict = files.judge()
    assert (len(verdict.repeated_in_window_failures), len(verdict.wrong)) == (1, 1)
    assert "took effect as ['5/charge', '5/charge-more']" in verdict.wrong[0]


def test_a_replay_that_gets_another_result(files: Files) -> None:
    files.insert(record(5, "charge", again="-other"), behind=record(5, "charge"))
    assert any("returned ['5/charge', '5/charge-other']" in wrong for wrong in files.judge().wrong)


def test_results_of_parallel_calls_that_were_mixed_up(files: Files) -> None:
    first_token = token(8, "reserve-0")
    second_token = token(8, "reserve-1")
    line = next(line for line in files.outputs if line.split()[1] == "8")
    files.outputs[files.outputs.index(line)] = line.replace(
        f"{first_token},{second_token}", f"{second_token},{first_token}"
    )
    assert files.differences() == {"wrong": 1}


@pytest.mark.parametrize("word", [2, 3, 4])
def test_a_wrong_counter_in_an_output(files: Files, word: int) -> None:
    words = files.outputs[5].split()
    words[word] = str(int(words[word]) - 1)
    files.outputs[5] = " ".join(words)
    assert files.differences() == {"wrong": 1}
    assert not files.judge().clean


def test_a_window_that_misses_a_late_output(files: Files) -> None:
    key, start, count, numbers, run_counts = files.windows[0].split()
    files.windows[0] = f"{key} {start} {int(count) - 1} {numbers} {run_counts}"
    assert files.differences() == {"wrong": 1}


def test_idempotency_keys(files: Files) -> None:
    first = files.effects.index(effect(5, "charge"))
    files.effects.insert(first, effect(5, "charge", "-killed", idempotency_key="another"))
    assert files.differences() == {"repeated_in_window_failures": 1, "wrong": 1}

    files = Files()
    place = files.effects.index(effect(5, "charge"))
    files.effects[place] = effect(5, "charge", idempotency_key="id" + token(9, "charge"))
    assert files.differences() == {"wrong": 1}


def test_unknown_lines(files: Files) -> None:
    files.outputs.append("0 4000 1 1 1 x")
    files.effects[:0] = [effect(1, "refund"), record(1, "refund")]
    assert files.differences() == {"wrong": 2}


def test_a_call_with_two_records() -> None:
    assert recorded_twice([("a", 1), ("a", 2)]) == []
    assert recorded_twice([("a", 1), ("a", 2), ("a", 1)]) == ["('a', 1) has 2 records"]


# -- stores ---------------------------------------------------------------------------


def call(seq: int, index: int) -> Record:
    return Record(RecordKind.CALL, seq, "0/charge", index, b"no record that can be read")


def test_a_store_of_a_run_is_looked_at(tmp_path: Path) -> None:
    store = RunStore.for_directory("sqlite", tmp_path)
    assert store.flink_options == {
        "flink-agents.action-state.store": "sqlite",
        "flink-agents.action-state.sqlite.path": str(tmp_path / "action-state.sqlite"),
    }
    asyncio.run(fill(store, call(0, 0), call(0, 1), call(1, 0)))
    assert store.recorded_twice() == []
    asyncio.run(fill(store, call(0, 1)))
    [duplicate] = store.recorded_twice()
    assert "0, '0/charge', 'CALL', 1) has 2 records" in duplicate
    shown = store.show([(3, 1), (4, 0)])
    assert "--- journal of key 3, run 1" in shown
    assert shown.count('"step": "0/charge"') == 1
    assert shown.endswith("--- journal of key 4, run 0")


def test_a_store_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    assert "UnknownStoreError" in RunStore.for_directory("nonsense", tmp_path, {"a": "b"}).show([(1, 0)])


# -- reports --------------------------------------------------------------------------


def report(verdict: Verdict, failure: str | None = None, broker: Troubles | None = None) -> Report:
    options = parse_arguments(["--events", "900", "--keys", "4", "--seed", "5"])
    done = Blown(kills=3, overlaps=1, late=["effect 1 5 charge t i 77"])
    return Report(chaos_of(options), "sqlite", verdict, done, broker, 40, 3, [2.0, 9.0, 3.04], 1, failure)


def test_a_clean_report(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(report(files.judge()), as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {
        "store": "sqlite",
        "seed": 5,
        "job": "chain",
        "events": 900,
        "keys": 4,
        "combination": "hashmap-aligned-p2-2tm",
        "kills": 3,
        "kills_in_rebuild": 0,
        "overlaps": 1,
        "stale_refused": 0,
        "late_effects": 1,
        **dict.fromkeys((*MUST_BE_NONE, *IN_WINDOW), 0),
        "checkpoints": 40,
        "recoveries": 3,
        "replaced": 1,
        "recovery_seconds": {"p50": 3.0, "max": 9.0},
    }


@pytest.mark.parametrize("name", MUST_BE_NONE)
def test_each_difference_is_an_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = Verdict()
    getattr(verdict, name).append("this one")
    assert show(report(verdict), as_json=True) == 1
    figures = json.loads(capsys.readouterr().out)
    assert (figures[name], figures["examples"]) == (1, {name: ["this one"]})


@pytest.mark.parametrize("name", IN_WINDOW)
def test_a_repeat_in_the_window_is_no_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = Verdict()
    getattr(verdict, name).append("x")
    assert show(report(verdict), as_json=False) == 0
    assert f"{name:<22} 1" in capsys.readouterr().out


def test_what_a_broker_went_through_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    troubles = Troubles(pauses=3, stops=1, longest_seconds=60.04)
    assert show(report(Verdict(), broker=troubles), as_json=True) == 0
    broker_figures = json.loads(capsys.readouterr().out)["broker"]
    assert broker_figures == {"pauses": 3, "stops": 1, "kills": 0, "outages": 0, "longest_seconds": 60.0}


def test_a_run_that_did_not_end_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(report(Verdict(), "waited in vain\nlogs"), as_json=True) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["failure"] == "waited in vain"
    assert "logs" in shown.err


def test_the_seed_decides_about_kills() -> None:
    plan = blow_plan(random.Random(7), 30)
    assert plan == blow_plan(random.Random(7), 30) != blow_plan(random.Random(8), 30)
    assert {blow.kind for blow in plan} == {"kill"}
    assert sum(len(blow.pauses) for blow in plan) == 30
    assert 1 < len(plan) < 30, "some fall into a recovery"
    assert [blow.part for blow in plan] == sorted(blow.part for blow in plan)
    assert isinstance(chaos_of(parse_arguments([])), Chaos)


def test_kills_in_a_rebuild_and_overlaps_are_planned() -> None:
    plan = blow_plan(random.Random(7), 30, rebuilds=4, overlaps=3)
    kinds = [blow.kind for blow in plan]
    assert (kinds.count("rebuild"), kinds.count("overlap")) == (4, 3)
    assert sum(len(blow.pauses) for blow in plan) == 30 - 2 * 4, "two kills belong to each rebuild"
    assert kinds != sorted(kinds), "they are mixed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parallelism", "3"], "a multiple of the number of TaskManagers"),
        (["--store-option", "path"], "NAME=VALUE, not 'path'"),
        (["--rebuilds", "1"], "only the store kafka is rebuilt"),
        (["--store", "kafka", "--kills", "3", "--rebuilds", "2"], "two of the --kills each"),
    ],
)
def test_arguments_that_do_not_fit(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert said in capsys.readouterr().err
