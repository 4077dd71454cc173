"""What ``flink-agents cluster`` knows of processes, without starting any."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flink_agents.api.errors import ClusterStartError
from flink_agents.runtime.flink.launch import standalone
from flink_agents.runtime.flink.launch.standalone import StandaloneCluster, command_line, default_address

ENDLESS = "import sys, time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def cluster(tmp_path: Path) -> StandaloneCluster:
    made = StandaloneCluster(tmp_path)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text(yaml.safe_dump({"rest": {"port": 1}}))
    return made


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(processes: list[subprocess.Popen[str]], *arguments: str) -> int:
    command = [sys.executable, "-c", ENDLESS, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    processes.append(process)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process.pid


def test_only_processes_of_this_cluster_are_its_own(
    cluster: StandaloneCluster, processes: list[subprocess.Popen[str]]
) -> None:
    own = start(processes, "--configDir", str(cluster.directory / "conf"))
    other = start(processes, "--configDir", "elsewhere")
    pids = cluster.directory / "tmp" / "flink-agents-taskexecutor.pid"
    pids.write_text(f"{own}\n{other}\n{2**22 + 1}\n")
    assert cluster.status().taskmanagers == [own]
    assert cluster.stop()
    assert processes[0].wait(30) != 0
    assert processes[1].poll() is None, "a process that only has the number was touched"
    assert not pids.exists() and not cluster.stop()


def test_a_cluster_that_never_was_does_not_run(tmp_path: Path) -> None:
    status = StandaloneCluster(tmp_path / "none").status()
    assert (status.address, status.running, status.taskmanagers) == (None, False, [])
    assert default_address(tmp_path / "none") == "http://localhost:8081"


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ClusterStartError, match=f"port {port} is in use"):
            StandaloneCluster(tmp_path).start(port=port)


def test_a_process_that_ends_as_it_starts_is_reported_with_its_log(
    cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "START_SECONDS", 5)
    log = cluster.directory / "log" / "flink-agents-standalonesession-0-host.out"
    log.parent.mkdir()
    log.write_text("Error: Could not reserve enough space\n")
    monkeypatch.setattr(StandaloneCluster, "_launch", lambda *_: None)
    with pytest.raises(ClusterStartError, match="JobManager ended as it started") as raised:
        cluster.start()
    assert "Could not reserve enough space" in str(raised.value)


def test_the_command_line_of_a_process_that_is_gone_is_empty() -> None:
    assert command_line(2**22 + 1) == ""
