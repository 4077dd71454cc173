"""Makes an attempt the owner that may append to a store ``kafka``.

It waits for another job that may be alive, claims, waits out the leases of the owners that it outranks,
reads the end of each partition, and writes these ends as its fence. ``lease`` explains the wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from flink_agents.api.action_state import Owner, in_use_error, stale_error
from flink_agents.connectors.action_state.kafka.ownership.claims import Claim, Claims, ClaimsWriter
from flink_agents.connectors.action_state.kafka.ownership.lease import now

POLLS_PER_LEASE = 20
"""Number of checks per lease by a job that waits for another job's lease."""

DRIFT = 1.25
"""A lease is waited out for this multiple of its length: two clocks whose rates are wrong by up to a ninth,
one too slow and one too fast, differ by that."""

POLL_SECONDS = 0.05
"""Interval in which an owner that waits out a lease checks if it was released."""


class TakeOver:
    """Lets an owner take over a group: no owner that it outranks can append from then on.

    Args:
        claims: The claims; while a takeover runs, no other thread reads them.
        writer: Writes to the claims topic.
        log_ends: Returns the end offset of each partition of the journal topic.
        clock: Returns seconds since a fixed moment.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        claims: Claims,
        writer: ClaimsWriter,
        log_ends: Callable[[], dict[int, int]],
        clock: Callable[[], float] = now,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._claims = claims
        self._writer = writer
        self._log_ends = log_ends
        self._clock = clock
        self._sleep = sleep

    async def run(
        self, owner: Owner, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> dict[int, int]:
        """Become the owner that may append; wait for the lease of a job that crashed.

        Args:
            owner: The owner that takes over.
            in_thread: Runs a function on the reader thread.

        Returns:
            The end of each partition: records that others append after it do not count.

        Raises:
            JobIdentifierInUseError: Another job is alive, or took over first.
            FencedOwnerError: A later owner took over meanwhile.
            StoreUnavailableError: Kafka failed.
        """
        started = time.monotonic()
        beats: dict[str, int] = {}
        ended: set[str] = set()
        while True:
            other_claims = await in_thread(lambda: self._blocking_claims(owner))
            alive: dict[str, Claim] = {
                token: other_claim for token, other_claim in other_claims.items() if token not in ended
            }
            if not alive:
                return await in_thread(lambda: self.fence_earlier_owners(owner, ended))
            for token, claim in alive.items():
                if claim.beat > beats.setdefault(token, claim.beat):
                    raise in_use_error(owner, claim.owner.job_id)
            if not beats.keys() >= alive.keys():
                continue
            if time.monotonic() - started >= max(claim.lease_seconds for claim in alive.values()):
                ended.update(alive)
            await asyncio.sleep(min(claim.lease_seconds for claim in alive.values()) / POLLS_PER_LEASE)

    def _blocking_claims(self, owner: Owner) -> dict[str, Claim]:
        """Read the claims, and return those of other jobs that hold the group, by token."""
        self._claims.refresh()
        return self._claims.blocking_claims(owner)

    def fence_earlier_owners(self, owner: Owner, ended: Collection[str] = ()) -> dict[int, int]:
        """Claim the group, wait until the leases of earlier owners have ended, and write the fence.

        Blocks the calling thread for up to :data:`DRIFT` times the longest lease.

        Args:
            owner: The owner that takes over.
            ended: Tokens of owners of other jobs that are known to have ended.

        Returns:
            The end offset of each partition, which is the fence.

        Raises:
            JobIdentifierInUseError: Another job claimed first.
        """
        self._writer.write_claim(owner)
        # After the claim's acknowledgement: a lease may have been renewed up to then.
        since = self._clock()
        self._refresh_claims(owner)
        for claim in self._claims.earlier_claims(owner.token):
            if owner.yields_to(claim.owner) and claim.owner.token not in ended:
                # The other job was first.
                self._writer.withdraw_claim(owner)
                raise in_use_error(owner, claim.owner.job_id)
        while (remaining_seconds := self._longest_lease(owner) * DRIFT - (self._clock() - since)) > 0:
            self._sleep(min(remaining_seconds, POLL_SECONDS))
            self._refresh_claims(owner)
        ends = self._log_ends()
        self._writer.write_fence(owner, ends)
        return ends

    def _refresh_claims(self, owner: Owner) -> None:
        self._claims.refresh()
        if self._claims.is_lost(owner.token):
            raise stale_error(owner)  # Other owners took over and removed claims before this one saw its own.

    def _longest_lease(self, owner: Owner) -> float:
        """Return the longest lease, in seconds, of the owners whose records ``owner`` has to decide about.

        This includes owners that another one outranked without writing its fence: they may still append. An
        owner without a fence has no lease: it starts one only after its fence. A job that has ended has none.
        """
        longest = 0.0
        for claim in self._claims.of_group(owner.group):
            if claim.owner.token == owner.token:
                break  # Later owners see its claim before they append.
            has_ended = claim.ended or claim.owner.job_id in owner.ended_jobs
            if not has_ended and claim.void is None and owner.outranks(claim.owner):
                longest = max(longest, claim.append_lease)
        return longest
