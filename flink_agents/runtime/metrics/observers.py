"""Passes the events of runs to all observers; calls a method directly if only one observer overrides it.

Dispatch is decided once, when a subtask is assembled: an event without observers costs one check, or one call
of a function that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flink_agents.api.agents.observers import ObserverSource, RunObserver
from flink_agents.api.common.current import contained, isolated
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.events.approvals import ApprovalOutcome
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.trace.recording.segments import Segment

_log = bounded_logger("flink_agents.observers")

OBSERVER_ERRORS = "observer_errors"
"""The counter of errors that observers raised."""


class Observers:
    """All observers of a subtask as one: each method of ``RunObserver`` is a function here that calls all.

    Args:
        own_observer: The runtime's observer, which may raise.
        other_observers: Third-party observers, whose errors are logged and counted.
        failed: Called for each error of a third-party observer, to count it. Thread-safe.
        agent: Name of the agent whose runs are observed.

    Attributes:
        agent: Name of the agent whose runs are observed.
        others: Third-party observers, whose errors are logged and counted.
        phase_changed: None if it has no observer, since phases change more often than anything else.
        phase_changed_unnoted: Like ``phase_changed``, for a run with notes that has not ended. Omits those
            that read the times of waits from them.
        begin_notes: Returns the notes of a run that begins, or None; None if no observer reads notes.
        approval_ended: Called with run, action, wait and outcome of an approval; None if no observer reads
            notes.
        input_blocked: Called with identity, key and number of a run whose input waits for a suspended run;
            None if no observer reads notes.
        end_notes: Called at the end of a run with notes, in place of ``phase_changed`` of their reader.
        call_begun_anew: Like ``call_begun``, for calls that no earlier attempt made. None without observers.
        call_content: None if it has no observer, so that the content is not built.
        call_request: Like ``call_content``, for requests. Omits observers that need no requests.
        events_sent: None if it has no observer, so that the types are not computed.
        action_ended_unnoted: Like ``action_ended``, if the step is noted. Omits observers that read it there.
        events_sent_unnoted: Like ``events_sent``, in the same way.
        memory_written: None if it has no observer.
        memory_written_unnoted: Like ``memory_written``, if it is noted.
        recorded: None if it has no observer.
        agent_called: None if it has no observer.
        agent_answered: None if it has no observer.
        request_answered: None if it has no observer.
    """

    def __init__(
        self,
        own_observer: RunObserver,
        other_observers: Sequence[RunObserver] = (),
        failed: Callable[[], None] = lambda: None,
        agent: str = "",
    ) -> None:
        self.agent = agent
        self.others = tuple(other_observers)
        self._own_observer = own_observer
        self._failed = failed
        self._dispatch_actions()
        self._dispatch_calls()
        self._dispatch_notes()

    def _dispatch(
        self, name: str, third_party: Sequence[RunObserver] | None = None
    ) -> Callable[..., None] | None:
        """Return a function that calls a method of all observers; None if no observer overrides it.

        Args:
            name: The method.
            third_party: The third-party observers that count; None for all.
        """
        own_observer = self._own_observer
        methods = [getattr(own_observer, name)] if _overrides(own_observer, name) else []
        methods += [
            _harmless(observer, name, self._failed)
            for observer in (self.others if third_party is None else third_party)
            if _overrides(observer, name)
        ]
        return _notify_all_or_none(methods)

    def _dispatch_actions(self) -> None:
        """Set the functions for runs, actions, events and memory."""
        self.phase_changed = self._dispatch("phase_changed")
        self.action_ended = self._dispatch("action_ended") or _ignore
        self.action_failed = self._dispatch("action_failed") or _ignore
        self.action_retried = self._dispatch("action_retried") or _ignore
        self.action_replayed = self._dispatch("action_replayed") or _ignore
        self.action_mismatched = self._dispatch("action_mismatched") or _ignore
        self.events_sent = self._dispatch("events_sent")
        self.event_given_up = self._dispatch("event_given_up") or _ignore
        self.request_answered = self._dispatch("request_answered")
        self.memory_written = self._dispatch("memory_written")
        self.committed = self._dispatch("committed") or _ignore
        self.closed = self._dispatch("closed") or _ignore

    def _dispatch_calls(self) -> None:
        """Set the functions for durable calls, and for calls of agents."""
        self.call_begun = self._dispatch("call_begun") or _ignore
        # The metrics only count calls that are made again.
        self.call_begun_anew = _notify_all_or_none(
            [
                _harmless(observer, "call_begun", self._failed)
                for observer in self.others
                if _overrides(observer, "call_begun")
            ]
        )
        self.call_attempt_failed = self._dispatch("call_attempt_failed") or _ignore
        self.call_retried = self._dispatch("call_retried") or _ignore
        self.call_recorded = self._dispatch("call_recorded") or _ignore
        self.call_content = self._dispatch("call_content")
        with_requests = [observer for observer in self.others if getattr(observer, "reads_requests", True)]
        self.call_request = self._dispatch("call_content", with_requests)
        self.call_failed = self._dispatch("call_failed") or _ignore
        self.call_replayed = self._dispatch("call_replayed") or _ignore
        self.agent_called = self._dispatch("agent_called")
        self.agent_answered = self._dispatch("agent_answered")
        self.recorded = self._dispatch("recorded")

    def _dispatch_notes(self) -> None:
        """Set the functions of the observer that reads notes, and those for runs with notes."""
        without_waits = [observer for observer in self.others if not getattr(observer, "reads_waits", False)]
        self.phase_changed_unnoted = self._dispatch("phase_changed", without_waits)
        reader: Any = next((observer for observer in self.others if observer not in without_waits), None)
        self.begin_notes: Callable[[Any], Segment | None] | None = None if reader is None else reader.begin
        self.end_notes: Callable[[Any], None] = _ignore if reader is None else reader.end
        self.approval_ended: Callable[[Any, str, str, ApprovalOutcome], None] | None = (
            None if reader is None else reader.approval_ended
        )
        self.input_blocked: Callable[[str, str, int], None] | None = (
            None if reader is None else reader.blocked
        )
        without_notes = [observer for observer in self.others if not getattr(observer, "reads_notes", False)]
        self.action_ended_unnoted = self._dispatch("action_ended", without_notes) or _ignore
        self.events_sent_unnoted = self._dispatch("events_sent", without_notes)
        self.memory_written_unnoted = self._dispatch("memory_written", without_notes)


def _overrides(observer: RunObserver, name: str) -> bool:
    """Return True if an observer's class does something in the method ``name``."""
    return getattr(type(observer), name) is not getattr(RunObserver, name)


def _ignore(*arguments: Any) -> None:
    """Do nothing, in place of a method that no observer overrides."""


def _notify_all_or_none(methods: Sequence[Callable[..., None]]) -> Callable[..., None] | None:
    """Return a function that calls all methods; the method itself if there is one, None if there is none."""
    return methods[0] if len(methods) == 1 else _notify_all(methods) if methods else None


def _notify_all(methods: Sequence[Callable[..., None]]) -> Callable[..., None]:
    """Return a function that calls all methods, in order."""

    def notify(*arguments: Any) -> None:
        for method in methods:
            method(*arguments)

    return notify


def _harmless(observer: RunObserver, name: str, failed: Callable[[], None]) -> Callable[..., None]:
    """Return a function that calls a method of an observer, and logs and counts what it raises."""
    method = getattr(observer, name)
    # The trace binds the sub-agent that an action calls.
    contained_method = method if getattr(observer, "binds_context", False) else contained(method)
    logged = False

    def notify(*arguments: Any) -> None:
        nonlocal logged
        try:
            contained_method(*arguments)
        except KeyboardInterrupt:
            # The user's Ctrl-C, which met the observer by chance.
            raise
        except BaseException:
            failed()
            if not logged:
                # An observer that raises each time would fill the log.
                logged = True
                _log.exception(
                    "an observer of runs raised in %s; further errors of this method are only counted",
                    getattr(method, "__qualname__", method),
                )

    return notify


def made_observers(sources: Sequence[ObserverSource], metrics: RunMetrics) -> list[RunObserver]:
    """Create the observers of a subtask; one that cannot be created is logged, counted and left out.

    Args:
        sources: Observers, and classes or functions that create one.
        metrics: Counts the observers that cannot be created.
    """
    if sources:
        metrics.group.get_counter(OBSERVER_ERRORS)
    observers: list[RunObserver] = []
    for source in sources:
        try:
            observer = source if isinstance(source, RunObserver) else isolated().run(source)
            if not isinstance(observer, RunObserver):
                raise TypeError(f"{source!r} has returned {observer!r}, which is not a RunObserver")
            observers.append(observer)
        except KeyboardInterrupt:
            raise
        except BaseException:
            metrics.count(OBSERVER_ERRORS)
            _log.exception("an observer of runs could not be created, and is omitted")
    return observers
