"""The claims topic of a store ``kafka``, which decides who may append.

An owner takes over with a *claim*; the order of claims in the topic is the order of owners. Then it
reads the end offset of each journal partition, and writes these offsets as its *fence*: records that an
outranked owner appended before the fence count, records after it never do. If several owners
outrank another one, the first fence decides for good: later ones change nothing for that owner. After an
append, an owner reads the claims before it reports the append as done, or it holds a lease that
its fence names and that later owners wait out before they read theirs (``lease``): so a stale owner learns
of its end before anything relies on its records.

The lease of a job is a different one: it only decides which job waits for which. Owners send *beats* to show
that they are alive; an owner that ends writes a *release*. A claim that gives way to a live job is
*withdrawn*.

Claims that are no longer needed are removed (:meth:`Claims.removable_claims`), so that the size of the topic
depends on the open claims and not on the number of restarts. Before they are removed, a record lists the
claims of the
group that are left: an owner that was paused for so long that it sees neither its end nor the claim that
caused it learns of it by that list.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flink_agents.api.action_state import Owner
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import StoreMismatchError
from flink_agents.connectors.action_state.kafka.layout import (
    pack_claim,
    pack_claim_key,
    unpack_claim,
    unpack_claim_key,
)
from flink_agents.connectors.action_state.kafka.settings import (
    KafkaSettings,
    request_ms,
    translate_errors,
    unavailable_error,
    unreadable_error,
)
from flink_agents.connectors.action_state.kafka.topics import Topic
from flink_agents.kafka_clients import UnreadableCodecError

if TYPE_CHECKING:
    from kafka import KafkaProducer

_log = bounded_logger("flink_agents.store")

POLL_MS = 200

OF_OWNERS = ("claim", "fence", "beat", "release", "withdrawn")
"""Kinds of records that an owner has, the claim first: without the claim, the others mean nothing."""

LEASE_PART = -1
"""In a fence, this is not a partition but the owner's lease in milliseconds."""


@dataclass
class Claim:
    """A claim to append for a subtask of a group.

    Attributes:
        offset: Its offset in the claims topic, which is its rank.
        owner: The owner that claims.
        lease_seconds: Length of the lease of its job, in seconds.
        append_lease: Seconds for which its appends count as done without a read of the claims; 0 for none.
        fence: End offset of each partition when it took over; None until it has written them.
        beat: Offset of its last heartbeat.
        ended: True if it was released or withdrawn.
        withdrawn: True if it was withdrawn.
        void: Offsets, by partition, from which its records do not count; None if no fence has decided that.
        decided_by: Token of the owner whose fence decided that.
        removed: True if it was removed from the topic. Only the reader's own claim stays in memory then.
        lost: True if the fence that decided about it was removed before it was read.
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
    """The claims after a certain one, indexed by what decides whom they outrank.

    Comparing each pair with ``Owner.outranks`` would cost n * n comparisons for n claims.
    """

    def __init__(self) -> None:
        self._jobs: set[tuple[str, int]] = set()
        self._subtasks: set[tuple[str, int, int]] = set()

    def add_claim(self, claim: Claim) -> None:
        """Add a claim, unless it is withdrawn: then it outranks no owner."""
        owner = claim.owner
        if not claim.withdrawn:
            self._jobs.add((owner.job_id, owner.parallelism))
            self._subtasks.add((owner.job_id, owner.parallelism, owner.subtask))

    def outranks_owner(self, owner: Owner) -> bool:
        """Return True if one of the added claims outranks an owner of the same group."""
        other_job_count = len(self._jobs) - ((owner.job_id, owner.parallelism) in self._jobs)
        return other_job_count > 0 or (owner.job_id, owner.parallelism, owner.subtask) in self._subtasks


class Claims:
    """The content of the claims topic, as one thread has read it. Not thread-safe.

    Args:
        settings: Settings of the store.
        topic: The claims topic.
        own_token: Token of the owner that reads; None for a reader without a claim.

    Attributes:
        orphans: Kind and token of each record whose claim is gone: its owner may not know that it has ended.
        described: The stored id and partition count of the journal topic; None if they are not stored yet.
        plans: The stored plans of agents, as bytes by fingerprint.
    """

    def __init__(self, settings: KafkaSettings, topic: Topic, own_token: str | None = None) -> None:
        from kafka.structs import TopicPartition

        self._settings = settings
        self._own_token = own_token
        self._partition = TopicPartition(topic.name, 0)
        # The package's own types lack arguments that it accepts.
        self._consumer: Any = settings.create_consumer()
        self._consumer.assign([self._partition])
        self._consumer.seek_to_beginning(self._partition)
        self._by_token: dict[str, Claim] = {}
        # By group and token, in the order of the claims.
        self._by_group: dict[str, dict[str, Claim]] = {}
        # Claims that no fence has decided, by group, by job and parallelism, and by subtask.
        self._open: dict[str, dict[tuple[str, int], dict[int, list[Claim]]]] = {}
        self.orphans: set[tuple[str, str]] = set()
        self.described: dict[str, Any] | None = None
        self.plans: dict[str, bytes] = {}

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    # -- reading ----------------------------------------------------------------------

    def refresh(self, seconds: float | None = None) -> None:
        """Read all records that were acknowledged before this call; blocks until then.

        Args:
            seconds: Timeout. Default: ``settings.rebuild_seconds``.

        Raises:
            StoreUnavailableError: They cannot be read in time.
        """
        seconds = self._settings.rebuild_seconds if seconds is None else seconds
        deadline = time.monotonic() + seconds
        end: int | None = None
        while True:
            try:
                if end is None:
                    ends = self._consumer.end_offsets([self._partition], timeout_ms=request_ms(seconds))
                    end = ends[self._partition]
                at = self._consumer.position(self._partition, timeout_ms=POLL_MS)
                if at is not None and at >= end:
                    return
                records = self._consumer.poll(POLL_MS).get(self._partition, ())
            except UnreadableCodecError as error:
                raise unreadable_error(error) from error
            except Exception as error:
                if time.monotonic() > deadline:
                    raise unavailable_error("the claims cannot be read", error) from error
                time.sleep(0.05)
                continue
            for record in records:
                self._read_record(record)
            if time.monotonic() > deadline:
                raise unavailable_error("the claims cannot be read", TimeoutError("no answer"))

    def _read_record(self, record: Any) -> None:
        if record.value is None:
            if (key := unpack_claim_key(record.key)) is not None:
                self._apply_tombstone(*key)
            return
        read = unpack_claim(record.key, record.value)
        try:
            if read is not None:
                self._apply_claim(record.offset, *read)
        except (TypeError, ValueError) as error:
            _log.warning("offset %d of the claims is of no owner: %s", record.offset, error)

    def _apply_claim(self, offset: int, kind: str, token: str, content: Any) -> None:
        """Apply a record of the claims topic, by its kind."""
        if kind == "topic":
            self.described = self.described or content
        elif kind == "plan":
            self.plans[token] = bytes(content)
        elif kind == "left":
            self._apply_remaining_claims(token, *content)
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
                self._decide_records(claim)
            elif kind == "beat":
                claim.beat = offset
            else:
                claim.ended = True
                claim.withdrawn = kind == "withdrawn"
        elif kind in OF_OWNERS:
            self.orphans.add((kind, token))

    def _apply_remaining_claims(
        self, group: str, through: int, tokens: list[str], removed: list[tuple[str, str | None]]
    ) -> None:
        """Apply the record of which claims of a group are left, up to an offset.

        Args:
            group: The group.
            through: Claims up to this offset are removed, unless they are listed.
            tokens: Tokens of the remaining claims.
            removed: Token of each removed claim, and of the owner whose fence decided about it, or None.
        """
        remaining_tokens = set(tokens)
        deciders = dict(removed)
        for token, claim in list(self._by_group.get(group, {}).items()):
            if claim.offset <= through and token not in remaining_tokens:
                self._remove_claim(token, token in deciders and deciders[token] == claim.decided_by)

    def _apply_tombstone(self, kind: str, token: str) -> None:
        self.orphans.discard((kind, token))
        if kind == "claim":
            self._remove_claim(token, False)

    def _remove_claim(self, token: str, is_decided: bool) -> None:
        """Forget a claim; mark the reader's own one as removed, and as ``lost`` unless its fence was read."""
        claim = self._by_token.get(token)
        if claim is None:
            return
        if token == self._own_token:
            claim.lost = claim.lost if claim.removed else not is_decided
            claim.removed = True
            return
        del self._by_token[token]
        owner = claim.owner
        self._by_group[owner.group].pop(token, None)
        undecided = self._open.get(owner.group, {}).get((owner.job_id, owner.parallelism), {})
        if claim in undecided.get(owner.subtask, ()):
            undecided[owner.subtask].remove(claim)

    def _decide_records(self, fenced: Claim) -> None:
        """Let a fence decide which records of outranked owners count, unless an earlier fence did.

        Each claim is decided once. Decided claims leave the index ``_open``, so that they are not visited
        again.
        """
        if fenced.withdrawn:
            return
        owner = fenced.owner
        undecided = self._open[owner.group]
        for job, subtasks in list(undecided.items()):
            is_same_job = job == (owner.job_id, owner.parallelism)
            for subtask in [owner.subtask] if is_same_job else list(subtasks):
                claims = subtasks.pop(subtask, [])
                for claim in claims:
                    if claim.offset < fenced.offset:
                        claim.void = fenced.fence
                        claim.decided_by = owner.token
                if later_claims := [claim for claim in claims if claim.offset >= fenced.offset]:
                    subtasks[subtask] = later_claims
            if not subtasks:
                del undecided[job]

    # -- questions --------------------------------------------------------------------

    def knows(self, token: str) -> bool:
        """Return True if the owner with this token has a claim that was not removed."""
        return token in self._by_token

    def is_lost(self, token: str) -> bool:
        """Return True if the owner's claim and the fence that decided about it were removed unread."""
        claim = self._by_token.get(token)
        return claim is None or claim.lost

    def of_group(self, group: str) -> list[Claim]:
        """Return the claims of the group with an id, in the order of the topic."""
        return list(self._by_group.get(group, {}).values())

    def removable_claims(self, group: str, owns: Callable[[Claim], bool]) -> list[Claim]:
        """Return the claims of a group that can be removed, in the order of the topic.

        These are withdrawn claims, and claims of owners that can no longer append and own no records. A claim
        stays as long as another one whose records its fence has decided about.

        Args:
            group: Id of the group.
            owns: Returns True if records of the claim's owner may still be needed.
        """
        claims = self.of_group(group)
        later = _Later()
        for claim in reversed(claims):
            if claim.void is None and not claim.ended and later.outranks_owner(claim.owner):
                return []  # Without a claim that outranks it, it would appear to be alive.
            later.add_claim(claim)
        removable_claims: list[Claim] = []
        deciding: set[str | None] = set()
        for claim in claims:
            ended = claim.withdrawn or (claim.void is not None and not owns(claim))
            if ended and claim.owner.token not in deciding:
                removable_claims.append(claim)
            else:
                deciding.add(claim.decided_by)
        return removable_claims

    def earlier_claims(self, token: str) -> list[Claim]:
        """Return the claims of owners that could still append when the owner with this token claimed."""
        own_claim = self._by_token[token]
        later = _Later()
        earlier_claims = list[Claim]()
        for claim in reversed(self._by_group[own_claim.owner.group].values()):
            if claim.offset < own_claim.offset:
                # If several owners race, each looks only at those before it: so the first one wins.
                if not claim.ended and not later.outranks_owner(claim.owner):
                    earlier_claims.append(claim)
                later.add_claim(claim)
        return earlier_claims[::-1]

    def void_from(self, token: str) -> dict[int, int]:
        """Return the offsets, by partition, from which records of the owner with this token do not count.

        Empty if all of them count, or if that is undecided (:meth:`is_undecided`).
        """
        claim = self._by_token.get(token)
        return (claim.void or {}) if claim is not None else {}

    def is_undecided(self, token: str) -> bool:
        """Return True if a later owner outranks the one with this token, but has not written its fence."""
        own_claim = self._by_token.get(token)
        if own_claim is None or own_claim.void is not None:
            return False
        for claim in reversed(self._by_group[own_claim.owner.group].values()):
            if claim.offset <= own_claim.offset:
                return False
            if not claim.withdrawn and claim.owner.outranks(own_claim.owner):
                return True
        return False

    def live_claims(self) -> list[Claim]:
        """Return the claims of owners that may append, as of the last :meth:`refresh`."""
        return [claim for group in self._by_group for claim in self._live_claims_of(group)]

    def blocking_claims(self, owner: Owner) -> dict[str, Claim]:
        """Return the claims of other jobs that hold the group of ``owner`` and may be alive, by token."""
        live = self._live_claims_of(owner.group)
        return {claim.owner.token: claim for claim in live if owner.yields_to(claim.owner)}

    def _live_claims_of(self, group: str) -> list[Claim]:
        later = _Later()
        live_claims = list[Claim]()
        for claim in reversed(self._by_group.get(group, {}).values()):
            if not claim.ended and claim.void is None and not later.outranks_owner(claim.owner):
                live_claims.append(claim)
            later.add_claim(claim)
        return live_claims[::-1]


class ClaimsWriter:
    """Writes to the claims topic.

    Args:
        producer: The producer that writes to the topic.
        topic: The claims topic.
        settings: Settings of the store: the timeouts of writes.
    """

    def __init__(self, producer: KafkaProducer, topic: Topic, settings: KafkaSettings) -> None:
        self._producer = producer
        self._topic = topic.name
        self._settings = settings

    def write_claim(self, owner: Owner) -> None:
        """Write the claim of an owner, and wait for the acknowledgement."""
        content = [owner.job_id, owner.group, owner.subtask, owner.parallelism, self._settings.lease_seconds]
        self._write_record("claim", owner.token, content)

    def write_fence(self, owner: Owner, ends: dict[int, int]) -> None:
        """Write the fence of an owner: the end offset of each partition, and the length of its lease."""
        lease = math.ceil(self._settings.append_lease_seconds * 1000)
        self._write_record("fence", owner.token, [*ends.items(), *([(LEASE_PART, lease)] if lease else ())])

    def withdraw_claim(self, owner: Owner) -> None:
        """Withdraw the claim of an owner, since another job is alive."""
        self._write_record("withdrawn", owner.token, True)

    def write_release(self, owner: Owner, seconds: float) -> None:
        """Write that an owner has ended; wait at most ``seconds`` for the acknowledgement."""
        self._write_record("release", owner.token, True, seconds)

    def write_heartbeat(self, owner: Owner) -> None:
        """Write that an owner is alive, without waiting for the acknowledgement."""
        key, value = pack_claim("beat", owner.token, time.time())
        self._producer.send(self._topic, key=key, value=value, partition=0)

    def write_plan(self, fingerprint: str, data: bytes) -> None:
        """Store the bytes of an agent's plan under its fingerprint."""
        self._write_record("plan", fingerprint, data)

    def remove_claims(self, owner: Owner, claims: Claims, done: Collection[Claim]) -> None:
        """Write tombstones for claims, and for orphans: records whose claims were removed before.

        Args:
            owner: The owner that removes them. It must have seen that it may still append, after ``done`` was
                made.
            claims: The claims from which ``done`` was determined.
            done: The claims to remove, in the order of the topic.
        """
        claim_keys = [(kind, claim.owner.token) for claim in done for kind in OF_OWNERS] + sorted(
            claims.orphans
        )
        if done:
            tokens = {claim.owner.token for claim in done}
            remaining_claims = [
                claim for claim in claims.of_group(owner.group) if claim.owner.token not in tokens
            ]
            through = max(claim.offset for claim in done)
            remaining_tokens = [claim.owner.token for claim in remaining_claims if claim.offset <= through]
            removed = [(claim.owner.token, claim.decided_by) for claim in done]
            self._write_record("left", owner.group, [through, remaining_tokens, removed])
        with translate_errors(f"claims cannot be removed from topic {self._topic!r}"):
            for claim_key in claim_keys:
                self._producer.send(self._topic, key=pack_claim_key(*claim_key), value=None, partition=0)

    def write_topic_description(self, journals: Topic) -> None:
        """Store the id and the partition count of the journal topic."""
        self._write_record("topic", "", {"id": journals.id.bytes, "partitions": journals.partitions})

    def _write_record(self, kind: str, token: str, content: Any, seconds: float | None = None) -> None:
        key, value = pack_claim(kind, token, content)
        try:
            sent = self._producer.send(self._topic, key=key, value=value, partition=0)
            sent.get(self._settings.append_seconds if seconds is None else seconds)
        except Exception as error:
            raise unavailable_error(f"the topic {self._topic!r} cannot be written", error) from error


def check_topic(claims: Claims, journals: Topic, is_used: bool) -> None:
    """Check that the claims belong to this journal topic.

    Args:
        claims: The claims, read after ``is_used`` was determined.
        journals: The journal topic as the brokers describe it.
        is_used: True if the journal topic has ever had a record.

    Raises:
        StoreMismatchError: One of the two was created again, or the topic has another number of partitions.
    """
    described = claims.described
    if described is None:
        if is_used:
            raise StoreMismatchError(
                f"the claims of topic {journals.name!r} are lost: it is unknown which of its records count",
                expected="the topic of claims as it was when the records were written",
                found="records of journals, and a topic of claims without a word about them",
                fix="use another topic, or delete both and start without state",
            )
        return
    expected_id = uuid.UUID(bytes=described["id"])
    if expected_id != journals.id:
        raise StoreMismatchError(
            f"the topic {journals.name!r} was deleted and created again: its journals are lost",
            expected=f"the topic with the id {expected_id}",
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
