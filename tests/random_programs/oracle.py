"""Properties of every execution of a program, for any order of calls, timers and crashes.

- What an attempt of an action saw before it made a call whose end is stored, the next attempt sees
  in the same order: the record may depend on all of it.
- A replay of the whole journal is the attempt that wrote it.
- No effect is repeated whose record was acknowledged; no idempotency key comes with two requests, no
  request with two keys, and what the outside learned stays so.
- Each input is taken once.
- A calm program comes to the same as without a crash. Where inputs come in another order, one of which
  nothing was recorded may have another number, and make up other tokens.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flink_agents.api.events.approvals import APPROVALS_TAG, ApprovalRequest, Decision
from flink_agents.testing import OperatorHarness
from tests.random_programs.programs import KEYS, Program
from tests.random_programs.world import Attempt, Entry, World


@dataclass
class Outcome:
    """What a program left behind, by key."""

    outputs: dict[str, list[Any]]
    memory: dict[str, Any]
    audit: dict[str, list[Any]]
    letters: dict[str, list[str]]
    order: dict[str, list[str]]
    effects: Counter[str] = field(default_factory=Counter)

    def of_keys(self, keys: Container[str]) -> Outcome:
        """Return the part of some keys."""
        parts = (self.outputs, self.memory, self.audit, self.letters, self.order)
        outputs, memory, audit, letters, order = (
            {key: value for key, value in part.items() if key in keys} for part in parts
        )
        return Outcome(outputs, memory, audit, letters, order)


def observed(harness: OperatorHarness) -> Outcome:
    """What a harness shows of a program."""
    letters = harness.dead_letters
    numbers = [(key, seq, name) for key, seq, name in harness.side_output("began")]
    for letter in letters:
        name = letter.event.input[1] if letter.event_type == "_input_event" else None
        # What a run had put out before it waited has left, though it fails later.
        failed_input = (letter.key, letter.sequence_number, name)
        if name is not None and failed_input not in numbers:
            numbers.append(failed_input)
    return Outcome(
        {key: [output for output in harness.outputs if output[0] == key] for key in KEYS},
        {key: harness.memory(key) for key in KEYS},
        {key: [value for value in harness.side_output("audit") if value[0] == key] for key in KEYS},
        {
            key: [
                f"{dead_letter.action} {dead_letter.error_type} {dead_letter.error_message}"
                for dead_letter in letters
                if dead_letter.key == key
            ]
            for key in KEYS
        },
        {key: [name for of, _, name in sorted(numbers) if of == key] for key in KEYS},
        Counter(World.effects),
    )


def check_world(program: Program) -> None:
    """See that nobody outside complains, and that attempts agree as far as records say."""
    complaints = [*World.complaints, *World.service.complaints]
    if complaints:
        raise AssertionError("; ".join(complaints))
    for label, attempts in World.attempts.items():
        for earlier, later in zip(attempts, attempts[1:], strict=False):
            check_attempts(label, earlier, later)


def check_attempts(label: str, earlier: Attempt, later: Attempt) -> None:
    """See that ``later`` sees what the records of ``earlier`` may depend on."""
    earlier_entries = determined(earlier)
    later_entries = seen_before_given_up(later.entries, earlier_entries)
    common = min(len(earlier_entries), len(later_entries))
    if earlier_entries[:common] != later_entries[:common] or (
        len(later_entries) < len(earlier_entries) and later.ended
    ):
        raise AssertionError(
            f"{label}: an attempt sees something else than the one before, whose records may depend on it\n"
            f"{beside(earlier_entries, later_entries)}"
        )


def determined(attempt: Attempt) -> list[Entry]:
    """What an attempt saw up to the last call that it made whose end was stored."""
    stored = attempt.stored or frozenset()
    entries = whole(attempt.entries)
    last = max(
        (at for at, entry in enumerate(entries) if entry[0] == "make" and entry[1] in stored), default=-1
    )
    return entries[: last + 1]


def whole(entries: Sequence[Entry]) -> list[Entry]:
    """Entries up to the end of the action; what it left behind is cancelled then."""
    end = next((at for at, entry in enumerate(entries) if entry[0] in ("end", "raised")), len(entries))
    return [entry for entry in entries[: end + 1] if entry != GIVEN_UP]


GIVEN_UP = ("given up",)
"""What an attempt of a called agent ends with that failed for a reason that nothing records."""


def seen_before_given_up(entries: Sequence[Entry], known: Sequence[Entry]) -> list[Entry]:
    """Entries without the clean-up of an attempt that was given up before it saw all that is known."""
    current = whole(entries)
    if GIVEN_UP in entries:
        for at, (earlier_entry, now) in enumerate(zip(known, current, strict=False)):
            if earlier_entry != now and now[0] == "cancelled":
                return current[:at]
    return current


def last_attempts() -> dict[str, list[Entry]]:
    """What the last attempt of each execution saw."""
    return {label: whole(attempts[-1].entries) for label, attempts in World.attempts.items()}


def check_replay(
    before: dict[str, list[Entry]], expected: Outcome, found: Outcome, replayed: dict[str, list[Entry]]
) -> None:
    """See that a replay of the whole journal is the execution that wrote it."""
    loose: set[str] = set()
    for label, entries in before.items():
        again = replayed.get(label, [])
        if entries == again:
            continue
        if "/" in label and (entries[-1:] != [("end",)] or entries[: len(again)] == again):
            # An attempt of a called agent that failed is not executed again. One that was cancelled may fail
            # before that for a reason that nothing records, also if its code had ended by then.
            continue
        if not _is_unrecorded(entries):
            raise AssertionError(
                f"{label}: a replay of the whole journal sees something else\n{beside(entries, again)}"
            )
        loose.add(label.partition(".")[0])
    # What such an execution sent, and left in memory, depends on the order of its waits, too.
    keys = {key for key in KEYS if loose.isdisjoint(expected.order[key])}
    names = ("outputs", "memory", "audit", "letters")
    check_same(expected.of_keys(keys), found.of_keys(keys), names, "a replay of the whole journal")


def _is_unrecorded(entries: list[Entry]) -> bool:
    """Whether an execution waited, and made no call: the store never learns in which order its waits ended.

    What it saw is in state as long as its run is suspended, and nothing outside depends on it.
    """
    seen = {entry[0] for entry in entries}
    return bool(seen & {"answered", "napped", "decided"}) and "make" not in seen


def check_taken(program: Program, found: Outcome) -> None:
    """See that each input was taken once."""
    for key in KEYS:
        expected = sorted(program_input.name for program_input in program.inputs if program_input.key == key)
        if sorted(found.order[key]) != expected:
            raise AssertionError(f"inputs of key {key}: expected {expected}, taken {found.order[key]}")


def decided(request: ApprovalRequest) -> tuple[Decision, dict[str, Any] | None]:
    """What somebody says to a request, and with what other arguments; it follows from what that asks for."""
    arguments = dict(request.arguments)
    place = arguments.get("place") or arguments["input"][1]
    drawn = zlib.crc32(f"decide {place}".encode()) % 3
    if drawn == 0:
        return Decision.DENIED, None
    if drawn == 1:
        return Decision.APPROVED, None
    if "place" in arguments:
        return Decision.APPROVED, {"place": f"{place} changed"}
    key, name, form, ops = arguments["input"]
    return Decision.APPROVED, {"input": [key, name, form, [*ops, ["out"]]]}


def check_approvals(harness: OperatorHarness) -> None:
    """See that each request left once, and ended once by what was said to it, or by its time."""
    all_requests = [
        output for output in harness.side_output(APPROVALS_TAG) if isinstance(output, ApprovalRequest)
    ]
    ended = [approval_outcome.request.id for approval_outcome in harness.approval_outcomes]
    requests = {approval.id: approval for approval in all_requests}
    if len(requests) != len(all_requests) or len(set(ended)) != len(ended) or requests.keys() != set(ended):
        raise AssertionError(
            f"requests {[approval.id for approval in all_requests]} ended by outcomes of {ended}"
        )
    for outcome in harness.approval_outcomes:
        request = requests[outcome.request.id]
        expected, changed = decided(request)
        if request.expires_at is not None:
            expected = Decision.EXPIRED
            changed = None
        if (outcome.decision, dict(outcome.arguments)) != (
            expected,
            {**request.arguments, **(changed or {})},
        ):
            raise AssertionError(f"{request} was to be {expected} with {changed}, and is {outcome}")


def check_calm(program: Program, expected: Outcome, found: Outcome, ordered: bool) -> None:
    """See that a calm program comes to the same with a crash.

    Args:
        program: The program.
        expected: What it came to without a crash.
        found: What it came to with one.
        ordered: Whether the inputs of each key came again in the same order.
    """
    if ordered:
        check_same(expected, found, ("outputs", "memory", "audit", "letters"), "a crash")
    elif program.has_independent_inputs:
        loose = renumbered(expected, found) & program.showing_tokens
        check_same(by_input(expected, loose), by_input(found, loose), ("outputs", "audit"), "a crash")
    # A call may be cancelled before its function is called.
    differs = {place for place in set(expected.effects) ^ set(found.effects) if not place.endswith("never")}
    if ordered and differs:
        raise AssertionError(f"a crash makes a difference, effects: {sorted(differs)}")


def renumbered(expected: Outcome, found: Outcome) -> set[str]:
    """Inputs that have another number within their key.

    Nothing of them was recorded before the crash, and another input came first behind it. What they make
    up follows from their number.
    """
    return {
        name
        for key in KEYS
        for name, expected_name in zip(found.order[key], expected.order[key], strict=True)
        if name != expected_name
    }


def by_input(outcome: Outcome, loose: Container[str]) -> Outcome:
    """Outputs in the order of inputs, however they came.

    Args:
        outcome: What has the outputs.
        loose: Inputs of which only counts where they put something out, not what.
    """

    def sort(values: Iterable[Any]) -> list[Any]:
        return sorted(
            (value[:3] if value[1] in loose else value for value in values), key=lambda value: value[1]
        )

    outputs = {key: sort(values) for key, values in outcome.outputs.items()}
    audit = {key: sort(values) for key, values in outcome.audit.items()}
    return Outcome(outputs, {}, audit, {}, {})


def check_same(expected: Outcome, found: Outcome, names: Iterable[str], why: str) -> None:
    """See that some of two outcomes is the same."""
    for name in names:
        expected_part = getattr(expected, name)
        actual_part = getattr(found, name)
        if expected_part != actual_part:
            differs = {
                key: (expected_part[key], actual_part[key])
                for key in expected_part
                if expected_part[key] != actual_part.get(key)
            }
            raise AssertionError(f"{why} makes a difference, {name}: expected and found {differs}")


def beside(known: Sequence[Entry], found: Sequence[Entry]) -> str:
    """Two transcripts from a bit before the first entry that differs."""
    pairs = zip(known, found, strict=False)
    at = next(
        (number for number, (earlier_entry, later_entry) in enumerate(pairs) if earlier_entry != later_entry),
        min(len(known), len(found)),
    )
    start = max(0, at - 3)
    lines = [f"    both {start + number}: {entry}" for number, entry in enumerate(known[start:at])]
    lines += [f"    then {at + number}: {entry}" for number, entry in enumerate(known[at : at + 6])]
    lines += [f"     now {at + number}: {entry}" for number, entry in enumerate(found[at : at + 6])]
    return "\n".join(lines)
