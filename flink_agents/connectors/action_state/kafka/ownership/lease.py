"""The lease of an owner: the time for which its appends count as done without reading the claims after each.

A look at the claims reads the clock, *then* the claims; if the owner is not outranked, the lease runs for a
fixed time from that reading. An append is done if the clock, read *after* its acknowledgement, is before
the end of the lease. A new owner claims first, and waits for longer than the lease before it reads the ends
of the partitions (``takeover``), so that such an append is before its fence. If the lease has
expired, a look after the acknowledgement decides, as it does without a lease.

A separate thread looks while appends come: no append waits for a look.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from flink_agents.api.common.logs import bounded_logger

if TYPE_CHECKING:
    from flink_agents.connectors.action_state.kafka.ownership.claims import Claims

_log = bounded_logger("flink_agents.store")

LOOKS_PER_LEASE = 3
"""Looks per lease while an owner appends: one look may fail or be slow."""

LOOK_SECONDS = 5.0
"""Timeout of a look in the background; an append that needs a look waits longer."""


class OwnerStatus(NamedTuple):
    """The state of an owner, by the claims.

    Attributes:
        void: Offsets, by partition, from which its records do not count; empty if all count or that is
            undecided.
        undecided: True if a later owner outranks it, and has not written its fence.
        lost: True if the fence that decides about its records was removed before it was read.
    """

    void: Mapping[int, int]
    undecided: bool
    lost: bool

    @property
    def is_free(self) -> bool:
        """True if no other owner outranks it."""
        return not (self.void or self.undecided or self.lost)


def clock_during_suspend() -> Callable[[], float]:
    """Return a clock in seconds that continues while the machine is suspended, and is never set back."""
    names = ["CLOCK_BOOTTIME"]
    if sys.platform == "darwin":
        names.append("CLOCK_MONOTONIC")  # This clock counts sleep on macOS, as time.monotonic() does not.
    for name in names:
        if (number := getattr(time, name, None)) is not None:
            clock = functools.partial(time.clock_gettime, number)
            try:
                clock()
            except OSError:  # The kernel is older than its headers, or emulated.
                continue
            return clock
    return time.monotonic


now = clock_during_suspend()


class Lease:
    """The lease of one owner. :meth:`covers` and :meth:`check_owner` are thread-safe.

    Args:
        claims: The claims; from now on, only this object reads them.
        token: Token of the owner.
        seconds: Length of the lease; 0: each append has to read the claims.
        clock: Returns seconds since a fixed moment.
    """

    def __init__(self, claims: Claims, token: str, seconds: float, clock: Callable[[], float] = now) -> None:
        self._claims = claims
        self._token = token
        self._seconds = seconds
        self._clock = clock
        self._last_status: OwnerStatus | None = None
        self._valid_until = -math.inf
        self._next_check_at = -math.inf
        # Claims are not thread-safe.
        self._looking = threading.Lock()
        self._check_requested = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that renews the lease, unless its length is 0."""
        if self._seconds > 0:
            self._check_requested.set()
            self._thread = threading.Thread(target=self._renew_periodically, name="store-lease", daemon=True)
            self._thread.start()

    def note_append(self) -> None:
        """Wake the thread that renews the lease, if a renewal is due. Called before an append is sent."""
        if self._thread is not None and self._clock() >= self._next_check_at:
            self._check_requested.set()

    def covers(self) -> bool:
        """Return True if the lease is valid, so that all appends acknowledged before this call are done."""
        return self._clock() < self._valid_until

    def check_owner(self, seconds: float) -> OwnerStatus:
        """Read all claims acknowledged before this call; renew the lease if no owner outranks this one.

        Blocks until they are read, and while another thread does the same.

        Args:
            seconds: Timeout in seconds.

        Raises:
            StoreUnavailableError: They cannot be read in time.
        """
        with self._looking:
            # Before the read: a claim that arrives after the answer waits from then on, not from now.
            began = self._clock()
            self._next_check_at = began + self._seconds / LOOKS_PER_LEASE
            self._claims.refresh(seconds)
            void = dict(self._claims.void_from(self._token))
            status = OwnerStatus(
                void, self._claims.is_undecided(self._token), self._claims.is_lost(self._token)
            )
            if status.is_free:
                self._valid_until = began + self._seconds
            elif not status.undecided:
                # A version without leases decided, and did not wait for this one.
                self._valid_until = -math.inf
            self._last_status = status
            return status

    def last_look(self, seconds: float) -> OwnerStatus:
        """Return the last status if the lease is still valid; otherwise read the claims.

        Args:
            seconds: Timeout of that read.

        Raises:
            StoreUnavailableError: The claims cannot be read in time.
        """
        status = self._last_status
        return status if status is not None and self.covers() else self.check_owner(seconds)

    def close(self, seconds: float) -> None:
        """End the thread, and close the connection. Waits at most ``seconds`` for a read in progress."""
        self._stopping = True
        if self._thread is None:
            self._claims.close()
            return
        self._check_requested.set()
        self._thread.join(seconds)

    def _renew_periodically(self) -> None:
        """Read the claims each time that an append asks for it, until the lease is closed."""
        try:
            while True:
                self._check_requested.wait()
                self._check_requested.clear()
                if self._stopping:
                    return
                try:
                    self.check_owner(LOOK_SECONDS)
                except Exception as error:
                    # The next append looks itself, and has a caller that gets the error.
                    _log.warning("the lease of an owner was not renewed: %s", error)
        finally:
            try:
                with self._looking:
                    self._claims.close()
            except Exception as error:  # The brokers are away.
                _log.warning("the claims were not closed in order: %s", error)
