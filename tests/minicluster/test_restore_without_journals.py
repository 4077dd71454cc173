"""A real restore: lost journals fail the job when it opens, whatever keys come."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from tests.cluster.heartbeats import Heartbeats, read_beats
from tests.cluster.local_job import LAST, LocalJob, start_agent
from tests.cluster.waiting import wait_until

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

KEYS = 20


async def charge(number: int) -> int:
    return number


class PayingAgent(Agent):
    """Makes a durable call for each key.

    Args:
        path: Gets a line for each call.
    """

    def __init__(self, path: str) -> None:
        self.beats = Heartbeats(path)

    @action(InputEvent, when=lambda event: event.input != LAST)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        self.beats.write("calls", ctx.key)
        return OutputEvent(output=await ctx.durable_execute_async(charge, event.input))

    @action(InputEvent, when=lambda event: event.input == LAST)
    def ignore(self, event: InputEvent, ctx: Any) -> None:
        pass


def restored(
    make: MakeEnvironment,
    directory: Path,
    savepoint: str,
    store: Path,
    first: int,
    parallelism: int = 3,
    **config: str,
) -> LocalJob:
    """Start the job from a savepoint, with keys that the savepoint does not have."""
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    beats = directory / "later"
    options = {"job-identifier": "paying", **config}
    options |= {"action-state.store": "sqlite", "action-state.sqlite.path": str(store)}
    flink = {
        "execution.state-recovery.path": savepoint,
        "execution.state-recovery.ignore-unclaimed-state": "true",
        "restart-strategy.type": "none",
    }
    env = make(config=options, flink=flink, parallelism=parallelism)

    def paced(number: int) -> list[int]:
        time.sleep(0.01)
        return [number] if number < first + KEYS else []

    source = NumberSequenceSource(first, 10**12), WatermarkStrategy.no_watermarks(), "later"
    flink_env: Any = env.stream_env
    numbers = flink_env.from_source(*source).uid(f"from {first}").set_parallelism(1)
    stream = numbers.flat_map(paced).set_parallelism(1)
    env.from_datastream(stream, lambda number: number).apply(PayingAgent(str(beats))).to_datastream().print()
    return LocalJob(env, beats)


def replace_store(store: Path, copy: Path) -> None:
    for path in store.parent.glob(f"{store.name}*"):
        path.unlink()
    shutil.copy(copy, store)


@pytest.mark.nightly
def test_a_restore_without_the_journals_fails_before_any_effect(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    store = tmp_path / "store.sqlite"
    beats = tmp_path / "beats"
    config = {"job-identifier": "paying", "action-state.store": "sqlite"}
    config |= {"action-state.sqlite.path": str(store)}
    with start_agent(agents_environment(config=config), PayingAgent(str(beats)), beats, KEYS) as job:
        job.wait_for("calls", lambda: len(read_beats(beats)) >= KEYS)
        savepoint = job.stop_with_savepoint(tmp_path / "savepoints")
    aside = store.rename(tmp_path / "aside.sqlite")
    with restored(agents_environment, tmp_path, savepoint, store, 1000) as job:
        wait_until("the failure", job.ended, 60, job.report)
        assert "FA6009" in job.report()
    assert not (tmp_path / "later").exists()
    replace_store(store, aside)
    with restored(agents_environment, tmp_path, savepoint, store, 2000) as job:
        job.wait_for("calls", lambda: len(read_beats(tmp_path / "later")) >= KEYS)
        again = job.stop_with_savepoint(tmp_path / "savepoints")
    replace_store(store, aside)
    with restored(agents_environment, tmp_path, again, store, 1000, parallelism=1) as job:
        wait_until("the failure", job.ended, 60, job.report)
        assert "FA6013" in job.report()
    assert len(read_beats(tmp_path / "later")) == KEYS
    other_store = tmp_path / "other.sqlite"
    fork = {"job-identifier": "copy", "action-state.on-job-change": "fork"}
    with restored(agents_environment, tmp_path, again, other_store, 3000, 3, **fork) as job:
        job.wait_for("calls", lambda: len(read_beats(tmp_path / "later")) >= 2 * KEYS)
