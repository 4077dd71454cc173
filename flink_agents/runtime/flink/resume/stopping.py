"""Ctrl-C and SIGTERM stop a local job with a savepoint."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from flink_agents.runtime.flink.following import console

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes of a script whose job was stopped: those of shells for the two signals."""

_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


class StopSignals:
    """Handles the two signals while a job runs, in the main thread only.

    Args:
        stop: Stops the job; called in a thread of its own, at the first signal.
        kill: Ends the job at once; called at the second one, before the process exits.
    """

    def __init__(self, stop: Callable[[], None], kill: Callable[[], None]) -> None:
        self._stop = stop
        self._kill = kill
        self._before: dict[signal.Signals, Any] = {}
        self.code: int | None = None

    def install(self) -> None:
        """Start to handle the signals, if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for one in _CODES:
                # A signal that the parent process ignores stays ignored.
                if signal.getsignal(one) is not signal.SIG_IGN:
                    self._before[one] = signal.signal(one, self._handle)

    def restore(self) -> None:
        """Restore the previous handlers."""
        before, self._before = self._before, {}
        for one, handler in before.items():
            signal.signal(one, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        one = signal.Signals(number)
        if self.code is not None:
            console.say("ended at once; the next start resumes from the last checkpoint")
            self._kill()
            os._exit(_CODES[one])
        self.code = _CODES[one]
        again = " (Ctrl-C again: end at once)" if one is signal.SIGINT else ""
        console.say(f"stopping with a savepoint{again} ...")
        threading.Thread(target=self._stop, name="local-job-stop", daemon=True).start()
