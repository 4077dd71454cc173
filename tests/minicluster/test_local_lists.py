"""Lists of local jobs that are killed: what ``to_list()`` returns at last, and lists that have changed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flink_agents.testing.kafka import KafkaBroker
from tests.cluster.waiting import wait_until
from tests.local_chaos.command import Broker
from tests.minicluster.test_local_resume import Till

pytestmark = pytest.mark.minicluster

SCRIPT = Path(__file__).with_name("listing_job.py")
COUNT = 150
KEYS = 5


@contextmanager
def started(directory: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Start the script in a directory; what is left of it is killed at the end."""
    variables = {"LISTING_JOB": str(directory), "PYTHONPATH": str(SCRIPT.parents[2]), **environ}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        cwd=directory,
        env={**os.environ, **variables},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        Till.kill(process)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def effects(directory: Path) -> list[int]:
    path = directory / "effects"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_on(directory: Path, process: subprocess.Popen[str], orders: int) -> None:
    """Wait until the job has charged so many orders, and has two further checkpoints."""
    previous_checkpoints = set(directory.glob("state/jobs/shop/checkpoints/*/chk-*/_metadata"))

    def came_on() -> bool:
        assert process.poll() is None, process.communicate()[1]
        further = set(directory.glob("state/jobs/shop/checkpoints/*/chk-*/_metadata")) - previous_checkpoints
        return len(effects(directory)) >= orders and len(further) >= 2

    wait_until(f"{orders} orders and two checkpoints", came_on, 240)


def fails(directory: Path, code: str, **environ: str) -> None:
    """Check that a start is rejected before any effect."""
    effect_count = len(effects(directory))
    with started(directory, **environ) as process:
        stderr = process.communicate()[1]
    assert process.returncode == 1 and code in stderr
    assert len(effects(directory)) == effect_count


def check_outputs(directory: Path) -> None:
    """Check that each list has all outputs of the job run once, in the order of each key."""
    for outputs in json.loads((directory / "outputs").read_text()):
        assert sorted(order for order, _ in outputs) == list(range(COUNT))
        for key in range(KEYS):
            of_key = [(order, seen) for order, seen in outputs if order % KEYS == key]
            assert of_key == [(key + KEYS * place, place + 1) for place in range(COUNT // KEYS)]


@pytest.mark.nightly
def test_the_list_of_a_killed_job_has_all_outputs(tmp_path: Path) -> None:
    """It is killed in the middle, and at the end of its input; a changed list is rejected meanwhile."""
    with started(tmp_path) as process:
        run_on(tmp_path, process, 30)
        Till.kill(process)
        process.wait()
    fails(tmp_path, "FA3220", LISTING_COUNT=str(COUNT + 1))
    with started(tmp_path) as process:
        run_on(tmp_path, process, COUNT)
        process.send_signal(signal.SIGKILL)
        process.wait()
    (tmp_path / "finish").touch()
    # The folder is in another place now.
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("state", "effects", "finish"):
        shutil.move(tmp_path / name, moved / name)
    with started(moved) as process:
        stderr = process.communicate()[1]
    assert process.returncode == 0, stderr
    assert "resuming 'shop' from checkpoint" in stderr
    check_outputs(moved)
    assert max(Counter(effects(moved)).values()) <= 2


@pytest.mark.nightly
def test_the_list_of_a_job_whose_newest_checkpoint_is_damaged(tmp_path: Path) -> None:
    """Outputs that only the damaged checkpoint had are emitted again. The folder was copied without times."""
    with started(tmp_path) as process:
        run_on(tmp_path, process, 60)
        Till.kill(process)
        process.wait()
    metadata_files = tmp_path.glob("state/jobs/shop/checkpoints/*/chk-*/_metadata")
    newest = max(metadata_files, key=lambda path: int(path.parent.name.removeprefix("chk-")))
    newest.write_bytes(b"damaged")
    for path in (tmp_path / "state").rglob("*"):
        os.utime(path, (1e9, 1e9))
    (tmp_path / "finish").touch()
    with started(tmp_path) as process:
        stderr = process.communicate()[1]
    assert process.returncode == 0, stderr
    assert "an older one is used" in stderr and "resuming 'shop' from checkpoint" in stderr
    check_outputs(tmp_path)


@pytest.mark.nightly
def test_a_list_and_a_topic_of_a_killed_job_have_the_same_outputs(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka") as kafka:
        broker = Broker(kafka.client_options)
        environ = {"LISTING_BROKERS": json.dumps(broker.client)}
        with started(tmp_path, **environ) as process:
            run_on(tmp_path, process, 30)
            Till.kill(process)
            process.wait()
        (tmp_path / "finish").touch()
        with started(tmp_path, **environ) as process:
            stderr = process.communicate()[1]
        assert process.returncode == 0, stderr
        assert "resuming 'shop' from checkpoint" in stderr
        check_outputs(tmp_path)
        outputs = json.loads((tmp_path / "outputs").read_text())[0]
        topic_outputs: list[Any] = broker.read("paid")
        assert sorted(topic_outputs) == sorted(outputs)


@pytest.mark.nightly
def test_a_source_that_begins_anew_is_named(tmp_path: Path) -> None:
    with started(tmp_path, LISTING_SOURCE="collection", LISTING_COUNT="3000") as process:
        run_on(tmp_path, process, 30)
        Till.kill(process)
        assert "keeps no position" in process.communicate()[1]
