"""Makes an attempt the one who may append to a store ``kafka``.

It waits for another job that may live, then claims, then outlasts the leases of those whom it outranks,
then looks where each partition ends and writes that down as its fence. ``lease`` says what the wait is for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from flink_agents.api.action_state import Owner, in_use_error, stale_error
from flink_agents.connectors.action_state.kafka.claims import Claim, Claims, ClaimsWriter
from flink_agents.connectors.action_state.kafka.lease import now

POLLS_PER_LEASE = 20
"""How often a job looks at the lease of another one while it waits."""

DRIFT = 1.25
"""A lease is outlasted by so many times its length: clocks whose rates are wrong by up to a ninth each, one
too slow and the other one too fast, differ by that."""

POLL_SECONDS = 0.05
"""How often who outlasts a lease looks whether it was released."""


class TakeOver:
    """Makes one owner the one who may append.

    Args:
        claims: Read by nobody else meanwhile.
        writer: Writes to them.
        log_ends: Tells where all partitions end.
        clock: What time it is, in seconds from any moment.
        sleep: Lets time pass.
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
        """Become the one who may append; wait for the lease of a job that died.

        Args:
            owner: Who takes over.
            in_thread: Has the thread that reads do something.

        Returns:
            Where each partition ended then: what others append behind that does not count.

        Raises:
            JobIdentifierInUseError: Another job lives, or was faster.
            FencedOwnerError: Others took over meanwhile.
            StoreUnavailableError: Kafka failed.
        """
        begun = time.monotonic()
        beats: dict[str, int] = {}
        ended: set[str] = set()
        while True:
            others = await in_thread(lambda: self._look(owner))
            alive: dict[str, Claim] = {token: one for token, one in others.items() if token not in ended}
            if not alive:
                return await in_thread(lambda: self.take(owner, ended))
            for token, claim in alive.items():
                if claim.beat > beats.setdefault(token, claim.beat):
                    raise in_use_error(owner, claim.owner.job_id)
            if not beats.keys() >= alive.keys():
                continue
            if time.monotonic() - begun >= max(claim.lease_seconds for claim in alive.values()):
                ended.update(alive)
            await asyncio.sleep(min(claim.lease_seconds for claim in alive.values()) / POLLS_PER_LEASE)

    def _look(self, owner: Owner) -> dict[str, Claim]:
        self._claims.refresh()
        return self._claims.in_the_way(owner)

    def take(self, owner: Owner, ended: Collection[str] = ()) -> dict[int, int]:
        """Claim, outlast those before, and fence them.

        Args:
            owner: Who takes over.
            ended: Owners of other jobs that are known to be dead.
        """
        self._writer.claim(owner)
        # Behind its acknowledgement: a lease may have been renewed up to then.
        since = self._clock()
        self._refresh(owner)
        for claim in self._claims.before(owner.token):
            others = claim.owner.group == owner.group and claim.owner.job_id != owner.job_id
            if others and claim.owner.token not in ended:
                # It was faster.
                self._writer.withdraw(owner)
                raise in_use_error(owner, claim.owner.job_id)
        while (left := self._longest_lease(owner) * DRIFT - (self._clock() - since)) > 0:
            self._sleep(min(left, POLL_SECONDS))
            self._refresh(owner)
        ends = self._log_ends()
        self._writer.fence(owner, ends)
        return ends

    def _refresh(self, owner: Owner) -> None:
        self._claims.refresh()
        if self._claims.lost(owner.token):
            raise stale_error(owner)  # others took over, and tidied up, before it saw its own claim

    def _longest_lease(self, owner: Owner) -> float:
        """Return the longest lease of those whose records are still to be decided about by ``owner``.

        Also of such as somebody outranks who never came to its fence: they may have appended until now.
        Who has no fence has no lease either: it looks before it begins one, and that behind its fence.
        """
        longest = 0.0
        for claim in self._claims.of_group(owner.group):
            if claim.owner.token == owner.token:
                break  # those behind it see its claim before they append
            if not claim.ended and claim.void is None and owner.outranks(claim.owner):
                longest = max(longest, claim.append_lease)
        return longest
