"""The expected output of a chaos run with the branching agent.

Two subtasks of the source feed each key, so that the order of a key's inputs is not known before, and memory
expires, so that a counter may begin anew at any run. The outputs of a key, in their order, say which
order it was; all else is judged by that. There are no windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.cluster import durable_check
from tests.cluster.branching_agent import BRANCHED, CLOSE, RACE
from tests.cluster.counting_job import extended_digest
from tests.cluster.durable_check import Call, Effects, Verdict, Workload

SOURCES = 2
"""How many subtasks of the source feed each key: each has the numbers with one remainder."""

TTL = "2 s"
"""How long memory lives: longer than it takes until a key comes again, shorter than a restart."""


@dataclass(frozen=True)
class BranchingWorkload(Workload):
    """What the branching job has to do."""

    job: ClassVar[str] = "branching"
    options: ClassVar[dict[str, str]] = {"flink-agents.memory.short-term.ttl": TTL}

    def key_of(self, number: int) -> int:
        """The key of a number: both sources have numbers of each key."""
        return number // SOURCES % self.keys

    def calls(self) -> set[Call]:
        """All durable calls but those of the races, which nobody has to make."""
        return {
            (self.key_of(number), number, step)
            for number in range(self.events)
            for step in (*BRANCHED, CLOSE)
        }


def workload_of(job: str, events: int, keys: int) -> Workload:
    """What the job of that name has to do."""
    return (BranchingWorkload if job == BranchingWorkload.job else Workload)(events, keys)


class BranchingEffects(Effects):
    """What the file of effects says.

    Args:
        lines: Its lines.
        verdict: Gets the differences.
        order: Place of each number among the outputs of its key.
        more: What else :class:`Effects` takes.
    """

    def __init__(self, lines: Iterable[str], verdict: Verdict, order: dict[int, int], *more: Any) -> None:
        self._order = order
        super().__init__(lines, verdict, *more)

    def _check_order(self, call: Call) -> None:
        """First effects of a key come in the order of its runs; those who lose a race, whenever they do."""
        key, number, step = call
        if step in RACE or number not in self._order:
            return
        place = self._order[number], int(step == CLOSE)
        previous_place = self._latest.get(key, place)
        if place < previous_place:
            self._verdict.out_of_order.append(f"{call} took effect first behind run {previous_place[0]}")
        self._latest[key] = max(place, previous_place)

    def check(self, calls: set[Call]) -> None:
        """Compare what took effect with what should have; of a race, one call was kept."""
        runs = {(key, number) for key, number, _ in calls}
        raced = {(key, number, step) for key, number in runs for step in RACE}
        for loser in raced - self.results.keys():
            self.taken.pop(loser, None)
        super().check(calls | (raced & self.results.keys()))
        for key, number in sorted(runs):
            winners = [step for step in RACE if (key, number, step) in self.results]
            if not winners:
                self._verdict.lost.append(f"winner of the race of {(key, number)}")
            elif len(winners) > 1:
                self._verdict.wrong.append(f"the race of {(key, number)} was won by {winners}")

    def tokens_of(self, key: int, number: int) -> str:
        """The tokens that the output of a number should have."""
        steps: tuple[tuple[str, ...], ...] = (*((step,) for step in BRANCHED), RACE, (CLOSE,))
        token_sets = [
            {token for step in group for token in self.results.get((key, number, step), ())}
            for group in steps
        ]
        return ",".join("+".join(sorted(tokens)) for tokens in token_sets)


def judge(
    outputs: Sequence[str], windows: Sequence[str], effects: Iterable[str], workload: Workload, *more: Any
) -> Verdict:
    """Compare what was written with the model of the job; ``more`` is what the model of the effects takes."""
    if not isinstance(workload, BranchingWorkload):
        return durable_check.judge(outputs, windows, effects, workload, *more)
    verdict = Verdict(events=len(outputs))
    runs = _Runs(workload, verdict)
    for line in outputs:
        runs.judge_output(line)
    verdict.lost += [f"output of {number}" for number in range(workload.events) if number not in runs.order]
    checker = BranchingEffects(effects, verdict, runs.order, *more)
    checker.check(workload.calls())
    for number, tokens in runs.tokens.items():
        if tokens != (expected := checker.tokens_of(workload.key_of(number), number)):
            verdict.wrong.append(f"output of {number} has {tokens!r} instead of {expected!r}")
    return verdict


class _Runs:
    """The outputs, each judged by those of the same key before it.

    Attributes:
        order: Place of each number among those of its key.
        tokens: Tokens of each number.
    """

    def __init__(self, workload: BranchingWorkload, verdict: Verdict) -> None:
        self.order: dict[int, int] = {}
        self.tokens: dict[int, str] = {}
        self._workload = workload
        self._verdict = verdict
        self._before: dict[int, tuple[int, int, int]] = {}
        self._places: defaultdict[int, int] = defaultdict(int)
        self._latest: dict[tuple[int, int], int] = {}

    def judge_output(self, line: str) -> None:
        """Judge the next output."""
        *words, tokens = line.split()
        key, number, run_count, total, digest = map(int, words)
        if number in self.order:
            self._verdict.duplicated.append(f"output {line}")
            return
        self.order[number] = self._places[key]
        self._places[key] += 1
        self.tokens[number] = tokens
        if key != self._workload.key_of(number) or not 0 <= number < self._workload.events:
            self._verdict.wrong.append(f"output {line!r} has another key")
        # Inputs of one source keep their order, whatever those of the other do.
        source = key, number % SOURCES
        if number < self._latest.get(source, number):
            self._verdict.out_of_order.append(f"output {line}")
        self._latest[source] = number
        # Each value in memory goes on, or begins anew where it had expired.
        was = self._before.get(key, (0, 0, 0))
        goes_on = (was[0] + 1, was[1] + number, extended_digest(was[2], number))
        anew = (1, number, extended_digest(0, number))
        counters = run_count, total, digest
        if any(counter not in choice for counter, *choice in zip(counters, goes_on, anew, strict=True)):
            self._verdict.wrong.append(f"output {line!r} instead of {goes_on} or {anew}")
        self._before[key] = counters
