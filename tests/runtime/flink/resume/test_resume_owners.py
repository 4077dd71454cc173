"""Folders and journals that are those of another script, or of a job run that nobody knows of any more."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from resume_world import REQUEST, World, chosen, foreign_savepoint

from flink_agents.api.action_state import ActionStateStore, JournalKey, Owner, Record, RecordKind
from flink_agents.api.errors import JobFolderError, JobRunMissingError, OtherScriptError, StoreError
from flink_agents.api.settings.local_jobs import Accept
from flink_agents.api.settings.stores import open_store
from flink_agents.runtime.flink.resume.checks import recorded_identity
from flink_agents.runtime.flink.resume.job_run import JobFolder, iso_now
from flink_agents.runtime.flink.resume.policy import Program
from flink_agents.runtime.flink.stores import StoreChoice
from flink_agents.runtime.journal.identity import journal_name
from tests.suite.tables import each_case

# -- the script ---------------------------------------------------------------------------------

SCRIPTS: list[tuple[str, str, str, bool, str]] = [
    ("the same", "app/job.py", "app/job.py", True, "resumed"),
    ("another one in the directory", "app/job.py", "app/other.py", True, "rejected"),
    ("another one, in another directory", "app/job.py", "tools/other.py", True, "rejected"),
    ("renamed", "app/job.py", "app/other.py", False, "gone"),
    ("another version of it", "v1/job.py", "v2/job.py", True, "continues it"),
    ("moved", "v1/job.py", "v2/job.py", False, "gone"),
    ("another package", "one/__main__.py", "two/__main__.py", True, "rejected"),
    ("a link to it", "app/job.py", "link/job.py", True, "resumed"),
]


@each_case(("case", "first", "second", "stays", "outcome"), SCRIPTS)
def test_a_job_run_belongs_to_a_script(
    case: str, first: str, second: str, stays: bool, outcome: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("home")
    for script in {first, second} - {"link/job.py"}:
        (home / script).parent.mkdir(exist_ok=True)
        (home / script).touch()
    if second.startswith("link"):
        (home / "link").symlink_to(home / "app")
    state_dir = home / "state"
    world = World(state_dir)
    world.run = world.begin(replace(REQUEST, program=Program.find(home / first, state_dir))).run
    world.start(1)
    if not stays:
        (home / first).unlink()
    request = replace(REQUEST, program=Program.find(home / second, state_dir))
    if outcome == "rejected":
        with pytest.raises(OtherScriptError) as caught:
            world.begin(request)
        for part in (str(home / first), str(home / second), "other-script", "--fresh"):
            assert part in str(caught.value)
        request = replace(request, accept=Accept.OTHER_SCRIPT)
        outcome = "continues it"
    beginning = world.begin(request)
    assert chosen(beginning) == 1
    assert not beginning.warnings if outcome == "resumed" else outcome in beginning.warnings[0]
    # From now on the job run is that script's.
    world.run = beginning.run
    world.start(2)
    assert not world.begin(replace(REQUEST, program=Program.find(home / second, state_dir))).warnings


@each_case("moved", ["with its script", "alone", "to another machine"])
def test_a_folder_that_was_moved_belongs_to_its_script(
    moved: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("moved")
    old_folder = tmp_path / "before"
    after = tmp_path / "after"
    old_folder.mkdir()
    (old_folder / "job.py").touch()
    world = World(old_folder / "state")
    world.run = world.begin(
        replace(REQUEST, program=Program.find(old_folder / "job.py", old_folder / "state"))
    ).run
    world.start(1)
    if moved == "alone":
        after.mkdir()
        shutil.move(old_folder / "state", after / "state")
        program = Program.find(old_folder / "job.py", after / "state")
    else:
        shutil.copytree(old_folder, after)
        program = Program.find(after / "job.py", after / "state")
    if moved == "to another machine":
        shutil.rmtree(old_folder)
    copied = World.__new__(World)
    copied.folder = JobFolder.for_job(after / "state", "orders")
    beginning = copied.begin(replace(REQUEST, program=program))
    assert chosen(beginning) == 1 and not beginning.warnings


def test_names_that_are_one_to_the_file_system(world: World) -> None:
    """As on macOS, where the folders of 'orders' and 'Orders' are one."""
    world.start(1)
    with pytest.raises(JobFolderError, match="'orders'"):
        world.begin(replace(REQUEST, name="Orders"))


def test_a_finished_job_run_belongs_to_nobody(world: World, tmp_path: Path) -> None:
    for name in ("job.py", "other.py"):
        (tmp_path / name).touch()
    world.run = world.begin(replace(REQUEST, program=Program.find(tmp_path / "job.py", tmp_path))).run
    world.start(1)
    world.record.set(finished=iso_now())
    beginning = world.begin(replace(REQUEST, program=Program.find(tmp_path / "other.py", tmp_path)))
    assert beginning.run.generation == 2 and not beginning.warnings


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    return world


# -- the journal --------------------------------------------------------------------------------


async def _record(store: ActionStateStore, name: str) -> None:
    await store.open(Owner.create("job", name))
    await store.rebuild()
    await store.append(JournalKey(name, "1"), [Record(RecordKind.RUN, 0, "", 0, b"x")])
    await store.close()


RECORDED: list[tuple[str | None, str, str | None]] = [
    (None, "orders", None),
    ("orders", "orders", "orders"),
    ("orders@7", "orders", "orders@7"),
    ("orders@x", "orders", None),
    ("other", "orders", None),
    ("orders.eu", "orders", None),
    ("a/b", "a/b", "a/b"),
]


@each_case(("recorded", "identifier", "found"), RECORDED)
def test_a_journal_outside_of_the_folder_is_asked(
    recorded: str | None, identifier: str, found: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("journal")
    options = {"path": str(tmp_path / "journal.sqlite")}
    folder = JobFolder.for_job(tmp_path / "state", "orders")
    choice = StoreChoice("sqlite", options)
    assert recorded_identity([choice], folder, identifier) is None  # there is no file
    if recorded is not None:
        asyncio.run(_record(open_store("sqlite", options), journal_name(recorded, "Shop")))
    assert recorded_identity([choice], folder, identifier) == found

    async def inside() -> str | None:
        return recorded_identity([choice], folder, identifier)

    assert asyncio.run(inside()) == found


def test_a_journal_in_the_folder_is_not_asked(tmp_path: Path) -> None:
    folder = JobFolder.for_job(tmp_path, "orders")
    folder.create()
    options = {"path": str(folder.journal)}
    asyncio.run(_record(open_store("sqlite", options), journal_name("orders", "Shop")))
    assert recorded_identity([StoreChoice("sqlite", options)], folder, "orders") is None
    assert recorded_identity([StoreChoice("memory", {})], folder, "orders") is None


def test_a_folder_that_was_deleted_is_noticed_by_the_journal(tmp_path: Path) -> None:
    """Its steps would be replayed for other inputs; a fresh start has an identity that no other had."""
    request = replace(REQUEST, recorded=lambda identifier: f"{identifier}@3")
    world = World(tmp_path / "jobs")
    with pytest.raises(JobRunMissingError, match="orders@3"):
        world.begin(request)
    beginning = world.begin(replace(request, fresh=True))
    assert (
        beginning.run.generation > 1000 and beginning.run.identifier == f"orders@{beginning.run.generation}"
    )
    world.run = beginning.run
    world.start(1)
    assert chosen(world.begin(request)) == 1
    os.unlink(world.folder.record)
    shutil.rmtree(world.folder.checkpoints)
    os.unlink(world.folder.progress)
    place = foreign_savepoint(tmp_path)
    assert world.begin(replace(request, savepoint=str(place))).run.identifier == "orders"


def test_a_store_that_cannot_be_reached_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_text("no journal at all")
    choice = StoreChoice("sqlite", {"path": str(tmp_path / "journal.sqlite")})
    with pytest.raises(StoreError, match="journal"):
        recorded_identity([choice], JobFolder.for_job(tmp_path / "state", "orders"), "orders")
