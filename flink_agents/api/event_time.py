"""What an agent does with event time, for ``apply(agent, event_time=...)``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from flink_agents.api.errors import OptionError
from flink_agents.api.options import ConfigOption

LATE_TAG = "late-outputs"
"""Name of the side output that carries outputs of stragglers, with ``late="side"``."""

_LATENCY = ConfigOption(
    "expected_latency",
    timedelta,
    timedelta(seconds=1),
    "Give a timedelta, or a text such as '2 s'.",
    minimum=timedelta(),
)
_TIMEOUT = ConfigOption(
    "hold_timeout",
    timedelta,
    timedelta(seconds=30),
    "Give a timedelta, or a text such as '30 s'.",
    minimum=timedelta(milliseconds=1),
)


class LateOutputs(StrEnum):
    """What happens to the outputs of a run that did not end within ``hold_timeout``."""

    EMIT = "emit"
    """They leave with their own timestamp; what follows decides, as for any late record."""

    DROP = "drop"
    """They are dropped and counted. What the run wrote to memory stays."""

    SIDE = "side"
    """They go to the stream that ``late_outputs()`` returns."""


@dataclass(frozen=True)
class EventTime:
    """How an agent treats the event time of its input. Made by :meth:`none` or :meth:`hold`.

    Attributes:
        holds: Whether outputs carry the timestamp of their input, and watermarks wait for them.
        expected_latency: How far the watermark lags behind the one of the input.
        hold_timeout: How long a watermark waits for runs that are older than it.
        late: What happens to outputs of runs that took longer.
    """

    holds: bool = False
    expected_latency: timedelta = timedelta()
    hold_timeout: timedelta = timedelta()
    late: LateOutputs = LateOutputs.EMIT

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
        expected_latency: timedelta | str = timedelta(seconds=1),
        hold_timeout: timedelta | str = timedelta(seconds=30),
        late: LateOutputs | str = LateOutputs.EMIT,
    ) -> EventTime:
        """Outputs carry the timestamp of their input, and none is late: for windows behind an agent.

        Args:
            expected_latency: How long most runs take, queueing included. The watermark lags
                behind that of the input by it, so that it hardly ever has to wait.
            hold_timeout: How long a watermark waits at most for runs that take longer. Meanwhile
                the subtask takes no input and no checkpoint.
            late: What happens to the outputs of a run that took even longer.

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
        return cls(True, _LATENCY.parse(expected_latency), _TIMEOUT.parse(hold_timeout), policy)
