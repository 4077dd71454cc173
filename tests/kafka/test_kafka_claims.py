"""What claims say, without a broker: who outranks whom, and what a look at many of them costs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from flink_agents.api.action_state import Owner
from flink_agents.connectors.action_state.kafka import claims as claims_module
from flink_agents.connectors.action_state.kafka.claims import Claim, Claims
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.topics import Topic


class NoConsumer:
    """Stands where a connection is made; what is read is given by the test."""

    def assign(self, *_: Any) -> None: ...

    def seek_to_beginning(self, *_: Any) -> None: ...


class Log:
    """A topic of claims in memory, and what one reader makes of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(KafkaSettings, "consumer", lambda _: NoConsumer())
        self.claims = Claims(KafkaSettings("nowhere:1"), Topic("claims", None, 1))  # type: ignore[arg-type]
        self.offsets = itertools.count()
        self.owners: list[Owner] = []

    def claim(self, owner: Owner) -> Owner:
        content = [owner.job_id, owner.group, owner.subtask, owner.parallelism, 1.0]
        self.say("claim", owner.token, content)
        self.owners.append(owner)
        return owner

    def say(self, kind: str, token: str, content: Any) -> None:
        self.claims._apply(next(self.offsets), kind, token, content)


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
        return [one for one in self.all if not one.ended and not any(True for _ in self.over(one))]

    def before(self, own: Claim) -> list[Claim]:
        of_group = [one for one in self.all if one.owner.group == own.owner.group]
        return [
            one
            for one in of_group
            if one.offset < own.offset and not one.ended and not any(True for _ in self.over(one, own.offset))
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
            log.say("withdrawn", owner.token, True)
        elif done < 0.8:
            reference = Reference(log)
            own = log.claims._by_token[owner.token]
            for claim in reference.all:
                # The first fence of one that outranks it decides, and no later one.
                if any(over is own for over in reference.over(claim)):
                    fences.setdefault(claim.owner.token, [at])
            log.say("fence", owner.token, [[0, at]])
        if done > 0.7:
            log.say("release", chosen.choice(log.owners).token, True)
        reference = Reference(log)
        assert {claim.owner.token for claim in log.claims.live()} == {
            claim.owner.token for claim in reference.live()
        }
        assert log.claims.before(owner.token) == reference.before(log.claims._by_token[owner.token])
        for claim in reference.all:
            token = claim.owner.token
            void = {0: fences[token][0]} if token in fences else {}
            assert log.claims.void_from(token) == void
            outranked = any(True for _ in reference.over(claim))
            assert log.claims.undecided(token) == (outranked and token not in fences)


def looks(claims: Claims, owner: Owner) -> None:
    """All that a store asks for when it opens, and with each append."""
    claims.in_the_way(owner)
    claims.before(owner.token)
    claims.live()
    claims.undecided(owner.token)
    claims.void_from(owner.token)


@pytest.mark.parametrize("fenced", ["all", "none", "each tenth"])
@pytest.mark.parametrize("shape", ["one subtask", "four subtasks", "another parallelism", "another job"])
def test_a_look_at_thousands_of_claims_compares_as_many(
    log: Log, monkeypatch: pytest.MonkeyPatch, shape: str, fenced: str
) -> None:
    """Owners that died without a word; counted is what is compared, for 1,000 and for 4,000 of them."""
    compared = 0
    outranks = Owner.outranks
    outrank = claims_module._Later.outrank

    def counted(self: Owner, other: Owner) -> bool:
        nonlocal compared
        compared += 1
        return outranks(self, other)

    def counted_later(self: Any, owner: Owner) -> bool:
        nonlocal compared
        compared += 1
        return outrank(self, owner)

    monkeypatch.setattr(Owner, "outranks", counted)
    monkeypatch.setattr(claims_module._Later, "outrank", counted_later)
    for number in range(4000):
        owner = {
            "one subtask": Owner.create("job-1", "a", 0, 1),
            "four subtasks": Owner.create("job-1", "a", number % 4, 4),
            "another parallelism": Owner.create("job-1", "a", 0, 1 + number % 2),
            "another job": Owner.create(f"job-{number}", "a", 0, 1),
        }[shape]
        log.claim(owner)
        if fenced == "all" or (fenced == "each tenth" and number % 10 == 9):
            log.say("fence", owner.token, [[0, number]])
        if number + 1 in (1000, 4000):
            before = compared
            assert before <= 10 * (number + 1)
            looks(log.claims, owner)
            assert compared - before <= 10 * (number + 1)
