"""What ``flink-agents cluster`` knows of processes, without starting any."""

from __future__ import annotations

import errno
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import yaml

from flink_agents.api.errors import ClusterStartError
from flink_agents.runtime.flink.launch import standalone
from flink_agents.runtime.flink.launch.standalone import (
    ClusterStatus,
    StandaloneCluster,
    command_line,
    default_address,
)
from tests.suite.tables import each_case

ENDLESS = "import sys, time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def cluster(tmp_path: Path) -> StandaloneCluster:
    standalone_cluster = StandaloneCluster(tmp_path)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text(yaml.safe_dump({"rest": {"port": 1}}))
    return standalone_cluster


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
    own_pid = start(processes, "--configDir", str(cluster.directory / "conf"))
    other_pid = start(processes, "--configDir", "elsewhere")
    pids = cluster.directory / "tmp" / "flink-agents-taskexecutor.pid"
    pids.write_text(f"{own_pid}\n{other_pid}\n{2**22 + 1}\n")
    assert cluster.status().taskmanagers == [own_pid]
    assert cluster.stop()
    assert processes[0].wait(30) != 0
    assert processes[1].poll() is None, "a process that only has the number was touched"
    assert not pids.exists() and not cluster.stop()


@each_case("running", [0, 1, 2])
def test_a_start_removes_dead_processes_from_the_files_of_ids(
    running: int,
    cluster: StandaloneCluster,
    processes: list[subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = cluster.directory / "conf" / "config.yaml"
    config.write_text(yaml.safe_dump({"rest": {"port": standalone._free_port()}}))
    monkeypatch.setattr(cluster, "_are_registered", lambda taskmanagers: True)
    monkeypatch.setattr(cluster, "_launch_daemon", lambda home, daemon: None)
    monkeypatch.setattr(cluster, "_wait_until_ready", lambda taskmanagers: None)
    pids = [start(processes, "--configDir", str(config.parent)) for _ in range(running)]
    job_manager = start(processes, "--configDir", str(config.parent))
    dead = 2**22 + 1
    files = {"taskexecutor": pids, "standalonesession": [job_manager]}
    for daemon, alive in files.items():
        path = cluster.directory / "tmp" / f"flink-agents-{daemon}.pid"
        path.write_text("".join(f"{pid}\n" for pid in [dead, *alive, dead + 1]))
    cluster.start(taskmanagers=running)
    for daemon, alive in files.items():
        path = cluster.directory / "tmp" / f"flink-agents-{daemon}.pid"
        assert path.read_text().split() == [str(pid) for pid in alive]


def test_a_cluster_that_never_was_does_not_run(tmp_path: Path) -> None:
    status = StandaloneCluster(tmp_path / "none").status()
    assert (status.address, status.running, status.taskmanagers) == (None, False, [])
    assert default_address(tmp_path / "none") == "http://localhost:8081"


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as bound_socket:
        bound_socket.bind(("localhost", 0))
        port = bound_socket.getsockname()[1]
        with pytest.raises(ClusterStartError, match=f"port {port} is in use"):
            StandaloneCluster(tmp_path).start(port=port)


def test_a_process_that_ends_as_it_starts_is_reported_with_its_log(
    cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "START_SECONDS", 5)
    log = cluster.directory / "log" / "flink-agents-standalonesession-0-host.out"
    log.parent.mkdir()
    log.write_text("Error: Could not reserve enough space\n")
    monkeypatch.setattr(StandaloneCluster, "_launch_daemon", lambda *_: None)
    with pytest.raises(ClusterStartError, match="JobManager ended during its start") as raised:
        cluster.start()
    assert "Could not reserve enough space" in str(raised.value)


def test_the_command_line_of_a_process_that_is_gone_is_empty() -> None:
    assert command_line(2**22 + 1) == ""


@each_case("length", [10, 24, 25, 40, 57, 58, 120, 230])
def test_logs_of_rocksdb_stay_beside_its_databases(length: int) -> None:
    cluster = StandaloneCluster(Path("/" + "d" * (length - 1)))
    directory = str(cluster._rocksdb_directory())
    assert len(directory) >= 200, "Flink moves the logs, whose names are too long after a rescaling"
    assert directory.startswith(str(cluster.directory / "tmp"))
    assert all(len(part) < 250 for part in Path(directory).parts[2:])


def test_task_managers_of_a_job_manager_that_is_gone_are_replaced(
    cluster: StandaloneCluster, processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cluster.directory / "conf" / "config.yaml"
    own_pid = start(processes, "--configDir", str(config.parent))
    (cluster.directory / "tmp" / "flink-agents-taskexecutor.pid").write_text(f"{own_pid}\n")
    rpc_port = standalone._free_port()
    config.write_text(
        yaml.safe_dump({"jobmanager": {"rpc": {"port": rpc_port}}, "rest": {"port": standalone._free_port()}})
    )
    launched: list[str] = []
    monkeypatch.setattr(cluster, "_launch_daemon", lambda home, daemon: launched.append(daemon))
    monkeypatch.setattr(cluster, "_wait_until_ready", lambda taskmanagers: launched.append(f"{taskmanagers}"))
    assert cluster.start(taskmanagers=1, slots=2)
    assert processes[0].wait(30) != 0, "it would look for the JobManager that is gone"
    assert launched == ["standalonesession", "taskexecutor", "1"]
    assert cluster._configured_value("jobmanager.rpc.port") == rpc_port, "others look for it there"


def test_a_cluster_that_lost_its_job_manager_starts_with_what_it_was_given(
    cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cluster.directory / "conf" / "config.yaml"
    launched: list[str] = []
    monkeypatch.setattr(cluster, "_launch_daemon", lambda home, daemon: launched.append(daemon))
    monkeypatch.setattr(cluster, "_wait_until_ready", lambda taskmanagers: None)

    def started(**given: Any) -> tuple[int, Any, Any]:
        config.write_text(yaml.safe_dump({"rest": {"port": standalone._free_port()}}))
        launched.clear()
        cluster.start(**given)
        slots = cluster._configured_value("taskmanager.numberOfTaskSlots")
        return launched.count("taskexecutor"), slots, cluster._configured_value("my.option")

    assert started() == (2, 2, None), "as many slots as before, in two processes"
    assert cluster._configured_value("taskmanager.load-balance.mode") == "slots", "one process gets all"
    assert started(taskmanagers=1, slots=3, options={"my.option": "a"}) == (1, 3, "a")
    assert started() == (1, 3, "a"), "all processes have died since"
    assert started(slots=4) == (1, 4, "a")
    cluster.stop()
    assert started() == (2, 2, None)


FULL = OSError(errno.ENOSPC, "No space left on device")


@each_case("raised", [FULL, PermissionError("denied"), shutil.Error([("from", "to", str(FULL))])])
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, raised: OSError) -> None:
    def fail(*_: Any) -> Any:
        raise raised

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standalone.FlinkHome, "create", fail)
        with pytest.raises(ClusterStartError, match=re.escape(str(tmp_path))) as caught:
            StandaloneCluster(tmp_path).start(port=standalone._free_port())
    assert "\n" not in (caught.value.found or "") and "[(" not in (caught.value.found or "")


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterStartError, match="cannot use its directory"):
        StandaloneCluster(tmp_path / "file").start()


def test_one_process_at_a_time_starts_a_cluster(
    cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandaloneCluster, "_start_missing", lambda *_: True)
    with ThreadPoolExecutor() as pool:
        with cluster._lock_start():
            other_start = pool.submit(StandaloneCluster(cluster.directory).start)
            assert not wait([other_start], 0.05).done
        assert other_start.result(30)


def test_a_start_waits_for_all_slots(cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"rest": {"port": 1}, "taskmanager": {"numberOfTaskSlots": 3}}
    (cluster.directory / "conf" / "config.yaml").write_text(yaml.safe_dump(config))
    seen = [(1, 0), (2, 0), (2, 3), (2, 6), (2, 6)]
    statuses = [ClusterStatus("", [1], [2, 3], cluster.directory, True, *counts) for counts in seen]
    monkeypatch.setattr(cluster, "status", lambda: statuses.pop(0))
    monkeypatch.setattr(standalone, "POLL_SECONDS", 0)
    cluster._wait_until_ready(2)
    assert [status.slots for status in statuses] == [6]
