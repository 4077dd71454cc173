"""Observes the phases of runs: their start, their end, and what those that last wait for.

A run that ends soon and well is one line. All notes about it are taken by the thread of the run, without a
lock. A run *lasts* if it is older than a second, suspends, fails, retries or replays: from then on, each of
its steps gets a separate record. The thread that finds this out moves the run from ``_short`` to
``_lasting``, under the lock. Who removes it from ``_short`` has it: the writer's thread, or the run's own.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from flink_agents import redaction
from flink_agents.api.agents.observers import WAITS, ObservedRun, Phase, RunObserver
from flink_agents.api.events.approvals import ApprovalOutcome
from flink_agents.api.settings.tracing import TraceLevel
from flink_agents.trace.folding import attributes_of_call, count_types
from flink_agents.trace.recording.attributes import WRITTEN, call_facts, decision_attributes, wait_of
from flink_agents.trace.recording.lines import EndedRun, LineMaker
from flink_agents.trace.recording.making import RecordMaker, TracedSubtask
from flink_agents.trace.recording.segments import FutureRun, Segment, Step
from flink_agents.trace.records import QUEUED_FOR, RUNNING, STARTED, WAITING, SpanPath, call_path
from flink_agents.trace.writer import Pending, TraceWriter

CALLS = TraceLevel.CALLS.rank
CONTENT = TraceLevel.CONTENT.rank

MOST_SUSPENDED = 10_000
"""Maximum number of remembered suspensions of this attempt."""

MOST_STEPS = 50
"""Maximum number of steps in one line."""

AT_ONCE = 64
"""Number of ended runs whose lines are written at once, which takes half as long as one by one."""

LASTS_SECONDS = 1.0
"""Age of a run at which its start and its steps get separate records."""

PHASE_SECONDS = 5.0
"""Duration of a phase after which it gets a record."""

_START_LESS = (Phase.RECORDS, Phase.INPUT)
"""The phases of a run that has not started yet."""

_COMMITTED = Phase.COMMITTED
_QUEUED = Phase.QUEUED


class RunRecorder(RunObserver):
    """Records runs.

    Args:
        subtask: The fields that all records share.
        level: Level of the agent.
        writer: Receives the records.
        actions: Levels of single actions by name, where they differ.
        percent: Percentage of keys whose runs are recorded.
        most_content: Maximum number of characters of a recorded request or result.
        now: See the attribute.
        clock: Returns seconds of the clock by which phases are measured.

    Attributes:
        now: Returns the time in seconds since the epoch.
        reads_waits: True: the runtime adds durations of phases to ``notes`` of the run, and only calls
            ``phase_changed`` when the run begins or ends.
        reads_requests: True if it records the requests of calls, so that the runtime passes them.
        binds_context: True: it binds variables in the context of the code that it observes.
        reads_notes: True if it also adds actions that have ended, and written memory, instead of calling
            ``events_sent``, ``action_ended`` and ``memory_written``.
    """

    reads_waits = binds_context = True

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
        self._approved: dict[str, None] = {}
        self._levels = {name: action_level.rank for name, action_level in (actions or {}).items()}
        # With levels of actions, the recorder is asked about each.
        self.reads_notes = self._every = level.rank >= CALLS and not actions
        self.reads_requests = max(level.rank, *self._levels.values(), 0) >= CONTENT
        self._writer = writer
        self._share = percent
        self._most = most_content
        self.now = now
        self._short: dict[ObservedRun, Segment] = {}
        self._lasting: dict[ObservedRun, Segment] = {}
        self._unfolding = threading.Lock()
        self._collecting = threading.Lock()
        self._make_record = RecordMaker(subtask)
        self._ended: deque[EndedRun] = deque()
        self._lines = LineMaker(subtask)
        writer.look = self.record_lasting_runs
        writer.collect = self.queue_lines

    @property
    def writer(self) -> TraceWriter:
        """The writer that receives the records."""
        return self._writer

    @property
    def unfinished_count(self) -> int:
        """Number of runs in memory, since they have not ended."""
        return len(self._short) + len(self._lasting)

    def _segment(self, run: ObservedRun) -> Segment | None:
        return self._short.get(run) or self._lasting.get(run)

    # -- phases -----------------------------------------------------------------------

    def blocked(self, identity: str, key_text: str, sequence_number: int) -> None:
        """Record that the input of a later run waits for a suspended run of its key. Never raises."""
        run: Any = FutureRun(key_text, sequence_number)
        if self._share >= 100 or self._is_sampled(run):
            make_record = partial(
                self._make_record, run, identity, "run", self._subtask.agent, WAITING, (), None
            )
            # Without the time in its attributes, all records of one input have one id.
            self._writer.queue_record(partial(make_record, {"for": QUEUED_FOR}, None, self.now(), False))

    def approval_ended(self, run: ObservedRun, action: str, wait: str, outcome: ApprovalOutcome) -> None:
        """Record who decided on an approval, once: a run that resumes again finds it in its journal."""
        segment = self._segment(run)
        if segment is None or wait in self._approved:
            return
        self._approved[wait] = None
        if len(self._approved) > MOST_SUSPENDED:
            del self._approved[next(iter(self._approved))]
        self._let_run_last(run, segment)
        self._record_failed_actions(run, segment)
        what = outcome.request.what, outcome.decision.value
        self._queue_record(run, "approval", *what, ("approval", wait), (), decision_attributes(outcome))

    def begin(self, run: ObservedRun) -> Segment | None:
        """Return the notes of a run that begins; None if its key is not sampled. Never raises."""
        if self._share < 100 and not self._is_sampled(run):
            return None
        segment = self._short[run] = Segment(self.now(), self.reads_notes, run.since)
        if self._suspended:
            run_key = run.key_text, run.sequence_number
            segment.resumes = run_key in self._suspended
        if not self._writer.started:
            # It finds the runs that last.
            try:
                self._writer.start()
            except RuntimeError as error:
                # The process has too many threads.
                self._writer.count_unmade(error)
        return segment

    def end(self, run: ObservedRun) -> None:
        """Record that a run ended or was suspended; forget a run that has not begun. Never raises."""
        try:
            if run.phase is _COMMITTED:
                segment = self._short.pop(run, None)
                if segment is not None:
                    if len(segment.steps) <= MOST_STEPS:
                        if self._suspended:
                            self._suspended.pop((run.key_text, run.sequence_number), None)
                        if run.identity or self._subtask.job:
                            self._ended.append((run, segment, self.now()))
                        if len(self._ended) >= AT_ONCE:
                            self.queue_lines()
                        return
                    self._short[run] = segment
            elif run.phase is _QUEUED:
                self._forget_run(run)
                return
            self.phase_changed(run, None)
        except Exception as error:
            self._writer.count_unmade(error)

    def _forget_run(self, run: ObservedRun) -> None:
        """Forget a run whose input left the queue: it gets other notes when it is queued again."""
        with self._unfolding:
            self._short.pop(run, None)
            self._lasting.pop(run, None)
            run.notes = None  # pyright: ignore[reportAttributeAccessIssue]

    def phase_changed(self, run: ObservedRun, before: Phase | None) -> None:
        """Record the start, the suspension or the end of a run by its phase; ``before`` is not used."""
        phase = run.phase
        if phase in _START_LESS:
            if phase is Phase.INPUT and self._is_sampled(run):
                # Its record is there, its input is not: nothing else would ever tell of it.
                if (segment := self._segment(run)) is not None and self._start_recording_steps(run, segment):
                    self._record_start(run, segment)
                self._writer.queue_record(
                    self._record_unfinished(run, "its input to come again", run.since, {})
                )
            return
        segment = self._segment(run)
        if segment is None:
            # For example, a suspended run resumes.
            segment = run.notes = self.begin(run)  # pyright: ignore[reportAttributeAccessIssue]
        if segment is not None:
            self._note_phase(run, segment, phase)

    def _note_phase(self, run: ObservedRun, segment: Segment, phase: Phase) -> None:
        """Record the end of a run that has begun, if its phase is committed, suspended or failed."""
        if phase is Phase.COMMITTED:
            self._record_end(run, "dead-lettered" if segment.dead else "completed")
        elif phase is Phase.SUSPENDED:
            waits = [wait_of(wait) for wait in run.open_waits]
            self._record_end(run, "suspended", {"waits": waits}, [wait["id"] for wait in waits])
        elif phase is Phase.FAILED:
            # The run starts again, and has one span for its end: this one is a part.
            self._record_end(run, "failed", path=("failed", int(self.now() * 1e6)))

    def event_given_up(self, run: ObservedRun, event_type: str, dead_letter: bool) -> None:
        """Record that a run continues without an event: as a dead letter if ``dead_letter``, else ignored."""
        segment = self._segment(run)
        if segment is not None:
            self._let_run_last(run, segment)
            segment.dead = segment.dead or dead_letter
            ended_by = getattr(run, "ended_by", None)
            if ended_by is not None:
                segment.error = call_facts(ended_by)
            outcome = "dead-lettered" if dead_letter else "ignored"
            if (failed := segment.failed) is not None and failed.event is None:
                # The end of its action is recorded now. If that fails, all of it is repeated.
                segment.failed = failed._replace(event=(event_type, outcome))
                return
            self._record_failed_actions(run, segment)
            if (calling := segment.calling) is not None and segment.actions[calling[0]] == calling[1]:
                # Nothing else ends it: its calls have it as their parent.
                self._end_action(run, segment, calling[0], "failed", segment.error or {})
            self._record_event(run, segment, event_type, outcome)

    def _record_event(
        self, run: ObservedRun, segment: Segment, event_type: str, outcome: str, again: bool = False
    ) -> None:
        """Record the outcome of an event that a run gives up: ``dead-lettered`` or ``ignored``."""
        number = segment.actions[f"event {event_type}"]
        segment.actions[f"event {event_type}"] += 1
        path = ("event", event_type, number)
        again = again or segment.is_replay
        self._queue_record(run, "event", event_type, outcome, path, None, segment.error or {}, replayed=again)

    # -- actions ----------------------------------------------------------------------

    def _end_action(
        self,
        run: ObservedRun,
        segment: Segment,
        action: str,
        outcome: str,
        attributes: dict[str, Any],
        now: float | None = None,
        seconds: float | None = None,
        again: bool = False,
    ) -> None:
        """Record the end of an execution of an action: its last attempt, or its replay."""
        number = segment.actions[action]
        segment.actions[action] += 1
        retries = segment.retries.pop(action, 0)
        if self._records_rank(action, CALLS):
            more = attributes | ({"attempt": retries + 1} if retries else {})
            again = again or segment.is_replay
            record_fields = run, "action", action, outcome, ("action", action, number), None
            self._queue_record(*record_fields, more, seconds, now, again)

    def _record_failed_actions(self, run: ObservedRun, segment: Segment, restarts: bool = False) -> None:
        """Record the last failed action of a run, now that it is known what follows.

        Args:
            run: The run.
            segment: The notes about the run.
            restarts: True if the run fails as well, and will be repeated.
        """
        if (failed := segment.failed) is None:
            return
        segment.failed = None
        action, attributes, parent, now, event = failed
        if event is not None and not restarts:
            self._end_action(run, segment, action, "failed", attributes, now)
            self._record_event(run, segment, *event)
        elif self._records_rank(action, CALLS):
            retries = segment.retries.get(action, 0)
            more = attributes | ({"attempt": retries + 1} if retries else {})
            # The next attempt of the job may repeat it: its time tells the two apart.
            path = *parent, "action", action, "failed", int(now * 1e6)
            self._queue_record(run, "action", action, "failed", path, parent or None, more, None, now)

    def _records_rank(self, action: str, rank: int) -> bool:
        return self._levels.get(action, self._level) >= rank

    # -- runs that last ---------------------------------------------------------------

    def record_lasting_runs(self) -> None:
        """Record the runs and phases that last, from the writer's thread; see ``LASTS_SECONDS``."""
        now = self.now()
        clock = self._clock()
        for run, segment in [*self._short.items(), *self._lasting.items()]:
            phase = run.phase
            since = run.since
            if not run.identity or segment.is_started and not since:
                continue
            age = max(now - segment.begun, clock - since if since else 0.0)
            if not segment.is_started and age >= LASTS_SECONDS and self._start_recording_steps(run, segment):
                self._record_start(run, segment)
            if since and clock - since >= PHASE_SECONDS and segment.last_phase != (phase, since):
                segment.last_phase = phase, since
                self._record_phase(run, segment, phase, since)

    def _start_recording_steps(self, run: ObservedRun, segment: Segment) -> bool:
        """Record each step of a run from now on. Return False if the run has ended meanwhile."""
        with self._unfolding:
            if segment.lasts:
                return True
            self._lasting[run] = segment
            if self._short.pop(run, None) is None:
                del self._lasting[run]
                return False
            self._unfold_steps(run, segment)
            return True

    def _let_run_last(self, run: ObservedRun, segment: Segment, again: bool = False) -> None:
        """Record each step of a run from now on; when this returns, all earlier steps have records.

        Only the threads that execute the run may call this.

        Args:
            run: The run.
            segment: The notes about it.
            again: True if it is being replayed, so that its steps so far are repeated.
        """
        with self._unfolding:
            if not segment.lasts:
                self._lasting[run] = segment
                self._short.pop(run, None)
            self._unfold_steps(run, segment, again and not segment.executed)

    def _unfold_steps(self, run: ObservedRun, segment: Segment, again: bool = False) -> None:
        """Queue records of the steps that have none. The caller holds ``_unfolding``."""
        # Before the steps are read: a thread that adds one later sees it, and comes here, too.
        segment.lasts = True
        while steps := segment.steps[:]:
            # At once: a run can have many. Its thread only adds steps, at the end.
            del segment.steps[: len(steps)]
            self._queue_steps(run, segment, steps, again)

    def _queue_steps(self, run: ObservedRun, segment: Segment, steps: Iterable[Step], again: bool) -> None:
        """Queue a record for each step of a run, with the number and time that follow from earlier steps."""
        for function, action, end, seconds, more in steps:
            inline = end is None
            end = segment.last_step_end = (
                (segment.last_step_end or segment.begun) + seconds if end is None else end
            )
            number = segment.actions[action]
            path: SpanPath = "action", action, number
            if function is None:
                segment.actions[action] += 1
                segment.unfolded = 0
                attributes = {"inline": inline, **({"sent": count_types(more)} if more else {})}
                self._queue_record(run, "action", action, "ok", path, None, attributes, seconds, end, again)
            else:
                attributes = attributes_of_call(action, function, more)
                task = attributes.pop("task", "")
                nth = attributes.pop("nth", segment.unfolded)
                segment.unfolded = nth + 1
                call = call_path(action, number, function, task, nth)
                segment.called.add(call)
                self._queue_record(run, "call", function, "ok", call, path, attributes, seconds, end)

    def _record_start(self, run: ObservedRun, segment: Segment) -> None:
        """Queue the record that a lasting run has started."""
        segment.is_started = True
        make_record = partial(
            self._make_record, run, run.identity, "run", self._subtask.agent, STARTED, (), None
        )
        self._writer.queue_record(partial(make_record, {}, 0.0, segment.begun, False))

    def _record_phase(self, run: ObservedRun, segment: Segment, phase: Phase, since: float) -> None:
        # Of several calls of one function, the first one.
        opened = reversed(segment.all_opened())
        calls = {call.function: (call.more or {}).get("attempt", 1) for call in opened}
        waits_for = run.waits_for
        if phase is Phase.QUEUED:
            waits_for = QUEUED_FOR
        elif phase in WAITS:
            waits_for = waits_for or phase.value.removeprefix("waits for ")
        self._writer.queue_record(
            self._record_unfinished(run, waits_for, since, {"calls": calls} if calls else {})
        )

    def _record_unfinished(
        self, run: ObservedRun, waits_for: str, since: float, more: dict[str, Any]
    ) -> Pending:
        """Return a function that creates the record of a run that has not ended.

        Args:
            run: The run.
            waits_for: What it waits for; empty if it executes the user's code.
            since: Start of its phase, by the clock of phases; 0 if it is not known.
            more: Further attributes.
        """
        start_time = round(self.now() - (self._clock() - since), 3) if since else None
        attributes = {"for": redaction.hide(waits_for), "since": start_time, **more}
        outcome = WAITING if waits_for else RUNNING
        make_record = partial(
            self._make_record, run, run.identity, "run", self._subtask.agent, outcome, (), None
        )
        return partial(make_record, attributes, None, self.now(), False)

    def closed(self) -> None:
        """Queue records of all runs, also of unfinished ones, and close the writer; waits for the sinks."""
        for run, segment in [*self._short.items(), *self._lasting.items()]:
            self._record_failed_actions(run, segment, restarts=True)
            if run.identity and not segment.is_started and self._start_recording_steps(run, segment):
                self._record_start(run, segment)
        self.queue_lines()
        self._writer.close()

    # -- records ----------------------------------------------------------------------

    def queue_lines(self) -> None:
        """Queue the lines of ended runs. For Flink's thread and the writer's."""
        with self._collecting:
            ended = self._ended
            # Another thread may append meanwhile.
            lines = self._lines([ended.popleft() for _ in range(len(ended))], self._writer.count_unmade)
            self._writer.queue_lines(lines)

    def _is_sampled(self, run: ObservedRun) -> bool:
        if self._share >= 100:
            return True
        return zlib.crc32(run.key_text.encode("utf-8", "surrogatepass")) % 100 < self._share

    def _record_end(
        self, run: ObservedRun, outcome: str, more: dict[str, Any] | None = None, path: Any = ()
    ) -> None:
        """Record the end of a segment of a run, and forget its notes. With a path, the run is not over."""
        segment = self._segment(run)
        assert segment is not None
        self._let_run_last(run, segment)
        self._record_failed_actions(run, segment, restarts=outcome == "failed")
        del self._lasting[run]
        # A suspended run gets new notes when it resumes.
        run.notes = None  # pyright: ignore[reportAttributeAccessIssue]
        if not (run.identity or self._subtask.job):
            return
        attributes = self._end_attributes(segment, outcome)
        now = self.now()
        replayed = self._is_repeated(run, segment, outcome)
        record_fields = (
            run,
            run.identity,
            "run",
            self._subtask.agent,
            outcome,
            tuple(path),
            () if path else None,
        )
        seconds = max(0.0, now - segment.begun)
        self._writer.queue_record(
            partial(self._make_record, *record_fields, attributes | (more or {}), seconds, now, replayed)
        )

    def _end_attributes(self, segment: Segment, outcome: str) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        if segment.waits:
            attributes["phases"] = {phase: round(seconds, 6) for phase, seconds in segment.phases().items()}
        if segment.executed or segment.replayed:
            attributes |= {"calls": segment.executed, "replayed": segment.replayed}
        if segment.error is not None and outcome != "completed":
            attributes["error"] = segment.error
        if segment.written and self._level >= CALLS:
            attributes[WRITTEN] = segment.written
        return attributes

    def _is_repeated(self, run: ObservedRun, segment: Segment, outcome: str) -> bool:
        """Return True if all work of a segment came from the journal, so that an earlier attempt recorded it.

        What follows a new suspension is new as well, although a resumed run replays its calls. An action
        whose end was not in the journal ends for the first time, and so does its run.
        """
        is_repeated = outcome != "failed" and segment.replayed > 0 and not segment.executed
        if outcome != "suspended":
            is_repeated = is_repeated and not segment.partial
            if not self._suspended:
                return is_repeated
        run_key = run.key_text, run.sequence_number
        is_repeated = not self._suspended.pop(run_key, False) and is_repeated
        if outcome == "suspended":
            self._suspended[run_key] = not is_repeated
            if len(self._suspended) > MOST_SUSPENDED:
                del self._suspended[next(iter(self._suspended))]
        return is_repeated

    def _queue_record(
        self,
        run: ObservedRun,
        kind: str,
        name: str,
        outcome: str,
        path: SpanPath,
        parent: SpanPath | None,
        attributes: Mapping[str, Any],
        seconds: float | None = None,
        now: float | None = None,
        replayed: bool = False,
    ) -> None:
        what = run, run.identity, kind, name, outcome, path, parent or ()
        now = self.now() if now is None else now
        self._writer.queue_record(partial(self._make_record, *what, attributes, seconds, now, replayed))
