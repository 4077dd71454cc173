"""Random programs with crashes; ``python -m tests.random_programs`` runs more of them."""

from __future__ import annotations

from typing import Any

import pytest

from flink_agents.testing import OperatorHarness
from tests import random_programs

PROGRAMS = 2000


@pytest.mark.executes_once
def test_random_programs_survive_crashes_wherever_they_wait() -> None:
    assert random_programs.run_in_processes(PROGRAMS, 1, workers=4) > PROGRAMS


@pytest.mark.executes_once
@pytest.mark.parametrize("forced", ["forced_replay", "forced_restart"])
def test_random_programs_are_the_same_when_all_is_done_twice(forced: str) -> None:
    runner = random_programs.Runner()
    for seed in range(40):
        inputs = random_programs.program(seed)
        plain, _, _ = random_programs.run_plain(runner, inputs)
        random_programs.World.effects.clear()
        options: Any = {"forced_replay": False, "forced_restart": False, forced: True}
        with OperatorHarness(random_programs.agent(), lambda record: record[0], **options) as harness:
            harness.push_all(inputs)
            assert random_programs.observed(harness) == plain, random_programs.readable(inputs)
    runner.close()


def test_a_failure_names_the_program_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    async def twice(place: str) -> str:
        random_programs.World.effects[place] += 2
        return place

    monkeypatch.setitem(random_programs.CALLS, "call", twice)
    monkeypatch.setitem(random_programs.CALLS, "call async", twice)
    with pytest.raises(random_programs.ProgramFailed) as failed:
        random_programs.run(20, 1)
    text = str(failed.value)
    assert "python -m tests.random_programs --programs 1 --seed" in text
    assert "crash at" in text and "input i0 of key" in text
    assert "took effect" in text
