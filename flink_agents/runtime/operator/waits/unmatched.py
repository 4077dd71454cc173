"""Emits signals that no run takes, each with its key."""

from __future__ import annotations

from dataclasses import replace

from flink_agents.api.errors import StateError
from flink_agents.api.events.signals import UNMATCHED_SIGNALS_TAG, Signal, UnmatchedReason, UnmatchedSignal
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.mailbox import StoredSignal


class UnmatchedSignals:
    """Emits and counts unmatched signals.

    Args:
        shared: The agent's shared objects.
    """

    def __init__(self, shared: RunEnvironment) -> None:
        self._shared = shared

    def leave(
        self,
        what: Signal | StoredSignal,
        reason: UnmatchedReason,
        key_text: str,
        out: Emission,
        detail: str | None = None,
    ) -> None:
        """Emit an unmatched signal.

        Args:
            what: The signal, or its stored form, which does not have its key.
            reason: The reason why no run takes it.
            key_text: Its key.
            out: Receives it.
            detail: The defect of the signal, if there is one.
        """
        if isinstance(what, StoredSignal):
            value = None
            try:
                value = self._shared.codec.decode(what.value)
            except StateError as error:
                # Its class may have been removed since the signal arrived.
                detail = detail or error.message
            what = Signal(what.name, value, None, what.id, what.wait)
        if what.key is None:
            what = replace(what, key=decode_key(key_text))
        self._shared.telemetry.run_metrics.count("signals_unmatched")
        out.side_outputs.append((UNMATCHED_SIGNALS_TAG, UnmatchedSignal(what, reason, detail)))
        out.side_timestamps.append(None)
