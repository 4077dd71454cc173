"""Keeps track of recorded runs whose inputs did not come in time. Only for Flink's task thread.

The head of a key has their numbers until their inputs come. Their records are not pruned until then. A run
whose input never comes is given up after a time, or if too many runs of a key wait.
"""

from __future__ import annotations

from collections.abc import Callable

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head

_log = bounded_logger("flink_agents.replays")

MAX_SKIPPED = 1000
"""The most skipped runs of a key that wait for their inputs."""


class LateReplays:
    """Tracks the recorded runs whose inputs did not come in time, and finally gives them up.

    Args:
        shared: The agent's shared objects.
        clock: Returns the wall-clock time in milliseconds.
    """

    def __init__(self, shared: RunEnvironment, clock: Callable[[], int]) -> None:
        self._metrics = shared.telemetry.run_metrics
        self._clock = clock
        timeout = shared.config.get(AgentOptions.LATE_INPUT_TIMEOUT)
        self._seconds = timeout.total_seconds()
        # Time before the start does not count: no input could come.
        self._began = clock() // 1000

    def give_up_late(self, head: Head, key_text: str) -> None:
        """Give up runs that have waited for too long, of a key that has no actor."""
        skipped = head.skipped
        given_up = [seq for seq in skipped if self._is_late(skipped, seq)]
        self._give_up(head, key_text, skipped, given_up)

    def note_skipped(self, actor: KeyActor, seq: int, skips: tuple[int, ...]) -> None:
        """Note that run ``seq`` was committed before others that were recorded earlier.

        Args:
            actor: The actor of the key.
            seq: Its sequence number.
            skips: The runs that are skipped from this run on.
        """
        head = actor.head
        now = self._clock() // 1000
        skipped = {**head.skipped, **dict.fromkeys(skips, now)}
        # This run was skipped before, and its input has come.
        skipped.pop(seq, None)
        head.skipped = skipped
        self._metrics.group.get_counter("runs_replayed_late").inc(len(skips))
        oldest = next(iter(skipped), None)
        if oldest is None or not (len(skipped) > MAX_SKIPPED or self._is_late(skipped, oldest)):
            return
        # The oldest ones go first.
        surplus = len(skipped) - MAX_SKIPPED
        given_up = [
            late
            for number, late in enumerate(skipped)
            if (number < surplus or self._is_late(skipped, late)) and _forget(actor, late)
        ]
        self._give_up(head, actor.key_text, skipped, given_up)

    def _is_late(self, skipped: dict[int, int], seq: int) -> bool:
        return self._clock() // 1000 - max(skipped[seq], self._began) > self._seconds

    def _give_up(self, head: Head, key_text: str, skipped: dict[int, int], given_up: list[int]) -> None:
        if not given_up:
            return
        head.skipped = {seq: at for seq, at in skipped.items() if seq not in set(given_up)}
        self._metrics.group.get_counter("runs_abandoned").inc(len(given_up))
        _log.warning(
            "key %r: the inputs of %d recorded runs, such as %d, did not come again, and are waited for no "
            "longer (%s, or more than %d of a key). If one comes, its calls are made again",
            decode_key(key_text),
            len(given_up),
            given_up[0],
            AgentOptions.LATE_INPUT_TIMEOUT.key,
            MAX_SKIPPED,
        )


def _forget(actor: KeyActor, seq: int) -> bool:
    """Drop a recorded run; returns False if its input has come."""
    recovery = actor.recovery
    if recovery is None:
        return False
    with recovery.lock:
        return recovery.order is not None and recovery.order.recorded.give_up(seq)
