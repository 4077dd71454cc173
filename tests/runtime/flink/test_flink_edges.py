"""When outputs of an agent leave: at once after a pause, else with a timer; few flushes for many outputs."""

from __future__ import annotations

from typing import Any

from flink_agents.runtime.flink.internals.access import FLUSH_MS, PromptFlush
from tests.suite.tables import each_case


class Task:
    """A clock, the timers of a key, and the flushes of an operator."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.flushes: list[int] = []
        self.timers: list[int] = []
        self.prompt = PromptFlush(lambda: self.flushes.append(self.now), lambda: self.now)

    def register_processing_time_timer(self, timestamp: int) -> None:
        self.timers.append(timestamp)

    def emit(self, is_returned: bool = False) -> bool:
        timers: Any = self
        return self.prompt.flush_after_call(timers, is_returned)


def test_the_first_output_after_a_pause_leaves_at_once() -> None:
    task = Task()
    for _ in range(3):
        assert task.emit()
        task.now += FLUSH_MS
    assert len(task.flushes) == 3
    assert task.timers == []


def test_outputs_in_a_row_share_a_timer() -> None:
    task = Task()
    task.emit()
    assert [task.emit() for _ in range(100)] == [False] * 100
    assert task.timers == [task.now + FLUSH_MS]
    task.now = task.timers[0]
    assert task.emit(), "the call of the timer flushes"
    assert len(task.flushes) == 2


def test_there_is_a_flush_or_a_timer_for_each_output() -> None:
    """Whatever the intervals: no output waits for longer than the shortest interval of flushes."""
    for interval in range(5):
        task = Task()
        for _ in range(50):
            flushed = task.emit()
            ahead = [at for at in task.timers if task.now <= at <= task.now + FLUSH_MS]
            assert flushed or ahead, (interval, task.now, task.timers)
            task.now += interval


@each_case("back_ms", [1, 1000, 3_600_000])
def test_a_clock_that_is_set_back_stops_nothing(back_ms: int) -> None:
    task = Task()
    task.emit()
    task.emit()
    task.now -= back_ms
    assert task.emit()


def test_outputs_that_leave_when_the_call_returns_wait_for_a_timer() -> None:
    task = Task()
    assert not task.emit(is_returned=True)
    assert task.timers == [task.now + FLUSH_MS]
    assert task.flushes == []
