"""Passes the events of runs to all observers; calls a method directly if only one observer overrides it.

Dispatch is decided once, when a subtask is assembled: an event without observers costs one check, or one call
of a function that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flink_agents.api.agents.observers import ObserverSource, RunObserver
from flink_agents.api.common.logs import bounded_logger
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.trace.recording.segments import Segment

_log = bounded_logger("flink_agents.observers")

OBSERVER_ERRORS = "observer_errors"
"""The counter of errors that observers raised."""


class Observers:
    """All observers of a subtask as one.

    Args:
        own: The runtime's observer, which may raise.
        others: Third-party observers, whose errors are logged and counted.
        failed: Counts an error of a third-party observer. Thread-safe.
        agent: Name of the agent whose runs are observed.

    Attributes:
        agent: Name of the agent whose runs are observed.
        others: Third-party observers, whose errors are logged and counted.
        phase_changed: None if it has no observer, since phases change more often than anything else.
        phase_changed_unnoted: Like ``phase_changed``, for a run with notes that has not ended. Omits those
            that read the times of waits from them.
        begin_notes: Returns the notes of a run that begins, or None; None if no observer reads notes.
        end_notes: Called at the end of a run with notes, in place of ``phase_changed`` of their reader.
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
        own: RunObserver,
        others: Sequence[RunObserver] = (),
        failed: Callable[[], None] = lambda: None,
        agent: str = "",
    ) -> None:
        self.agent = agent
        self.others = tuple(others)

        def dispatch(name: str, among: Sequence[RunObserver] = others) -> Callable[..., None] | None:
            methods = [getattr(own, name)] if _overrides(own, name) else []
            methods += [_harmless(getattr(one, name), failed) for one in among if _overrides(one, name)]
            return methods[0] if len(methods) == 1 else _all(methods) if methods else None

        self.phase_changed = dispatch("phase_changed")
        self.action_ended = dispatch("action_ended") or _ignore
        self.action_failed = dispatch("action_failed") or _ignore
        self.action_retried = dispatch("action_retried") or _ignore
        self.action_replayed = dispatch("action_replayed") or _ignore
        self.action_mismatched = dispatch("action_mismatched") or _ignore
        self.events_sent = dispatch("events_sent")
        self.event_given_up = dispatch("event_given_up") or _ignore
        without_waits = [one for one in others if not getattr(one, "reads_waits", False)]
        self.phase_changed_unnoted = dispatch("phase_changed", without_waits)
        reader: Any = next((one for one in others if one not in without_waits), None)
        self.begin_notes: Callable[[Any], Segment | None] | None = None if reader is None else reader.begin
        self.end_notes: Callable[[Any], None] = _ignore if reader is None else reader.end
        without_notes = [one for one in others if not getattr(one, "reads_notes", False)]
        self.action_ended_unnoted = dispatch("action_ended", without_notes) or _ignore
        self.events_sent_unnoted = dispatch("events_sent", without_notes)
        self.memory_written_unnoted = dispatch("memory_written", without_notes)
        self.call_begun = dispatch("call_begun") or _ignore
        self.call_attempt_failed = dispatch("call_attempt_failed") or _ignore
        self.call_retried = dispatch("call_retried") or _ignore
        self.call_recorded = dispatch("call_recorded") or _ignore
        self.call_content = dispatch("call_content")
        wanting = [one for one in others if getattr(one, "reads_requests", True)]
        self.call_request = dispatch("call_content", wanting)
        self.call_failed = dispatch("call_failed") or _ignore
        self.call_replayed = dispatch("call_replayed") or _ignore
        self.agent_called = dispatch("agent_called")
        self.agent_answered = dispatch("agent_answered")
        self.request_answered = dispatch("request_answered")
        self.recorded = dispatch("recorded")
        self.memory_written = dispatch("memory_written")
        self.committed = dispatch("committed") or _ignore
        self.closed = dispatch("closed") or _ignore


def _overrides(observer: RunObserver, name: str) -> bool:
    return getattr(type(observer), name) is not getattr(RunObserver, name)


def _ignore(*arguments: Any) -> None:
    """Do nothing."""


def _all(methods: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def notify(*arguments: Any) -> None:
        for one in methods:
            one(*arguments)

    return notify


def _harmless(method: Callable[..., None], failed: Callable[[], None]) -> Callable[..., None]:
    logged = False

    def notify(*arguments: Any) -> None:
        nonlocal logged
        try:
            method(*arguments)
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
        sources: Instances, and classes or functions that create one.
        metrics: Counts errors.
    """
    if sources:
        metrics.group.get_counter(OBSERVER_ERRORS)
    found: list[RunObserver] = []
    for source in sources:
        try:
            observer = source if isinstance(source, RunObserver) else source()
            if not isinstance(observer, RunObserver):
                raise TypeError(f"{source!r} has returned {observer!r}, which is not a RunObserver")
            found.append(observer)
        except KeyboardInterrupt:
            raise
        except BaseException:
            metrics.count(OBSERVER_ERRORS)
            _log.exception("an observer of runs could not be created, and is omitted")
    return found
