"""Describes the runs of a harness that do not end."""

from __future__ import annotations

from flink_agents.api.errors import HarnessHangError
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.testing.fakes.clock import Clock


def hang_error(message: str, loop: AgentLoop) -> HarnessHangError:
    """Return the error for runs that do not end; it describes what each of them waits for."""
    held = loop.held_back()
    runs = loop.describe_runs()
    return HarnessHangError(
        "\n".join(filter(None, (message + (held and f": {held}"), runs))),
        expected="runs that end, or that wait only for timers and signals of ctx",
        fix="let the action end its wait: set the event, put into the queue, or give the wait a timeout; a "
        "test that ends it itself needs auto_run=False",
        where=loop.place_of_run(),
    )


def check_hang(clock: Clock) -> None:
    """Check that something can still end the waits of runs.

    Raises:
        HarnessHangError: Nothing can.
    """
    hanging = clock.hanging
    clock.hanging = None
    agent = None if hanging is None else hanging.agent
    if agent is not None:
        raise hang_error("nothing can end the waits of runs", agent)
