"""Faults of a machine: a full disk, processes that stand still, a long downtime."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flink_agents.testing.kafka import KafkaBroker
from tests.cluster.waiting import wait_until
from tests.local_chaos.command import KEYS, ORDERS, Broker
from tests.local_chaos.judge import World
from tests.local_chaos.kills import Start
from tests.minicluster.test_local_resume import Till

pytestmark = [pytest.mark.minicluster, pytest.mark.nightly]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("only root can mount a small file system")
    yield place
    # What the job has left open is closed when its processes are gone.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(file: Path) -> None:
    with pytest.raises(OSError, match="No space left"), file.open("wb", buffering=0) as stream:
        while True:
            stream.write(b"x" * 4096)


def test_a_full_disk_fails_the_job_and_loses_nothing(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (disk / "state").mkdir()
    (tmp_path / "job" / "state").symlink_to(disk / "state")
    till = Till(tmp_path / "job")
    with till.started() as process:
        till.run_on(process)
        fill(disk / "filler")
        printed = process.communicate(timeout=240)[1]
    assert process.returncode == 1
    assert "database or disk is full" in printed and "check the disk's free space" in printed
    (disk / "filler").unlink()
    with till.started() as process:
        till.run_on(process)
        till.kill(process)
        assert "resuming 'till' from checkpoint " in process.communicate()[1]
    till.check(starts=2)


def test_processes_that_stood_still_go_on(tmp_path: Path) -> None:
    till = Till(tmp_path)
    with till.started() as process:
        till.run_on(process)
        jvms = till.jvms(process)
        for jvm in jvms:
            jvm.suspend()
        process.send_signal(signal.SIGSTOP)
        # Longer than heartbeats of Flink and than the lease of a store.
        time.sleep(90)
        process.send_signal(signal.SIGCONT)
        for jvm in jvms:
            jvm.resume()
        till.run_on(process)
        till.kill(process)
    till.check(starts=1)


def settings(directory: Path, broker: Broker, **config: str) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "backend": "hashmap",
        "parallelism": 1,
        "brokers": broker.client,
        "config": config,
        "orders": ORDERS,
        "keys": KEYS,
        "transaction_timeout": 20,
    }


def test_a_downtime_beyond_the_transaction_timeout_is_rejected_unless_accepted(tmp_path: Path) -> None:
    def world() -> World:
        return World.read(tmp_path / "world")

    def run_on(start: Start) -> None:
        effect_count = world().count

        def moved() -> bool:
            assert start.process.poll() is None, start.printed()
            metadata_files = list((tmp_path / "state").glob("jobs/orders/checkpoints/*/chk-*/_metadata"))
            return len(metadata_files) > 0 and world().count > effect_count + 60

        wait_until("effects and a checkpoint", moved, 240)

    with KafkaBroker(tmp_path / "kafka") as kafka:
        broker = Broker(kafka.client_options)
        broker.prepare()
        start = Start(settings(tmp_path, broker), tmp_path / "log")
        run_on(start)
        start.kill("tree")
        time.sleep(22)
        late = Start(settings(tmp_path, broker), tmp_path / "log")
        assert late.process.wait(240) == 1
        assert "FA3205" in late.printed() and "local.accept to lost-outputs" in late.printed()
        accepted = {"local.accept": "lost-outputs"}
        start = Start(settings(tmp_path, broker, **accepted), tmp_path / "log")
        run_on(start)
        assert re.search("WARNING: outputs that were not committed .* may be lost", start.printed())
        assert start.stop() == 143
        assert not world().repeated_after_record
        booked = Counter(output["number"] for output in broker.read("booked"))
        assert booked and max(booked.values()) == 1
