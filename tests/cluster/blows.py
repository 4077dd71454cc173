"""The faults of a chaos run: kills of TaskManagers, also during recovery, and overlapping attempts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from flink_agents.api.errors import FencedOwnerError
from tests.cluster.broker_trouble import BrokerTrouble, FenceWatch
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster, FlinkProcess

AGAIN = 0.25
"""How many of the kills fall into the recovery from the kill before."""

AGAIN_SECONDS = 10.0
"""How long after that one, at most."""

IN_REBUILD_SECONDS = 0.2, 1.5
"""How long after a new attempt took over it is killed; the broker stands still meanwhile."""

OVERLAP_SECONDS = 0.5, 3.0
"""How long an attempt that stood still goes on beside its successor."""

HEARTBEATS = {"heartbeat.timeout": "8 s"}
"""Flink options of a cluster in which attempts overlap: a TaskManager that stands still is given up soon."""

PATIENT = {"heartbeat.timeout": "10 min"}
"""Those of its TaskManagers: one that stood still goes on, and does not give itself up."""


@dataclass(frozen=True)
class Blow:
    """One of them.

    Attributes:
        part: After which part of the output.
        kind: ``kill``, ``rebuild`` for two kills of which the second falls into the rebuild from the first,
            or ``overlap`` for an attempt that stands still and goes on beside its successor.
        pauses: The seconds to wait before each kill of the kind ``kill``.
    """

    part: float
    kind: str
    pauses: list[float] = field(default_factory=list)


@dataclass
class Blown:
    """What was done.

    Attributes:
        kills: How many TaskManagers were killed.
        kills_in_rebuild: How many of them before their attempt had made a call.
        overlaps: How many stood still until their successors had output, and then went on.
        stale_refused: How many of these met the error of a stale owner.
        late: Effects of these that came behind the output of their successors.
    """

    kills: int = 0
    kills_in_rebuild: int = 0
    overlaps: int = 0
    stale_refused: int = 0
    late: list[str] = field(default_factory=list)


class Watched(Protocol):
    """What a blow sees of the job, and waits for."""

    def effect_bytes(self) -> int:
        """Length of the file of effects."""
        ...

    def effects_behind(self, position: int) -> list[str]:
        """Lines of the file of effects behind a position."""
        ...

    def wait_for(self, what: str, reached: Callable[[], bool]) -> None:
        """Wait until ``reached``; fail where the job stops moving."""
        ...

    def wait_for_output(self) -> None:
        """Wait until there is new output."""
        ...


class Blows:
    """See the module.

    Args:
        cluster: Whose TaskManagers are meant.
        slots: Of each TaskManager.
        store: Where durable calls are recorded.
        watched: The job.
        chance: Chooses TaskManagers and moments.
        trouble: Of the store's broker; None for a store without one.

    Attributes:
        done: What was done.
    """

    def __init__(
        self,
        cluster: FlinkCluster,
        slots: int,
        store: RunStore,
        watched: Watched,
        chance: random.Random,
        trouble: BrokerTrouble | None,
    ) -> None:
        self.done = Blown()
        self._cluster = cluster
        self._slots = slots
        self._store = store
        self._watched = watched
        self._chance = chance
        self._trouble = trouble

    def strike(self, blow: Blow) -> None:
        """Do it; the TaskManagers are as many as before."""
        if blow.kind == "rebuild":
            self._kill_in_rebuild()
        elif blow.kind == "overlap":
            self._overlap()
        for pause in blow.pauses:
            time.sleep(pause)
            self._kill()

    def _kill(self) -> None:
        self._cluster.kill(self._chance.choice(self._cluster.taskmanagers))
        self._cluster.start_taskmanager(self._slots)
        self.done.kills += 1

    def _kill_in_rebuild(self) -> None:
        """Kill; when the next attempt has taken over, let it wait for what it has to read, and kill again."""
        assert self._trouble is not None, "only a store in a broker is rebuilt"
        with FenceWatch(self._trouble.broker.client_options, self._store.options["topic"]) as fences:
            self._kill()
            self._watched.wait_for("an attempt that takes over", fences.has_new_owner)
            with self._trouble.paused():
                position = self._watched.effect_bytes()
                time.sleep(self._chance.uniform(*IN_REBUILD_SECONDS))
                self._kill()
                self.done.kills_in_rebuild += self._watched.effect_bytes() == position

    def _overlap(self) -> None:
        """Let a TaskManager stand still until another has its place, and then go on beside that one."""
        stale = self._freeze()
        self._cluster.start_taskmanager(self._slots)
        # Until then it may be given a part of the next attempt, which would be nobody's rival.
        self._watched.wait_for("the end of a TaskManager", lambda: not self._cluster.knows(stale))
        position = self._watched.effect_bytes()
        other_pids = {process.popen.pid for process in self._cluster.taskmanagers if process is not stale}
        self._watched.wait_for("calls of all others", lambda: other_pids <= self._callers_behind(position))
        self._watched.wait_for_output()
        logged = stale.log.stat().st_size
        position = self._watched.effect_bytes()
        stale.thaw()
        time.sleep(self._chance.uniform(*OVERLAP_SECONDS))
        self._cluster.kill(stale)
        # Calls that it had begun take effect, as those of any dead process.
        effects = self._watched.effects_behind(position)
        self.done.late += [line for line in effects if _caller(line) == stale.popen.pid]
        log_text = stale.log.read_bytes()[logged:].decode(errors="replace")
        self.done.stale_refused += FencedOwnerError.code in log_text
        self.done.overlaps += 1

    def _callers_behind(self, position: int) -> set[int | None]:
        """The processes that made calls."""
        return {_caller(line) for line in self._watched.effects_behind(position)}

    def _freeze(self) -> FlinkProcess:
        """Stop a TaskManager at a moment at which it is in nobody's way."""
        while True:
            stale = self._chance.choice(self._cluster.taskmanagers)
            stale.freeze()
            if self._store.is_free():
                return stale
            stale.thaw()


def _caller(line: str) -> int | None:
    """The process that took an effect."""
    return int(line.rsplit(" ", 1)[1]) if line.startswith("effect ") else None


def blow_plan(chance: random.Random, kills: int, rebuilds: int = 0, overlaps: int = 0) -> list[Blow]:
    """What to do, and when.

    Args:
        chance: Chooses.
        kills: How many TaskManagers to kill in all.
        rebuilds: How many of the kills fall into the rebuild from one of the others.
        overlaps: How many attempts go on beside their successors.
    """
    singles: list[list[float]] = []
    for _ in range(kills - 2 * rebuilds):
        if singles and chance.random() < AGAIN:
            singles[-1].append(chance.uniform(0, AGAIN_SECONDS))
        else:
            # Output grows when a checkpoint completes; the kill must be able to fall anywhere else.
            singles.append([chance.uniform(0, 1)])
    planned = [("kill", pauses) for pauses in singles]
    planned += [("rebuild", list[float]())] * rebuilds + [("overlap", list[float]())] * overlaps
    if rebuilds or overlaps:
        chance.shuffle(planned)
    parts = sorted(chance.uniform(0.05, 0.8) for _ in planned)
    return [Blow(part, kind, pauses) for part, (kind, pauses) in zip(parts, planned, strict=True)]
