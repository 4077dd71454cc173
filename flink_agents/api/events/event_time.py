"""The treatment of event time by an agent, for ``apply(agent, event_time=...)``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from flink_agents.api.common.option_values import option
from flink_agents.api.errors import OptionError

LATE_TAG = "late-outputs"
"""Name of the side output that carries late outputs, with ``late="side"``."""

_TIMEOUT = option("max_hold", timedelta, "30 s", minimum="1 ms")(
    "Give a timedelta, or a text such as '30 s'."
)
_IDLE = option("idle_timeout", timedelta, "10 s", minimum="100 ms")(
    "Give a timedelta, or a text such as '10 s'."
)


class LateOutputs(StrEnum):
    """Policy for the outputs of a run that did not end within ``max_hold``."""

    EMIT = "emit"
    """They leave with their own timestamp; what follows decides, as for any late record."""

    DROP = "drop"
    """They are dropped and counted. What the run wrote to memory stays."""

    SIDE = "side"
    """They go to the stream that ``late_outputs()`` returns."""


@dataclass(frozen=True)
class EventTime:
    """How an agent treats the event time of its input; see :meth:`ignore` and :meth:`hold_watermarks`.

    Attributes:
        holds: Whether outputs carry the timestamp of their input, and the watermark behind the agent
            stays behind its runs.
        max_hold: How long an input holds the watermark that has reached it.
        late: What happens to outputs of runs that took longer.
        idle_timeout: After what time without a sign a subtask without keys counts as idle.
    """

    holds: bool = False
    max_hold: timedelta = timedelta()
    late: LateOutputs = LateOutputs.EMIT
    idle_timeout: timedelta = timedelta()

    @classmethod
    def ignore(cls) -> EventTime:
        """Outputs leave as soon as their run ends; watermarks pass the agent unhindered.

        An output of a run that waited for anything has no timestamp. For agents with no
        event-time operation behind them.
        """
        return cls()

    @classmethod
    def hold_watermarks(
        cls,
        max_hold: timedelta | str = timedelta(seconds=30),
        late: LateOutputs | str = LateOutputs.EMIT,
        idle_timeout: timedelta | str = timedelta(seconds=10),
    ) -> EventTime:
        """Outputs carry the timestamp of their input, and none is late: for windows behind an agent.

        Args:
            max_hold: How long a run may hold the watermark behind the agent, from when the
                input watermark has reached the run's input.
            late: What happens to the outputs of a run that took even longer.
            idle_timeout: After what time windows continue without a subtask that never had a key.

        Raises:
            OptionError: A value does not fit.
        """
        try:
            policy = LateOutputs(late)
        except ValueError:
            raise OptionError(
                "late has a value that does not fit",
                expected="one of " + ", ".join(repr(member.value) for member in LateOutputs),
                found=repr(late),
            ) from None
        return cls(True, _TIMEOUT.parse(max_hold), policy, _IDLE.parse(idle_timeout))
