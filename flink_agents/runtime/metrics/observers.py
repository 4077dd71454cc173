"""Hands on what runs do to all observers; to one that overrides a method alone, without a detour.

Dispatch is made once, when a subtask is assembled: what nobody listens to costs one look, or one call of a
function that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flink_agents.api.logs import bounded_logger
from flink_agents.api.observers import RunObserver

_log = bounded_logger("flink_agents.observers")


class Observers:
    """All observers of a subtask as one.

    Args:
        own: That of the runtime, which may raise.
        others: Those of third parties, whose errors are logged.

    Attributes:
        phase_changed: None where nobody listens, since phases change more often than all else.
    """

    def __init__(self, own: RunObserver, others: Sequence[RunObserver] = ()) -> None:
        def dispatch(name: str) -> Callable[..., None] | None:
            told = [getattr(own, name)] if _overrides(own, name) else []
            told += [_logged(getattr(one, name)) for one in others if _overrides(one, name)]
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
        self.call_replayed = dispatch("call_replayed") or _nobody
        self.recorded = dispatch("recorded") or _nobody
        self.committed = dispatch("committed") or _nobody


def _overrides(observer: RunObserver, name: str) -> bool:
    return getattr(type(observer), name) is not getattr(RunObserver, name)


def _nobody(*arguments: Any) -> None:
    """Tell nobody."""


def _all(told: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def tell(*arguments: Any) -> None:
        for one in told:
            one(*arguments)

    return tell


def _logged(method: Callable[..., None]) -> Callable[..., None]:
    def tell(*arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception:
            _log.exception("an observer of runs raised in %s", getattr(method, "__qualname__", method))

    return tell
