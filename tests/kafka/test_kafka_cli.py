"""``flink-agents kafka`` as a shell would call it: the broker outlives the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flink_agents.testing.kafka import KafkaBroker
from tests.kafka.kafka_clients import read, write


@pytest.fixture
def place(tmp_path: Path):
    """The directory of the caller; a broker that a failed test left there is killed."""
    yield tmp_path
    leftover_broker = KafkaBroker(tmp_path / ".flink-agents" / "kafka")
    if leftover_broker.running:
        leftover_broker.kill()


def kafka(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("flink-agents")), "kafka", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_start_status_stop(place: Path) -> None:
    data = place / ".flink-agents" / "kafka"
    initial_status = kafka("status", cwd=place)
    assert (initial_status.returncode, initial_status.stdout.splitlines()[0]) == (1, "Kafka does not run")
    assert not data.exists()

    started = kafka("start", cwd=place)
    assert started.returncode == 0, started.stderr
    assert started.stderr == ""
    first, *remaining_lines = started.stdout.splitlines()
    assert first.startswith("Kafka runs at 127.0.0.1:")
    assert remaining_lines == [f"  directory  {data}"]

    again = kafka("start", "--json", cwd=place)
    state = json.loads(again.stdout)
    assert (again.returncode, state["running"]) == (0, True)
    assert first == f"Kafka runs at {state['bootstrap_servers']}"
    write(state["client_options"], "from-shell", b"a")
    assert read(state["client_options"], "from-shell") == [b"a"]

    status = kafka("status", cwd=place)
    assert status.returncode == 0
    assert status.stdout.startswith(f"{first}, process {state['pid']}\n")
    assert f"{first.replace('runs', 'already runs')}\n" in kafka("start", cwd=place).stdout
    refused = kafka("start", "--security", "SSL", cwd=place)
    assert (refused.returncode, "[FA7004]" in refused.stderr) == (2, True)

    assert (stopped := kafka("stop", cwd=place)).stdout == "Kafka is stopped\n", stopped.stderr
    assert has_ended(state["pid"])
    assert kafka("stop", cwd=place).stdout == "no Kafka runs here\n"
    after = kafka("status", "--json", cwd=place)
    assert after.returncode == 1
    assert json.loads(after.stdout) == {**state, "running": False, "pid": None}


def test_a_port_in_use_ends_with_2(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    port = kafka_broker.bootstrap_servers.partition(":")[2]
    done = kafka("start", "--data", "other", "--port", port, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("BrokerPortInUseError: ")
    assert f"port {port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_an_interrupted_start_leaves_nothing_behind(tmp_path: Path) -> None:
    """Ctrl-C while it waits: nobody was told of the broker."""
    command = [str(Path(sys.executable).with_name("flink-agents")), "kafka", "start", "--data", "data"]
    start = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Where these tests run in the background of a shell, it would inherit that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    broker = KafkaBroker(tmp_path / "data")
    while (pid := broker.status().pid) is None:
        assert start.poll() is None, start.communicate()
    os.kill(start.pid, signal.SIGINT)
    start.communicate()
    assert start.returncode != 0
    assert not broker.running
    assert has_ended(pid)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for a parent that does not ask."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
