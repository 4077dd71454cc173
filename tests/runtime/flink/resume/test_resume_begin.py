"""With what a start of a local job begins: what is left of earlier starts decides."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from resume_world import REQUEST, FreeLock, World, chosen, read

from flink_agents.api.errors import (
    AgentsError,
    CheckpointDamagedError,
    CheckpointsGoneError,
    JobChangedError,
    JobFolderError,
    JobFolderInUseError,
    JournalMissingError,
    JournalOutdatedError,
    OutputsExpiredError,
)
from flink_agents.api.settings.local_jobs import Accept
from flink_agents.runtime.flink.resume import start_decision as module
from flink_agents.runtime.flink.resume.checkpoints import Watcher, key_of, read_progress
from flink_agents.runtime.flink.resume.checks import SeenJournal, read_position
from flink_agents.runtime.flink.resume.job_run import JobFolder, JobRun, Moment, iso_now
from flink_agents.runtime.flink.resume.start_decision import begin_start
from tests.suite.tables import each_case


def test_the_first_start_begins_with_nothing(tmp_path: Path) -> None:
    folder = JobFolder.for_job(tmp_path, "orders")
    lock = FreeLock()
    beginning = begin_start(folder, REQUEST, lock, read, None)
    assert (chosen(beginning), beginning.run.identifier, beginning.run.generation) == (None, "orders", 1)
    assert lock.held


STARTS: list[tuple[str, list[tuple[list[int], int | None]], int | None]] = [
    ("no checkpoint", [([], None)], None),
    ("the newest", [([1, 2, 10, 9], None)], 10),
    ("of an earlier start", [([3], None), ([], None)], 3),
    ("of the last start, whatever the numbers", [([7, 8], None), ([3], None)], 3),
    ("a savepoint", [([4], 5)], 5),
    ("a checkpoint after a savepoint", [([4], 5), ([6], None)], 6),
    ("a savepoint, of an earlier start", [([4], 5), ([], None)], 5),
]


@each_case(("starts", "number"), [row[1:] for row in STARTS], ids=[row[0] for row in STARTS])
def test_the_newest_checkpoint_is_chosen(
    starts: list[tuple[list[int], int | None]], number: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("jobs"))
    for checkpoints, savepoint in starts:
        world.start(*checkpoints, savepoint=savepoint)
    # File times say nothing: a copied folder has others.
    for path in world.folder.path.rglob("_metadata"):
        os.utime(path, (10, 10) if path.parent.name != "chk-1" else None)
    assert chosen(world.begin()) == number


def _truncate(world: World) -> None:
    (world.checkpoint(2) / "state").write_text("1234")


def _garble(world: World) -> None:
    (world.checkpoint(2) / "state").write_text("54321")


def _delete(world: World) -> None:
    (world.checkpoint(2) / "state").unlink(missing_ok=True)


def _metadata(world: World) -> None:
    (world.checkpoint(2) / "_metadata").write_text("x")


def _empty(world: World) -> None:
    (world.checkpoint(2) / "_metadata").write_text("")


def _added(world: World) -> None:
    (world.checkpoint(2) / "more").write_text("")


@each_case(
    "damage", [_truncate, _garble, _delete, _metadata, _empty, _added], ids=lambda damage: damage.__name__
)
def test_a_damaged_newest_checkpoint_is_passed_over(
    damage: Callable[[World], None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("jobs"))
    world.start(1, 2)
    damage(world)
    beginning = world.begin()
    assert chosen(beginning) == 1
    assert len(beginning.damaged) == 1 and "chk-2" in beginning.damaged[0]
    damage(world)
    (world.checkpoint(1) / "state").write_text("")
    with pytest.raises(CheckpointDamagedError, match="--fresh"):
        world.begin()


def test_checkpoints_that_are_gone_are_an_error(world: World) -> None:
    world.start(1, 2)
    os.rename(world.checkpoint(2), world.folder.path / "x")
    with pytest.raises(CheckpointsGoneError):
        world.begin()
    os.rename(world.checkpoint(1), world.folder.path / "y")
    with pytest.raises(CheckpointsGoneError):
        world.begin()
    world.folder.progress.unlink()
    assert chosen(world.begin()) is None  # nobody has seen any
    world.record.set(checkpointed=True)
    with pytest.raises(CheckpointsGoneError, match="finished just before"):
        world.begin()


Lost = tuple[str, list[tuple[list[int], int | None]], list[tuple[int, int]], bool, list[str]]
LOST: list[Lost] = [
    ("a later start's, a savepoint is left", [([4], 5), ([6], None)], [], False, ["chk-6"]),
    ("and a checkpoint", [([4], None), ([6], None)], [], False, ["chk-6"]),
    ("the one it resumed from", [([4], 5), ([6], None), ([], None)], [(3, 2)], False, ["chk-6"]),
    ("the savepoint it resumed from", [([4], 5), ([], None)], [(2, 1)], False, ["savepoint-x"]),
    ("and everything else", [([], 5), ([], None)], [(2, 1)], False, ["savepoint-x"]),
    ("the savepoint of a stop", [([4], None), ([], 5)], [(2, 1)], True, ["savepoint-x"]),
    ("and there was nothing else", [([], 5)], [], True, ["savepoint-x"]),
]


@each_case(("starts", "resumed", "stopped", "lost"), [row[1:] for row in LOST], ids=[row[0] for row in LOST])
def test_an_older_checkpoint_does_not_replace_one_that_is_gone(
    starts: list[tuple[list[int], int | None]],
    resumed: list[tuple[int, int]],
    stopped: bool,
    lost: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    world = World(tmp_path_factory.mktemp("jobs"))
    for checkpoints, savepoint in starts:
        world.start(*checkpoints, savepoint=savepoint)
    for start, parent in resumed:
        numbers, savepoint = starts[parent - 1]
        world.resumed(start, parent, savepoint or max(numbers))
    if stopped:
        world.run = world.record.record_stop()
    assert chosen(world.begin()) is not None
    for path in list(world.folder.path.rglob("_metadata")):
        if path.parent.name in lost:
            os.rename(path.parent, world.folder.path / f"moved-{path.parent.name}")
    with pytest.raises(CheckpointsGoneError, match="--fresh"):
        world.begin()


def test_a_job_run_that_finished_is_followed_by_another_one(world: World) -> None:
    world.start(1)
    world.folder.journal.touch()
    world.record.set(finished=iso_now())
    beginning = world.begin()
    assert (beginning.run.generation, beginning.run.identifier, chosen(beginning)) == (2, "orders@2", None)
    assert {path.name for path in world.folder.path.iterdir()} == {"job-run.json"}
    named = replace(REQUEST, identifier="mine")
    world.record.set(finished=iso_now())
    assert world.begin(named).run.identifier == "mine@3"


def test_a_death_before_the_first_start_leaves_nothing_behind(world: World) -> None:
    world.record.write(replace(world.run, generation=4, identifier="orders@4"))
    world.folder.journal.touch()
    beginning = world.begin()
    assert beginning.run.generation == 4
    assert not world.folder.journal.exists()


def test_fresh_moves_the_folder_aside(world: World) -> None:
    world.start(1)
    beginning = world.begin(replace(REQUEST, fresh=True))
    assert (beginning.run.generation, chosen(beginning)) == (2, None)
    aside = list((world.folder.path.parent.parent / "set-aside").iterdir())
    assert len(aside) == 1 and (aside[0] / "checkpoints").is_dir()
    assert JobRun.from_json((aside[0] / "job-run.json").read_text()).starts
    assert {path.name for path in world.folder.path.iterdir()} == {"job-run.json"}
    world.folder.record.write_text("{")
    with pytest.raises(JobFolderError):
        world.begin()
    assert world.begin(replace(REQUEST, fresh=True)).run.generation > 1000


def test_a_death_while_the_folder_is_moved_aside(world: World) -> None:
    """The next start, without the argument, goes on with it, under the number of the new job run."""
    world.start(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobFolder, "set_aside", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            world.begin(replace(REQUEST, fresh=True))
    beginning = world.begin()
    assert (beginning.run.generation, chosen(beginning)) == (2, None)
    aside = list((world.folder.state_dir / "set-aside").iterdir())
    assert len(aside) == 1 and (aside[0] / "checkpoints").is_dir()


@each_case("left", ["progress.json", "journal.sqlite", "checkpoints", "savepoints", "outputs"])
def test_a_record_that_is_gone_is_an_error(left: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A start that took the folder for a new one would remove what is in it."""
    world = World(tmp_path_factory.mktemp("jobs"))
    (world.folder.path / left).mkdir()
    with pytest.raises(JobFolderError, match=left):
        world.begin()
    assert (world.folder.path / left).exists()
    assert world.begin(replace(REQUEST, fresh=True)).run.generation > 1000


def test_a_job_that_lost_an_agent_does_not_resume(world: World) -> None:
    world.start(1)
    with pytest.raises(JobChangedError, match="agent 'Shop'"):
        world.begin(replace(REQUEST, plans={"Store": "a"}))
    assert world.begin(replace(REQUEST, plans={"Shop": "b", "Store": "a"})).warnings
    assert not world.begin(replace(REQUEST, plans={"Shop": "a", "Store": "a"})).warnings


AGO = 600.0


PRESENT = Moment(1e9 + AGO, "boot", 1000.0 + AGO)


DOWNTIMES: list[tuple[str, Moment | None, float, bool]] = [
    ("in time", Moment(1e9, "boot", 1000.0), AGO + 61, True),
    ("too late for the restore", Moment(1e9, "boot", 1000.0), AGO + 20, False),
    ("too late", Moment(1e9, "boot", 1000.0), AGO - 1, False),
    ("the clock was set back", Moment(2e9, "boot", 1000.0), AGO - 1, False),
    ("the clock was set back, in time", Moment(2e9, "boot", 1000.0), AGO + 61, True),
    ("the clock was set forth", Moment(1.0, "boot", 1000.0), AGO + 61, True),
    ("another start of the machine", Moment(1e9, "before", 5e6), AGO + 61, True),
    ("another start of the machine, too late", Moment(1e9, "before", 5e6), AGO - 1, False),
    ("set back, and started again", Moment(2e9, "before", 5e6), 1e8, False),
    ("clocks of two machines that differ a little", Moment(1e9 + AGO + 20, "before", 5.0), AGO, True),
    ("a system without an id of its start", Moment(1e9), AGO + 61, True),
    ("nobody noted it, and the clock was set back", None, 1e8, False),
]


@each_case(("since", "timeout", "resumes"), [row[1:] for row in DOWNTIMES], ids=[row[0] for row in DOWNTIMES])
def test_transactions_that_brokers_have_aborted_are_an_error(
    since: Moment | None, timeout: float, resumes: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("jobs"))
    world.start(1)
    path = world.checkpoint(1)
    seen = read_progress(world.folder)
    assert seen is not None
    noted = {} if since is None else {key_of(path): since}
    world.folder.progress.write_text(replace(seen, open_since=noted).to_json())
    request = replace(REQUEST, transaction_timeout=timeout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Moment, "now", classmethod(lambda _: PRESENT))
        # The file says nothing of it, unless nobody has noted the moment.
        os.utime(path / "_metadata", (2e9, 2e9))
        if resumes:
            assert chosen(world.begin(request)) == 1
            return
        with pytest.raises(OutputsExpiredError, match="lost-outputs"):
            world.begin(request)
        accepted = world.begin(replace(request, accept=Accept.LOST_OUTPUTS))
        assert chosen(accepted) == 1 and accepted.warnings


@each_case(("opened", "resumes"), [(900.0, False), (1e8, True)])
def test_a_changed_timeout_does_not_hold_for_open_transactions(
    opened: float, resumes: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("jobs"))
    world.run = replace(world.run, transaction_timeout=opened)
    world.start(1)
    os.utime(world.checkpoint(1) / "_metadata", (1, 1))
    changed = replace(REQUEST, transaction_timeout=1e11 if opened == 900.0 else 900.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Moment, "now", classmethod(lambda _: Moment(1e6)))
        if resumes:
            assert chosen(world.begin(changed)) == 1
        else:
            with pytest.raises(OutputsExpiredError):
                world.begin(changed)


def test_a_start_that_was_stopped_has_committed_its_outputs(world: World) -> None:
    """A savepoint alone does not say so: the process may have died before it committed."""
    world.start(savepoint=2)
    os.utime(world.folder.savepoints / "1" / "savepoint-x" / "_metadata", (1, 1))
    request = replace(REQUEST, transaction_timeout=900.0)
    with pytest.raises(OutputsExpiredError):
        world.begin(request)
    world.run = world.record.record_stop()
    assert chosen(world.begin(request)) == 2
    # A start from there that dies before its first checkpoint changes nothing.
    world.start()
    assert chosen(world.begin(request)) == 2


def test_since_when_transactions_are_open_is_noted(world: World) -> None:
    """They begin when the checkpoint before was triggered."""
    moments = iter(Moment(float(number), "boot", float(number)) for number in range(1, 100))
    home = world.folder.checkpoints / "x"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Moment, "now", classmethod(lambda _: next(moments)))
        watcher = Watcher(world.folder, 1, home, None, lambda: None, None)
        since: list[float] = []
        for number in (1, 2, 3):
            (home / f"chk-{number}").mkdir(parents=True)
            watcher._check_folder(False)  # it is triggered
            (home / f"chk-{number}" / "_metadata").touch()
            watcher._check_folder(False)
            seen = read_progress(world.folder)
            assert seen is not None and seen.checkpoint == number
            since.append(seen.open_since[f"x/chk-{number}"].running)
    # The start of the job is moment 1; the directories were seen at 2, 3 and 4.
    assert since == [1.0, 2.0, 3.0]


@each_case(
    "text", ["", "{", "[]", '{"start": 1}', '{"start": 1, "checkpoint": 1, "alive": 0, "journal": 3}', None]
)
def test_progress_that_is_lost_is_an_error(
    text: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without it, an older journal and missing checkpoints would not be noticed."""
    world = World(tmp_path_factory.mktemp("jobs"))
    world.start(1)
    world.record.set(checkpointed=True)
    if text is None:
        world.folder.progress.unlink()
    else:
        world.folder.progress.write_text(text)
    with pytest.raises(JobFolderError, match="--fresh"):
        world.begin()
    assert world.begin(replace(REQUEST, fresh=True)).run.generation == 2


def _journal(path: Path, store: str, position: int) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT)")
        connection.executemany(
            "INSERT INTO meta VALUES (?, ?)", [("store_id", store), ("position", str(position))]
        )
    connection.close()


JOURNALS: list[tuple[tuple[str, int] | None, type[AgentsError] | None]] = [
    (("s", 5), None),
    (("s", 6), None),
    (("s", 4), JournalOutdatedError),
    (("t", 5), JournalMissingError),
    (None, JournalMissingError),
]


@pytest.mark.parametrize("checkpoints", [(), (1,)])
@each_case(("found", "error"), JOURNALS)
def test_the_journal_has_what_was_seen(
    found: tuple[str, int] | None,
    error: type[AgentsError] | None,
    checkpoints: tuple[int, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    world = World(tmp_path_factory.mktemp("jobs"))
    world.start(*checkpoints)
    path = world.folder.journal
    _journal(path, "s", 5)
    position = read_position(path)
    assert position is not None
    world.progress(max(checkpoints, default=None), SeenJournal("/somewhere/else", position))
    path.unlink()
    if found is not None:
        _journal(path, *found)
    request = replace(REQUEST, journal=path)
    if error is None:
        assert not world.begin(request).warnings
        return
    with pytest.raises(error, match="--fresh"):
        world.begin(request)
    accepting = replace(request, accept=Accept.OLDER_JOURNAL)
    if error is JournalOutdatedError:
        assert "older copy" in world.begin(accepting).warnings[0]
        assert not world.begin(request).warnings
    else:
        with pytest.raises(error):
            world.begin(accepting)


def test_a_journal_is_missed_though_nobody_has_seen_it(world: World) -> None:
    world.run = replace(world.run, journal=True)
    world.start(1)
    world.folder.progress.unlink()
    with pytest.raises(JournalMissingError):
        world.begin(replace(REQUEST, journal=world.folder.journal))


def test_one_process_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.start(1)
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.0)
    lock = FreeLock()
    monkeypatch.setattr(lock, "acquire", lambda: False)
    with pytest.raises(JobFolderInUseError, match="process 1"):
        begin_start(world.folder, REQUEST, lock, read, None)


def test_an_error_gives_the_lock_back(world: World) -> None:
    world.start(1)
    os.rename(world.checkpoint(1), world.folder.path / "x")
    lock = FreeLock()
    with pytest.raises(CheckpointsGoneError):
        begin_start(world.folder, REQUEST, lock, read, None)
    assert not lock.held


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("a file")
    with pytest.raises(JobFolderError, match=r"local\.state-dir"):
        begin_start(JobFolder.for_job(tmp_path, "orders"), REQUEST, FreeLock(), read, None)
