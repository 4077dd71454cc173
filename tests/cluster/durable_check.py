"""The expected files of a chaos run, compared with the written ones: outputs, windows, effects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.cluster.counting_job import extended_digest
from tests.cluster.durable_agent import PARALLEL, steps_of

BASE_MS = 1_700_000_000_000
STEP_MS = 5
"""Event time between two numbers."""

WINDOW_MS = 2000

MUST_BE_NONE = ("lost", "duplicated", "out_of_order", "repeated_after_record", "wrong")
"""The differences that there must not be."""

IN_WINDOW = ("repeated_in_window_failures", "repeated_in_window_kills")
"""Effects of calls that had no record yet, by what ended the attempt before."""

SHOWN = 5

Call = tuple[int, int, str]
"""Key, number and step."""


def stamp(number: int) -> int:
    """Timestamp of a number."""
    return BASE_MS + STEP_MS * number


@dataclass(frozen=True)
class Workload:
    """What a job has to do.

    Attributes:
        events: How many numbers it reads, from 0.
        keys: How many keys they have, in turns.
        job: Which job does it.
        options: Options of Flink and of the agent that it needs.
    """

    events: int
    keys: int
    job: ClassVar[str] = "chain"
    options: ClassVar[dict[str, str]] = {}

    def key_of(self, number: int) -> int:
        """The key of a number."""
        return number % self.keys

    def outputs(self) -> dict[int, str]:
        """The output of each number, but for the tokens behind it."""
        lines: dict[int, str] = {}
        for key in range(min(self.keys, self.events)):
            charged = digest = 0
            for run_count, number in enumerate(range(key, self.events, self.keys), 1):
                charged = charged + number
                digest = extended_digest(digest, number)
                lines[number] = f"{key} {number} {run_count} {charged} {digest}"
        return lines

    def windows(self) -> dict[tuple[int, int], str]:
        """The line of each window, by key and start."""
        sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        for number, line in self.outputs().items():
            key, _, run_count, *_ = line.split()
            window_sums = sums[int(key), stamp(number) // WINDOW_MS * WINDOW_MS]
            for place, value in enumerate((1, number, int(run_count))):
                window_sums[place] += value
        return {place: " ".join(map(str, (*place, *totals))) for place, totals in sums.items()}

    def calls(self) -> set[Call]:
        """All durable calls."""
        return {
            (number % self.keys, number, step) for number in range(self.events) for step in steps_of(number)
        }


@dataclass
class Verdict:
    """Differences from the model; each list has what is concerned.

    Attributes:
        events: Number of outputs.
        lost: Outputs, windows, effects and records that never came.
        duplicated: Outputs and windows that came again.
        out_of_order: Outputs, windows and first effects behind later ones of the same key.
        repeated_after_record: Effects of a call that had been recorded.
        repeated_in_window_failures: Effects of a call that had taken effect, and had not been recorded, in a
            process that lived on: the job failed, or was cancelled there.
        repeated_in_window_kills: The same of a process that was killed.
        wrong: Counters, sums, digests, results and idempotency keys that are not the model's.
    """

    events: int = 0
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    repeated_after_record: list[str] = field(default_factory=list)
    repeated_in_window_failures: list[str] = field(default_factory=list)
    repeated_in_window_kills: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether there is no difference that must not be."""
        return not any(getattr(self, name) for name in MUST_BE_NONE)

    def counts(self) -> dict[str, int]:
        """How many there are of each kind."""
        return {name: len(getattr(self, name)) for name in (*MUST_BE_NONE, *IN_WINDOW)}

    def examples(self) -> dict[str, list[str]]:
        """Some of what must not be, by kind."""
        return {name: getattr(self, name)[:SHOWN] for name in MUST_BE_NONE if getattr(self, name)}


class Effects:
    """What the file of effects says; see :mod:`tests.cluster.durable_agent`.

    Args:
        lines: Its lines.
        verdict: Gets the differences.
        killed: Ids of processes that were killed.
    """

    def __init__(self, lines: Iterable[str], verdict: Verdict, killed: Collection[int] = ()) -> None:
        self.taken: defaultdict[Call, list[str]] = defaultdict(list)
        self.results: dict[Call, set[str]] = defaultdict(set)
        self._keys: dict[Call, str] = {}
        self._calls: dict[str, Call] = {}
        self._latest: dict[int, tuple[int, int]] = {}
        self._verdict = verdict
        self._killed = killed
        self._process: dict[Call, int] = {}
        words = [line.split() for line in lines]
        # A process that takes effect behind a repeat was alive then, whatever became of it later.
        self._last = {int(word[6]): place for place, word in enumerate(words) if word[0] == "effect"}
        for place, (kind, key, number, step, token, *remaining_words) in enumerate(words):
            call = int(key), int(number), step
            if kind == "record":
                self.results[call].add(token)
            else:
                self._effect(call, token, remaining_words[0], place)
                self._process[call] = int(remaining_words[1])

    def _effect(self, call: Call, token: str, idempotency_key: str, place: int) -> None:
        verdict = self._verdict
        if call in self.results:
            verdict.repeated_after_record.append(f"{call} {token}")
        elif call in self.taken:
            process = self._process[call]
            died = process in self._killed and self._last[process] < place
            in_window = verdict.repeated_in_window_kills if died else verdict.repeated_in_window_failures
            in_window.append(f"{call} {token}")
        else:
            self._check_order(call)
        self.taken[call].append(token)
        if self._keys.setdefault(call, idempotency_key) != idempotency_key:
            verdict.wrong.append(f"{call} has several idempotency keys")
        if self._calls.setdefault(idempotency_key, call) != call:
            verdict.wrong.append(f"{call} has the idempotency key of {self._calls[idempotency_key]}")

    def _check_order(self, call: Call) -> None:
        """The first effects of a key come in the order of its runs, and in each of its actions."""
        key, number, step = call
        steps = steps_of(number)
        # Those that run side by side have no order.
        stage = 0 if step in PARALLEL or step not in steps else steps.index(step)
        place = number, stage
        if place < self._latest.get(key, place):
            self._verdict.out_of_order.append(
                f"{call} took effect first behind number {self._latest[key][0]}"
            )
        self._latest[key] = max(place, self._latest.get(key, place))

    def check(self, calls: set[Call]) -> None:
        """Compare what took effect with what should have."""
        verdict = self._verdict
        verdict.lost += [f"effect of {call}" for call in sorted(calls - self.taken.keys())]
        verdict.lost += [
            f"record of {call}" for call in sorted((calls & self.taken.keys()) - self.results.keys())
        ]
        verdict.wrong += [f"unknown call {call}" for call in sorted(self.taken.keys() - calls)]
        for call, tokens in self.results.items():
            # Only the last effect can have been recorded; any other result was not kept, or is not its own.
            if tokens != set(self.taken[call][-1:]):
                effect_tokens = self.taken[call]
                verdict.wrong.append(f"{call} returned {sorted(tokens)}, and took effect as {effect_tokens}")

    def tokens_of(self, key: int, number: int) -> str:
        """The tokens that the output of a number should have."""
        return ",".join("+".join(sorted(self.results[key, number, step])) for step in steps_of(number))


def judge(
    outputs: Sequence[str],
    windows: Sequence[str],
    effects: Iterable[str],
    workload: Workload,
    killed: Collection[int] = (),
) -> Verdict:
    """Compare what was written, each in the order of writing, with the model."""
    verdict = Verdict(events=len(outputs))
    checker = Effects(effects, verdict, killed)
    checker.check(workload.calls())
    expected: dict[Any, str] = {
        number: f"{line} {checker.tokens_of(number % workload.keys, number)}"
        for number, line in workload.outputs().items()
    }
    _compare(verdict, "output", outputs, expected, lambda words: int(words[1]))
    _compare(verdict, "window", windows, workload.windows(), lambda words: (int(words[0]), int(words[1])))
    return verdict


def _compare(
    verdict: Verdict,
    what: str,
    lines: Sequence[str],
    expected: dict[Any, str],
    place_of: Callable[[list[str]], Any],
) -> None:
    """Compare lines, which begin with their key, with those that are expected at each place."""
    seen: set[Any] = set()
    latest: dict[str, Any] = {}
    for line in lines:
        words = line.split()
        place = place_of(words)
        latest_place = latest.get(words[0], place)
        if place in seen:
            verdict.duplicated.append(f"{what} {line}")
        elif place < latest_place:
            verdict.out_of_order.append(f"{what} {line}")
        if expected.get(place) != line:
            verdict.wrong.append(f"{what} {line!r} instead of {expected.get(place)!r}")
        seen.add(place)
        latest[words[0]] = max(place, latest_place)
    verdict.lost += [f"{what} {place}" for place in sorted(expected.keys() - seen)]


def recorded_twice(records: Iterable[tuple[Any, ...]]) -> list[str]:
    """Which of the records, each given by what identifies it, are there more than once."""
    return [f"{place} has {count} records" for place, count in Counter(records).items() if count > 1]
