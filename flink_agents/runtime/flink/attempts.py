"""Ends what an attempt left running.

PyFlink calls ``close()`` at the regular end of a job only. After a failure, a cancel or a stop
with savepoint the interpreter lives on, and with it the loop of an operator that is dead. Two
things end it: the thread of the operator, whose end takes a sentinel with it, and the next
attempt of the same subtask, which first ends its predecessor.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable

from flink_agents.runtime.flink.shipping import module_uses

_local = threading.local()
_lock = threading.Lock()
_attempts: dict[Hashable, Attempt] = {}


class Attempt:
    """An attempt of one subtask of one operator.

    Args:
        identity: Equal for attempts of which only the latest may work.
        end: Ends what the attempt started; may be called again. Its argument says whether to
            wait for that end, in bounded time.
    """

    def __init__(self, identity: Hashable, end: Callable[[bool], None]) -> None:
        self._identity = identity
        self._end = end
        # What goes on behind a thread that has ended still runs the code that it was loaded with.
        self._use = module_uses.hold(self)

    def begin(self) -> None:
        """Become the latest attempt; an earlier one has ended when this returns."""
        with _lock:
            previous = _attempts.get(self._identity)
            _attempts[self._identity] = self
        if previous is not None:
            previous.end(wait=True)
        _local.sentinels = [*getattr(_local, "sentinels", ()), _Sentinel(self)]

    def end(self, wait: bool) -> None:
        """End the attempt; a successor finds it until somebody has waited for that."""
        self._end(wait)
        if wait:
            module_uses.release(self._use, self)
            with _lock:
                if _attempts.get(self._identity) is self:
                    del _attempts[self._identity]


class _Sentinel:
    """Goes with the thread that it was made in."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def __del__(self) -> None:
        self._attempt.end(wait=False)
        if not sys.is_finalizing():
            # There may be no successor: then nobody else lets go of the attempt.
            threading.Thread(target=self._attempt.end, args=(True,), name="attempt-end", daemon=True).start()
