"""The branching agent does what its model says, and the check of its runs finds what it is there for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from flink_agents.api.action_state import JournalKey
from flink_agents.api.errors import StoreError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults
from tests.cluster.branching_agent import RACE, BranchingAgent, is_declined
from tests.cluster.branching_check import SOURCES, BranchingWorkload, judge
from tests.cluster.durable_check import MUST_BE_NONE, Verdict

pytestmark = pytest.mark.executes_once

WORK = BranchingWorkload(events=48, keys=3)
BATCH = 8
"""How many inputs come between two checkpoints."""

TTL = {"memory.short-term.ttl": "10 s"}


class Files:
    """What a run writes: outputs and effects."""

    def __init__(self, outputs: list[str], effects: list[str]) -> None:
        self.outputs = outputs
        self.effects = effects

    def judge(self) -> Verdict:
        return judge(self.outputs, [], self.effects, WORK)

    def differences(self) -> set[str]:
        counts = self.judge().counts()
        return {name for name in MUST_BE_NONE if counts[name]}

    def line_of(self, *words: str) -> int:
        return next(
            place for place, line in enumerate(self.effects) if line.split()[: len(words)] == [*words]
        )


def interleaved(seed: int) -> list[int]:
    """The numbers as two sources give them: each its own in order."""
    chance = random.Random(seed)
    sources = [list(range(place, WORK.events, SOURCES)) for place in range(SOURCES)]
    numbers: list[int] = []
    while remaining_sources := [source for source in sources if source]:
        numbers.append(chance.choice(remaining_sources).pop(0))
    return numbers


def executed(directory: Path, numbers: list[int], expire: bool = False, crashes: float = 0.0) -> Files:
    """Run the agent in the harness; after a crash, the inputs since the checkpoint come in another order."""
    effects = directory / "effects"
    chance = random.Random(7)

    def choose(asked: int, journal: JournalKey, records: object) -> Fault | None:
        return chance.choice([Fault.REFUSED, Fault.UNACKNOWLEDGED]) if chance.random() < crashes else None

    faults = Faults(choose)
    agent = BranchingAgent(3, str(effects))
    with OperatorHarness(agent, WORK.key_of, config=TTL, store=faults.store, auto_run=False) as harness:
        for begin in range(0, len(numbers), BATCH):
            batch = numbers[begin : begin + BATCH]
            saved = harness.snapshot()
            if expire and begin + BATCH >= len(numbers):
                # How many crashes there are depends on how many appends come together.
                harness.advance_time(60_000)
            while not gone_through(harness, batch):
                batch = shuffle_again(batch, chance)
                harness.restore(saved)
                if expire:
                    harness.advance_time(60_000)
        outputs = list(harness.outputs)
    return Files(outputs, effects.read_text().splitlines())


def gone_through(harness: OperatorHarness, numbers: list[int]) -> bool:
    """Hand in numbers and wait for their runs; false where the store failed."""
    try:
        for number in numbers:
            harness.push(number)
        harness.run_until_idle()
    except StoreError:
        return False
    return True


def shuffle_again(numbers: list[int], chance: random.Random) -> list[int]:
    """The same numbers as the sources may give them after a restart."""
    sources = [[number for number in numbers if number % SOURCES == place] for place in range(SOURCES)]
    return [
        chance.choice(remaining_sources).pop(0)
        for _ in numbers
        if (remaining_sources := [source for source in sources if source])
    ]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """What an undisturbed run writes."""
    return executed(tmp_path_factory.mktemp("clean"), interleaved(1))


@pytest.fixture
def files(clean: Files) -> Files:
    """The same, to be changed."""
    return Files(list(clean.outputs), list(clean.effects))


def test_an_undisturbed_run_is_clean(files: Files) -> None:
    verdict = files.judge()
    assert (verdict.clean, verdict.events, verdict.examples()) == (True, WORK.events, {})
    assert max(int(line.split()[2]) for line in files.outputs) == WORK.events // WORK.keys


@pytest.mark.parametrize("expire", [False, True], ids=["kept", "expired"])
def test_a_run_that_crashes_is_clean(tmp_path: Path, expire: bool) -> None:
    """Inputs come back in another order, and after a time in which memory expires."""
    files = executed(tmp_path, interleaved(2), expire, crashes=0.03)
    verdict = files.judge()
    assert (verdict.clean, verdict.events, verdict.examples()) == (True, WORK.events, {})
    anew = sum(int(line.split()[2]) == 1 for line in files.outputs)
    assert (anew > WORK.keys) == expire, "memory expired"


def test_lost_outputs_effects_and_winners(files: Files) -> None:
    del files.outputs[7]
    assert "lost" in files.differences()


@pytest.mark.parametrize("word", ["effect", "record"])
@pytest.mark.parametrize("step", ["left-1", "right-0", "close"])
def test_lost_effects_and_records(files: Files, word: str, step: str) -> None:
    place = files.line_of(word, str(WORK.key_of(20)), "20", step)
    del files.effects[place]
    assert "lost" in files.differences()


def test_a_race_without_a_winner_and_one_with_two(files: Files) -> None:
    place = next(place for place, line in enumerate(files.effects) if line.split()[3] in RACE)
    recorded_line = next(
        line for line in files.effects[place:] if line.startswith("record") and line.split()[3] in RACE
    )
    step = recorded_line.split()[3]
    other_step = next(race_step for race_step in RACE if race_step != step)
    without = Files(files.outputs, [line for line in files.effects if line != recorded_line])
    assert {"lost", "wrong"} <= without.differences()
    both = Files(files.outputs, [*files.effects, recorded_line.replace(step, other_step)])
    assert "wrong" in both.differences()


def test_duplicated_outputs(files: Files) -> None:
    files.outputs.append(files.outputs[3])
    assert files.differences() == {"duplicated"}


def test_numbers_of_one_source_in_the_wrong_order(files: Files) -> None:
    mine = [place for place, line in enumerate(files.outputs) if int(line.split()[1]) in (0, 6)]
    assert len(mine) == 2
    first, second = mine
    files.outputs[first], files.outputs[second] = files.outputs[second], files.outputs[first]
    assert "out_of_order" in files.differences()


@pytest.mark.parametrize("word", [2, 3, 4])
def test_a_wrong_counter_in_an_output(files: Files, word: int) -> None:
    words = files.outputs[20].split()
    words[word] = str(int(words[word]) + 1)
    files.outputs[20] = " ".join(words)
    assert "wrong" in files.differences()


def test_tokens_of_branches_that_were_mixed_up(files: Files) -> None:
    *words, tokens = files.outputs[20].split()
    left0, left1, right0, right1, *remaining_tokens = tokens.split(",")
    files.outputs[20] = " ".join([*words, ",".join([right0, left1, left0, right1, *remaining_tokens])])
    assert files.differences() == {"wrong"}


def test_effects_in_another_order_than_the_runs(files: Files) -> None:
    key = WORK.key_of(20)
    runs = [int(line.split()[1]) for line in files.outputs if int(line.split()[0]) == key]
    later = runs[runs.index(20) + 1]
    moved = [line for line in files.effects if line.split()[1:4] == [str(key), "20", "close"]]
    files.effects = [line for line in files.effects if line not in moved]
    behind = files.line_of("effect", str(key), str(later)) + 1
    files.effects[behind:behind] = moved
    assert "out_of_order" in files.differences()


def test_a_repeat_after_the_record(files: Files) -> None:
    place = files.line_of("record", str(WORK.key_of(20)), "20", "left-0")
    effect = files.effects[files.line_of("effect", str(WORK.key_of(20)), "20", "left-0")]
    files.effects.insert(place + 1, effect)
    assert "repeated_after_record" in files.differences()


def test_some_numbers_are_declined() -> None:
    assert 0 < sum(map(is_declined, range(WORK.events))) < WORK.events / 2
