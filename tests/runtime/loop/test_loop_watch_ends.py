"""Each report can be off, and the watch rests and ends with the agent loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from watch_tools import BLOCKED, STUCK, Reports, harness_of, until, watchers

from flink_agents import InputEvent
from flink_agents.runtime.loop import watchdog

pytestmark = pytest.mark.executes_once


async def never(event: InputEvent, ctx: Any) -> None:
    await asyncio.Event().wait()


def test_both_can_be_off(reports: Reports) -> None:
    previous_watchers = watchers()
    config = {"run.stuck-after": "0 s", "loop.blocked-after": "0 s"}
    with harness_of(never, config) as harness:
        harness.push("k")
        until(lambda: harness.run_metrics["runs_in_flight"])
        assert not watchers() - previous_watchers
    with harness_of(never, {}) as harness:
        harness.push("k")
        until(lambda: harness.run_metrics["runs_in_flight"])
        assert len(watchers() - previous_watchers) == 1


def test_one_can_be_off(reports: Reports) -> None:
    leave = threading.Event()

    async def act(event: InputEvent, ctx: Any) -> None:
        if event.input == "waits":
            await asyncio.Event().wait()
        assert leave.wait(30)

    try:
        with harness_of(act, BLOCKED) as harness:
            harness.push_all(["waits", "blocks"])
            (text,) = reports(1)
            leave.set()
    finally:
        leave.set()
    assert "key 'blocks'" in text
    assert reports(1) == [text]


def test_loop_that_has_nothing_to_do_is_left_alone(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    watchdogs: list[watchdog.Watchdog] = []
    turn = watchdog.Watchdog._note_turn

    def counted(self: watchdog.Watchdog) -> None:
        watchdogs.append(self)
        turn(self)

    monkeypatch.setattr(watchdog.Watchdog, "_note_turn", counted)

    async def act(event: InputEvent, ctx: Any) -> None:
        if event.input == "never":
            await asyncio.Event().wait()

    with harness_of(act, STUCK) as harness:
        harness.push("quick")
        harness.run_until_idle()
        until(lambda: harness.run_metrics["loop_lag_ms"])
        monkeypatch.setattr(watchdog, "WINDOW_SECONDS", 0.01)
        until(lambda: not watchdogs[0]._busy.is_set())
        # It sleeps, and has forgotten the lag; a run wakes it.
        until(lambda: not harness.run_metrics["loop_lag_ms"])
        harness.push("never")
        reports(1)
