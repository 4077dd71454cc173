"""What claims say, without a broker: who outranks whom, and what a look at many of them costs."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import pytest

from flink_agents.api.action_state import Owner
from flink_agents.connectors.action_state.kafka.layout import pack_claim
from flink_agents.connectors.action_state.kafka.ownership import claims as claims_module
from flink_agents.connectors.action_state.kafka.ownership.claims import Claim, Claims, ClaimsWriter
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.topics import Topic

TOPIC = Topic("claims", uuid.UUID(int=1), 1)


class NoConsumer:
    """Stands where a connection is made; what is read is given by the test."""

    def assign(self, *_: Any) -> None: ...

    def seek_to_beginning(self, *_: Any) -> None: ...


class Message(NamedTuple):
    """A record of the topic."""

    offset: int
    key: bytes
    value: bytes | None


class Log:
    """A topic of claims in memory, and what one reader makes of it; it is a producer as well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(KafkaSettings, "create_consumer", lambda _: NoConsumer())
        self.claims = self.reader()
        self.offsets = itertools.count()
        self.owners: list[Owner] = []
        self.messages: list[Message] = []
        self.writer = ClaimsWriter(cast("Any", self), TOPIC, KafkaSettings("nowhere:1"))

    def reader(self, own: str | None = None) -> Claims:
        """Somebody who has read nothing."""
        return Claims(KafkaSettings("nowhere:1"), TOPIC, own)

    def send(self, _: str, key: bytes, value: bytes | None, partition: int) -> Log:
        """Append a record, which whoever reads takes in at once."""
        self.messages.append(Message(next(self.offsets), key, value))
        self.claims._read_record(self.messages[-1])
        return self

    def get(self, _: float) -> None:
        """Wait for no acknowledgement."""

    def compact(self) -> None:
        """Leave the last record of each key, and none of what was removed."""
        last = {message.key: message for message in self.messages}
        self.messages = [
            message for message in self.messages if last[message.key] is message and message.value is not None
        ]

    def read(self, reader: Claims, after: int = -1) -> Claims:
        """Have somebody read all, or what came after an offset."""
        for message in self.messages:
            if message.offset > after:
                reader._read_record(message)
        return reader

    def claim(self, owner: Owner) -> Owner:
        content = [owner.job_id, owner.group, owner.subtask, owner.parallelism, 1.0]
        self.append_claim("claim", owner.token, content)
        self.owners.append(owner)
        return owner

    def append_claim(self, kind: str, token: str, content: Any) -> None:
        self.send("", *pack_claim(kind, token, content), partition=0)

    def take_over(self, subtask: int = 0, parallelism: int = 1, job: str = "job-1") -> Owner:
        """Claim and fence, as an attempt does."""
        owner = self.claim(Owner.create(job, "a", subtask, parallelism))
        self.append_claim("fence", owner.token, [[0, next(self.offsets)]])
        return owner


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


class Reference:
    """The rules, as they are written down: each claim is compared with each later one."""

    def __init__(self, log: Log) -> None:
        self.all: list[Claim] = [log.claims._by_token[owner.token] for owner in log.owners]

    def over(self, own: Claim, before: int = 2**62) -> Iterator[Claim]:
        for claim in self.all:
            behind = own.offset < claim.offset < before
            if behind and not claim.withdrawn and claim.owner.outranks(own.owner):
                yield claim

    def live(self) -> list[Claim]:
        return [claim for claim in self.all if not claim.ended and not any(True for _ in self.over(claim))]

    def earlier_claims(self, own: Claim) -> list[Claim]:
        of_group = [claim for claim in self.all if claim.owner.group == own.owner.group]
        return [
            claim
            for claim in of_group
            if claim.offset < own.offset
            and not claim.ended
            and not any(True for _ in self.over(claim, own.offset))
        ]


@pytest.mark.parametrize("seed", range(40))
def test_whom_claims_leave_alive_is_what_comparing_each_with_each_says(log: Log, seed: int) -> None:
    """Any jobs, groups, parallelism; some fence, some are withdrawn or released."""
    chosen = random.Random(seed)
    fences: dict[str, list[int]] = {}
    for at in range(chosen.randrange(1, 30)):
        owner = log.claim(
            Owner.create(
                chosen.choice(["job-1", "job-1", "job-2"]),
                chosen.choice(["a", "a", "b"]),
                chosen.randrange(3),
                chosen.choice([3, 3, 4]),
            )
        )
        done = chosen.random()
        if done < 0.2:
            log.append_claim("withdrawn", owner.token, True)
        elif done < 0.8:
            reference = Reference(log)
            owner_claim = log.claims._by_token[owner.token]
            for claim in reference.all:
                # The first fence of one that outranks it decides, and no later one.
                if any(over is owner_claim for over in reference.over(claim)):
                    fences.setdefault(claim.owner.token, [at])
            log.append_claim("fence", owner.token, [[0, at]])
        if done > 0.7:
            log.append_claim("release", chosen.choice(log.owners).token, True)
        reference = Reference(log)
        assert {claim.owner.token for claim in log.claims.live_claims()} == {
            claim.owner.token for claim in reference.live()
        }
        assert log.claims.earlier_claims(owner.token) == reference.earlier_claims(
            log.claims._by_token[owner.token]
        )
        for claim in reference.all:
            token = claim.owner.token
            void = {0: fences[token][0]} if token in fences else {}
            assert log.claims.void_from(token) == void
            outranked = any(True for _ in reference.over(claim))
            assert log.claims.is_undecided(token) == (outranked and token not in fences)


def looks(claims: Claims, owner: Owner) -> None:
    """All that a store asks for when it opens, and with each append."""
    claims.blocking_claims(owner)
    claims.earlier_claims(owner.token)
    claims.live_claims()
    claims.is_undecided(owner.token)
    claims.void_from(owner.token)


@pytest.mark.parametrize("fenced", ["all", "none", "each tenth"])
@pytest.mark.parametrize("shape", ["one subtask", "four subtasks", "another parallelism", "another job"])
def test_a_look_at_thousands_of_claims_compares_as_many(
    log: Log, monkeypatch: pytest.MonkeyPatch, shape: str, fenced: str
) -> None:
    """Owners that died without a word; counted is what is compared, for 1,000 and for 4,000 of them."""
    compared = 0
    outranks = Owner.outranks
    outrank = claims_module._Later.outranks_owner

    def counted(self: Owner, other: Owner) -> bool:
        nonlocal compared
        compared += 1
        return outranks(self, other)

    def counted_later(self: Any, owner: Owner) -> bool:
        nonlocal compared
        compared += 1
        return outrank(self, owner)

    monkeypatch.setattr(Owner, "outranks", counted)
    monkeypatch.setattr(claims_module._Later, "outranks_owner", counted_later)
    for number in range(4000):
        owner = {
            "one subtask": Owner.create("job-1", "a", 0, 1),
            "four subtasks": Owner.create("job-1", "a", number % 4, 4),
            "another parallelism": Owner.create("job-1", "a", 0, 1 + number % 2),
            "another job": Owner.create(f"job-{number}", "a", 0, 1),
        }[shape]
        log.claim(owner)
        if fenced == "all" or (fenced == "each tenth" and number % 10 == 9):
            log.append_claim("fence", owner.token, [[0, number]])
        if number + 1 in (1000, 4000):
            comparisons = compared
            assert comparisons <= 10 * (number + 1)
            looks(log.claims, owner)
            assert compared - comparisons <= 10 * (number + 1)


# -- claims that nobody needs -------------------------------------------------------------


def view(claims: Claims, owning: set[str]) -> dict[str, Any]:
    """What somebody who reads claims goes by."""
    return {
        "live": [claim.owner.token for claim in claims.live_claims()],
        "void": {token: claims.void_from(token) for token in owning},
        "undecided": {token: claims.is_undecided(token) for token in owning},
    }


@pytest.mark.parametrize("seed", range(60))
def test_without_the_claims_that_are_removed_all_is_as_before(log: Log, seed: int) -> None:
    """For whoever reads later: who lives, and which records of those count who own some."""
    chosen = random.Random(seed)
    owning: set[str] = set()
    for _ in range(60):
        job = chosen.choice(["job-1", "job-1", "job-1", "job-2"])
        owner = log.claim(Owner.create(job, "a", chosen.randrange(2), chosen.choice([2, 2, 3])))
        done = chosen.random()
        if done < 0.1:
            log.append_claim("withdrawn", owner.token, True)
        elif done < 0.9:
            log.append_claim("fence", owner.token, [[0, next(log.offsets)]])
            if chosen.random() < 0.4:
                owning.add(owner.token)
        if chosen.random() < 0.2:
            log.append_claim("release", chosen.choice(log.owners).token, True)
        owning -= set(chosen.sample(sorted(owning), len(owning) // 4))
        previous_view = view(log.claims, owning)
        if chosen.random() < 0.5:
            done_claims = log.claims.removable_claims(
                "a", lambda claim, now=frozenset(owning): claim.owner.token in now
            )
            log.writer.remove_claims(owner, log.claims, done_claims)
            assert view(log.claims, owning) == previous_view
        if chosen.random() < 0.3:
            log.compact()
        assert view(log.read(log.reader()), owning) == previous_view
        assert all(log.claims.knows(token) for token in owning)


def test_claims_do_not_grow_with_attempts(log: Log) -> None:
    """Neither for those who go on reading nor for those who come, nor the topic."""
    sizes: list[tuple[int, int, int]] = []
    for attempt in range(300):
        owners = [log.take_over(subtask, 4) for subtask in range(4)]
        log.writer.remove_claims(owners[0], log.claims, log.claims.removable_claims("a", lambda _: False))
        # One that did not know of its end.
        log.append_claim(_kind(attempt), log.owners[-8].token if attempt > 1 else "", True)
        log.compact()
        sizes.append((len(log.claims._by_token), len(log.read(log.reader())._by_token), len(log.messages)))
    most = [max(size[of] for size in sizes[10:]) for of in range(3)]
    assert most[:2] <= [8, 8] and most[2] <= 30, most


def _kind(number: int) -> str:
    return ("release", "beat", "fence")[number % 3]


@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("later", [0, 1, 3])
def test_an_owner_that_slept_finds_out(log: Log, compacted: bool, later: int) -> None:
    """Others took over, and tidied up, before it looks: nobody may tell it that its records count."""
    sleeper = log.take_over()
    sleeper_claims = log.read(log.reader(sleeper.token))
    slept_at = log.messages[-1].offset
    decider = log.take_over()
    fence = dict(log.claims.void_from(sleeper.token))
    newest = decider
    for _ in range(later):
        newest = log.take_over()
        log.writer.remove_claims(newest, log.claims, log.claims.removable_claims("a", lambda _: False))
    if not later:
        log.writer.remove_claims(newest, log.claims, log.claims.removable_claims("a", lambda _: False))
    if compacted:
        log.compact()
    log.read(sleeper_claims, slept_at)
    if sleeper_claims.is_lost(sleeper.token):
        assert compacted and later
    else:
        assert sleeper_claims.void_from(sleeper.token) == fence
    # To all others, it is nobody, and nothing of it counts.
    assert not log.read(log.reader()).knows(sleeper.token)
    assert log.read(log.reader()).knows(newest.token)


def test_an_owner_that_lives_longer_than_others_stays(log: Log) -> None:
    """A subtask may go on while another one is restarted again and again."""
    other_owner = lives = log.take_over(1, 2)
    survivor_claims = log.read(log.reader(lives.token))
    for _ in range(20):
        other_owner = log.take_over(0, 2)
        log.writer.remove_claims(other_owner, log.claims, log.claims.removable_claims("a", lambda _: False))
        log.compact()
    log.read(survivor_claims, 1)
    assert not survivor_claims.is_lost(lives.token) and not survivor_claims.is_undecided(lives.token)
    assert {claim.owner.token for claim in survivor_claims.live_claims()} == {lives.token, other_owner.token}
