"""Observes runs, and has their records created by the writer thread; one recorder per traced subtask."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flink_agents import redaction
from flink_agents.api.agents.observers import WAITS, ObservedRun, Phase, RunObserver
from flink_agents.api.common.logs import bounded
from flink_agents.api.settings.tracing import TraceLevel
from flink_agents.trace.folding import FOLDED, counted
from flink_agents.trace.operations import operation_of
from flink_agents.trace.recording.attributes import WRITTEN, told_of, wait_of
from flink_agents.trace.recording.facts import facts_of
from flink_agents.trace.recording.making import RecordMaker, TracedSubtask
from flink_agents.trace.recording.segments import CalledAgent, Segment, called_agents
from flink_agents.trace.records import QUEUED_FOR, RUNNING, WAITING
from flink_agents.trace.writer import LOOK_SECONDS, Pending, TraceWriter

_CALLS, _CONTENT = TraceLevel.CALLS.rank, TraceLevel.CONTENT.rank

MOST_SUSPENDED = 10_000
"""Maximum number of remembered suspensions of this attempt."""

_START_LESS = (Phase.RECORDS, Phase.INPUT)
"""The phases of a run that has not started yet."""

_STARTED = (Phase.QUEUED, Phase.CALL, Phase.SLOT, Phase.LIMIT, Phase.RETRY, Phase.CLIENT, Phase.THREAD)
"""The phases of runs on the event loop. Such a run gets a record when it starts."""


class TraceRecorder(RunObserver):
    """Records runs.

    Args:
        subtask: The fields that all records share.
        level: Level of the agent.
        actions: Levels of single actions.
        writer: Receives the records.
        percent: Percentage of keys that are recorded.
        most_content: Maximum number of characters of a request or result.
        now: Returns the time in seconds since the epoch.
        clock: Returns the time in seconds by which the phases of runs are measured.
    """

    def __init__(
        self,
        subtask: TracedSubtask,
        level: TraceLevel,
        writer: TraceWriter,
        actions: Mapping[str, TraceLevel] | None = None,
        percent: int = 100,
        most_content: int = 4096,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subtask = subtask
        self._clock = clock
        self._level = level.rank
        self._suspended: dict[tuple[str, int], bool] = {}
        self._levels = {name: one.rank for name, one in (actions or {}).items()}
        self._writer = writer
        self._share = percent
        self._most = most_content
        self._now = now
        self._segments: dict[ObservedRun, Segment] = {}
        self._made = RecordMaker(subtask)
        writer.look = self.look

    @property
    def writer(self) -> TraceWriter:
        """The writer of the records."""
        return self._writer

    @property
    def known(self) -> int:
        """Number of runs that have not ended, and so are kept in memory."""
        return len(self._segments)

    # -- runs -------------------------------------------------------------------------

    def phase_changed(self, run: ObservedRun, before: Phase | None) -> None:
        """Record the start, the suspension or the end of a run."""
        phase = run.phase
        if before is None and phase is Phase.RUNNING:
            # On Flink's thread, where most runs also end.
            if self._samples(run):
                self._segments[run] = Segment(self._now())
            return
        if phase is Phase.INPUT and self._samples(run):
            # Its record is there, its input is not: nothing else would ever tell of it.
            self._writer.put(self._looked(run, "its input to come again", run.since, {}))
        if phase in _START_LESS:
            return
        segment = self._segments.get(run)
        if segment is None:
            if not self._samples(run):
                return
            segment = self._segments[run] = Segment(self._now())
        self._entered(run, segment, phase, before)

    def _entered(self, run: ObservedRun, segment: Segment, phase: Phase, before: Phase | None) -> None:
        """Record what a phase says of a run that has begun."""
        if segment.waiting is not None:
            what, since = segment.waiting
            segment.waits[what] = segment.waits.get(what, 0.0) + self._now() - since
            segment.waiting = None
        if phase in _STARTED:
            segment.waiting = phase.name.lower(), self._now()
            self._unfold(run, segment)
        if run.identity and not segment.told and (phase in _STARTED or before is Phase.QUEUED):
            segment.told = True
            self._run(run, segment, "started", {})
        if phase is Phase.COMMITTED:
            self._end(run, "dead-lettered" if segment.dead else "completed")
        elif phase is Phase.SUSPENDED:
            self._unfold(run, segment)
            waits = [wait_of(one) for one in run.open_waits]
            self._end(run, "suspended", {"waits": waits}, [one["id"] for one in waits])
        elif phase is Phase.FAILED:
            self._unfold(run, segment)
            self._end(run, "failed")

    def event_given_up(self, run: ObservedRun, event_type: str, dead_letter: bool) -> None:
        """Record that a run continues without an event."""
        segment = self._segments.get(run)
        if segment is not None:
            segment.dead = segment.dead or dead_letter
            ended_by = getattr(run, "ended_by", None)
            if ended_by is not None:
                segment.error = told_of(ended_by)
            number = segment.actions[f"event {event_type}"]
            segment.actions[f"event {event_type}"] += 1
            outcome = "dead-lettered" if dead_letter else "ignored"
            self._put(
                run, "event", event_type, outcome, ("event", event_type, number), None, segment.error or {}
            )

    def memory_written(self, run: ObservedRun, values: Mapping[str, int]) -> None:
        """Note the memory that a run wrote: names and sizes, no values."""
        segment = self._segments.get(run)
        if segment is not None:
            segment.written = values if segment.written is None else {**segment.written, **values}

    def look(self) -> None:
        """Record runs that have been in one phase for a while. Called by the writer's thread."""
        now = self._clock()
        for run, segment in list(self._segments.items()):
            phase, since = run.phase, run.since
            seen = phase, since
            if not since or now - since < LOOK_SECONDS or segment.seen == seen or not run.identity:
                continue
            segment.seen = seen
            calls = {
                what[1]: one[2].get("attempt", 1) for what, queued in segment.opened() for one in list(queued)
            }
            waits_for = run.waits_for
            if phase is Phase.QUEUED:
                waits_for = QUEUED_FOR
            elif phase in WAITS:
                waits_for = waits_for or phase.value.removeprefix("waits for ")
            self._writer.put(self._looked(run, waits_for, since, {"calls": calls} if calls else {}))

    def _looked(self, run: ObservedRun, waits_for: str, since: float, more: dict[str, Any]) -> Pending:
        """Return a record of a run that has not ended.

        Args:
            run: The run.
            waits_for: The reason of its wait; empty if it executes your code.
            since: Start of the phase, by the clock of phases.
            more: Further attributes.
        """
        begun = round(self._now() - (self._clock() - since), 3) if since else None
        attributes = {"for": redaction.hide(waits_for), "since": begun, **more}
        outcome = WAITING if waits_for else RUNNING
        made = partial(self._made, run, run.identity, "run", self._subtask.agent, outcome, (), None)
        return partial(made, attributes, None, self._now(), False)

    def closed(self) -> None:
        """Write all queued records."""
        self._writer.close()

    # -- actions ----------------------------------------------------------------------

    def action_ended(self, run: ObservedRun, action: str, seconds: float, inline: bool) -> None:
        """Record an attempt of an action that succeeded."""
        segment = self._segments.get(run)
        if segment is None:
            return
        sent, segment.sent = segment.sent, ()
        if inline and segment.folded is not None:
            segment.folded.append((action, seconds, sent))
            return
        self._unfold(run, segment)
        more = {"sent": counted(sent)} if sent else {}
        self._action(run, segment, action, "ok", seconds, {"inline": inline, **more})

    def events_sent(self, run: ObservedRun, action: str, event_types: Sequence[str]) -> None:
        """Note the types of the events that an attempt of an action sent."""
        segment = self._segments.get(run)
        if segment is not None:
            segment.sent = tuple(event_types)

    def _unfold(self, run: ObservedRun, segment: Segment) -> None:
        """Create a record for each action so far: the run is too long or too eventful for one record."""
        folded, segment.folded = segment.folded, None
        for action, seconds, sent in folded or ():
            more = {"sent": counted(sent)} if sent else {}
            self._action(run, segment, action, "ok", seconds, {"inline": True, **more})

    def action_failed(self, run: ObservedRun, action: str, error: BaseException) -> None:
        """Record an attempt of an action that raised."""
        segment = self._segments.get(run)
        if segment is not None:
            self._unfold(run, segment)
            segment.sent = ()
            segment.error = {"action": action, **told_of(error)}
            self._action(run, segment, action, "failed", None, segment.error)

    def action_retried(self, run: ObservedRun, action: str, attempt: int) -> None:
        """Count a retry of an action."""
        segment = self._segments.get(run)
        if segment is not None:
            segment.retries[action] += 1

    def action_replayed(self, run: ObservedRun, action: str) -> None:
        """Note an action that is replayed. It has a record already."""
        segment = self._segments.get(run)
        if segment is not None:
            self._unfold(run, segment)
            segment.actions[action] += 1
            segment.replayed += 1

    def _action(
        self,
        run: ObservedRun,
        segment: Segment,
        action: str,
        outcome: str,
        seconds: float | None,
        attributes: dict[str, Any],
    ) -> None:
        number = segment.actions[action]
        segment.actions[action] += 1
        if self._wants(action, _CALLS):
            retries = segment.retries[action]
            more = attributes | ({"attempt": retries + 1} if retries else {})
            asked = called_agents.get()
            # Of a called agent, only failures are told.
            path, parent = ("action", action, number), ()
            if asked:
                path, parent = (*asked[-1].path, *path), asked[-1].path
            self._put(run, "action", action, outcome, path, parent, more, seconds)

    # -- calls ------------------------------------------------------------------------

    def call_begun(self, run: ObservedRun, action: str, function: str, again: bool) -> None:
        """Note the start of a durable call."""
        segment = self._segments.get(run)
        if segment is not None:
            self._unfold(run, segment)
            what = action, function
            attributes: dict[str, Any] = {"again": True} if again else {}
            asked = called_agents.get()
            parent = asked[-1].path if asked else ("action", action, segment.actions[action])
            segment.open[what].append((segment.calls[what], self._now(), attributes, parent))
            segment.calls[what] += 1
            segment.executed += 1

    def call_attempt_failed(
        self, run: ObservedRun, action: str, function: str, attempt: int, error: BaseException
    ) -> None:
        """Record a failed attempt of a durable call that is retried."""
        segment = self._segments.get(run)
        opened = segment.open.get((action, function)) if segment is not None else None
        if opened and self._wants(action, _CALLS):
            call = "call", action, function, opened[0][0]
            told = {"action": action, "attempt": attempt, **told_of(error)}
            self._put(run, "attempt", function, "failed", (*call, "attempt", attempt), call, told)

    def call_retried(self, run: ObservedRun, action: str, function: str, attempt: int) -> None:
        """Note a further attempt of a durable call."""
        segment = self._segments.get(run)
        if segment is not None:
            opened = segment.open.get((action, function))
            if opened:
                opened[0][2]["attempt"] = attempt

    def call_content(self, run: ObservedRun, action: str, function: str, what: str, value: Any) -> None:
        """Note the request or the result of a durable call."""
        segment = self._segments.get(run)
        opened = segment.open.get((action, function)) if segment is not None else None
        if not opened or not self._wants(action, _CALLS):
            return
        attributes = opened[-1 if what == "request" else 0][2]
        if what == "result" and (facts := facts_of(value, function)):
            attributes |= facts
        if self._wants(action, _CONTENT):
            attributes[what] = self._content(value)

    def call_recorded(self, run: ObservedRun, action: str, function: str) -> None:
        """Record a durable call that returned."""
        self._call(run, action, function, "ok", {})

    def call_failed(self, run: ObservedRun, action: str, function: str, error: BaseException) -> None:
        """Record a durable call that failed after its last attempt."""
        self._call(run, action, function, "failed", told_of(error))

    def call_replayed(self, run: ObservedRun, action: str, function: str) -> None:
        """Note a call that is replayed. It has a record already."""
        segment = self._segments.get(run)
        if segment is not None:
            segment.calls[action, function] += 1
            segment.replayed += 1

    def _call(
        self, run: ObservedRun, action: str, function: str, outcome: str, attributes: dict[str, Any]
    ) -> None:
        segment = self._segments.get(run)
        opened = segment.open.get((action, function)) if segment is not None else None
        if segment is None or not opened:
            return
        number, begun, more, parent = opened.popleft()
        if self._wants(action, _CALLS):
            path = "call", action, function, number
            kind, target, request = operation_of(function)
            told = {"action": action, **more, **attributes}
            if kind:
                told |= {"operation": kind, "target": target} | ({"request_to": request} if request else {})
            self._put(run, "call", function, outcome, path, parent, told, self._now() - begun)

    # -- agents that actions call -----------------------------------------------------

    def agent_called(self, run: ObservedRun, action: str, agent: str) -> None:
        """Note an agent that an action calls."""
        segment, asked = self._segments.get(run), called_agents.get()
        if segment is None:
            return
        self._unfold(run, segment)
        parent = asked[-1].path if asked else ("action", action, segment.actions[action])
        number = segment.agents[action, agent]
        segment.agents[action, agent] += 1
        before = segment.executed, segment.replayed
        path = "agent", action, agent, number
        called_agents.set((*asked, CalledAgent(agent, path, parent, before)))

    def agent_answered(
        self, run: ObservedRun, action: str, agent: str, seconds: float, error: BaseException | None
    ) -> None:
        """Record an agent that has answered, or failed."""
        segment, asked = self._segments.get(run), called_agents.get()
        if asked and asked[-1].name == agent:
            called_agents.set(asked[:-1])
        # One that is cancelled, since its run is suspended or the task attempt ends, has not answered.
        if segment is None or not asked or not (error is None or isinstance(error, Exception)):
            return
        one = asked[-1]
        if not self._wants(action, _CALLS):
            return
        executed, replayed = segment.executed - one.before[0], segment.replayed - one.before[1]
        again = replayed > 0 and not executed
        attributes = {"action": action, "calls": executed, "replayed": replayed}
        outcome = "ok" if error is None else "failed"
        more = {} if error is None else told_of(error)
        self._put(run, "agent", agent, outcome, one.path, one.parent, attributes | more, seconds, again)

    # -- records ----------------------------------------------------------------------

    def _samples(self, run: ObservedRun) -> bool:
        if self._share >= 100:
            return True
        return zlib.crc32(run.key_text.encode("utf-8", "surrogatepass")) % 100 < self._share

    def _wants(self, action: str, rank: int) -> bool:
        return self._levels.get(action, self._level) >= rank

    def _content(self, value: Any) -> str:
        return bounded(redaction.hide(redaction.hidden(value)), self._most)

    def _end(
        self, run: ObservedRun, outcome: str, more: dict[str, Any] | None = None, path: Any = ()
    ) -> None:
        segment = self._segments.pop(run)
        attributes: dict[str, Any] = {}
        if segment.folded is None and segment.waits:
            attributes["phases"] = {what: round(seconds, 6) for what, seconds in segment.waits.items()}
        if segment.folded:
            # Encoded by the writer, and made records of their own by who reads them.
            wanted = segment.folded
            if self._levels or self._level < _CALLS:
                wanted = [one for one in wanted if self._wants(one[0], _CALLS)]
            if wanted:
                attributes[FOLDED] = wanted
        if segment.executed or segment.replayed:
            attributes |= {"calls": segment.executed, "replayed": segment.replayed}
        if segment.error is not None and outcome != "completed":
            attributes["error"] = segment.error
        if segment.written and self._level >= _CALLS:
            attributes[WRITTEN] = segment.written
        if run.identity or self._subtask.job:
            self._run(run, segment, outcome, attributes | (more or {}), path)

    def _run(
        self,
        run: ObservedRun,
        segment: Segment,
        outcome: str,
        attributes: dict[str, Any],
        path: Any = (),
    ) -> None:
        now = self._now()
        replayed = self._is_repeated(run, segment, outcome)
        parent = () if path else None
        what = run, run.identity, "run", self._subtask.agent, outcome
        seconds = now - segment.begun
        self._writer.put(partial(self._made, *what, tuple(path), parent, attributes, seconds, now, replayed))

    def _is_repeated(self, run: ObservedRun, segment: Segment, outcome: str) -> bool:
        """Return True if all work of a segment came from the journal, so that an earlier attempt recorded it.

        A run that resumes replays its earlier calls, too. If its suspension was new, so is what follows.
        """
        repeated = segment.replayed > 0 and not segment.executed
        if not self._suspended and outcome != "suspended":
            return repeated
        name = run.key_text, run.sequence_number
        repeated = not self._suspended.pop(name, False) and repeated
        if outcome == "suspended" and not repeated:
            self._suspended[name] = True
            if len(self._suspended) > MOST_SUSPENDED:
                del self._suspended[next(iter(self._suspended))]
        return repeated

    def _put(
        self,
        run: ObservedRun,
        kind: str,
        name: str,
        outcome: str,
        path: tuple[Any, ...],
        parent: tuple[Any, ...] | None,
        attributes: Mapping[str, Any],
        seconds: float | None = None,
        replayed: bool = False,
    ) -> None:
        what = run, run.identity, kind, name, outcome, path, parent or ()
        self._writer.put(partial(self._made, *what, attributes, seconds, self._now(), replayed))
