"""Hands on what runs do to all observers; to one that overrides a method alone, without a detour.

Dispatch is made once, when a subtask is assembled: what nobody listens to costs one look, or one call of a
function that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flink_agents.api.logs import bounded_logger
from flink_agents.api.observers import ObserverSource, RunObserver
from flink_agents.runtime.metrics.run_metrics import RunMetrics

_log = bounded_logger("flink_agents.observers")

OBSERVER_ERRORS = "observer_errors"
"""The counter of what observers raised."""


class Observers:
    """All observers of a subtask as one.

    Args:
        own: That of the runtime, which may raise.
        others: Those of third parties, whose errors are logged and counted.
        failed: Counts an error of one of those. For any thread.

    Attributes:
        others: See above.
        phase_changed: None if nobody listens, since phases change more often than all else.
        call_content: None if nobody listens, so that no content is made for nobody.
        memory_written: None if nobody listens.
        recorded: None if nobody listens.
        agent_called: None if nobody listens.
        agent_answered: None if nobody listens.
        request_answered: None if nobody listens.
    """

    def __init__(
        self,
        own: RunObserver,
        others: Sequence[RunObserver] = (),
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.others = tuple(others)

        def dispatch(name: str) -> Callable[..., None] | None:
            told = [getattr(own, name)] if _overrides(own, name) else []
            told += [_harmless(getattr(one, name), failed) for one in others if _overrides(one, name)]
            return told[0] if len(told) == 1 else _all(told) if told else None

        self.phase_changed = dispatch("phase_changed")
        self.action_ended = dispatch("action_ended") or _nobody
        self.action_failed = dispatch("action_failed") or _nobody
        self.action_retried = dispatch("action_retried") or _nobody
        self.action_replayed = dispatch("action_replayed") or _nobody
        self.action_mismatched = dispatch("action_mismatched") or _nobody
        self.event_given_up = dispatch("event_given_up") or _nobody
        self.call_begun = dispatch("call_begun") or _nobody
        self.call_retried = dispatch("call_retried") or _nobody
        self.call_recorded = dispatch("call_recorded") or _nobody
        self.call_content = dispatch("call_content")
        self.call_failed = dispatch("call_failed") or _nobody
        self.call_replayed = dispatch("call_replayed") or _nobody
        self.agent_called = dispatch("agent_called")
        self.agent_answered = dispatch("agent_answered")
        self.request_answered = dispatch("request_answered")
        self.recorded = dispatch("recorded")
        self.memory_written = dispatch("memory_written")
        self.committed = dispatch("committed") or _nobody
        self.closed = dispatch("closed") or _nobody


def _overrides(observer: RunObserver, name: str) -> bool:
    return getattr(type(observer), name) is not getattr(RunObserver, name)


def _nobody(*arguments: Any) -> None:
    """Tell nobody."""


def _all(told: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def tell(*arguments: Any) -> None:
        for one in told:
            one(*arguments)

    return tell


def _harmless(method: Callable[..., None], failed: Callable[[], None]) -> Callable[..., None]:
    logged = False

    def tell(*arguments: Any) -> None:
        nonlocal logged
        try:
            method(*arguments)
        except KeyboardInterrupt:
            # The user's Ctrl-C, which met the observer by chance.
            raise
        except BaseException:
            failed()
            if not logged:
                # One that raises each time would fill the log.
                logged = True
                _log.exception(
                    "an observer of runs raised in %s; further errors of this method are only counted",
                    getattr(method, "__qualname__", method),
                )

    return tell


def made_observers(sources: Sequence[ObserverSource], metrics: RunMetrics) -> list[RunObserver]:
    """Make the observers of a subtask; one that cannot be made is logged, counted and left out.

    Args:
        sources: Instances, and classes or functions that make some.
        metrics: Where errors are counted.
    """
    if sources:
        metrics.group.get_counter(OBSERVER_ERRORS)
    found: list[RunObserver] = []
    for source in sources:
        try:
            made = source if isinstance(source, RunObserver) else source()
            if not isinstance(made, RunObserver):
                raise TypeError(f"{source!r} has made {made!r}, which is no RunObserver")
            found.append(made)
        except KeyboardInterrupt:
            raise
        except BaseException:
            metrics.count(OBSERVER_ERRORS)
            _log.exception("an observer of runs could not be made, and is left out")
    return found
