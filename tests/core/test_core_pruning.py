"""Records are pruned when no checkpoint can ask for them any more, and never before."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from checkpoint_tools import Entry, Flink, FlinkServer
from durable_tools import EFFECTS, effect_async, forget, one_action

from flink_agents import OutputEvent
from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.durable import Prune
from flink_agents.api.errors import RecordsPrunedError, StaleOwnerError, StoreUnavailableError
from flink_agents.api.options import Configuration
from flink_agents.connectors.action_state.memory import MemoryPlace, MemoryStore
from flink_agents.runtime import pruning
from flink_agents.runtime.checkpoints import CheckpointPoller, CheckpointView, RestError
from flink_agents.runtime.pruning import DISABLED_ANSWERS, FAILURES, Pruner, pruner_of
from flink_agents.runtime.run_metrics import RunMetrics
from flink_agents.testing import OperatorHarness

JOB = "0123456789abcdef0123456789abcdef"
KEY = JournalKey("job/agent", "skey")
OTHER = JournalKey("job/agent", "sother")
NO_POLLER = CheckpointPoller((), JOB)
"""Is never started: the tests say what is answered."""


class Pruned:
    """A pruner beside a model of Flink; ``through`` is what the store was told to prune."""

    def __init__(
        self,
        flink: Flink | None = None,
        policy: Prune = Prune.CHECKPOINTS,
        retention: float = 0,
        poller: CheckpointPoller | None = NO_POLLER,
        one_retained: bool = True,
    ) -> None:
        self.flink = flink or Flink()
        self.now = 0.0
        self.through: dict[JournalKey, int] = {}
        self.delays: list[float] = []
        self.metrics = RunMetrics(())
        self.pruner = Pruner(policy, retention, self.metrics, poller, one_retained, lambda: self.now)
        self.pruner.take = self.take

    def take(self, journals: Mapping[JournalKey, tuple[int, int]], delay: float) -> None:
        for journal, (through, _) in journals.items():
            self.through[journal] = max(self.through.get(journal, -1), through)
            self.delays.append(delay)

    def commit(self, through: int, journal: JournalKey = KEY) -> None:
        self.pruner.committed(journal, through, 1)

    def poll(self, connection: int = 1, **how: bool) -> None:
        self.pruner.asking()
        self.pruner.answered(CheckpointView.of(self.flink.answer(**how), connection))

    def checkpoint(self) -> None:
        """One is triggered, seen, and completes."""
        entry = self.flink.trigger()
        self.poll()
        self.flink.complete(entry)
        self.poll()

    def fail(self, times: int = FAILURES) -> None:
        for _ in range(times):
            self.pruner.asking()
            self.pruner.failed(RestError("refused"))

    def gauge(self, name: str) -> int | float:
        return dict(self.metrics.group.values())[name]


# -- when -----------------------------------------------------------------------------


def test_a_commit_is_pruned_when_all_checkpoints_have_it() -> None:
    world = Pruned()
    world.checkpoint()
    world.commit(4)
    world.poll()
    assert (world.gauge("journals_unpruned"), world.gauge("runs_unpruned")) == (1, 1)
    assert world.gauge("rest_reachable") == 1
    for _ in range(2):
        assert world.through == {}
        world.checkpoint()
    assert world.through == {KEY: 4}
    assert world.gauge("journals_unpruned") == 0


def test_nothing_is_pruned_without_checkpoints() -> None:
    world = Pruned()
    world.commit(4)
    for _ in range(20):
        world.poll()
        world.flink.fail(world.flink.trigger())
    assert world.through == {}


def test_savepoints_do_not_count() -> None:
    world = Pruned()
    world.checkpoint()
    world.commit(4)
    for _ in range(10):
        savepoint = world.flink.trigger(savepoint=True)
        world.poll()
        world.flink.complete(savepoint)
        world.poll()
    assert world.through == {}


def test_a_checkpoint_that_was_under_way_does_not_count() -> None:
    world = Pruned()
    world.checkpoint()
    slow = world.flink.trigger()  # its barrier has passed the subtask
    world.commit(4)
    world.poll()
    world.flink.fail(world.flink.trigger())
    world.poll()
    world.flink.fail(world.flink.trigger())
    world.poll()
    world.flink.complete(slow)
    world.poll()
    world.poll()
    assert world.flink.retained[0].id == slow.id
    assert world.through == {}
    world.checkpoint()
    assert world.through == {}, "it is not certain yet that this one was triggered later"
    world.checkpoint()
    world.checkpoint()
    assert world.through == {KEY: 4}


def test_the_oldest_that_is_retained_counts() -> None:
    world = Pruned(Flink(retained_number=3))
    world.checkpoint()
    world.commit(4)
    world.poll()
    for _ in range(4):
        assert world.through == {}
        world.checkpoint()
    assert world.through == {KEY: 4}
    # The bound is 2; 3, 4 and 5 are retained.
    assert [entry.id for entry in world.flink.retained] == [3, 4, 5]


def test_an_answer_from_the_cache_is_no_evidence() -> None:
    world = Pruned()
    world.checkpoint()  # and what is cached knows of nothing later
    unseen = world.flink.trigger()
    world.commit(4)  # not in the checkpoint that is under way
    world.poll(cache=True)
    world.flink.complete(unseen)
    world.flink.fail(world.flink.trigger())
    world.poll(cache=True)
    assert world.through == {}
    world.poll()
    world.poll()
    assert world.through == {}


def test_a_snapshot_from_before_is_no_evidence() -> None:
    world = Pruned()
    flink = world.flink
    world.checkpoint()
    flink.complete(flink.trigger())
    flink.take_snapshot()  # somebody else asked; what is cached is older
    unseen = flink.trigger()
    world.commit(4)  # not in the checkpoint that is under way
    world.poll(cache=True)
    world.poll(stale=True)  # fetched after the commit, and new, but made before it
    flink.complete(unseen)
    world.poll()
    assert [entry.id for entry in flink.retained] == [unseen.id]
    assert world.through == {}
    world.checkpoint()
    assert world.through == {KEY: 4}


def test_what_changes_in_place_is_no_evidence() -> None:
    world = Pruned()
    flink = world.flink
    world.checkpoint()
    entry = flink.trigger()
    world.poll()
    unseen = flink.trigger()
    world.commit(4)
    for _ in range(4):
        world.poll(cache=True)
        entry.acknowledged += 1
    flink.complete(entry)
    flink.complete(unseen)
    world.poll()
    assert [entry.id for entry in flink.retained] == [unseen.id]
    assert world.through == {}


def test_a_commit_while_the_answer_is_under_way_has_to_wait() -> None:
    world = Pruned()
    flink = world.flink
    world.checkpoint()
    world.pruner.asking()
    answer = flink.answer()
    world.commit(4)
    world.pruner.answered(CheckpointView.of(answer, 1))
    assert world.gauge("journals_unpruned") == 0, "it takes part from the next question on"
    for _ in range(4):
        world.checkpoint()
    assert world.through == {KEY: 4}


def test_another_connection_begins_anew() -> None:
    world = Pruned()
    world.checkpoint()
    world.commit(4)
    for connection in range(2, 30):
        entry = world.flink.trigger()
        world.poll(connection)
        world.flink.complete(entry)
    assert world.through == {}
    for _ in range(4):
        world.checkpoint()
    assert world.through == {KEY: 4}


def test_ids_from_before_a_restart_do_not_count() -> None:
    flink = Flink()
    for _ in range(5):
        flink.complete(flink.trigger())
    world = Pruned(flink)  # the history still shows that checkpoints 1 to 4 were discarded
    world.commit(4)
    for _ in range(10):
        world.poll()
        flink.fail(flink.trigger())
    assert world.through == {}


def test_a_new_jobmanager_shows_no_history() -> None:
    world = Pruned()
    for _ in range(5):
        world.checkpoint()
    fresh = Pruned(Flink(next_id=6, restored=5))
    fresh.commit(4)
    fresh.poll()
    fresh.checkpoint()
    assert fresh.through == {}
    for _ in range(3):
        fresh.checkpoint()
    assert fresh.through == {KEY: 4}


def test_many_commits_of_a_key_become_one() -> None:
    world = Pruned()
    for seq in range(1000):
        world.commit(seq)
        if seq % 100 == 0:
            world.checkpoint()
    world.commit(3, OTHER)
    for _ in range(4):
        world.checkpoint()
    assert world.through == {KEY: 999, OTHER: 3}
    assert len(world.delays) < 25


def test_retention_keeps_records_longer() -> None:
    world = Pruned(retention=60)
    world.commit(4)
    for _ in range(10):
        world.checkpoint()
    assert world.through == {}
    world.now = 59.0
    world.poll()
    assert world.through == {}
    world.now = 60.0
    world.poll()
    assert world.through == {KEY: 4}


def test_too_many_notes_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "MAX_WAITING", 10)
    world = Pruned()
    for number in range(50):
        world.commit(1, JournalKey("job/agent", f"s{number}"))
    world.poll()
    assert world.gauge("journals_unpruned") == 10


# -- without Flink's answers ----------------------------------------------------------


def test_a_job_without_checkpoints_keeps_everything() -> None:
    world = Pruned()
    world.pruner.restored(KEY, 2)
    for _ in range(DISABLED_ANSWERS):
        world.commit(4)
        world.pruner.asking()
        world.pruner.answered(CheckpointView(1, None, enabled=False))
    world.fail()
    world.commit(5)
    world.pruner.restored(OTHER, 2)
    world.poll()
    assert (world.through, world.gauge("journals_unpruned"), world.gauge("rest_reachable")) == ({}, 0, 1)


def test_a_job_that_restarts_may_seem_to_have_no_checkpoints() -> None:
    world = Pruned()
    world.checkpoint()
    world.commit(4)
    for _ in range(2 * DISABLED_ANSWERS):
        world.pruner.asking()
        world.pruner.answered(CheckpointView(1, None, enabled=False))
    for _ in range(4):
        world.checkpoint()
    assert world.through == {KEY: 4}


def test_where_flink_is_not_reached_restored_keys_are_pruned(caplog: pytest.LogCaptureFixture) -> None:
    world = Pruned()
    world.pruner.restored(KEY, 6)
    world.commit(7)
    world.fail(FAILURES - 1)
    assert world.through == {}
    world.fail(3 * FAILURES)
    assert world.through == {KEY: 6}
    world.pruner.restored(KEY, 8)  # not those of the checkpoint any more
    world.pruner.restored(OTHER, -1)
    world.pruner.restored(OTHER, 3)
    assert world.through == {KEY: 6, OTHER: 3}
    assert len([one for one in caplog.records if "rest-address" in one.message]) == 1
    assert (world.gauge("rest_reachable"), world.gauge("journals_unpruned")) == (0, 1)


def test_what_began_in_this_attempt_is_no_restored_key() -> None:
    world = Pruned()
    world.commit(3)
    world.fail()
    world.pruner.restored(KEY, 3)
    assert world.through == {}


def test_where_several_are_retained_nothing_is_pruned_without_flink() -> None:
    world = Pruned(one_retained=False)
    world.pruner.restored(KEY, 6)
    world.fail()
    world.pruner.restored(OTHER, 6)
    assert world.through == {}


def test_flink_is_reached_late() -> None:
    world = Pruned()
    world.fail()
    world.commit(3)
    for _ in range(4):
        world.checkpoint()
    assert (world.through, world.gauge("rest_reachable")) == ({KEY: 3}, 1)
    world.fail()
    world.pruner.restored(OTHER, 5)
    assert world.through == {KEY: 3}, "what restores asked for is not known any more"
    for _ in range(4):
        world.checkpoint()
    assert world.through == {KEY: 3, OTHER: 5}


def test_a_restored_key_waits_for_checkpoints() -> None:
    world = Pruned()
    world.pruner.restored(KEY, 6)
    world.checkpoint()
    assert world.through == {}
    for _ in range(3):
        world.checkpoint()
    assert world.through == {KEY: 6}


def test_restore_only_asks_nobody() -> None:
    world = Pruned(policy=Prune.RESTORE_ONLY, retention=7)
    world.pruner.restored(KEY, 6)
    world.commit(7)
    assert (world.through, world.delays) == ({KEY: 6}, [7])


def test_more_retained_than_shown_is_said(caplog: pytest.LogCaptureFixture) -> None:
    world = Pruned(Flink(retained_number=20))
    world.commit(1)
    for _ in range(40):
        world.checkpoint()
    assert world.through == {}
    assert caplog.text.count("web.checkpoints.history") == 1


# -- which ----------------------------------------------------------------------------

TASKMANAGER = {"rest.address": "jm", "rest.port": "1234"}


@pytest.mark.parametrize(
    ("options", "flink", "reachable", "restored"),
    [
        ({}, TASKMANAGER, None, {}),
        ({}, {}, False, {}),
        ({}, {"some": "option"}, False, {KEY: 1}),
        ({"action-state.rest-address": "jm:1"}, {}, None, {}),
        ({"action-state.prune": "restore-only"}, TASKMANAGER, False, {KEY: 1}),
        ({"action-state.prune": "restore-only"}, {}, False, {}),
        ({"action-state.prune": "restore-only"}, {"state.checkpoints.num-retained": "1"}, False, {KEY: 1}),
        ({"action-state.prune": "restore-only"}, {"state.checkpoints.num-retained": "2"}, False, {}),
        ({"action-state.prune": "restore-only"}, {"execution.checkpointing.num-retained": "2"}, False, {}),
    ],
)
def test_what_the_options_say(
    options: dict[str, str], flink: dict[str, str], reachable: bool | None, restored: dict[JournalKey, int]
) -> None:
    found = pruner_of(Configuration.load(options), flink, JOB, RunMetrics(()))
    assert found is not None
    pruned: dict[JournalKey, int] = {}
    found.take = lambda journals, delay: pruned.update({key: one[0] for key, one in journals.items()})
    found.restored(KEY, 1)
    assert pruned == restored


def test_never() -> None:
    assert pruner_of(Configuration({"action-state.prune": "never"}), TASKMANAGER, JOB, RunMetrics(())) is None


# -- a model --------------------------------------------------------------------------


@dataclass
class Model:
    """A subtask, its store, and Flink; everything happens at random moments."""

    chance: random.Random
    flink: Flink
    committed: dict[str, int] = field(default_factory=dict[str, int])
    pruned: dict[str, int] = field(default_factory=dict[str, int])
    barriers: list[Entry] = field(default_factory=list[Entry])
    touched: set[str] = field(default_factory=set[str])
    caches: dict[int, tuple[Any, ...] | None] = field(default_factory=lambda: {0: None, 1: None})
    endpoint: int = 0
    connection: int = 1
    answer: CheckpointView | None = None
    asked: bool = False
    restores: int = 0

    def __post_init__(self) -> None:
        self.attempt()

    def attempt(self) -> None:
        self.pruner = Pruner(Prune.CHECKPOINTS, 0, RunMetrics(()), NO_POLLER, True)
        self.pruner.take = self.take
        self.barriers, self.touched = [], set()
        self.asked, self.answer = False, None

    def take(self, journals: Mapping[JournalKey, tuple[int, int]], delay: float) -> None:
        for journal, (through, _) in journals.items():
            self.pruned[journal.key] = max(self.pruned.get(journal.key, -1), through)

    # -- what can happen ----------------------------------------------------------------

    def commit(self, key: str = "") -> None:
        key = key or self.chance.choice("abcdefgh")
        journal, seq = JournalKey("job", key), self.committed.get(key, 0)
        if key not in self.touched:
            self.touched.add(key)
            self.pruner.restored(journal, seq - 1)
        # A run that replays from a checkpoint reads its records, or appends some.
        assert seq > self.pruned.get(key, -1), f"run {seq} of {key} was pruned"
        self.committed[key] = seq + 1
        self.pruner.committed(journal, seq, 1)

    def trigger(self) -> None:
        if len(self.flink.in_progress) < 3:
            self.barriers.append(self.flink.trigger(savepoint=self.chance.random() < 0.2))

    def barrier(self) -> None:
        if self.barriers:
            self.barriers.pop(0).state = dict(self.committed)

    def complete(self) -> None:
        ready = [entry for entry in self.flink.in_progress if entry.state is not None]
        if ready:
            entry = self.chance.choice(ready)
            self.flink.complete(entry)
            for other in self.flink.in_progress:
                if other.id < entry.id and not other.savepoint and not entry.savepoint:
                    self.abort(other)

    def acknowledge(self) -> None:
        for entry in self.flink.in_progress:
            entry.acknowledged += 1

    def decline(self) -> None:
        if self.flink.in_progress:
            self.abort(self.chance.choice(self.flink.in_progress))

    def abort(self, entry: Entry) -> None:
        self.flink.fail(entry)
        self.barriers = [one for one in self.barriers if one is not entry]

    def ask(self) -> None:
        if not self.asked:
            self.pruner.asking()
            self.asked = True
        elif self.answer is None:
            self.answer = self.fetch(self.endpoint)
        else:
            self.pruner.answered(self.answer)
            self.asked, self.answer = False, None

    def fetch(self, endpoint: int) -> CheckpointView:
        self.flink.cached = self.caches[endpoint]
        cache, stale = self.chance.random() < 0.5, self.chance.random() < 0.3
        answer = self.flink.answer(cache, stale)
        self.caches[endpoint] = self.flink.cached
        return CheckpointView.of(answer, self.connection)

    def somebody_asks(self) -> None:
        self.chance.choice([self.flink.take_snapshot, lambda: self.fetch(0), lambda: self.fetch(1)])()

    def reconnect(self) -> None:
        if not self.asked:
            self.endpoint, self.connection = self.chance.randrange(2), self.connection + 1

    def crash(self) -> None:
        for entry in self.flink.in_progress:
            self.flink.fail(entry)
        if not self.flink.retained:
            self.restore(None)
            return
        latest = self.flink.retained[-1]
        if self.chance.random() < 0.3:  # the JobManager as well; or by hand, from any that is retained
            chosen = self.chance.choice([latest, *self.flink.retained])
            retained = [one for one in self.flink.retained if one.id <= chosen.id]
            next_id = self.flink.next_id if chosen is latest else chosen.id + 1
            self.flink = Flink(self.flink.retained_number, next_id, restored=chosen.id, retained=retained)
            self.caches = {0: None, 1: None}
            latest = chosen
        self.restore(latest)

    def restore(self, entry: Entry | None) -> None:
        self.restores += 1
        self.committed = dict(entry.state) if entry is not None else {}
        for key, through in self.pruned.items():
            assert through < self.committed.get(key, 0), f"{key}, restored from {entry}"
        self.attempt()

    def step(self) -> None:
        steps: dict[Callable[[], None], float] = {self.commit: 30, self.ask: 30, self.trigger: 8}
        steps |= {self.barrier: 10, self.complete: 8, self.decline: 1, self.somebody_asks: 8}
        steps |= {self.acknowledge: 5, self.reconnect: 0.5, self.crash: 0.3}
        self.chance.choices(list(steps), list(steps.values()))[0]()

    def settle(self) -> None:
        """Let Flink take checkpoints, and nothing else happen."""
        for _ in range(3 * (self.flink.retained_number + 6)):
            self.trigger()
            while self.barriers:
                self.barrier()
            self.complete()
            for _ in range(6):
                self.ask()


@pytest.mark.parametrize("retained", [1, 2, 4])
@pytest.mark.parametrize("seed", range(20))
def test_no_restore_asks_for_what_was_pruned(seed: int, retained: int) -> None:
    model = Model(random.Random(seed), Flink(retained))
    for _ in range(1500):
        model.step()
    assert model.restores
    for key in "abcdefgh":
        model.commit(key)
    model.settle()
    for key in model.touched:
        assert model.pruned[key] == model.committed[key] - 1


# -- the store ------------------------------------------------------------------------


class Store(MemoryStore):
    """Counts, and fails where a test says so."""

    def __init__(self, place: MemoryPlace) -> None:
        super().__init__(place)
        self.error: Exception | None = None
        self.calls = self.together = self.most = 0

    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        self.calls += 1
        self.together += 1
        self.most = max(self.most, self.together)
        await asyncio.sleep(0)
        self.together -= 1
        if self.error is not None:
            raise self.error
        await super().prune(journal, through_seq)


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), 30)


def with_store(act: Callable[[Pruner, Store, RunMetrics], Any], keys: int = 1) -> None:
    """Run ``act`` beside a store in which each of some keys has a run 0 with a record."""

    async def run() -> None:
        metrics = RunMetrics(())
        pruner = Pruner(Prune.RESTORE_ONLY, 0, metrics, None, True)
        store = Store(MemoryPlace())
        await store.open(Owner.create("job", "group"))
        for number in range(keys):
            await store.append(key(number), [Record(RecordKind.CALL, 0, "", 0, b"x")])
        pruner.open(store)
        await act(pruner, store, metrics)
        await pruner.close()
        await store.close()

    asyncio.run(run())


def key(number: int) -> JournalKey:
    return JournalKey("job/agent", f"s{number}")


def test_journals_are_pruned_together() -> None:
    async def act(pruner: Pruner, store: Store, metrics: RunMetrics) -> None:
        assert pruner.take is not None
        pruner.take({key(number): (0, 1) for number in range(250)}, 0.0)
        counter = metrics.group.get_counter("runs_pruned")
        await until(lambda: counter.get_count() == 250)
        assert (await store.stats()).records == 0
        assert store.most == pruning.AT_ONCE

    with_store(act, keys=250)


def test_an_error_of_the_store_is_counted_and_the_journal_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act(pruner: Pruner, store: Store, metrics: RunMetrics) -> None:
        errors, pruned = (metrics.group.get_counter(name) for name in ("prune_errors", "runs_pruned"))
        store.error = StoreUnavailableError("the disk is full")
        assert pruner.take is not None
        pruner.take({key(0): (0, 1), key(1): (0, 1)}, 0.0)
        await until(lambda: errors.get_count() == 2)
        store.error = None

        def more() -> bool:
            assert pruner.take is not None
            pruner.take({key(2): (0, 0)}, 0.0)
            return pruned.get_count() == 2

        await until(more)
        assert (await store.stats()).records == 0
        assert caplog.text.count("the disk is full") == 1

    with_store(act, keys=3)


def test_a_stale_attempt_prunes_nothing_more() -> None:
    async def act(pruner: Pruner, store: Store, metrics: RunMetrics) -> None:
        store.error = StaleOwnerError("another attempt")
        pruner.restored(key(0), 0)
        await until(lambda: store.calls == 1)
        store.error = None
        await asyncio.sleep(0)
        pruner.restored(key(1), 0)
        # What was handed over before this has been seen by the loop.
        passed = asyncio.Event()
        asyncio.get_running_loop().call_soon_threadsafe(
            asyncio.get_running_loop().call_later, 0.0, passed.set
        )
        await passed.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert store.calls == 1
        assert metrics.group.get_counter("prune_errors").get_count() == 0

    with_store(act, keys=2)


# -- with the runtime -----------------------------------------------------------------


GATE = threading.Event()


async def pay(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=await ctx.durable_execute_async(effect_async, event.input))


@pytest.fixture
def pruners(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Pruned]]:
    """The pruner of each attempt of a harness, all beside one model of Flink."""
    forget()
    made: list[Pruned] = []
    flink = Flink()
    plain = OperatorHarness._journals

    def journals(self: OperatorHarness, *arguments: Any) -> Any:
        found = plain(self, *arguments)
        assert found is not None
        world = Pruned(flink, poller=CheckpointPoller((), JOB, interval=1e6))
        made.append(world)
        found.pruner = world.pruner
        return found

    monkeypatch.setattr(OperatorHarness, "_journals", journals)
    monkeypatch.setattr(CheckpointPoller, "listen", lambda self, listener: None)
    yield made


def stored(place: MemoryPlace) -> dict[str, tuple[list[int], int]]:
    """Of each key the runs that have records, and what was pruned."""
    return {
        name.key: (sorted(journal.runs), journal.pruned_through)
        for name, journal in place.journals.items()
        if not name.journal_id.startswith("\x00")
    }


def wait_for(condition: Callable[[], bool]) -> None:
    asyncio.run(until(condition))


def agent() -> Any:
    return one_action(pay)


def test_committed_runs_leave_the_store(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = OperatorHarness(agent(), store=lambda: MemoryStore(place))
    for number in range(5):
        harness.push(number)
    world = pruners[-1]
    world.checkpoint()
    assert stored(place)["i0"] == ([0, 1, 2, 3, 4], -1)
    for _ in range(3):
        world.checkpoint()
    wait_for(lambda: stored(place)["i0"] == ([], 4))
    assert dict(world.metrics.group.values())["journals_unpruned"] == 0
    harness.push(5)
    assert stored(place)["i0"] == ([5], 4)


@pytest.mark.executes_once
def test_a_restore_from_what_is_retained_finds_its_records(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = OperatorHarness(agent(), store=lambda: MemoryStore(place))
    harness.push_all([0, 1, 2])
    harness.snapshot()
    harness.push(3)
    world = pruners[-1]
    for _ in range(2):
        world.checkpoint()
    kept = harness.snapshot()
    harness.push(4)
    for _ in range(2):
        world.checkpoint()
    wait_for(lambda: stored(place)["i0"][1] == 3)
    harness.restore(kept)
    harness.push_all([4, 5])
    assert harness.outputs == [0, 1, 2, 3, 4, 5]
    assert EFFECTS == [0, 1, 2, 3, 4, 5]


def test_a_restore_from_before_is_refused_before_any_effect(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = OperatorHarness(agent(), store=lambda: MemoryStore(place))
    before = harness.snapshot()
    harness.push_all([0, 1])
    for _ in range(4):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["i0"][1] == 1)
    harness.restore(before)
    with pytest.raises(RecordsPrunedError):
        harness.push(0)
    assert EFFECTS == [0, 1]


def test_records_of_a_former_attempt_leave_with_its_key(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = OperatorHarness(agent(), lambda word: word[0], store=lambda: MemoryStore(place))
    harness.push_all(["a0", "b0", "a1"])
    harness.restore(harness.snapshot())
    harness.push("a2")
    for _ in range(5):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["sa"] == ([], 2))
    assert stored(place)["sb"] == ([0], -1), "it did not come again"


@pytest.mark.executes_once
def test_runs_that_record_nothing_are_not_noted(pruners: list[Pruned]) -> None:
    async def act(event: Any, ctx: Any) -> None:
        if event.input % 2:
            await ctx.durable_execute_async(effect_async, event.input)

    harness = OperatorHarness(one_action(act), store=MemoryStore)
    harness.push_all([0, 2, 4])
    pruners[-1].poll()
    assert pruners[-1].gauge("journals_unpruned") == 0
    harness.push_all([1, 2])
    pruners[-1].poll()
    assert (pruners[-1].gauge("journals_unpruned"), pruners[-1].gauge("runs_unpruned")) == (1, 1)


async def pay_or_wait(event: Any, ctx: Any) -> Any:
    while event.input == 3 and not GATE.is_set():
        await asyncio.sleep(0.001)
    return await pay(event, ctx)


@pytest.mark.executes_once
def test_a_run_whose_input_comes_late_can_still_record(pruners: list[Pruned]) -> None:
    """After a gap in the numbers nothing is noted before the key is idle."""
    GATE.clear()
    place = MemoryPlace()
    config = {"action-state.reorder-timeout": "0 s"}
    harness = OperatorHarness(
        one_action(pay_or_wait), store=lambda: MemoryStore(place), config=config, settle=False
    )
    before = harness.snapshot()
    harness.push_all([0, 1, 2])
    harness.settle()
    journal = next(one for name, one in place.journals.items() if name.key == "i0")
    journal.runs[0] = [one for one in journal.runs[0] if one.kind is not RecordKind.ACTION]
    harness.restore(before)
    # Runs 1 and 2 have their inputs, 3 keeps the key busy, and the input of run 0 is late.
    harness.push_all([1, 2, 3])
    wait_for(lambda: harness.advance(10) is not None and len(harness.outputs) == 2)
    harness.push(0)
    pruners[-1].poll()
    assert pruners[-1].gauge("journals_unpruned") == 0
    for _ in range(5):
        pruners[-1].checkpoint()
    assert harness.outputs == [1, 2]
    GATE.set()
    harness.settle()
    assert sorted(harness.outputs) == [0, 1, 2, 3]
    assert EFFECTS == [0, 1, 2, 3]
    pruners[-1].poll()
    assert pruners[-1].gauge("journals_unpruned") == 1
    harness.close()


def test_from_flinks_answers_to_the_store() -> None:
    """All parts together: a server, the thread that asks, the loop, a store."""
    flink = Flink()

    def reply(path: str) -> tuple[int, Any]:
        assert path == f"/jobs/{JOB}/checkpoints"
        if flink.in_progress:
            flink.complete(flink.in_progress[0])
        else:
            flink.trigger()
        return 200, flink.answer()

    with FlinkServer(reply) as server:

        async def run() -> None:
            metrics = RunMetrics(())
            poller = CheckpointPoller((server.address,), JOB, interval=0.001)
            pruner = Pruner(Prune.CHECKPOINTS, 0, metrics, poller, True)
            store = Store(MemoryPlace())
            await store.open(Owner.create("job", "group"))
            await store.append(KEY, [Record(RecordKind.CALL, 0, "", 0, b"x")])
            pruner.open(store)
            pruner.committed(KEY, 0, 1)
            counter = metrics.group.get_counter("runs_pruned")
            await until(lambda: counter.get_count() == 1)
            assert await store.pruned_through(KEY) == 0
            await pruner.close()
            await store.close()

        asyncio.run(run())
