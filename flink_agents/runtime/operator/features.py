"""The features of an operator that it calls by name.

A feature that an agent does not use is None, and costs a comparison. What several features share is a hook of
``KeyService``.
"""

from __future__ import annotations

from dataclasses import dataclass

from flink_agents.runtime.loop.replays import LateReplays
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.requests import RequestService
from flink_agents.runtime.operator.services.delayed import Delays
from flink_agents.runtime.operator.services.idle_keys import IdleKeyExpiry
from flink_agents.runtime.operator.services.pruning import UnprunedKeys
from flink_agents.runtime.operator.services.service import Hooks
from flink_agents.runtime.operator.services.signals import SignalService
from flink_agents.runtime.operator.services.suspension import SuspendedRuns


@dataclass(frozen=True, kw_only=True)
class Features:
    """The features of one operator.

    Attributes:
        hooks: What several of them share.
        signals: Stores signals, and hands them to runs.
        suspensions: Suspends and resumes runs.
        delayed: Keeps events with a delay in state.
        end_requests: Ends runs that users want to end.
        low_watermark: Follows inputs and stamps outputs; None if outputs need no timestamps.
        skipped_runs: Keeps track of late replays; None without a store.
        idle_keys: Removes heads of idle keys; None if they stay.
        pruning_marks: Marks keys with records; None if records are not pruned.
    """

    hooks: Hooks
    signals: SignalService
    suspensions: SuspendedRuns
    delayed: Delays
    end_requests: RequestService
    low_watermark: LowWatermark | None
    skipped_runs: LateReplays | None
    idle_keys: IdleKeyExpiry | None
    pruning_marks: UnprunedKeys | None
