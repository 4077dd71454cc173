"""Watches an agent loop: reports runs that do not end, and code that blocks the loop.

A thread regularly schedules a callback on the loop. In some of these callbacks, the loop checks the age of
its runs. If a callback does not run for long, the thread reads the stack of the loop's thread: a frame that
is there all the time blocks the loop. If nothing has run for a while, the thread sleeps.

The phases of a run describe its activity and its wait. Frames are read only for the user's lines.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.events.key_requests import WATCH_MARK
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.concurrency.bridge import WATCH_JOIN_SECONDS, hand_to
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.phases import RunState, WaitPhase
from flink_agents.runtime.execution.stacks import Stack, line_of, name_of
from flink_agents.runtime.execution.sub_agents.sub_agent_run import root_of
from flink_agents.runtime.execution.waits.swallowed import end_blocking_code, end_waiting_code
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.serde.keys import decode_key

_log = bounded_logger("flink_agents.watch")
_lines = bounded_logger("flink_agents.watched")

LOOKS = 4
"""The number of callbacks, and of checks of runs, within a limit."""

SHORTEST_SECONDS = 0.001
LONGEST_SECONDS = 1.0
"""Bounds of the interval between two callbacks."""

MANY = 20
"""The most runs that are reported in full at a time, and the most keys of others that are listed."""

MANY_LINES = 200
"""The most machine-readable lines at a time."""

MAX_TASKS = 5
"""The most tasks of a step that are described."""

WINDOW_SECONDS = 30.0
"""The thread sleeps after this time without a run; ``loop_lag_ms`` covers one or two such windows."""

_REPORT = "%s: %s, runs for %.3g s so far, and waits for %s\n%s"

_FIX = "await what waits; call what blocks or computes by asyncio.to_thread or in a def action, blocking=True"
_NEVER = float("inf")
_RUN: Any = getattr(asyncio.Handle, "_run", None)


class Watchdog:
    """Watches one agent loop, from a separate thread.

    Args:
        shared: The agent's shared objects.
        loop: The event loop that it watches.
        actors: The tasks that execute runs, each with its actor. Only for the loop's thread.
        current: Holds the step whose code runs, in the context of that code.

    Attributes:
        stuck_after: Seconds after which a run is reported.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        loop: asyncio.AbstractEventLoop,
        actors: Mapping[asyncio.Task[Any], KeyActor],
        current: ContextVar[ActionRun | None],
    ) -> None:
        self._agent = shared.agent.name
        self._loop = loop
        self._actors = actors
        self._current = current
        self._clients = shared.services.clients
        self.stuck_after = _seconds(shared.config.get(AgentOptions.STUCK_AFTER))
        self._blocked_after = _seconds(shared.config.get(AgentOptions.BLOCKED_AFTER))
        shortest = min(self.stuck_after, self._blocked_after) / LOOKS
        self._interval = min(max(shortest, SHORTEST_SECONDS), LONGEST_SECONDS)
        group = shared.telemetry.run_metrics.group
        self._stuck, self._blocked = group.get_counter("runs_stuck"), group.get_counter("loop_blocked")
        self._lag = _Lag(group.get_gauge("loop_lag_ms").set)
        self._thread: threading.Thread | None = None
        self._busy, self._end = threading.Event(), threading.Event()
        self.is_awake = self._busy.is_set
        # Used by the loop's thread.
        self._reported: dict[KeyActor, RunState] = {}
        self._next_look = self._used = 0.0
        self._loop_thread = 0
        # Messages to the loop's thread, and the time of a callback in the loop that has not run yet.
        self._notes: deque[Callable[[], None]] = deque()
        self._asked: float | None = None
        self._answered = 0.0
        # Used by the watchdog's thread.
        self._episode = _Episode()

    # -- the loop's thread ------------------------------------------------------------

    def open(self) -> None:
        """Start to watch. Called on the loop's thread."""
        self._loop_thread = threading.get_ident()
        if min(self.stuck_after, self._blocked_after) < _NEVER:
            self._thread = threading.Thread(target=self._serve, name="agent-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop watching. Called on the loop's thread when that ends."""
        self._end.set()
        self._busy.set()
        if self._thread is not None:
            self._thread.join(WATCH_JOIN_SECONDS)

    def wake(self) -> None:
        """Wake the thread, because there is something to watch."""
        if not self._busy.is_set():
            self._used = clock()
            self._busy.set()

    def ended(self, actor: KeyActor, seconds: float) -> None:
        """Note that a run of a key ended after ``stuck_after`` or more."""
        if self._reported.pop(actor, None) is not None:
            text = "agent %s, key %r, sequence %d: the run ended after all; it took %.3g s"
            self._note(logging.INFO, text, self._agent, _key_of(actor), actor.seq, seconds)
            self._note_line(actor, seconds, ended=True)

    def _note_turn(self) -> None:
        """Note that the loop has run this callback, and report old runs if it is time."""
        if self._asked is not None:
            # Before the open callback is cleared: the other thread reads both.
            self._answered = time.monotonic() - self._asked
            self._asked = None
        now = clock()
        if self._actors:
            self._used = now
            if now >= self._next_look:
                self._next_look = now + self.stuck_after / LOOKS
                self._report_old_runs(now)
        elif now - self._used > WINDOW_SECONDS and not self._end.is_set():
            self._busy.clear()

    def _report_old_runs(self, now: float) -> None:
        """Report the runs that have become too old."""
        reported = 0
        unreported_runs = list[KeyActor]()
        for task, actor in self._actors.items():
            state = actor.state
            if state is None or not (state.in_flight or state.phase is Phase.RECORDS):
                continue
            if state.started > now - self.stuck_after:
                continue
            step = state.action_run
            if step is not None and step.suspended is not None:
                # Its code may clean up for as long as a run may take.
                end_waiting_code(step, Stack.of_awaitable(step.task or task).frames, LOOKS)
            if self._reported.get(actor) is state:
                continue
            # Once per run: the key of the table is the run's state.
            self._reported[actor] = state
            self._stuck.inc()
            if reported + len(unreported_runs) < MANY_LINES:
                self._note_state(task, actor, state, now - state.started)
            if state.action_run is None or reported >= MANY:
                unreported_runs.append(actor)
            else:
                reported += 1
                self._report(task, state, state.action_run, now - state.started)
        if unreported_runs:
            keys = ", ".join(repr(_key_of(actor)) for actor in unreported_runs[:MANY])
            more = ", ..." if len(unreported_runs) > MANY else ""
            text = "agent %s: %d more runs take longer than %.3g s: keys %s%s"
            self._note(logging.WARNING, text, self._agent, len(unreported_runs), self.stuck_after, keys, more)

    def describe_runs(self) -> list[str]:
        """Return activity and stack of each run in flight, for the first of many. For any thread."""
        return [_REPORT % fields for fields in self._fields_of_runs()]

    def place_of_run(self) -> str | None:
        """Return your line at which the first run in flight waits, or None. For any thread."""
        return next((where for where, *_ in self._fields_of_runs()), None)

    def _fields_of_runs(self) -> Iterator[tuple[Any, ...]]:
        """Yield the fields of a report about each run in flight, for the first of many."""
        now = clock()
        for task, actor in list(self._actors.items())[:MAX_TASKS]:
            state = actor.state
            if state is not None and state.action_run is not None:
                yield self._report_fields(task, state, state.action_run, now - state.started)

    def _report(self, task: asyncio.Task[Any], state: RunState, step: ActionRun, seconds: float) -> None:
        """Have the thread log a report about a run that takes too long."""
        self._note(logging.WARNING, _REPORT, *self._report_fields(task, state, step, seconds))

    def _report_fields(
        self, task: asyncio.Task[Any], state: RunState, step: ActionRun, seconds: float
    ) -> tuple[Any, ...]:
        """Return the fields of a report about a run: place, action, seconds, wait, stack."""
        in_thread = step.thread != self._loop_thread and state.phase is not Phase.THREAD
        stack = Stack.of_thread(step.thread) if in_thread else Stack.of_awaitable(step.task or task)
        waits = stack.awaits
        wait = state.newest_wait
        if wait is not None:
            waits = wait.what
            inner = self._awaited_stack(wait, step)
            if inner is not None:
                waits += f", and that for {inner.awaits}"
                stack += inner
        if in_thread:
            waits = "its thread of the pool" + (f", and that for {waits}" if wait is not None else "")
        where = stack.where or step.action.where
        return where, _describe(step), seconds, waits, stack.seen(_other_tasks(step, stack))

    def _awaited_stack(self, wait: WaitPhase, step: ActionRun) -> Stack | None:
        """Return the stack of the code that will end a wait; None if it is unknown."""
        if wait.thread not in (None, self._loop_thread, step.thread):
            return Stack.of_thread(wait.thread)
        awaited = wait.awaited() if callable(wait.awaited) else wait.awaited
        return None if awaited is None else Stack.of_awaitable(awaited)

    def _note_state(self, task: asyncio.Task[Any], actor: KeyActor, state: RunState, seconds: float) -> None:
        """Let the thread log a run for those who read logs by program."""
        step = state.action_run
        waits = state.waits_for or state.phase.value
        more: dict[str, Any] = {"phase": state.phase.name.lower(), "for": waits}
        if step is not None:
            where = line_of(step.task or task, step.thread, state.newest_wait) or step.action.where
            more |= {"action": step.action.name, "where": where}
            if step.retry_state is not None and step.retry_state.failed:
                more["attempt"] = len(step.retry_state.failed) + 1
        self._note_line(actor, seconds, **more)

    def _note_line(self, actor: KeyActor, seconds: float, **more: Any) -> None:
        about = {"agent": self._agent, "key": actor.key_text, "sequence": actor.seq}
        times = {"seconds": round(seconds, 3), "time": round(time.time(), 3)}
        line = json.dumps(about | times | more, default=str)
        self._notes.append(partial(_lines.info, "%s%s", WATCH_MARK, line))

    def _note(self, level: int, text: str, *args: Any) -> None:
        """Have the watchdog's thread log a line: logging may block, which the loop must not."""
        self._notes.append(partial(_log.log, level, text, *args))

    # -- the watcher's thread ---------------------------------------------------------

    def _serve(self) -> None:
        while not self._end.is_set():
            if not self._busy.is_set():
                self._lag.clear()
                self._busy.wait()
            try:
                self._watch()
            except Exception:
                _log.exception("agent %s: the agent loop could not be looked at", self._agent)
        self._log_notes()

    def _watch(self) -> None:
        """Schedule a callback on the loop, and check the loop if it does not run."""
        if self._asked is None:
            self._asked = time.monotonic()
            # The loop is closed.
            if not hand_to(self._loop, self._note_turn):
                self._end.set()
        self._end.wait(self._interval)
        self._log_notes()
        since = self._asked
        if since is None:
            self._lag.add(self._answered)
            if self._episode.reported:
                _log.info("agent %s: the agent loop turns again, after %.3g s", self._agent, self._answered)
            self._episode = _Episode()
        else:
            late = time.monotonic() - since
            self._lag.add(late)
            self._look_at_loop(late)

    def _look_at_loop(self, late: float) -> None:
        """Report the code that the loop executes, once if it blocks for too long."""
        frames, handle = _executing(self._loop, self._loop_thread)
        if handle is None:
            return
        episode = self._episode
        # Compared with the checks before: the same handle blocks, different ones are just busy.
        episode.add(handle)
        # Checks count, not time: the whole process may have been stopped meanwhile.
        if (episode.looks - 1) * self._interval < self._blocked_after:
            return
        # A handle that was there in all checks blocks the loop. Otherwise, it is one of many.
        alone = (episode.same - 1) * self._interval >= self._blocked_after
        stack = Stack(frames[::-1])
        task = asyncio.current_task(self._loop)
        step = _step_of(handle, self._current) or self._step_of_run(task)
        if alone and step is not None and (root := root_of(step)).suspended is not None:
            # Its code swallows the suspension of its run.
            end_blocking_code(root, self._loop_thread)
        if episode.reported:
            return
        episode.reported = True
        self._blocked.inc()
        client = self._clients.name_of_owned(task) if step is None else None
        what = f"client {client!r} of agent {self._agent}" if client is not None else f"agent {self._agent}"
        what = _describe(step) if step is not None else what
        where = stack.where or (step.action.where if step is not None else name_of(frames[0]))
        does = "blocks the agent loop" if alone else "is one of many that keep the agent loop busy"
        text = "%s: %s, %s, which has not turned for %.3g s: no other run continues\n%s\n  fix: %s"
        _log.warning(text, where, what, does, late, stack.seen(), _FIX)

    def _step_of_run(self, task: Any) -> ActionRun | None:
        """Return the step of the run that ``task`` executes, if any; also while a condition is evaluated."""
        actor = self._actors.get(task)
        return None if actor is None or actor.state is None else actor.state.action_run

    def _log_notes(self) -> None:
        """Log what the loop's thread has left to log."""
        while self._notes:
            self._notes.popleft()()


class _Episode:
    """A period in which the loop does not run callbacks.

    Attributes:
        looks: The number of checks in this period.
        same: The number of checks in a row that found the same handle.
        reported: True if it has been reported.
    """

    def __init__(self) -> None:
        self.looks = 0
        self.same = 0
        self.reported = False
        self._handle: object = None

    def add(self, handle: object) -> None:
        """Count a check that found ``handle``."""
        self.looks += 1
        self.same = self.same + 1 if handle is self._handle else 1
        self._handle = handle


class _Lag:
    """The longest lag of the last window.

    Args:
        tell: Receives it in milliseconds.
    """

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell = tell
        self._longest = self._before = 0.0
        self._until = 0.0

    def add(self, seconds: float) -> None:
        """Add a lag, and report the longest of this window and the one before."""
        now = time.monotonic()
        if now >= self._until:
            self._until = now + WINDOW_SECONDS
            self._before = self._longest
            self._longest = 0.0
        self._longest = max(self._longest, seconds)
        self._tell(round(1000 * max(self._longest, self._before), 1))

    def clear(self) -> None:
        """Report a lag of 0, since nothing runs."""
        self._longest = self._before = 0.0
        self._tell(0)


def _executing(loop: asyncio.AbstractEventLoop, thread: int) -> tuple[list[FrameType], Any]:
    """Return the frames that ``loop`` executes, innermost first, and its handle; None if it waits."""
    frames = Stack.of_thread(thread).frames[::-1]
    for at, frame in enumerate(frames):
        if _RUN is not None and frame.f_code is _RUN.__code__:
            return frames[:at], frame.f_locals.get("self")
    return frames, asyncio.current_task(loop)


def _step_of(handle: Any, current: ContextVar[ActionRun | None]) -> ActionRun | None:
    """Return the step whose context ``handle``, a task or callback, has inherited; None if there is none."""
    if hasattr(handle, "get_context"):  # since Python 3.12
        context = handle.get_context()
    else:
        context = getattr(handle, "_context", None)
    return None if context is None else context.get(current)


def _other_tasks(step: ActionRun, stack: Stack) -> list[str]:
    """Return a line for each task of a step whose frames are not in ``stack``."""
    seen = set(map(id, stack.frames))
    texts = list[str]()
    for task in step.tasks or ():
        inner = Stack.of_awaitable(task)
        if task.done() or not inner.frames or id(inner.frames[-1]) in seen:
            continue
        seen.update(map(id, inner.frames))
        where = inner.where or name_of(inner.frames[0])
        texts.append(f"  task {task.get_name()!r}: {where}, waits for {inner.awaits}")
    if len(texts) > MAX_TASKS:
        texts[MAX_TASKS:] = [f"  and {len(texts) - MAX_TASKS} more tasks"]
    return texts


def _describe(step: ActionRun) -> str:
    """Return action, agent, key, run and event of an attempt, as text."""
    failed = step.retry_state.failed if step.retry_state is not None else ()
    attempt = f", attempt {len(failed) + 1}" if failed else ""
    return (
        f"action {step.action.name} of agent {step.shared.agent.name}, key {step.run.key!r}, "
        f"sequence {step.run.sequence_number}, event {step.event.event_type!r}{attempt}"
    )


def _key_of(actor: KeyActor) -> Any:
    return decode_key(actor.key_text)


def _seconds(duration: timedelta) -> float:
    """Return a limit in seconds; infinite for a duration of 0, which switches the reports off."""
    return duration.total_seconds() or _NEVER
