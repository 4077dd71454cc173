"""Shows what runs wait for, and the signals that no run took."""

from __future__ import annotations

from typing import Any

from flink_agents.api.signals import STRAYS_TAG, StraySignal
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.testing.building import Builder
from flink_agents.testing.fake_state import KeyState
from flink_agents.testing.signals import PendingWait, waits_in, waits_of


class WaitsShown(Builder):
    """The waits of runs, and stray signals. ``OperatorHarness`` fills it."""

    def waits(self, key: Any = 0) -> list[PendingWait]:
        """Return what the run of ``key`` waits for, suspended or not: pauses, and waits for signals."""
        text = encode_key(key)
        subtask = self._subtask_of(text)
        live = subtask.processor.live_waits(text)
        if live is not None:
            return waits_of(live)
        return waits_in(subtask.backend.keys.get(text, KeyState()), text)

    @property
    def strays(self) -> list[StraySignal]:
        """All signals that no run took, in order."""
        return self.side_output(STRAYS_TAG)
