"""The outcome of an operator's execution, and the difference of two outcomes."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents.api.common.policies import DeadLetter
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import unescape
from flink_agents.runtime.state.keyed_state import OBJECT, Head
from flink_agents.testing.fakes.state import KeyState
from flink_agents.testing.fakes.waits import delayed_in

MAX_TOLD = 1000
"""Maximum number of characters of each side in a difference."""

LETTER = ("agent", "action", "key", "sequence_number", "timestamp", "event", "error_type", "error_message")
"""The fields that must be equal in two dead letters; the traceback of a recorded failure differs."""


@dataclass
class HarnessOutcome:
    """The outcome of an execution of a harness, for a comparison with another one.

    Attributes:
        left: The outputs by name of the output and key: the order among keys is not guaranteed.
        memory: Encoded short-term memory by key and path.
        runs: Number of committed runs by key.
        delayed: Time and bytes of each delayed event, by key.
        codec: Decodes the memory.
    """

    left: dict[tuple[str, str], list[Any]]
    memory: dict[str, dict[str, bytes]]
    runs: dict[str, int]
    delayed: dict[str, list[tuple[int, bytes]]]
    codec: ValueCodec

    @classmethod
    def from_harness(
        cls, keys: Mapping[str, KeyState], codec: ValueCodec, outputs: Sequence[tuple[str, str, Any]]
    ) -> HarnessOutcome:
        """Return the outcome of a harness.

        Args:
            keys: The state of each key.
            codec: Decodes the memory.
            outputs: Each output: name of the output, canonical text of the key, value.
        """
        lists: dict[tuple[str, str], list[Any]] = {}
        for what, key, value in outputs:
            lists.setdefault((what, key), []).append(value)
        heads = {key: Head.unpack(state.head) for key, state in keys.items() if state.head is not None}
        memory = {
            key: heads[key].nodes or {unescape(path): data for path, (data, _) in state.memory.items()}
            for key, state in keys.items()
            if key in heads
        }
        delayed = {
            key: [(event.due, event.packed) for event in delayed_in(state)] for key, state in keys.items()
        }
        runs = {key: head.next_seq for key, head in heads.items()}
        return cls(lists, memory, runs, delayed, codec)


@dataclass
class Difference:
    """A difference between the outcomes of two executions.

    Attributes:
        what: What differs, in a word or two.
        key: Canonical text of the key; None if it is not known.
        expected: Its value in the execution without a crash, as text.
        found: Its value in the other execution, as text.
    """

    what: str
    key: str | None
    expected: str
    found: str


def first_difference(
    expected: HarnessOutcome, actual_outcome: HarnessOutcome, ordered: bool = True
) -> Difference | None:
    """Return the first difference between two outcomes, or None.

    Args:
        expected: The outcome of the execution without a crash.
        actual_outcome: The outcome of the other execution.
        ordered: True if the values of an output have to be in the same order.
    """
    differences = itertools.chain(
        _output_differences(expected, actual_outcome, ordered),
        _memory_differences(expected, actual_outcome),
        _run_differences(expected, actual_outcome),
        _delayed_differences(expected, actual_outcome),
    )
    return next(differences, None)


def _output_differences(
    expected: HarnessOutcome, actual_outcome: HarnessOutcome, ordered: bool
) -> Iterator[Difference]:
    are_same = _same_list if ordered else _same_values
    for what, key in sorted({*expected.left, *actual_outcome.left}):
        expected_values = expected.left.get((what, key), [])
        actual_values = actual_outcome.left.get((what, key), [])
        if not are_same(expected_values, actual_values):
            yield Difference(what, key, _value_text(expected_values), _value_text(actual_values))


def _memory_differences(expected: HarnessOutcome, actual_outcome: HarnessOutcome) -> Iterator[Difference]:
    for key in sorted({*expected.memory, *actual_outcome.memory}):
        expected_memory = expected.memory.get(key, {})
        actual_memory = actual_outcome.memory.get(key, {})
        if expected_memory == actual_memory:
            continue
        # Equal values can have different bytes.
        expected_values = _memory_values(expected.codec, expected_memory)
        actual_values = _memory_values(expected.codec, actual_memory)
        if not _is_same(expected_values, actual_values):
            yield Difference("memory", key, _value_text(expected_values), _value_text(actual_values))


def _run_differences(expected: HarnessOutcome, actual_outcome: HarnessOutcome) -> Iterator[Difference]:
    for key in sorted({*expected.runs, *actual_outcome.runs}):
        expected_count = expected.runs.get(key, 0)
        actual_count = actual_outcome.runs.get(key, 0)
        if expected_count != actual_count:
            yield Difference("number of runs", key, f"{expected_count} runs", f"{actual_count} runs")


def _delayed_differences(expected: HarnessOutcome, actual_outcome: HarnessOutcome) -> Iterator[Difference]:
    for key in sorted({*expected.delayed, *actual_outcome.delayed}):
        expected_events = sorted(expected.delayed.get(key, []))
        actual_events = sorted(actual_outcome.delayed.get(key, []))
        if expected_events != actual_events:
            yield Difference("delayed events", key, _value_text(expected_events), _value_text(actual_events))


def _memory_values(codec: ValueCodec, memory: dict[str, bytes]) -> dict[str, Any]:
    return {path: codec.decode(data) for path, data in sorted(memory.items()) if data != OBJECT}


def _same_list(expected_values: Sequence[Any], actual_values: Sequence[Any]) -> bool:
    return len(expected_values) == len(actual_values) and all(map(_is_same, expected_values, actual_values))


def _same_values(expected_values: Sequence[Any], actual_values: Sequence[Any]) -> bool:
    remaining_values = list(actual_values)
    for value in expected_values:
        index = next(
            (number for number, other_value in enumerate(remaining_values) if _is_same(value, other_value)),
            None,
        )
        if index is None:
            return False
        del remaining_values[index]
    return not remaining_values


def _is_same(expected_value: Any, actual_value: Any) -> bool:
    if isinstance(expected_value, DeadLetter) and isinstance(actual_value, DeadLetter):
        return all(_is_same(getattr(expected_value, name), getattr(actual_value, name)) for name in LETTER)
    try:
        if bool(expected_value == actual_value) and type(expected_value) is type(actual_value):
            return True
    except Exception:
        pass  # An array, for example, has no bool.
    try:
        return pickle.dumps(expected_value) == pickle.dumps(actual_value)
    except Exception:
        return False


def _value_text(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__qualname__}: repr raised {type(error).__name__}>"
    return text if len(text) <= MAX_TOLD else f"{text[:MAX_TOLD]}..."
