"""The low watermark as a key service: outputs have timestamps, and no watermark passes them."""

from __future__ import annotations

from collections.abc import Sequence

from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.entries import RunEnd
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.end_times import START
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys, Timers
from flink_agents.runtime.state.pending import read_input


class EventTimeService(KeyService):
    """Reports inputs that wait to the low watermark, and sets the timestamps of outputs.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        low: The low watermark.
    """

    has_key_timers = True

    def __init__(self, shared: RunEnvironment, state: KeyedState, low: LowWatermark) -> None:
        self._codec = shared.codec
        self._state = state
        self._low = low

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """Note which keys hold the low watermark until their inputs are known."""
        self._low.restored(waiting)
        if waiting and timers is not None:
            self._low.begin(timers)
        return False

    def check_arrival(self, timestamp: int | None, timers: Timers) -> None:
        """Reject a timestamp that no stream downstream could have."""
        self._low.check(timestamp)
        self._low.begin(timers)

    def note_stored(self, key_text: str, number: int, timestamp: int | None) -> None:
        """Report an input that waits."""
        self._low.stored(key_text, number, timestamp)

    def blocked(self, key_text: str, head: Head) -> None:
        """Let the inputs of a key that stay in state no longer hold the low watermark."""
        self._low.park(key_text)

    def note_restored_inputs(self, head: Head | None, key_text: str) -> None:
        """Report the inputs and wake-ups of the current key, after a restore."""
        if head is None:
            self._low.note_restored(key_text, ())
            return
        inputs, wake_ups = self._state.pending.inputs_and_wake_ups()
        for number in wake_ups:
            self._low.woken(key_text, number)
        times = ((number, read_input(self._codec, packed)[1]) for number, packed in inputs)
        self._low.note_restored(key_text, times)

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Raise the low watermark as far as possible."""
        if at < START:
            self._low.raise_if_due(at, timers, self.operator.is_held_back)

    def stamp_outputs(self, ended: RunEnd, out: Emission) -> None:
        """Give outputs the timestamp of their input, or treat them as late."""
        run = ended.run
        if ended.frees_key:
            self._low.commit(run, ended.number)
        else:
            self._low.suspend_run(run, ended.number)
        out.timestamps += [run.timestamp] * len(run.outputs)
        out.side_timestamps += [run.timestamp] * len(run.side_outputs)
