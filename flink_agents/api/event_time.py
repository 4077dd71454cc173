"""The treatment of event time by an agent, for ``apply(agent, event_time=...)``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from flink_agents.api.errors import OptionError
from flink_agents.api.option_values import option

LATE_TAG = "late-outputs"
"""Name of the side output that carries outputs of stragglers, with ``late="side"``."""

_TIMEOUT = option("hold_timeout", timedelta, "30 s", minimum="1 ms")(
    "Give a timedelta, or a text such as '30 s'."
)
_IDLE = option("idle_timeout", timedelta, "10 s", minimum="100 ms")(
    "Give a timedelta, or a text such as '10 s'."
)


class LateOutputs(StrEnum):
    """Policy for the outputs of a run that did not end within ``hold_timeout``."""

    EMIT = "emit"
    """They leave with their own timestamp; what follows decides, as for any late record."""

    DROP = "drop"
    """They are dropped and counted. What the run wrote to memory stays."""

    SIDE = "side"
    """They go to the stream that ``late_outputs()`` returns."""


@dataclass(frozen=True)
class EventTime:
    """An agent's treatment of the event time of its input; :meth:`none` and :meth:`hold` make one.

    Attributes:
        holds: Whether outputs carry the timestamp of their input, and the watermark behind the agent
            stays behind its runs.
        hold_timeout: How long an input holds the watermark that has reached it.
        late: What happens to outputs of runs that took longer.
        idle_timeout: After what time without a sign a subtask without keys counts as idle.
    """

    holds: bool = False
    hold_timeout: timedelta = timedelta()
    late: LateOutputs = LateOutputs.EMIT
    idle_timeout: timedelta = timedelta()

    @classmethod
    def none(cls) -> EventTime:
        """Outputs leave as soon as their run ends; watermarks pass the agent unhindered.

        An output of a run that waited for anything has no timestamp. For agents with no
        event-time operation behind them.
        """
        return cls()

    @classmethod
    def hold(
        cls,
        expected_latency: timedelta | str | None = None,
        hold_timeout: timedelta | str = timedelta(seconds=30),
        late: LateOutputs | str = LateOutputs.EMIT,
        idle_timeout: timedelta | str = timedelta(seconds=10),
    ) -> EventTime:
        """Outputs carry the timestamp of their input, and none is late: for windows behind an agent.

        Args:
            expected_latency: Has no effect any more; leave it out.
            hold_timeout: How long a run may hold the watermark behind the agent, from when the
                watermark in front of it has reached the run's input.
            late: What happens to the outputs of a run that took even longer.
            idle_timeout: After what time windows go on without a subtask that never had a key.

        Raises:
            OptionError: A value does not fit.
        """
        if expected_latency is not None:
            warnings.warn(
                "EventTime.hold needs no expected_latency any more: watermarks wait for nobody. Leave it out",
                DeprecationWarning,
                stacklevel=2,
            )
        try:
            policy = LateOutputs(late)
        except ValueError:
            raise OptionError(
                "late has a value that does not fit",
                expected="one of " + ", ".join(repr(member.value) for member in LateOutputs),
                found=repr(late),
            ) from None
        return cls(True, _TIMEOUT.parse(hold_timeout), policy, _IDLE.parse(idle_timeout))
