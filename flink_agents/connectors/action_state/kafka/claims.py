"""Who may append to a store ``kafka``: the topic of claims.

An owner takes over by a *claim*; the order of claims in the topic is the order of owners. Then it
looks where each partition of the journals ends, and writes that down as its *fence*: what an owner
that it outranks has appended before the fence counts, what lies behind it never does. Where several
outrank an owner, the first fence decides, and for ever: later ones say nothing about that owner. Who
appends reads the claims again after each append, before it says that the append is done: so a stale
owner knows of its end before anybody relies on its records. No clock is involved.

A lease only decides which job waits for which. Owners tell by *beats* that they live; one that ends
says so by a *release*. A claim that has to give way to a job that lives is *withdrawn*.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flink_agents.api.action_state import Owner
from flink_agents.api.errors import StoreMismatchError
from flink_agents.api.logs import bounded_logger
from flink_agents.connectors.action_state.kafka.layout import pack_claim, unpack_claim
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings, request_ms, unavailable
from flink_agents.connectors.action_state.kafka.topics import Topic

if TYPE_CHECKING:
    from kafka import KafkaProducer

_log = bounded_logger("flink_agents.store")

POLL_MS = 200


@dataclass
class Claim:
    """One claim.

    Attributes:
        offset: Its place among all claims.
        owner: Who claims.
        lease_seconds: Length of its lease.
        fence: Where each partition ended when it took over; None before it has looked.
        fenced_at: Place of its fence among all claims.
        beat: Place of its last beat.
        ended: Whether it was released or withdrawn.
        withdrawn: Whether it was withdrawn.
    """

    offset: int
    owner: Owner
    lease_seconds: float
    fence: dict[int, int] | None = None
    fenced_at: int = 0
    beat: int = 0
    ended: bool = False
    withdrawn: bool = False


class Claims:
    """The claims as one thread has read them. Not for several threads at a time.

    Args:
        settings: How to reach the topic.
        topic: The topic of claims.
    """

    def __init__(self, settings: KafkaSettings, topic: Topic) -> None:
        from kafka.structs import TopicPartition

        self._settings = settings
        self._partition = TopicPartition(topic.name, 0)
        # Its own types lack arguments that it has.
        self._consumer: Any = settings.consumer()
        self._consumer.assign([self._partition])
        self._consumer.seek_to_beginning(self._partition)
        self._by_token: dict[str, Claim] = {}
        self._by_group: dict[str, list[Claim]] = {}
        self._void: dict[str, dict[int, int]] = {}
        self.described: dict[str, Any] | None = None

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
                self._take(record.offset, unpack_claim(record.key, record.value))
            if time.monotonic() > deadline:
                raise unavailable("the claims cannot be read", TimeoutError("no answer"))

    def _take(self, offset: int, read: tuple[str, str, Any] | None) -> None:
        try:
            if read is not None:
                self._apply(offset, *read)
        except (TypeError, ValueError) as error:
            _log.warning("offset %d of the claims is of no owner: %s", offset, error)

    def _apply(self, offset: int, kind: str, token: str, content: Any) -> None:
        if kind == "topic":
            self.described = self.described or content
        elif kind == "claim":
            job_id, group, subtask, parallelism, lease = content
            owner = Owner(job_id, group, subtask, parallelism, token)
            claim = self._by_token[token] = Claim(offset, owner, lease, beat=offset)
            self._by_group.setdefault(group, []).append(claim)
        elif (claim := self._by_token.get(token)) is not None:
            if kind == "fence":
                claim.fence, claim.fenced_at = dict(content), offset
            elif kind == "beat":
                claim.beat = offset
            else:
                claim.ended = True
                claim.withdrawn = kind == "withdrawn"

    # -- what they say ----------------------------------------------------------------

    def before(self, token: str) -> Iterator[Claim]:
        """Those of owners that might append until the claim of ``token`` came."""
        own = self._by_token[token]
        for claim in self._by_group[own.owner.group]:
            if claim.offset >= own.offset:
                return
            # Of several that race, each looks only at those before it: so the first one wins.
            outranked = any(other.offset < own.offset for other in self.over(claim.owner.token))
            if not claim.ended and not outranked:
                yield claim

    def over(self, token: str) -> Iterator[Claim]:
        """The claims that outrank that of ``token``, the last one first."""
        own = self._by_token.get(token)
        if own is None:
            return
        for claim in reversed(self._by_group[own.owner.group]):
            if claim.offset <= own.offset:
                return
            if not claim.withdrawn and claim.owner.outranks(own.owner):
                yield claim

    def void_from(self, token: str) -> dict[int, int]:
        """From which offset on records of that owner do not count, by partition.

        Empty where all of them count, or where it is not decided yet (:meth:`undecided`).
        """
        found = self._void.get(token)
        if found is None:
            fenced = [claim for claim in self.over(token) if claim.fence is not None]
            if not fenced:
                return {}
            found = self._void[token] = min(fenced, key=lambda claim: claim.fenced_at).fence or {}
        return found

    def undecided(self, token: str) -> bool:
        """Whether that owner is outranked, and nobody has looked yet which of its records count."""
        return not self.void_from(token) and any(True for _ in self.over(token))

    def live(self) -> Iterator[Claim]:
        """Those of owners that may append at present, as far as anybody knows."""
        for token, claim in self._by_token.items():
            if not claim.ended and not self.void_from(token) and not any(True for _ in self.over(token)):
                yield claim

    def in_the_way(self, owner: Owner) -> dict[str, Claim]:
        """Those of other jobs that hold the group of ``owner``, by token."""
        return {
            claim.owner.token: claim
            for claim in self.live()
            if claim.owner.group == owner.group and claim.owner.job_id != owner.job_id
        }


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
        """Say where partitions ended behind the claim."""
        self._write("fence", owner.token, list(ends.items()))

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
    """See that the topic of journals is that which the claims belong to.

    Args:
        claims: Read after ``is_used`` was asked.
        journals: The topic as it was found.
        is_used: Whether something was ever written to it.

    Raises:
        StoreMismatchError: One of both was made anew, or the topic has another number of partitions.
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
