"""The topic of claims of a store ``kafka``, which says who may append.

An owner takes over by a *claim*; the order of claims in the topic is the order of owners. Then it
looks where each partition of the journals ends, and writes that down as its *fence*: what an owner
that it outranks has appended before the fence counts, what lies behind it never does. Where several
outrank an owner, the first fence decides, and for ever: later ones say nothing about that owner. Who
appends reads the claims after an append, before it says that the append is done, or has a lease which
its fence names and which others outlast before they look for theirs (``lease``): so a stale owner knows
of its end before anybody relies on its records.

The lease of a job is another one: it only decides which job waits for which. Owners tell by *beats* that
they live; one that ends says so by a *release*. A claim that has to give way to a job that lives is
*withdrawn*.

Claims of which nothing is needed any more are removed (:meth:`Claims.done`), so that the topic follows
what is not settled and not how often a job was restarted. Before they go, a record says which of a group
are left: an owner that slept for so long that it sees neither its end nor who brought it about finds out
by that.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flink_agents.api.action_state import Owner
from flink_agents.api.errors import StoreMismatchError
from flink_agents.api.logs import bounded_logger
from flink_agents.connectors.action_state.kafka.layout import (
    pack_claim,
    pack_claim_key,
    unpack_claim,
    unpack_claim_key,
)
from flink_agents.connectors.action_state.kafka.settings import (
    KafkaSettings,
    request_ms,
    translated,
    unavailable,
)
from flink_agents.connectors.action_state.kafka.topics import Topic

if TYPE_CHECKING:
    from kafka import KafkaProducer

_log = bounded_logger("flink_agents.store")

POLL_MS = 200

OF_OWNERS = ("claim", "fence", "beat", "release", "withdrawn")
"""Kinds of records that an owner has, the claim first: without it, the others mean nothing."""

LEASE_PART = -1
"""In a fence, this is not a partition but the owner's lease in milliseconds: former versions, which have no
leases, pass it over."""


@dataclass
class Claim:
    """One claim.

    Attributes:
        offset: Its place among all claims.
        owner: Who claims.
        lease_seconds: Length of its job's lease.
        append_lease: How long appends of it may be done without a look, by the lease that its fence names;
            0: for no time.
        fence: Where each partition ended when it took over; None before it has looked.
        beat: Place of its last beat.
        ended: True if it was released or withdrawn.
        withdrawn: True if it was withdrawn.
        void: From which offset on its records do not count, by partition; None if nobody decided.
        decided_by: The token of the owner whose fence that is.
        removed: True if it was removed from the topic; only one's own is kept then.
        lost: True if what decided about it was removed as well, before it was read.
    """

    offset: int
    owner: Owner
    lease_seconds: float
    append_lease: float = 0.0
    fence: dict[int, int] | None = None
    beat: int = 0
    ended: bool = False
    withdrawn: bool = False
    void: dict[int, int] | None = None
    decided_by: str | None = None
    removed: bool = False
    lost: bool = False


class _Later:
    """The claims behind a place, as far as they decide whom they outrank.

    Asking each of them by ``Owner.outranks`` would make a look at n claims cost n * n comparisons.
    """

    def __init__(self) -> None:
        self._jobs: set[tuple[str, int]] = set()
        self._subtasks: set[tuple[str, int, int]] = set()

    def add(self, claim: Claim) -> None:
        """Take in one claim; one that was withdrawn outranks nobody."""
        owner = claim.owner
        if not claim.withdrawn:
            self._jobs.add((owner.job_id, owner.parallelism))
            self._subtasks.add((owner.job_id, owner.parallelism, owner.subtask))

    def outrank(self, owner: Owner) -> bool:
        """Return True if one of them outranks an owner of the same group."""
        others = len(self._jobs) - ((owner.job_id, owner.parallelism) in self._jobs)
        return others > 0 or (owner.job_id, owner.parallelism, owner.subtask) in self._subtasks


class Claims:
    """The claims as one thread has read them. Not for several threads at a time.

    Args:
        settings: How to reach the topic.
        topic: The topic of claims.
        own: The token of the owner who reads them, if there is one.

    Attributes:
        orphans: Kinds and tokens of records whose claim is gone: some owners do not know of their end.
        described: What the topic of journals is; None if nobody has said so.
        plans: What plans of agents cover, by fingerprint.
    """

    def __init__(self, settings: KafkaSettings, topic: Topic, own: str | None = None) -> None:
        from kafka.structs import TopicPartition

        self._settings = settings
        self._own = own
        self._partition = TopicPartition(topic.name, 0)
        # Its own types lack arguments that it has.
        self._consumer: Any = settings.consumer()
        self._consumer.assign([self._partition])
        self._consumer.seek_to_beginning(self._partition)
        self._by_token: dict[str, Claim] = {}
        # Of each group by token, in the order of the claims.
        self._by_group: dict[str, dict[str, Claim]] = {}
        # Those that no fence decided: of each group, by job and parallelism, and then by subtask.
        self._open: dict[str, dict[tuple[str, int], dict[int, list[Claim]]]] = {}
        self.orphans: set[tuple[str, str]] = set()
        self.described: dict[str, Any] | None = None
        self.plans: dict[str, bytes] = {}

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    # -- reading ----------------------------------------------------------------------

    def refresh(self, seconds: float | None = None) -> None:
        """Read all claims that were acknowledged before this was called.

        Args:
            seconds: How long that may take; as long as reading journals may stand still unless given.

        Raises:
            StoreUnavailableError: They cannot be read.
        """
        seconds = self._settings.rebuild_seconds if seconds is None else seconds
        deadline = time.monotonic() + seconds
        end: int | None = None
        while True:
            try:
                if end is None:
                    asked = [self._partition]
                    end = self._consumer.end_offsets(asked, timeout_ms=request_ms(seconds))[self._partition]
                at = self._consumer.position(self._partition, timeout_ms=POLL_MS)
                if at is not None and at >= end:
                    return
                records = self._consumer.poll(POLL_MS).get(self._partition, ())
            except Exception as error:
                if time.monotonic() > deadline:
                    raise unavailable("the claims cannot be read", error) from error
                time.sleep(0.05)
                continue
            for record in records:
                self._take(record)
            if time.monotonic() > deadline:
                raise unavailable("the claims cannot be read", TimeoutError("no answer"))

    def _take(self, record: Any) -> None:
        if record.value is None:
            if (key := unpack_claim_key(record.key)) is not None:
                self._removed(*key)
            return
        read = unpack_claim(record.key, record.value)
        try:
            if read is not None:
                self._apply(record.offset, *read)
        except (TypeError, ValueError) as error:
            _log.warning("offset %d of the claims is of no owner: %s", record.offset, error)

    def _apply(self, offset: int, kind: str, token: str, content: Any) -> None:
        if kind == "topic":
            self.described = self.described or content
        elif kind == "plan":
            self.plans[token] = bytes(content)
        elif kind == "left":
            self._keep(token, *content)
        elif kind == "claim":
            job_id, group, subtask, parallelism, lease = content
            owner = Owner(job_id, group, subtask, parallelism, token)
            claim = self._by_token[token] = Claim(offset, owner, lease, beat=offset)
            self._by_group.setdefault(group, {})[token] = claim
            same = self._open.setdefault(group, {}).setdefault((job_id, parallelism), {})
            same.setdefault(subtask, []).append(claim)
        elif (claim := self._by_token.get(token)) is not None:
            if kind == "fence":
                fence = dict(content)
                claim.append_lease = fence.pop(LEASE_PART, 0) / 1000
                claim.fence = fence
                self._decide(claim)
            elif kind == "beat":
                claim.beat = offset
            else:
                claim.ended = True
                claim.withdrawn = kind == "withdrawn"
        elif kind in OF_OWNERS:
            self.orphans.add((kind, token))

    def _keep(
        self, group: str, through: int, tokens: list[str], removed: list[tuple[str, str | None]]
    ) -> None:
        """Take in which claims of a group are left of those up to an offset.

        Args:
            group: Which group.
            through: Up to where.
            tokens: Those that are left.
            removed: Those that were removed then, and who decided about them.
        """
        left, deciders = set(tokens), dict(removed)
        for token, claim in list(self._by_group.get(group, {}).items()):
            if claim.offset <= through and token not in left:
                self._drop(token, token in deciders and deciders[token] == claim.decided_by)

    def _removed(self, kind: str, token: str) -> None:
        self.orphans.discard((kind, token))
        if kind == "claim":
            self._drop(token, False)

    def _drop(self, token: str, is_decided: bool) -> None:
        """Let go of a claim; of one's own, note whether it is known what decided about it."""
        claim = self._by_token.get(token)
        if claim is None:
            return
        if token == self._own:
            claim.lost = claim.lost if claim.removed else not is_decided
            claim.removed = True
            return
        del self._by_token[token]
        owner = claim.owner
        self._by_group[owner.group].pop(token, None)
        undecided = self._open.get(owner.group, {}).get((owner.job_id, owner.parallelism), {})
        if claim in undecided.get(owner.subtask, ()):
            undecided[owner.subtask].remove(claim)

    def _decide(self, fenced: Claim) -> None:
        """Let a fence decide what counts of those whom its owner outranks, if no earlier one did.

        Each claim is decided once, and of the others none is looked at that cannot be outranked.
        """
        if fenced.withdrawn:
            return
        owner = fenced.owner
        undecided = self._open[owner.group]
        for job, subtasks in list(undecided.items()):
            same = job == (owner.job_id, owner.parallelism)
            for subtask in [owner.subtask] if same else list(subtasks):
                left: list[Claim] = []
                for claim in subtasks.get(subtask, ()):
                    if claim.offset < fenced.offset:
                        claim.void, claim.decided_by = fenced.fence, owner.token
                    else:
                        left.append(claim)
                if left:
                    subtasks[subtask] = left
                else:
                    subtasks.pop(subtask, None)
            if not subtasks:
                del undecided[job]

    # -- what they say ----------------------------------------------------------------

    def knows(self, token: str) -> bool:
        """Return True if there is a claim of that owner."""
        return token in self._by_token

    def lost(self, token: str) -> bool:
        """Return True if it is unknown which records of an owner count, as its claim was removed long ago."""
        claim = self._by_token.get(token)
        return claim is None or claim.lost

    def of_group(self, group: str) -> list[Claim]:
        """Return the claims of a group, in their order."""
        return list(self._by_group.get(group, {}).values())

    def done(self, group: str, owns: Callable[[Claim], bool]) -> list[Claim]:
        """Return the claims of a group that can be removed, the first one first.

        Those that were withdrawn, and those of owners that cannot append any more and own nothing. One
        stays as long as what it decided about another one is needed.

        Args:
            group: Which group.
            owns: True if something may be needed that the owner of a claim wrote.
        """
        claims = self.of_group(group)
        later = _Later()
        for claim in reversed(claims):
            if claim.void is None and not claim.ended and later.outrank(claim.owner):
                return []  # without a claim that outranks it, it would seem to live
            later.add(claim)
        found: list[Claim] = []
        deciding: set[str | None] = set()
        for claim in claims:
            ended = claim.withdrawn or (claim.void is not None and not owns(claim))
            if ended and claim.owner.token not in deciding:
                found.append(claim)
            else:
                deciding.add(claim.decided_by)
        return found

    def before(self, token: str) -> list[Claim]:
        """Return those of owners that might append until the claim of ``token`` came."""
        own = self._by_token[token]
        later, found = _Later(), list[Claim]()
        for claim in reversed(self._by_group[own.owner.group].values()):
            if claim.offset < own.offset:
                # Of several that race, each looks only at those before it: so the first one wins.
                if not claim.ended and not later.outrank(claim.owner):
                    found.append(claim)
                later.add(claim)
        return found[::-1]

    def void_from(self, token: str) -> dict[int, int]:
        """Return the offset from which on records of that owner do not count, by partition.

        Empty if all of them count, or if it is not decided yet (:meth:`undecided`).
        """
        claim = self._by_token.get(token)
        return (claim.void or {}) if claim is not None else {}

    def undecided(self, token: str) -> bool:
        """Return True if that owner is outranked, and nobody has looked yet which of its records count."""
        own = self._by_token.get(token)
        if own is None or own.void is not None:
            return False
        for claim in reversed(self._by_group[own.owner.group].values()):
            if claim.offset <= own.offset:
                return False
            if not claim.withdrawn and claim.owner.outranks(own.owner):
                return True
        return False

    def live(self) -> list[Claim]:
        """Return those of owners that may append at present, as far as anybody knows."""
        return [claim for group in self._by_group for claim in self._live_of(group)]

    def in_the_way(self, owner: Owner) -> dict[str, Claim]:
        """Return those of other jobs that hold the group of ``owner``, by token."""
        live = self._live_of(owner.group)
        return {claim.owner.token: claim for claim in live if claim.owner.job_id != owner.job_id}

    def _live_of(self, group: str) -> list[Claim]:
        later, found = _Later(), list[Claim]()
        for claim in reversed(self._by_group.get(group, {}).values()):
            if not claim.ended and claim.void is None and not later.outrank(claim.owner):
                found.append(claim)
            later.add(claim)
        return found[::-1]


class ClaimsWriter:
    """Writes to the topic of claims.

    Args:
        producer: Appends.
        topic: The topic of claims.
        settings: How long to wait.
    """

    def __init__(self, producer: KafkaProducer, topic: Topic, settings: KafkaSettings) -> None:
        self._producer = producer
        self._topic = topic.name
        self._settings = settings

    def claim(self, owner: Owner) -> None:
        """Take over."""
        content = [owner.job_id, owner.group, owner.subtask, owner.parallelism, self._settings.lease_seconds]
        self._write("claim", owner.token, content)

    def fence(self, owner: Owner, ends: dict[int, int]) -> None:
        """Say where partitions ended behind the claim, and how long others have to wait for this owner."""
        lease = math.ceil(self._settings.append_lease_seconds * 1000)
        self._write("fence", owner.token, [*ends.items(), *([(LEASE_PART, lease)] if lease else ())])

    def withdraw(self, owner: Owner) -> None:
        """Take a claim back."""
        self._write("withdrawn", owner.token, True)

    def release(self, owner: Owner, seconds: float) -> None:
        """Say that an owner has ended; waits for so long at most."""
        self._write("release", owner.token, True, seconds)

    def beat(self, owner: Owner) -> None:
        """Say that an owner lives; does not wait."""
        key, value = pack_claim("beat", owner.token, time.time())
        self._producer.send(self._topic, key=key, value=value, partition=0)

    def plan(self, fingerprint: str, data: bytes) -> None:
        """Keep what a plan covers."""
        self._write("plan", fingerprint, data)

    def remove(self, owner: Owner, claims: Claims, done: Collection[Claim]) -> None:
        """Remove claims, and what is left of such that were removed before.

        Args:
            owner: Who does so, and must have seen after ``done`` was made that it still is an owner.
            claims: Out of which ``done`` was made.
            done: Which ones, the first one first.
        """
        gone = [(kind, claim.owner.token) for claim in done for kind in OF_OWNERS] + sorted(claims.orphans)
        if done:
            tokens = {claim.owner.token for claim in done}
            left = [claim for claim in claims.of_group(owner.group) if claim.owner.token not in tokens]
            through = max(claim.offset for claim in done)
            known = [claim.owner.token for claim in left if claim.offset <= through]
            removed = [(claim.owner.token, claim.decided_by) for claim in done]
            self._write("left", owner.group, [through, known, removed])
        with translated(f"claims cannot be removed from topic {self._topic!r}"):
            for each in gone:
                self._producer.send(self._topic, key=pack_claim_key(*each), value=None, partition=0)

    def describe(self, journals: Topic) -> None:
        """Keep what the topic of journals is."""
        self._write("topic", "", {"id": journals.id.bytes, "partitions": journals.partitions})

    def _write(self, kind: str, token: str, content: Any, seconds: float | None = None) -> None:
        key, value = pack_claim(kind, token, content)
        try:
            sent = self._producer.send(self._topic, key=key, value=value, partition=0)
            sent.get(self._settings.append_seconds if seconds is None else seconds)
        except Exception as error:
            raise unavailable(f"the topic {self._topic!r} cannot be written", error) from error


def check_topic(claims: Claims, journals: Topic, is_used: bool) -> None:
    """Check that the claims belong to this topic of journals.

    Args:
        claims: Read after ``is_used`` was asked.
        journals: The topic as it was found.
        is_used: True if something was ever written to it.

    Raises:
        StoreMismatchError: One of both was made again, or the topic has another number of partitions.
    """
    described = claims.described
    if described is None:
        if is_used:
            raise StoreMismatchError(
                f"the claims of topic {journals.name!r} are lost: nobody can tell which of its records count",
                expected="the topic of claims as it was when the records were written",
                found="records of journals, and a topic of claims without a word about them",
                fix="use another topic, or delete both and start without state",
            )
        return
    known = uuid.UUID(bytes=described["id"])
    if known != journals.id:
        raise StoreMismatchError(
            f"the topic {journals.name!r} was deleted and made anew: its journals are lost",
            expected=f"the topic with the id {known}",
            found=f"id {journals.id}",
            fix="use another topic, or delete the topic of claims as well and start without state",
        )
    if described["partitions"] != journals.partitions:
        raise StoreMismatchError(
            f"the number of partitions of topic {journals.name!r} was changed: journals are not found",
            expected=f"{described['partitions']} partitions",
            found=str(journals.partitions),
            fix="use another topic: partitions of this one cannot be changed while it holds journals",
        )
