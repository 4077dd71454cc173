"""Compares the results of a run with the expected ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.local_chaos.orders import may_be_late, may_have_another_total

STEPS = ("left", "right", "end")
TOTAL = "total"
"""The step of the agent after the windows."""


@dataclass
class World:
    """The effects that were had, in the order in which they came.

    Attributes:
        effects: Tokens of each call, by order and step.
        keys: Idempotency keys of each call.
        repeated_after_record: Calls that were made again after the action had their answer.
    """

    effects: dict[tuple[int, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    keys: dict[tuple[int, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    repeated_after_record: list[tuple[int, str]] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> World:
        """Read the file that the job writes."""
        world = cls()
        seen: set[str] = set()
        for line in file.read_text().splitlines() if file.exists() else []:
            kind, number, *words = line.split()
            if kind == "seen":
                seen.update(words)
                continue
            step, key, token = words
            call = (int(number), step)
            if seen.intersection(world.effects[call]):
                world.repeated_after_record.append(call)
            world.effects[call].append(token)
            world.keys[call].add(key)
        return world

    @property
    def count(self) -> int:
        """Calls that were made at least once."""
        return len(self.effects)


@dataclass(frozen=True)
class Verdict:
    """What came of a run.

    Attributes:
        kills: How often each victim was killed at each moment.
        starts: How often the script was started.
        resumed: Starts that resumed from a checkpoint or savepoint.
        orders: How many there were.
        lost: Orders without an output.
        twice: Orders with several outputs.
        out_of_order: Customers whose orders left in another order, or were counted wrongly.
        lost_effects: Calls that were never made.
        called_again: Calls that were in flight at a kill and were made again.
        repeated_after_record: Calls that were made again after their answer was recorded.
        keys_differ: Calls that came under several idempotency keys.
        other_totals: Calls for windows that came out otherwise after a kill, for they follow late orders.
        late: Orders that came after their window had ended, behind a suspended run of their key.
        late_without_reason: Those of them that neither waited nor were behind one that did.
        wrong_totals: Orders that are in no window and not late, or in several.
        failure: Why the run did not come to its end, or an empty string.
    """

    kills: dict[str, int]
    starts: int
    resumed: int
    orders: int
    lost: Sequence[int] = ()
    twice: Sequence[int] = ()
    out_of_order: Sequence[str] = ()
    lost_effects: Sequence[tuple[int, str]] = ()
    called_again: int = 0
    repeated_after_record: Sequence[tuple[int, str]] = ()
    keys_differ: Sequence[tuple[int, str]] = ()
    other_totals: int = 0
    late: Sequence[int] = ()
    late_without_reason: Sequence[int] = ()
    wrong_totals: Sequence[int] = ()
    failure: str = ""

    @property
    def clean(self) -> bool:
        """True if nothing was lost, repeated after its record, or put out twice."""
        wrong = (self.lost, self.twice, self.out_of_order, self.lost_effects, self.repeated_after_record)
        return not (
            any(wrong) or self.keys_differ or self.late_without_reason or self.wrong_totals or self.failure
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figures; of what is wrong, the first ten."""
        figures = asdict(self)
        return {
            name: value[:10] if isinstance(value, list | tuple) else value for name, value in figures.items()
        }


def judge(
    world: World,
    orders: int,
    outputs: Iterable[dict[str, Any]],
    totals: Iterable[dict[str, Any]] | None,
    late: Iterable[dict[str, Any]] = (),
    *,
    keys: int,
    **figures: Any,
) -> Verdict:
    """Compare outputs and effects with those of an undisturbed run.

    Args:
        world: The effects.
        orders: How many orders there were.
        outputs: What left for each order.
        totals: What left for each window; None if the job has no windows.
        late: Orders that missed their window.
        keys: How many customers there are.
        figures: Other attributes of the verdict.
    """
    outputs = list(outputs)
    counts = Counter(row["number"] for row in outputs)
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for output in outputs:
        places[output["customer"]].append((output["place"], output["number"]))
    wanted = {(number, step) for number in range(orders) for step in STEPS}
    of_totals = Counter(number for total in totals or () for number in total["orders"])
    of_totals.update(numbers_late := [late_order["number"] for late_order in late])
    numbers = range(orders) if totals is not None else ()
    several = [call for call, call_keys in world.keys.items() if len(call_keys) > 1]
    other_totals = {(n, step) for n, step in several if step == TOTAL and may_have_another_total(n, keys)}
    return Verdict(
        orders=orders,
        lost=sorted(set(range(orders)) - set(counts)),
        twice=sorted(number for number, count in counts.items() if count > 1),
        out_of_order=sorted(
            name for name, customer_places in places.items() if not _in_order(customer_places)
        ),
        lost_effects=sorted(wanted - set(world.effects)),
        called_again=sum(len(tokens) - 1 for tokens in world.effects.values()),
        repeated_after_record=world.repeated_after_record,
        keys_differ=sorted(call for call in several if call not in other_totals),
        other_totals=len(other_totals),
        late=numbers_late,
        late_without_reason=[number for number in numbers_late if not may_be_late(number, keys)],
        wrong_totals=[number for number in numbers if of_totals[number] != 1],
        **figures,
    )


def _in_order(found: Sequence[tuple[int, int]]) -> bool:
    """Return True if the places of a customer are 1, 2, 3 and its orders ascend."""
    return [place for place, _ in found] == list(range(1, len(found) + 1)) and [
        number for _, number in found
    ] == sorted(number for _, number in found)
