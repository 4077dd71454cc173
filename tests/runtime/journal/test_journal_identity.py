"""A restore with other journals than those of the checkpoint fails when it opens, whatever keys come."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.action_state import Owner
from flink_agents.api.errors import JournalOutdatedError, StoreMismatchError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.runtime.journal.identity import raise_position
from flink_agents.testing import OperatorHarness
from flink_agents.testing.harness import Snapshot
from tests.suite import conditions
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

FLINK_ID = "1" * 32
CALLS: list[str] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    CALLS.clear()


def charge(order: str) -> str:
    CALLS.append(order)
    return order


class Payments(Agent):
    @action(InputEvent)
    def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=ctx.durable_execute(charge, event.input))


class Plain(Agent):
    @action(InputEvent)
    def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


def job(file: Path, agent: type[Agent] = Payments, **arguments: Any) -> OperatorHarness:
    config = {"action-state.store": "sqlite", "action-state.sqlite.path": str(file)}
    config |= arguments.pop("config", {"job-identifier": "paying"})
    return OperatorHarness(agent, lambda order: order, config=config, **conditions.UNFORCED, **arguments)


def remove(file: Path) -> None:
    for path in file.parent.glob(f"{file.name}*"):
        path.unlink()


def delete(file: Path) -> None:
    remove(file)


def empty(file: Path) -> None:
    remove(file)
    file.touch()


def replace_by_another(file: Path) -> None:
    remove(file)
    with job(file) as other_harness:
        other_harness.push_all([f"x{number}" for number in range(20)])


def replace_by_older_copy(file: Path) -> None:
    remove(file)
    shutil.copy(file.with_name("copy"), file)


def keep(file: Path) -> None:
    pass


LOSSES: dict[Callable[[Path], None], type[Exception] | None] = {
    delete: StoreMismatchError,
    empty: StoreMismatchError,
    replace_by_another: StoreMismatchError,
    replace_by_older_copy: JournalOutdatedError,
    keep: None,
}


def copy_file(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(file, file.with_name("copy"))


@each_case(
    ("loss", "parallelism", "following"),
    product(LOSSES, ((1, 1), (1, 3), (3, 1)), ("o1", "o2", "new")),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_restore_compares_the_journals_before_any_effect(
    tmp_path_factory: pytest.TempPathFactory,
    loss: Callable[[Path], None],
    parallelism: tuple[int, int],
    following: str,
) -> None:
    file = tmp_path_factory.mktemp("journal") / "journal.sqlite"
    old_parallelism, after = parallelism
    with job(file, parallelism=old_parallelism) as harness:
        harness.push("o1")
        copy_file(file)
        harness.push("o2")
        checkpoint = harness.snapshot()
        harness.push("later")
        harness.close()
        loss(file)
        CALLS.clear()
        error = LOSSES[loss]
        if error is not None:
            with pytest.raises(error):
                harness.restore(checkpoint, after)
            assert not CALLS
            return
        harness.restore(checkpoint, after)
        assert harness.push("later") == ["later"]
        assert not CALLS
        assert harness.push(following) == [following]


@each_case("parallelism", [1, 3])
def test_a_checkpoint_without_any_key_names_the_journals(
    tmp_path_factory: pytest.TempPathFactory, parallelism: int
) -> None:
    file = tmp_path_factory.mktemp("journal") / "journal.sqlite"
    with job(file) as harness:
        checkpoint = harness.snapshot()
        harness.push("o1")
        harness.close()
        remove(file)
        CALLS.clear()
        with pytest.raises(StoreMismatchError):
            harness.restore(checkpoint, parallelism)
    assert not CALLS


def test_journals_that_were_pruned_to_nothing_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "journal.sqlite"
    with job(file, checkpoints=True) as harness:
        harness.push("o1")
        checkpoint = harness.snapshot()
        harness.close()
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("DELETE FROM records")
            connection.execute("DELETE FROM journals")
        harness.restore(checkpoint, 1)
        assert harness.push("o2") == ["o2"]


def test_the_state_names_the_journals_from_each_start_on(tmp_path: Path) -> None:
    """A checkpoint of a job without a store names none. A start between two starts may have no store."""
    file = tmp_path / "journal.sqlite"
    with job(file) as harness:
        harness.push("o1")
        checkpoint = harness.snapshot()
        earlier = Snapshot(checkpoint.keys, checkpoint.outputs, {}, checkpoint.max_parallelism)
        harness.restore(earlier, 3)
        checkpoint = harness.snapshot()
    config = {"job-identifier": "paying"}
    with OperatorHarness(Plain, lambda order: order, config=config, **conditions.UNFORCED) as plain:
        plain.restore(replace_keys(checkpoint), 2)
        checkpoint = plain.snapshot()
    remove(file)
    with job(file) as harness, pytest.raises(StoreMismatchError):
        harness.restore(checkpoint)


def replace_keys(snapshot: Snapshot) -> Snapshot:
    return Snapshot({}, 0, {}, snapshot.max_parallelism, journals=snapshot.journals)


POLICIES: list[tuple[str, dict[str, Any], str, type[Exception] | None]] = [
    # The job that wrote the state, the options of the one that restores it, its journals, the error.
    (FLINK_ID, {}, "same", None),
    (FLINK_ID, {}, "other", StoreMismatchError),
    ("named", {"job-identifier": "fork", "action-state.on-job-change": "fork"}, "same", None),
    ("named", {"job-identifier": "fork", "action-state.on-job-change": "fork"}, "other", None),
    ("named", {"job-identifier": "new", "action-state.on-job-change": "adopt"}, "same", None),
    (
        "named",
        {"job-identifier": "new", "action-state.on-job-change": "adopt"},
        "other",
        StoreMismatchError,
    ),
    ("named", {"job-identifier": "named"}, "copied", None),
    ("named", {"job-identifier": "named"}, "other", StoreMismatchError),
]


@each_case(("origin", "config", "journals", "error"), POLICIES)
def test_a_job_that_continues_another_one_needs_its_journals(
    tmp_path_factory: pytest.TempPathFactory,
    origin: str,
    config: dict[str, Any],
    journals: str,
    error: type[Exception] | None,
) -> None:
    file = tmp_path_factory.mktemp("journal") / "journal.sqlite"
    named = {} if origin == FLINK_ID else {"job-identifier": origin}
    with job(file, job_id=FLINK_ID, config=named) as first:
        first.push("o1")
        checkpoint = first.snapshot()
    path = file if journals == "same" else file.with_name("other.sqlite")
    if journals == "copied":
        note_copy(file, path)
    with job(path, job_id="2" * 32, config=config) as second:
        if error is not None:
            with pytest.raises(error):
                second.restore(checkpoint)
            return
        second.restore(checkpoint)
        assert second.push("o2") == ["o2"]
        # From now on, the state names the journals of this job.
        later = second.snapshot()
        second.close()
        remove(path)
        with pytest.raises(StoreMismatchError):
            second.restore(later, 1)


def note_copy(source: Path, target: Path) -> None:
    job(target).close()

    async def note() -> None:
        stores = [SQLiteStore(source), SQLiteStore(target)]
        for store in stores:
            await store.open(Owner.create("copy", "copy"))
        await stores[1].remember_origin(stores[0].store_id)
        for store in stores:
            await store.close()

    asyncio.run(note())


def test_an_accepted_older_copy_can_be_restored(tmp_path: Path) -> None:
    file = tmp_path / "journal.sqlite"
    with job(file) as harness:
        harness.push("o1")
        copy_file(file)
        harness.push("o2")
        checkpoint = harness.snapshot()
        harness.close()
        replace_by_older_copy(file)
        raise_position(file, 1000)
        harness.restore(checkpoint, 1)
        assert harness.push("new") == ["new"]


def test_a_store_in_memory_that_is_gone_is_found() -> None:
    places = [MemoryPlace()]
    with OperatorHarness(
        Payments, lambda order: order, store=lambda: MemoryStore(places[-1]), **conditions.UNFORCED
    ) as harness:
        empty = harness.snapshot()
        harness.push("o1")
        checkpoint = harness.snapshot()
        places.append(MemoryPlace())
        with pytest.raises(StoreMismatchError):
            harness.restore(checkpoint)
        # No record of it was lost.
        harness.restore(empty, 1)
        assert harness.push("o1") == ["o1"]
