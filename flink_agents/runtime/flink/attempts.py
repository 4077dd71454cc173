"""Ends work that an attempt left running.

PyFlink calls ``close()`` at the regular end of a job only. After a failure, a cancel or a stop
with savepoint, the interpreter keeps running, and with it the loop of a dead operator. Two
things end the loop: a sentinel that is destroyed with the operator's thread, and the next
attempt of the same subtask, which first ends the previous one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable

from flink_agents.runtime.flink.shipping import module_uses

_local = threading.local()
_lock = threading.Lock()
_attempts: dict[Hashable, SubtaskAttempt] = {}


class SubtaskAttempt:
    """An attempt of one subtask of one operator.

    Args:
        identity: Equal for attempts of the same subtask; only the latest one may work.
        end: Ends everything that the attempt started; may be called again. Its argument is True to
            wait for that end, in bounded time.
    """

    def __init__(self, identity: Hashable, end: Callable[[bool], None]) -> None:
        self._identity = identity
        self._end = end
        # Work that outlives its thread still runs the code that it was loaded with.
        self._use = module_uses.hold(self)

    def begin(self) -> None:
        """Become the latest attempt; earlier ones have ended when this returns."""
        with _lock:
            previous = _attempts.get(self._identity)
            _attempts[self._identity] = self
        if previous is not None:
            previous.end(wait=True)
        _local.sentinels = [*getattr(_local, "sentinels", ()), _Sentinel(self)]

    def end(self, wait: bool) -> None:
        """End the attempt; the next one can still find and await it until a caller has waited for its end."""
        self._end(wait)
        if wait:
            module_uses.release(self._use, self)
            with _lock:
                if _attempts.get(self._identity) is self:
                    del _attempts[self._identity]


class _Sentinel:
    """Is destroyed with the thread that created it."""

    def __init__(self, attempt: SubtaskAttempt) -> None:
        self._attempt = attempt

    def __del__(self) -> None:
        self._attempt.end(wait=False)
        if not sys.is_finalizing():
            # There may be no next attempt: then only this removes it.
            threading.Thread(target=self._attempt.end, args=(True,), name="attempt-end", daemon=True).start()
