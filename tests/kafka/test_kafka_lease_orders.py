"""All orders of an append, looks, claims, waits and fences: what is called done is what is found.

The writer, the lease, the claims and the take-over are those of the store; only the brokers, the clocks and
the threads' order are the test's.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from flink_agents.api.action_state import Owner
from flink_agents.api.errors import FencedOwnerError
from flink_agents.connectors.action_state.group_writer import StoreMetrics
from flink_agents.connectors.action_state.kafka import writer as writer_module
from flink_agents.connectors.action_state.kafka.garbage import Garbage
from flink_agents.connectors.action_state.kafka.layout import Entry, unpack_claim_key
from flink_agents.connectors.action_state.kafka.ownership import (
    claims as claims_module,
    takeover as takeover_module,
)
from flink_agents.connectors.action_state.kafka.ownership.claims import Claims, ClaimsWriter
from flink_agents.connectors.action_state.kafka.ownership.lease import Lease, OwnerStatus
from flink_agents.connectors.action_state.kafka.ownership.takeover import TakeOver
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.topics import Topic
from flink_agents.connectors.action_state.kafka.writer import KafkaWrite, KafkaWriter
from tests.kafka.kafka_schedules import World, explore
from tests.kafka.kafka_stores import journal_in, record

LEASE = 1.0
SETTINGS = KafkaSettings("nowhere:1", partitions=1, append_lease_seconds=LEASE)
CLAIMS = Topic("claims", uuid.UUID(int=1), 1)
NO_LOOP: Any = None
JOURNALS = Topic("journals", uuid.UUID(int=2), 1)


class Message(NamedTuple):
    """A record of the topic of claims."""

    offset: int
    key: bytes
    value: bytes | None


class Reader:
    """Reads the topic of claims as a consumer does.

    Args:
        world: Whose topic.
        slowly: Whether others may act while it asks, and before it is answered.
    """

    def __init__(self, world: Store, slowly: bool) -> None:
        self._world = world
        self._slowly = slowly
        self._at = self._end = 0

    def assign(self, _: Any) -> None: ...

    def seek_to_beginning(self, _: Any) -> None: ...

    def close(self) -> None: ...

    def end_offsets(self, asked: list[Any], timeout_ms: int) -> dict[Any, int]:
        if self._slowly:
            self._world.point("asks for the end of the claims")
        self._end = self._world.saw(len(self._world.claims))
        self._world.seen[threading.current_thread()] = self._end
        if self._slowly:
            self._world.point("is answered")
        return {asked[0]: self._end}

    def position(self, _: Any, timeout_ms: int) -> int:
        return self._at

    def poll(self, _: int) -> Any:
        claim_records = self._world.claims[self._at : self._end]
        self._at = self._end
        return _Any(claim_records)


class _Any:
    """What a poll returns: asked for one partition only."""

    def __init__(self, found: list[Message]) -> None:
        self._found = found

    def get(self, *_: Any) -> list[Message]:
        return self._found


class Report:
    """Of a batch that is on its way: the broker stores it, and then the owner hears of it."""

    def __init__(self, world: Store, key: bytes) -> None:
        self._world = world
        self._key = key
        self.is_done = False
        self.value = self

    def get(self, *_: Any, timeout: float = 0) -> Report:
        if not self.is_done:
            self._world.point("is stored")
            self.offset = len(self._world.journals)
            self._world.journals.append(self._key)
            self._world.point("hears that it is stored")
            self._world.saw(self.offset)
            self.is_done = True
        return self


class Producer:
    """Appends to either topic."""

    def __init__(self, world: Store) -> None:
        self._world = world

    def send(self, topic: str, key: bytes, value: bytes | None, partition: int) -> Any:
        if topic == JOURNALS.name:
            return Report(self._world, key)
        self._world.point("writes to the claims")
        self._world.claims.append(Message(len(self._world.claims), key, value))
        return _Any([])


class Looking:
    """The lock of looks, at which others may act."""

    def __init__(self, world: Store) -> None:
        self._world = world
        self._held = False

    def __enter__(self) -> None:
        self._world.point("looks", lambda: not self._held)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class Store(World):
    """Both topics, an owner that appends and looks, and owners that take over.

    Args:
        news: Who takes over, by name; those that begin with ``dead`` stop when they have claimed.
        rate: How much too slow the old owner's clock is, and how much too fast those of the others.
        looks: How often the old owner looks in the background.
    """

    def __init__(self, news: tuple[str, ...] = ("new",), rate: float = 1.0, looks: int = 1) -> None:
        super().__init__()
        self.claims: list[Message] = []
        self.journals: list[bytes] = []
        self.seen: dict[threading.Thread, int] = {}
        self.rate = rate
        self.old = self.owner()
        TakeOver(self.reader(), self.writer(), self.ends, self.clock()).fence_earlier_owners(self.old)
        self.appender = self.make_appender()
        self.appender._lease.check_owner(1)
        self.act("append", self.append)
        for number in range(looks):
            self.act(f"look {number}", lambda: self.appender._lease.check_owner(1) and None)
        for name in news:
            self.act(name, self.dies if name.startswith("dead") else self.takes_over)

    @staticmethod
    def owner() -> Owner:
        """Of an attempt."""
        return Owner.create("job-1", "a")

    def shared(self) -> Hashable:
        # Tokens differ from execution to execution.
        keys = [unpack_claim_key(claim_record.key) or ("", "") for claim_record in self.claims]
        tokens = {token: number for number, token in enumerate(dict.fromkeys(token for _, token in keys))}
        logged = tuple((kind, tokens[token]) for kind, token in keys)
        return logged, len(self.journals), self.appender._lease._valid_until

    def reader(self, own: str | None = None, slowly: bool = False) -> Claims:
        """Somebody who has read nothing yet."""
        settings: Any = SimpleNamespace(create_consumer=lambda: Reader(self, slowly), rebuild_seconds=60.0)
        return Claims(settings, CLAIMS, own)

    def writer(self) -> ClaimsWriter:
        return ClaimsWriter(cast("Any", Producer(self)), CLAIMS, SETTINGS)

    def ends(self) -> dict[int, int]:
        """Where the only partition of journals ends."""
        self.point("asks for the ends")
        return {0: self.saw(len(self.journals))}

    def make_appender(self) -> KafkaWriter:
        claims = self.reader(self.old.token, slowly=True)
        producer: Any = Producer(self)
        remaining_arguments = (
            self.old,
            self.writer(),
            Garbage(),
            {},
            NO_LOOP,
            StoreMetrics(),
            lambda waiting: None,
        )
        writer = KafkaWriter(SETTINGS, JOURNALS, producer, claims, *remaining_arguments)
        writer._lease = Lease(claims, self.old.token, LEASE, self.clock(1 / self.rate))
        writer._lease._looking = cast("Any", Looking(self))
        return writer

    # -- what actors do -----------------------------------------------------------------

    def append(self) -> Any:
        (outcome,) = self.appender._write_batch([KafkaWrite(Entry(journal_in(SETTINGS, 0), [record()]))])
        return outcome

    def takes_over(self) -> None:
        owner = self.owner()
        claims = self.reader(owner.token)
        TakeOver(
            claims, self.writer(), self.ends, self.clock(self.rate), self.sleeper(self.rate)
        ).fence_earlier_owners(owner)

    def dies(self) -> None:
        self.writer().write_claim(self.owner())

    # -- what comes of it ---------------------------------------------------------------

    def wrong(self) -> str | None:
        """What must not be, when all have ended."""
        for name, actor in self.actors.items():
            if actor.at is not None:
                return f"{name} does not go on: {actor.at[0]}"
            if isinstance(actor.outcome, Exception) and name != "append":
                return f"{name} failed: {actor.outcome!r}"
        claims = self.reader()
        claims.refresh()
        counts = 0 < claims.void_from(self.old.token).get(0, math.inf)
        outcome = self.actors["append"].outcome
        if outcome is None and not counts:
            return "what was called done does not count"
        if isinstance(outcome, FencedOwnerError) and counts:
            return "what was refused counts"
        return None if outcome is None or isinstance(outcome, FencedOwnerError) else repr(outcome)


class _Time:
    """The time of the writer and of looks: nobody is late; while it waits for a fence, the claims grow."""

    @staticmethod
    def monotonic() -> float:
        return 0.0

    @staticmethod
    def sleep(_: float) -> None:
        actor: Any = threading.current_thread()
        world = actor._world
        world.point("waits for a fence", lambda: len(world.claims) > world.seen[actor])


@pytest.fixture(autouse=True)
def writer_waits_for_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (writer_module, claims_module):
        monkeypatch.setattr(module, "time", _Time)
    # Who takes over looks at the claims again when it has waited.
    monkeypatch.setattr(takeover_module, "POLL_SECONDS", math.inf)


SCENES: dict[str, Callable[[], Store]] = {
    "one takes over": Store,
    "clocks that differ by a fifth": lambda: Store(rate=1.1, looks=0),
    "two take over": lambda: Store(("new", "newer"), looks=0),
    "one dies while it takes over": lambda: Store(("dead", "new"), looks=0),
}


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize(
    "scene",
    [pytest.param(scene, marks=pytest.mark.nightly if scene == "two take over" else ()) for scene in SCENES],
)
def test_what_is_called_done_counts_and_what_is_refused_does_not(scene: str) -> None:
    orders = 0
    outcomes = set[str]()
    for world, order in explore(SCENES[scene]):
        assert isinstance(world, Store)
        assert world.wrong() is None, (world.wrong(), order)
        orders += 1
        outcomes.add(type(world.actors["append"].outcome).__name__)
    assert outcomes == {"NoneType", "FencedOwnerError"}
    assert orders > 10


# -- defects that these orders find -------------------------------------------------------


def no_clock(patch: pytest.MonkeyPatch) -> None:
    """A lease that was had once never ends."""
    patch.setattr(Lease, "covers", lambda self: self._valid_until > -math.inf)


def no_look(patch: pytest.MonkeyPatch) -> None:
    """Behind the lease, nobody looks."""
    patch.setattr(
        Lease,
        "check_owner",
        lambda self, _, look=Lease.check_owner: look(self, 1) if _is_early(self) else FREE,
    )


def late_reading(patch: pytest.MonkeyPatch) -> None:
    """The lease runs from the answer on, not from before the question."""

    def look(self: Lease, seconds: float, before: Any = Lease.check_owner) -> OwnerStatus:
        standing = before(self, seconds)
        if standing.is_free:
            self._valid_until = self._clock() + self._seconds
        return standing

    patch.setattr(Lease, "check_owner", look)


def early_clock(patch: pytest.MonkeyPatch) -> None:
    """The clock is read when the append is sent, not behind its acknowledgement."""
    write = KafkaWriter._write_batch
    covers = Lease.covers

    def read_first(self: KafkaWriter, batch: list[KafkaWrite]) -> Any:
        covered = covers(self._lease)
        patch.setattr(Lease, "covers", lambda _: covered)
        return write(self, batch)

    patch.setattr(KafkaWriter, "_write_batch", read_first)


def renewed_where_outranked(patch: pytest.MonkeyPatch) -> None:
    """A claim without a fence does not keep an owner from renewing its lease."""
    patch.setattr(OwnerStatus, "is_free", property(lambda self: not self.void))


def no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(takeover_module, "DRIFT", 0)


def no_margin(patch: pytest.MonkeyPatch) -> None:
    """Clocks that differ."""
    patch.setattr(takeover_module, "DRIFT", 1)


def early_ends(patch: pytest.MonkeyPatch) -> None:
    """Who takes over looks where partitions end before it waits."""
    take = TakeOver.fence_earlier_owners

    def looks_first(self: TakeOver, *arguments: Any) -> Any:
        ends = self._log_ends()
        self._log_ends = lambda: ends
        return take(self, *arguments)

    patch.setattr(TakeOver, "fence_earlier_owners", looks_first)


def early_wait(patch: pytest.MonkeyPatch) -> None:
    """The wait runs from before the claim is written."""
    take = TakeOver.fence_earlier_owners

    def reads_first(self: TakeOver, *arguments: Any) -> Any:
        clock, first = self._clock, [self._clock()]
        self._clock = lambda: first.pop() if first else clock()
        return take(self, *arguments)

    patch.setattr(TakeOver, "fence_earlier_owners", reads_first)


def only_those_that_live(patch: pytest.MonkeyPatch) -> None:
    """An owner whom one outranks that died before its fence is not waited for."""

    def longest(self: TakeOver, owner: Owner) -> float:
        return max((claim.append_lease for claim in self._claims.earlier_claims(owner.token)), default=0.0)

    patch.setattr(TakeOver, "_longest_lease", longest)


FREE = OwnerStatus({}, False, False)


def _is_early(lease: Lease) -> bool:
    return lease._valid_until == -math.inf


DEFECTS: dict[Callable[..., None], str] = {
    no_clock: "one takes over",
    no_look: "one takes over",
    late_reading: "one takes over",
    early_clock: "one takes over",
    renewed_where_outranked: "one takes over",
    no_wait: "one takes over",
    no_margin: "clocks that differ by a fifth",
    early_ends: "one takes over",
    early_wait: "one takes over",
    only_those_that_live: "one dies while it takes over",
}


@pytest.mark.nightly
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_defect_is_found(defect: Callable[..., None]) -> None:
    def make() -> Store:
        patch.undo()
        defect(patch)
        return SCENES[DEFECTS[defect]]()

    with pytest.MonkeyPatch.context() as patch:
        assert any(cast("Store", world).wrong() for world, _ in explore(make))
