"""Keeps the recorded runs in mind whose inputs did not come in time. Only for Flink's thread.

The head of a key has their numbers, until their inputs come. Their records are not pruned as long as
they are there. What never comes is given up after a time, or where too many runs of a key wait.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.journal.order import InputOrder
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head

_log = bounded_logger("flink_agents.replays")

MAX_OVERTAKEN = 1000
"""How many runs of a key may wait for their inputs, after others have overtaken them."""


class LateReplays(KeyService):
    """Knows the recorded runs whose inputs did not come in time, and gives them up at last.

    Args:
        shared: What all runs share.
        clock: The wall-clock time in milliseconds.
    """

    def __init__(self, shared: RunEnvironment, clock: Callable[[], int]) -> None:
        self._metrics = shared.run_metrics
        self._clock = clock
        timeout: timedelta = shared.config.get(AgentOptions.LATE_INPUT_TIMEOUT)
        self._seconds = timeout.total_seconds()
        # While nobody took inputs, none could come.
        self._began = clock() // 1000

    def overtaken(self, head: Head, key_text: str) -> None:
        """Give up what has waited for too long, of a key that has no actor."""
        overtaken = head.overtaken
        given_up = [seq for seq in overtaken if self._is_late(overtaken, seq)]
        self._give_up(head, key_text, overtaken, given_up)

    def overtaking(self, actor: KeyActor, seq: int, overtakes: tuple[int, ...]) -> None:
        """Note that run ``seq`` was committed, which overtook others.

        Args:
            actor: The actor of the key.
            seq: Its sequence number.
            overtakes: The runs that it was the first to overtake.
        """
        head, now = actor.head, self._clock() // 1000
        overtaken = {**head.overtaken, **dict.fromkeys(overtakes, now)}
        overtaken.pop(seq, None)
        head.overtaken = overtaken
        self._metrics.group.get_counter("runs_replayed_late").inc(len(overtakes))
        oldest = next(iter(overtaken), None)
        if oldest is None or not (len(overtaken) > MAX_OVERTAKEN or self._is_late(overtaken, oldest)):
            return
        surplus = len(overtaken) - MAX_OVERTAKEN
        given_up = [
            one
            for number, one in enumerate(overtaken)
            if (number < surplus or self._is_late(overtaken, one)) and _forget(actor, one)
        ]
        self._give_up(head, actor.key_text, overtaken, given_up)

    def _is_late(self, overtaken: dict[int, int], seq: int) -> bool:
        return self._clock() // 1000 - max(overtaken[seq], self._began) > self._seconds

    def _give_up(self, head: Head, key_text: str, overtaken: dict[int, int], given_up: list[int]) -> None:
        if not given_up:
            return
        head.overtaken = {seq: at for seq, at in overtaken.items() if seq not in set(given_up)}
        self._metrics.group.get_counter("runs_abandoned").inc(len(given_up))
        _log.warning(
            "key %r: the inputs of %d recorded runs, such as %d, did not come again, and are waited for no "
            "longer (%s, or more than %d of a key). If one comes, its calls are made again",
            decode_key(key_text),
            len(given_up),
            given_up[0],
            AgentOptions.LATE_INPUT_TIMEOUT.key,
            MAX_OVERTAKEN,
        )


def _forget(actor: KeyActor, seq: int) -> bool:
    """Forget a recorded run; False where its input has come."""
    with actor.lock:
        order = actor.order
        return isinstance(order, InputOrder) and order.recorded.give_up(seq)
