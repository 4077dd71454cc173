"""Whatever happens to a job, no restore asks for what was pruned."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpoint_tools import Entry, Flink
from pruning_tools import NO_POLLER

from flink_agents.api.action_state import JournalKey
from flink_agents.api.durable import Prune
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.retention.checkpoints import CheckpointView
from flink_agents.runtime.retention.pruning import Pruner
from tests.suite.factors import factors


@dataclass
class Model:
    """A subtask, its store, and Flink; everything happens at random moments."""

    chance: random.Random
    flink: Flink
    proxied: bool = False
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
        self.pruner.schedule = self.take
        self.barriers, self.touched = [], set()
        self.asked = False
        self.answer = None

    def take(self, journals: Mapping[JournalKey, tuple[int, int]], delay: float) -> None:
        for journal, (through, _) in journals.items():
            self.pruned[journal.key] = max(self.pruned.get(journal.key, -1), through)

    # -- what can happen ----------------------------------------------------------------

    def commit(self, key: str = "") -> None:
        key = key or self.chance.choice("abcdefgh")
        journal = JournalKey("job", key)
        seq = self.committed.get(key, 0)
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
            for other_entry in self.flink.in_progress:
                if other_entry.id < entry.id and not other_entry.savepoint and not entry.savepoint:
                    self.abort(other_entry)

    def acknowledge(self) -> None:
        for entry in self.flink.in_progress:
            entry.acknowledged += 1

    def decline(self) -> None:
        if self.flink.in_progress:
            self.abort(self.chance.choice(self.flink.in_progress))

    def abort(self, entry: Entry) -> None:
        self.flink.fail(entry)
        self.barriers = [barrier for barrier in self.barriers if barrier is not entry]

    def ask(self) -> None:
        if not self.asked:
            self.pruner.asking()
            self.asked = True
        elif self.answer is None:
            # A proxy sends each question to any of them, on one and the same connection.
            self.answer = self.fetch(self.chance.randrange(2) if self.proxied else self.endpoint)
        else:
            self.pruner.answered(self.answer)
            self.asked = False
            self.answer = None

    def fetch(self, endpoint: int) -> CheckpointView:
        self.flink.cached = self.caches[endpoint]
        # Where two take turns, what matters is what both have cached, and how far they are apart.
        cached, old = (0.85, 0.6) if self.proxied else (0.5, 0.3)
        cache = self.chance.random() < cached
        stale = self.chance.random() < old
        answer = self.flink.answer(cache, stale)
        self.caches[endpoint] = self.flink.cached
        return CheckpointView.from_answer(answer, self.connection)

    def somebody_asks(self) -> None:
        self.chance.choice([self.flink.take_snapshot, lambda: self.fetch(0), lambda: self.fetch(1)])()

    def reconnect(self) -> None:
        if not self.asked:
            self.endpoint = self.chance.randrange(2)
            self.connection = self.connection + 1

    def crash(self) -> None:
        for entry in self.flink.in_progress:
            self.flink.fail(entry)
        if not self.flink.retained:
            self.restore(None)
            return
        latest = self.flink.retained[-1]
        if self.chance.random() < 0.3:  # the JobManager as well; or by hand, from any that is retained
            chosen = self.chance.choice([latest, *self.flink.retained])
            retained = [checkpoint for checkpoint in self.flink.retained if checkpoint.id <= chosen.id]
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
        if self.proxied:
            steps |= {self.commit: 12, self.ask: 60, self.trigger: 14, self.barrier: 5, self.decline: 4}
            steps |= {self.complete: 10, self.somebody_asks: 14, self.reconnect: 0.1, self.crash: 0.8}
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


@factors(
    strength=1,
    seed=range(60),
    proxied=[True, False],
    retained=[1, 2, 4],
    without=lambda seed, proxied, retained: not proxied and seed >= 20,
)
def test_no_restore_asks_for_what_was_pruned(seed: int, retained: int, proxied: bool) -> None:
    model = Model(random.Random(seed), Flink(retained), proxied)
    for _ in range(1500):
        model.step()
    assert model.restores
    for key in "abcdefgh":
        model.commit(key)
    # With two behind a proxy, answers that only go forward come by chance, and rarely.
    model.proxied = False
    model.settle()
    for key in model.touched:
        assert model.pruned[key] == model.committed[key] - 1
