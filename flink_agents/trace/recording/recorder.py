"""Observes what runs do: their actions, durable calls, and the agents that they call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flink_agents import redaction
from flink_agents.api.agents.observers import ObservedRun, RunObserver
from flink_agents.api.common.logs import bounded
from flink_agents.trace.folding import attributes_of_call, counted
from flink_agents.trace.recording.attributes import told_of
from flink_agents.trace.recording.facts import facts_of
from flink_agents.trace.recording.making import TracedSubtask
from flink_agents.trace.recording.runs import CALLS, CONTENT, MOST_STEPS, RunRecorder, place_of
from flink_agents.trace.recording.segments import CalledAgent, OpenCall, Segment, Step, called_agents

__all__ = ["LeanRecorder", "TraceRecorder", "TracedSubtask"]


class TraceRecorder(RunRecorder):
    """Records runs, and what they do. See :class:`RunRecorder` for its arguments."""

    def memory_written(self, run: ObservedRun, values: Mapping[str, int]) -> None:
        """Note the memory that a run wrote: names and sizes, no values."""
        segment = self._short.get(run) or self._lasting.get(run)
        if segment is not None and self._level >= CALLS:
            segment.write(values)

    # -- actions ----------------------------------------------------------------------

    def events_sent(self, run: ObservedRun, action: str, event_types: Sequence[str]) -> None:
        """Note the types of the events that an attempt of an action sent."""
        segment = self._segment(run)
        if segment is not None:
            segment.sent = tuple(event_types)

    def action_ended(self, run: ObservedRun, action: str, seconds: float, inline: bool) -> None:
        """Record an attempt of an action that succeeded."""
        segment = self._short.get(run) or self._lasting.get(run)
        if segment is None:
            return
        sent = segment.sent
        if sent:
            segment.sent = ()
        if not segment.lasts:
            if not self._every and not self._wants(action, CALLS):
                return
            self._fold(run, segment, (None, action, None if inline else self.now(), seconds, sent))
            return
        self._lasts(run, segment)
        more = {"sent": counted(sent)} if sent else {}
        self._action(run, segment, action, "ok", seconds, {"inline": inline, **more})

    def action_failed(self, run: ObservedRun, action: str, error: BaseException) -> None:
        """Record an attempt of an action that raised."""
        segment = self._segment(run)
        if segment is not None:
            self._lasts(run, segment)
            segment.sent = ()
            segment.error = {"action": action, **told_of(error)}
            self._action(run, segment, action, "failed", None, segment.error)

    def action_retried(self, run: ObservedRun, action: str, attempt: int) -> None:
        """Count a retry of an action."""
        segment = self._segment(run)
        if segment is not None:
            segment.retries[action] += 1

    def action_replayed(self, run: ObservedRun, action: str) -> None:
        """Note an action that is replayed. It has a record already."""
        segment = self._segment(run)
        if segment is not None:
            self._lasts(run, segment)
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
        if self._wants(action, CALLS):
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
        segment = self._segment(run)
        if segment is None:
            return
        if again:
            self._lasts(run, segment)
        parent: Any = segment.ended(action)
        if segment.lasts:
            self._lasts(run, segment)
            parent = place_of(segment, action)
        opened = segment.begin_call((action, function), self.now(), parent)
        if again:
            opened.tell({"again": True})
        segment.executed += 1

    def call_attempt_failed(
        self, run: ObservedRun, action: str, function: str, attempt: int, error: BaseException
    ) -> None:
        """Record a failed attempt of a durable call that is retried."""
        segment = self._segment(run)
        calls = None if segment is None else segment.opened((action, function))
        if segment is None or not calls:
            return
        opened = calls[0]
        self._lasts(run, segment)
        if self._wants(action, CALLS):
            if not segment.told and run.identity:
                # It may pause for long before the next attempt.
                self._start(run, segment)
            call = "call", action, function, opened.number
            told = {"action": action, "attempt": attempt, **told_of(error)}
            self._put(run, "attempt", function, "failed", (*call, "attempt", attempt), call, told)

    def call_retried(self, run: ObservedRun, action: str, function: str, attempt: int) -> None:
        """Note a further attempt of a durable call."""
        segment = self._segment(run)
        calls = None if segment is None else segment.opened((action, function))
        if calls:
            calls[0].tell({"attempt": attempt})

    def call_content(self, run: ObservedRun, action: str, function: str, what: str, value: Any) -> None:
        """Note the request or the result of a durable call."""
        shows = self._wants(action, CONTENT)
        if not shows and what == "request":
            return
        segment = self._segment(run)
        calls = None if segment is None else segment.opened((action, function))
        if segment is None or not calls or not self._wants(action, CALLS):
            return
        opened = calls[-1 if what == "request" else 0]
        if what == "result" and (facts := facts_of(value, function)):
            opened.tell(facts)
        if shows:
            # Lines with whole prompts would be too long.
            self._lasts(run, segment)
            # Long strings are cut first: a search of megabytes would stop the event loop.
            shown = redaction.hidden(value, longest=self._most)
            opened.tell({what: bounded(redaction.hide(shown), self._most)})

    def call_recorded(self, run: ObservedRun, action: str, function: str) -> None:
        """Record a durable call that returned."""
        segment = self._segment(run)
        calls = None if segment is None else segment.opened((action, function))
        if segment is None or not calls:
            return
        opened, now = calls.popleft(), self.now()
        seconds = max(0.0, now - opened.begun)
        # Counted before it is asked: the writer's thread first lets the run last, and then takes its steps.
        if opened.parent == segment.ended(action) and not segment.lasts:
            if self._every or self._wants(action, CALLS):
                self._fold(run, segment, (function, action, now, seconds, opened.more))
        else:
            self._call(run, segment, action, function, opened, "ok", {}, seconds)

    def call_failed(self, run: ObservedRun, action: str, function: str, error: BaseException) -> None:
        """Record a durable call that failed after its last attempt."""
        segment = self._segment(run)
        calls = None if segment is None else segment.opened((action, function))
        if segment is not None and calls:
            opened = calls.popleft()
            seconds = max(0.0, self.now() - opened.begun)
            self._call(run, segment, action, function, opened, "failed", told_of(error), seconds)

    def call_replayed(self, run: ObservedRun, action: str, function: str) -> None:
        """Note a call that is replayed. It has a record already."""
        segment = self._segment(run)
        if segment is not None:
            self._lasts(run, segment)
            segment.next_call((action, function))
            segment.replayed += 1

    def _call(
        self,
        run: ObservedRun,
        segment: Segment,
        action: str,
        function: str,
        opened: OpenCall,
        outcome: str,
        attributes: dict[str, Any],
        seconds: float,
    ) -> None:
        self._lasts(run, segment)
        if self._wants(action, CALLS):
            path, parent = ("call", action, function, opened.number), opened.parent_path(action)
            told = attributes_of_call(action, function, {**(opened.more or {}), **attributes})
            self._put(run, "call", function, outcome, path, parent, told, seconds)

    def _fold(self, run: ObservedRun, segment: Segment, step: Step) -> None:
        """Add a step to the line of its run."""
        segment.steps.append(step)
        if segment.lasts or len(segment.steps) > MOST_STEPS:
            # The writer's thread found out meanwhile that the run lasts, or its line would be too long.
            self._lasts(run, segment)

    # -- agents that actions call -----------------------------------------------------

    def agent_called(self, run: ObservedRun, action: str, agent: str) -> None:
        """Note an agent that an action calls."""
        segment, asked = self._segment(run), called_agents.get()
        if segment is None:
            return
        self._lasts(run, segment)
        parent = place_of(segment, action)
        number = segment.agents[action, agent]
        segment.agents[action, agent] += 1
        before = segment.executed, segment.replayed
        path = "agent", action, agent, number
        called_agents.set((*asked, CalledAgent(agent, path, parent, before)))

    def agent_answered(
        self, run: ObservedRun, action: str, agent: str, seconds: float, error: BaseException | None
    ) -> None:
        """Record an agent that has answered, or failed."""
        segment, asked = self._segment(run), called_agents.get()
        if asked and asked[-1].name == agent:
            called_agents.set(asked[:-1])
        # One that is cancelled, since its run is suspended or the task attempt ends, has not answered.
        if segment is None or not asked or not (error is None or isinstance(error, Exception)):
            return
        one = asked[-1]
        if not self._wants(action, CALLS):
            return
        executed, replayed = segment.executed - one.before[0], segment.replayed - one.before[1]
        again = replayed > 0 and not executed
        attributes = {"action": action, "calls": executed, "replayed": replayed}
        outcome = "ok" if error is None else "failed"
        more = {} if error is None else told_of(error)
        self._put(
            run, "agent", agent, outcome, one.path, one.parent, attributes | more, seconds, replayed=again
        )

    def _wants(self, action: str, rank: int) -> bool:
        return self._levels.get(action, self._level) >= rank


class LeanRecorder(TraceRecorder):
    """Records runs alone. The methods that only matter for actions and calls are not even called."""

    memory_written = RunObserver.memory_written
    action_ended = RunObserver.action_ended
    events_sent = RunObserver.events_sent
    call_attempt_failed = RunObserver.call_attempt_failed
    call_content = RunObserver.call_content
    agent_called = RunObserver.agent_called
    agent_answered = RunObserver.agent_answered
