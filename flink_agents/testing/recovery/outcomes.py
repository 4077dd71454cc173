"""The outcome of an operator's execution, and the difference of two outcomes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
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
    """The outputs of an operator, and the content of its state.

    Attributes:
        left: The outputs, by name and key: the order among keys is not guaranteed.
        memory: Encoded short-term memory by key and path.
        runs: Number of committed runs by key.
        delayed: Times and bytes of delayed events, by key.
    """

    left: dict[tuple[str, str], list[Any]]
    memory: dict[str, dict[str, bytes]]
    runs: dict[str, int]
    delayed: dict[str, list[tuple[int, bytes]]]
    codec: ValueCodec

    @classmethod
    def of(
        cls, keys: Mapping[str, KeyState], codec: ValueCodec, left: Sequence[tuple[str, str, Any]]
    ) -> HarnessOutcome:
        """Return the outcome of a harness.

        Args:
            keys: The state of each key.
            codec: Encodes the values in it.
            left: Its outputs: name of the output, canonical string of the key, value.
        """
        lists: dict[tuple[str, str], list[Any]] = {}
        for what, key, value in left:
            lists.setdefault((what, key), []).append(value)
        memory = {
            key: {path: data for path, (data, _) in state.memory.items()} for key, state in keys.items()
        }
        heads = {key: Head.unpack(state.head) for key, state in keys.items() if state.head is not None}
        delayed = {key: [(one.due, one.packed) for one in delayed_in(state)] for key, state in keys.items()}
        runs = {key: head.next_seq for key, head in heads.items()}
        return cls(lists, memory, runs, delayed, codec)


@dataclass
class Difference:
    """A difference of two executions.

    Attributes:
        what: A word or two for what differs.
        key: Canonical string of the key; None if it is not known.
        expected: The value of the execution without a crash.
        found: The value of the other one.
    """

    what: str
    key: str | None
    expected: str
    found: str


def difference(expected: HarnessOutcome, found: HarnessOutcome, ordered: bool = True) -> Difference | None:
    """Return the first difference, or None.

    Args:
        expected: The outcome of the execution without a crash.
        found: The outcome of the other execution.
        ordered: True if values have to leave in the same order.
    """
    for what, key in sorted({*expected.left, *found.left}):
        one, other = expected.left.get((what, key), []), found.left.get((what, key), [])
        if not (_same_list(one, other) if ordered else _same_values(one, other)):
            return Difference(what, key, _text(one), _text(other))
    for each in sorted({*expected.memory, *found.memory}):
        one_memory, other_memory = expected.memory.get(each, {}), found.memory.get(each, {})
        if one_memory != other_memory:
            decoded = _values(expected.codec, one_memory), _values(expected.codec, other_memory)
            if not _same(*decoded):
                return Difference("memory", each, _text(decoded[0]), _text(decoded[1]))
    for each in sorted({*expected.runs, *found.runs}):
        if expected.runs.get(each, 0) != found.runs.get(each, 0):
            counts = f"{expected.runs.get(each, 0)} runs", f"{found.runs.get(each, 0)} runs"
            return Difference("number of runs", each, *counts)
    for each in sorted({*expected.delayed, *found.delayed}):
        later = sorted(expected.delayed.get(each, [])), sorted(found.delayed.get(each, []))
        if later[0] != later[1]:
            return Difference("delayed events", each, _text(later[0]), _text(later[1]))
    return None


def _values(codec: ValueCodec, memory: dict[str, bytes]) -> dict[str, Any]:
    return {unescape(path): codec.decode(data) for path, data in sorted(memory.items()) if data != OBJECT}


def _same_list(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(_same, one, other))


def _same_values(one: Sequence[Any], other: Sequence[Any]) -> bool:
    left = list(other)
    for value in one:
        at = next((number for number, each in enumerate(left) if _same(value, each)), None)
        if at is None:
            return False
        del left[at]
    return not left


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, DeadLetter) and isinstance(other, DeadLetter):
        return all(_same(getattr(one, name), getattr(other, name)) for name in LETTER)
    try:
        if bool(one == other) and type(one) is type(other):
            return True
    except Exception:
        pass  # An array, for example, has no bool.
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except Exception:
        return False


def _text(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__qualname__}: repr raised {type(error).__name__}>"
    return text if len(text) <= MAX_TOLD else f"{text[:MAX_TOLD]}..."
