"""The treatment of event time by an agent, for ``apply(agent, event_time=...)``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from flink_agents.api.common.option_values import option
from flink_agents.api.errors import OptionError

LATE_TAG = "late-outputs"
"""Name of the side output that carries late outputs, with ``late="side"``."""

_MAX_HOLD = option("max_hold", timedelta, "30 s", minimum="1 ms")(
    "Pass a timedelta, or a string such as '30 s'."
)
_IDLE_TIMEOUT = option("idle_timeout", timedelta, "10 s", minimum="100 ms")(
    "Pass a timedelta, or a string such as '10 s'."
)


class LateOutputs(StrEnum):
    """Policy for the outputs of a run that did not end within ``max_hold``."""

    EMIT = "emit"
    """They are emitted with their own timestamp; downstream operators treat them as any late record."""

    DROP = "drop"
    """They are dropped and counted. Memory that the run wrote stays."""

    SIDE = "side"
    """They go to the stream that ``late_outputs()`` returns."""


@dataclass(frozen=True)
class EventTime:
    """An agent's treatment of the event time of its input; see :meth:`ignore` and :meth:`hold_watermarks`.

    Attributes:
        holds: True if outputs have the timestamp of their input, and the agent's watermark waits for its
            runs.
        max_hold: Maximum time that the run of an input holds the watermark.
        late: Policy for outputs of runs that take longer than ``max_hold``.
        idle_timeout: Time after which a subtask without keys counts as idle.
    """

    holds: bool = False
    max_hold: timedelta = timedelta()
    late: LateOutputs = LateOutputs.EMIT
    idle_timeout: timedelta = timedelta()

    @classmethod
    def ignore(cls) -> EventTime:
        """Emit outputs as soon as their run ends, and let watermarks pass at once.

        If a run waited for anything, its outputs have no timestamp. Use it for agents without a downstream
        event-time operation.
        """
        return cls()

    @classmethod
    def hold_watermarks(
        cls,
        max_hold: timedelta | str = timedelta(seconds=30),
        late: LateOutputs | str = LateOutputs.EMIT,
        idle_timeout: timedelta | str = timedelta(seconds=10),
    ) -> EventTime:
        """Hold watermarks until runs end, so that outputs are not late in downstream windows.

        Outputs have the timestamp of their input.

        Args:
            max_hold: Maximum time that a run may hold the agent's watermark, from the time at which the input
                watermark reached the run's input.
            late: Policy for outputs of a run that takes longer.
            idle_timeout: Time after which windows continue without a subtask that never had a key. It and
                ``max_hold`` are a timedelta, or a string such as ``"30 s"``.

        Raises:
            OptionError: A duration has another form or is too short, or the policy is unknown.
        """
        try:
            policy = LateOutputs(late)
        except ValueError:
            raise OptionError(
                "invalid value of late",
                expected="one of " + ", ".join(repr(member.value) for member in LateOutputs),
                found=repr(late),
            ) from None
        return cls(True, _MAX_HOLD.parse(max_hold), policy, _IDLE_TIMEOUT.parse(idle_timeout))
