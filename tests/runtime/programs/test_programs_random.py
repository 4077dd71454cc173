"""Random programs with crashes; ``python -m tests.random_programs`` runs more of them."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import threading
import time
from typing import Any

import pytest

from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Faults
from tests.random_programs import calls, oracle, programs, running
from tests.random_programs.agents import agent
from tests.random_programs.command import run_in_processes
from tests.random_programs.world import World
from tests.suite.conditions import ROTATION
from tests.suite.tables import each_case

JOBS = 2


def seed_of(programs: int, among: int) -> int:
    """Return the first seed for so many programs: another one for each commit."""
    digest = hashlib.blake2b(os.environ.get(ROTATION, "").encode(), digest_size=4).digest()
    return 1 + programs * (int.from_bytes(digest) % (among // programs))


@pytest.mark.executes_once
def test_random_programs_survive_crashes_wherever_they_wait() -> None:
    crashes, failures = run_in_processes(20, seed_of(20, 10_000), jobs=JOBS)
    assert not failures, failures[0]
    assert crashes > 20


@pytest.mark.executes_once
@pytest.mark.parametrize("overtakes", [False, True], ids=["in order", "overtaking"])
def test_random_programs_that_pause_and_ask_survive_crashes(overtakes: bool) -> None:
    crashes, failures = run_in_processes(5, seed_of(5, 300), jobs=JOBS, waits=True, overtakes=overtakes)
    assert not failures, failures[0]
    assert crashes > 5


@pytest.mark.executes_once
@pytest.mark.parametrize("overtakes", [False, True], ids=["in order", "overtaking"])
def test_random_programs_survive_crashes_where_flink_lags_behind(overtakes: bool) -> None:
    crashes, failures = run_in_processes(
        4, seed_of(4, 50), jobs=JOBS, waits=True, overtakes=overtakes, lags=True
    )
    assert not failures, failures[0]
    assert crashes > 4


@pytest.mark.executes_once
@pytest.mark.parametrize("forced", ["forced_replay", "forced_restart"])
def test_calm_programs_are_the_same_when_all_is_done_twice(forced: str) -> None:
    runner = running.Runner()
    calm = [candidate for candidate in map(programs.program, range(40)) if candidate.calm]
    assert len(calm) > 10
    with running.listening():
        for program in calm:
            plain = runner.plain(program.inputs, program.seed)
            World.forget(program.seed)
            options: Any = {"forced_replay": False, "forced_restart": False, forced: True}
            options["store"] = Faults().store
            with OperatorHarness(agent(), lambda record: record[0], **options) as harness:
                harness.push_all([program_input.record for program_input in program.inputs])
                observed_outcome = oracle.observed(harness)
            oracle.check_same(
                plain, observed_outcome, ("outputs", "memory", "audit", "letters"), str(program)
            )
        runner.close()


def test_a_failure_names_the_program_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    async def twice(place: str, after: str) -> str:
        World.effect(place)
        World.acknowledged.add(place)
        return calls.work(place, after)

    monkeypatch.setitem(calls.CALLS, "async", twice)
    with pytest.raises(running.ProgramFailed) as failed:
        running.run(20, 1)
    text = str(failed.value)
    assert "python -m tests.random_programs --programs 1 --seed" in text
    assert "no crash" in text and "input i0 of key" in text
    assert "took effect again" in text


@pytest.mark.own_conditions
@pytest.mark.parametrize("waits", [False, True], ids=["settling", "pausing"])
def test_a_program_does_not_fail_because_the_machine_stalls(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, hours = time.monotonic, itertools.count()

    def stalling() -> float:
        is_test = threading.current_thread() is threading.main_thread()
        return clock() + (3600 * next(hours) if is_test else 0)

    monkeypatch.setattr(time, "monotonic", stalling)
    assert running.run(4, 1, waits=waits) > 0


@pytest.mark.own_conditions
def test_a_program_that_stands_still_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(calls.CALLS, "async", calls.never)
    with pytest.raises(running.ProgramFailed, match="HarnessHangError"):
        running.run(20, 1, seconds=0.5)


@each_case(
    "kind",
    [
        *programs.SIMPLE,
        *programs.CERTAIN,
        *programs.ORDERLY,
        *programs.RACY,
        *(f"call {kind}" for kind in calls.CALLS if kind != "never"),
        *(f", {form}" for form in sorted(set(programs.FORMS))),
        "send",
        "spoil",
        "raise",
        "sleep",
    ],
)
def test_programs_have_all_that_they_may_have(kind: str) -> None:
    assert any(kind in text for text in made_programs())


@functools.cache
def made_programs() -> list[str]:
    return [str(programs.program(seed)) for seed in range(1000)]


def outcome(order: list[str], **outputs: str) -> oracle.Outcome:
    """What is left of a program of one key, whose inputs come to ``outputs``."""
    values = [("a", name, f"{name}.1", output) for name, output in outputs.items()]
    other_keys = {"b": [], "c": []}
    return oracle.Outcome(
        {"a": values, **other_keys}, {}, {"a": [], **other_keys}, {}, {"a": order, "b": [], "c": []}
    )


@pytest.mark.parametrize(
    ("makes_up", "order", "found", "same"),
    [
        (["uuid"], ["i0", "i1"], "another", False),
        (["uuid"], ["i1", "i0"], "another", True),
        (["uuid"], ["i1", "i0"], None, False),
        (["side"], ["i1", "i0"], "another", False),
        (["call", "token", True], ["i1", "i0"], "another", False),
    ],
    ids=["same number", "another number", "nothing put out", "nothing made up", "made up for a call"],
)
def test_inputs_in_another_order_may_only_differ_by_what_follows_from_their_numbers(
    makes_up: programs.Op, order: list[str], found: str | None, same: bool
) -> None:
    inputs = tuple(
        programs.Input("a", name, source, "async", [makes_up, ["out"]])
        for source, name in enumerate(("i0", "i1"))
    )
    program = programs.Program(0, True, inputs)
    plain = outcome(["i0", "i1"], i0="first", i1="second")
    other_outcome = outcome(order, **({"i0": "first"} | ({"i1": found} if found else {})))
    if same:
        oracle.check_calm(program, plain, other_outcome, ordered=False)
    else:
        with pytest.raises(AssertionError, match="makes a difference"):
            oracle.check_calm(program, plain, other_outcome, ordered=False)
