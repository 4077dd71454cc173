"""Observes what runs do: their actions, durable calls, and the agents that they call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flink_agents import redaction
from flink_agents.api.agents.observers import (
    CallNumber,
    CallOutcome,
    ObservedRun,
    ReplayedCall,
    RunObserver,
)
from flink_agents.api.common.logs import bound_text
from flink_agents.api.common.policies import DeadLetter
from flink_agents.trace.folding import attributes_of_call, count_types
from flink_agents.trace.recording.attributes import MOST_ERROR, call_facts, call_facts_of_record
from flink_agents.trace.recording.facts import facts_of
from flink_agents.trace.recording.making import TracedSubtask
from flink_agents.trace.recording.runs import CALLS, CONTENT, MOST_STEPS, RunRecorder
from flink_agents.trace.recording.segments import (
    CalledAgent,
    FailedAction,
    OpenCall,
    Segment,
    Step,
    called_agent,
    called_agents,
)
from flink_agents.trace.records import SpanPath

__all__ = ["LeanRecorder", "TraceRecorder", "TracedSubtask"]


class TraceRecorder(RunRecorder):
    """Records runs, and what they do. See :class:`RunRecorder` for its arguments."""

    def memory_written(self, run: ObservedRun, values: Mapping[str, int]) -> None:
        """Note the names and sizes of memory that a run wrote, without its values."""
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
        """Record that an execution of an action succeeded.

        Args:
            run: The run.
            action: Name of the action.
            seconds: Duration in seconds.
            inline: True if it ran on Flink's thread.
        """
        segment = self._short.get(run) or self._lasting.get(run)
        if segment is None:
            return
        sent = segment.sent
        if sent:
            segment.sent = ()
        if not segment.lasts:
            if not self._every and not self._records_rank(action, CALLS):
                return
            self._fold_step(run, segment, (None, action, None if inline else self.now(), seconds, sent))
            return
        self._let_run_last(run, segment)
        self._record_failed_actions(run, segment)
        more = {"sent": count_types(sent)} if sent else {}
        self._end_action(run, segment, action, "ok", {"inline": inline, **more}, seconds=seconds)

    def action_failed(self, run: ObservedRun, action: str, error: BaseException) -> None:
        """Note that an attempt of an action raised. It is recorded when it is known what follows."""
        segment = self._segment(run)
        if segment is not None:
            self._let_run_last(run, segment)
            self._record_failed_actions(run, segment)
            segment.sent = ()
            segment.error = {"action": action, **call_facts(error)}
            agents = called_agents.get()
            segment.failed = FailedAction(
                action, segment.error, agents[-1].path if agents else (), self.now()
            )
            if agents:
                self._record_failed_actions(run, segment)

    def action_retried(self, run: ObservedRun, action: str, attempt: int) -> None:
        """Count a further attempt of an action, for the record of its last one."""
        segment = self._segment(run)
        if segment is not None:
            self._record_failed_actions(run, segment)
            segment.retries[action] += 1

    def action_replayed(
        self, run: ObservedRun, action: str, calls: Sequence[ReplayedCall], letter: DeadLetter | None
    ) -> None:
        """Record an action that is replayed, and its calls, since their records may have been lost.

        Args:
            run: The run.
            action: Name of the action.
            calls: Its durable calls, with their recorded outcomes.
            letter: The dead letter in which it ended; None if it succeeded.
        """
        segment = self._segment(run)
        if segment is None:
            return
        self._let_run_last(run, segment, again=True)
        self._record_failed_actions(run, segment)
        segment.replayed += 1
        for function, number, outcome in calls:
            self._record_replayed_call(run, segment, action, function, number, outcome)
        now = max((call_outcome.ended_at / 1000 for _, _, call_outcome in calls), default=None)
        if letter is None:
            self._end_action(run, segment, action, "ok", {}, now, again=True)
            return
        segment.dead = True
        segment.error = {
            "action": action,
            "error": letter.error_type,
            "message": bound_text(redaction.hide(letter.error_message), MOST_ERROR),
        }
        self._end_action(run, segment, action, "failed", segment.error, now, again=True)
        self._record_event(run, segment, letter.event_type, "dead-lettered", again=True)

    # -- calls ------------------------------------------------------------------------

    def call_begun(
        self, run: ObservedRun, action: str, function: str, number: CallNumber, again: bool
    ) -> None:
        """Note that a durable call begins.

        Args:
            run: The run.
            action: Name of the action.
            function: Name of the function.
            number: The task of the action that makes it, and its number in that task.
            again: True if an earlier attempt of the job began it, and has no result.
        """
        segment = self._short.get(run) or self._lasting.get(run)
        if segment is None:
            return
        if again:
            self._let_run_last(run, segment)
        # Counted before it is asked: the writer's thread first lets the run last, and then takes its steps.
        execution = segment.ended_executions(action) if segment.steps else 0
        agent = None
        if segment.lasts:
            self._let_run_last(run, segment)
            self._record_failed_actions(run, segment)
            execution = segment.actions[action]
            agent = called_agent()
        opened = OpenCall(function, execution, self.now(), agent)
        if again:
            opened.add_attributes({"again": True})
        segment.begin_call(action, number, opened)
        segment.calling = action, execution
        segment.executed += 1

    def call_attempt_failed(
        self,
        run: ObservedRun,
        action: str,
        function: str,
        number: CallNumber,
        attempt: int,
        error: BaseException,
    ) -> None:
        """Record a failed attempt of a durable call, after which another one follows."""
        segment = self._segment(run)
        opened = None if segment is None else segment.open_call(action, number)
        if segment is None or opened is None:
            return
        self._let_run_last(run, segment)
        if self._records_rank(action, CALLS):
            if not segment.is_started and run.identity:
                # It may pause for long before the next attempt.
                self._record_start(run, segment)
            now = self.now()
            attributes = {"action": action, "attempt": attempt, **call_facts(error)}
            # The next attempt of the job may repeat it: its time tells the two apart.
            path = *opened.path(action, number), "attempt", int(now * 1e6)
            self._queue_record(
                run, "attempt", function, "failed", path, opened.parent(action), attributes, None, now
            )

    def call_retried(
        self, run: ObservedRun, action: str, function: str, number: CallNumber, attempt: int
    ) -> None:
        """Note the number of the present attempt of a durable call, for the record of the call."""
        segment = self._segment(run)
        opened = None if segment is None else segment.open_call(action, number)
        if opened is not None:
            opened.add_attributes({"attempt": attempt})

    def call_content(
        self, run: ObservedRun, action: str, function: str, number: CallNumber, what: str, value: Any
    ) -> None:
        """Note facts about the request or the result of a durable call, and its content if the level says so.

        Args:
            run: The run.
            action: Name of the action.
            function: Name of the function.
            number: The task that made the call, and its number in that task.
            what: ``request`` or ``result``.
            value: The request or result.
        """
        records_content = self.reads_requests and self._records_rank(action, CONTENT)
        if not records_content and what == "request":
            return
        segment = self._short.get(run) or self._lasting.get(run)
        opened = None if segment is None else segment.open_call(action, number)
        if segment is None or opened is None or not (self._every or self._records_rank(action, CALLS)):
            return
        if what == "result" and (facts := facts_of(value, function)):
            opened.add_attributes(facts)
        if records_content:
            # Lines with whole prompts would be too long.
            self._let_run_last(run, segment)
            # Long strings are cut first: a search of megabytes would stop the event loop.
            shown = redaction.hidden(value, longest=self._most)
            opened.add_attributes({what: bound_text(redaction.hide(shown), self._most)})

    def call_recorded(self, run: ObservedRun, action: str, function: str, number: CallNumber) -> None:
        """Record that a durable call returned, and its result is stored."""
        segment = self._short.get(run) or self._lasting.get(run)
        opened = None if segment is None else segment.end_call(action, number)
        if segment is None or opened is None:
            return
        now = self.now()
        seconds = max(0.0, now - opened.begun)
        # Counted before it is asked, as above.
        if opened.execution == segment.ended_executions(action) and not segment.lasts:
            if self._every or self._records_rank(action, CALLS):
                steps = segment.steps
                follows = segment.nth if steps and steps[-1][0] is not None else 0
                if number.nth != follows or number.task:
                    opened.add_attributes(
                        {"nth": number.nth, **({"task": number.task} if number.task else {})}
                    )
                segment.nth = number.nth + 1
                self._fold_step(run, segment, (function, action, now, seconds, opened.more))
        else:
            path = opened.path(action, number)
            self._record_call(run, segment, action, function, "ok", path, opened, {}, seconds, now)

    def call_failed(
        self,
        run: ObservedRun,
        action: str,
        function: str,
        number: CallNumber,
        error: BaseException,
        ended_at: int,
    ) -> None:
        """Record that a durable call failed after its last attempt.

        ``ended_at`` is its end in milliseconds since the epoch, as the journal has it.
        """
        segment = self._segment(run)
        opened = None if segment is None else segment.end_call(action, number)
        if segment is not None and opened is not None:
            now = self.now()
            seconds = max(0.0, now - opened.begun)
            path = *opened.path(action, number), "failed", ended_at
            self._record_call(
                run, segment, action, function, "failed", path, opened, call_facts(error), seconds, now
            )

    def call_replayed(
        self, run: ObservedRun, action: str, function: str, number: CallNumber, outcome: CallOutcome
    ) -> None:
        """Record a durable call that is replayed, since its record may have been lost."""
        segment = self._segment(run)
        if segment is not None:
            self._let_run_last(run, segment, again=True)
            self._record_failed_actions(run, segment)
            segment.replayed += 1
            segment.partial = True
            segment.calling = (action, segment.actions[action])
            self._record_replayed_call(run, segment, action, function, number, outcome)

    def _record_replayed_call(
        self,
        run: ObservedRun,
        segment: Segment,
        action: str,
        function: str,
        number: CallNumber,
        outcome: CallOutcome,
    ) -> None:
        """Record a call by its journal record, unless this attempt of the task recorded it."""
        ended_seconds = outcome.ended_at / 1000
        error = outcome.error
        opened = OpenCall(function, segment.actions[action], ended_seconds, called_agent())
        path = opened.path(action, number)
        if segment.resumes or path in segment.called:
            return
        if outcome.attempts > 1:
            opened.add_attributes({"attempt": outcome.attempts})
        if error is None:
            self._record_call(
                run, segment, action, function, "ok", path, opened, {}, None, ended_seconds, again=True
            )
        else:
            path = (*path, "failed", outcome.ended_at)
            attributes = call_facts_of_record(error)
            if path in segment.called:
                return
            self._record_call(
                run,
                segment,
                action,
                function,
                "failed",
                path,
                opened,
                attributes,
                None,
                ended_seconds,
                again=True,
            )

    def _record_call(
        self,
        run: ObservedRun,
        segment: Segment,
        action: str,
        function: str,
        outcome: str,
        path: SpanPath,
        opened: OpenCall,
        attributes: dict[str, Any],
        seconds: float | None,
        now: float,
        again: bool = False,
    ) -> None:
        self._let_run_last(run, segment)
        if self._records_rank(action, CALLS):
            call_attributes = attributes_of_call(action, function, {**(opened.more or {}), **attributes})
            parent = opened.parent(action)
            segment.called.add(path)
            self._queue_record(
                run, "call", function, outcome, path, parent, call_attributes, seconds, now, again
            )

    def _fold_step(self, run: ObservedRun, segment: Segment, step: Step) -> None:
        """Add a successful step to the line of its run, or record it if the run lasts by now."""
        segment.steps.append(step)
        if segment.lasts or len(segment.steps) > MOST_STEPS:
            # The writer's thread found out meanwhile that the run lasts, or its line would be too long.
            self._let_run_last(run, segment)

    # -- agents that actions call -----------------------------------------------------

    def agent_called(self, run: ObservedRun, action: str, agent: str) -> None:
        """Note that an action calls another agent, whose calls get that agent as their parent."""
        segment = self._segment(run)
        agents = called_agents.get()
        if segment is None:
            return
        self._let_run_last(run, segment)
        parent = called_agent() or ("action", action, segment.actions[action])
        execution = segment.actions[action]
        number = segment.agents[action, execution, agent]
        segment.agents[action, execution, agent] += 1
        previous_counts = segment.executed, segment.replayed
        path = "agent", action, execution, agent, number
        called_agents.set((*agents, CalledAgent(agent, path, parent, previous_counts)))

    def agent_answered(
        self, run: ObservedRun, action: str, agent: str, seconds: float, error: BaseException | None
    ) -> None:
        """Record that a called agent has answered, or failed with ``error``."""
        segment = self._segment(run)
        agents = called_agents.get()
        if agents and agents[-1].name == agent:
            called_agents.set(agents[:-1])
        # One that is cancelled, since its run is suspended or the task attempt ends, has not answered.
        if segment is None or not agents or not (error is None or isinstance(error, Exception)):
            return
        last_agent = agents[-1]
        if not self._records_rank(action, CALLS):
            return
        executed_calls = segment.executed - last_agent.before[0]
        replayed_calls = segment.replayed - last_agent.before[1]
        is_repeated = replayed_calls > 0 and not executed_calls
        attributes = {"action": action, "calls": executed_calls, "replayed": replayed_calls}
        outcome = "ok" if error is None else "failed"
        more = {} if error is None else call_facts(error)
        self._queue_record(
            run,
            "agent",
            agent,
            outcome,
            last_agent.path,
            last_agent.parent,
            attributes | more,
            seconds,
            replayed=is_repeated,
        )


class LeanRecorder(TraceRecorder):
    """Records runs alone. The methods that only matter for actions and calls are not even called."""

    memory_written = RunObserver.memory_written
    action_ended = RunObserver.action_ended
    events_sent = RunObserver.events_sent
    call_attempt_failed = RunObserver.call_attempt_failed
    call_content = RunObserver.call_content
    agent_called = RunObserver.agent_called
    agent_answered = RunObserver.agent_answered
