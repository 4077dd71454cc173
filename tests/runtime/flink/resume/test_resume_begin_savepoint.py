"""A local job starts from a savepoint of another job."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from resume_world import REQUEST, World, chosen, foreign_savepoint

from flink_agents.api.errors import (
    CheckpointDamagedError,
    CheckpointsGoneError,
)
from flink_agents.runtime.flink.resume.job_run import iso_now
from flink_agents.runtime.flink.resume.policy import ScriptStart
from tests.suite.tables import each_case


@each_case("url", ["", "file:", "file://"])
def test_a_job_run_begins_with_the_savepoint_of_another_job(
    url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("begun")
    place = f"{url}{foreign_savepoint(tmp_path)}"
    world = World(tmp_path / "jobs")
    world.record.write(replace(world.run, finished=iso_now()))
    beginning = world.begin(replace(REQUEST, savepoint=str(place)))
    assert chosen(beginning) == 77
    assert (beginning.run.generation, beginning.run.identifier) == (2, "orders")
    # The first start dies before it has a checkpoint: the next one begins there again.
    world.run = beginning.run
    world.start()
    assert chosen(world.begin(replace(REQUEST, savepoint=str(place)))) == 77
    assert chosen(world.begin()) == 77


def test_the_own_checkpoints_of_a_job_run_count_more(tmp_path: Path) -> None:
    place = foreign_savepoint(tmp_path)
    world = World(tmp_path / "jobs")
    world.run = replace(world.run, origin=str(place))
    world.start(1, 2)
    world.run = world.record.set(checkpointed=True)
    assert chosen(world.begin(replace(REQUEST, savepoint=str(place)))) == 2
    shutil.rmtree(world.folder.checkpoints)
    with pytest.raises(CheckpointsGoneError):
        world.begin(replace(REQUEST, savepoint=str(place)))


@each_case("damage", ["gone", "short"])
def test_a_savepoint_that_is_not_whole_is_rejected(
    damage: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("damaged")
    place = foreign_savepoint(tmp_path, files="1")
    if damage == "gone":
        shutil.rmtree(place)
    with pytest.raises(CheckpointDamagedError, match="savepoint-of-a-cluster"):
        World(tmp_path / "jobs").begin(replace(REQUEST, savepoint=str(place)))


def test_a_script_may_remove_the_directory_of_its_jobs(tmp_path: Path) -> None:
    start = ScriptStart(tmp_path / "state", "job.py")
    shutil.rmtree(tmp_path / "state")
    start.record_script_end()
    assert not (tmp_path / "state").exists()


def _metadata(world: World) -> None:
    (world.checkpoint(2) / "_metadata").write_text("x")
