"""A standalone Flink cluster on this machine: one JobManager and TaskManagers, each in its own process.

    cluster = StandaloneCluster(Path(".flink-agents/cluster"))
    cluster.start(taskmanagers=2)
    print(cluster.status().address)
    cluster.stop()

Flink's own scripts, which PyFlink includes, start the processes as daemons, in a :class:`FlinkHome`, so that
Python jobs can run one after another. All files of the cluster are in its directory: configuration,
logs, checkpoints and savepoints.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from flink_agents.api.errors import ClusterError, ClusterStartError
from flink_agents.runtime.flink.following.rest import POLL_SECONDS, ClusterRest
from flink_agents.runtime.flink.launch.flink_home import FlinkHome, flatten_options

DEFAULT_DIRECTORY = Path(".flink-agents") / "cluster"
DEFAULT_PORT = 8081
DEFAULT_TASKMANAGERS = 2
"""Two processes finish nearly twice as many inputs as two slots of one: each has an interpreter lock."""

DEFAULT_SLOTS = 2

START_SECONDS = 180.0
STOP_SECONDS = 15.0
REGISTRATION_SECONDS = 20.0
"""Time that running TaskManagers have to register with a running JobManager."""

LONG_PATH = 200
"""From this length on, the path of a database is too long for the name of its log; see below."""

_END_POLL_SECONDS = 0.2
"""The interval of checks while processes end, for which no REST interface is asked."""
_LOG_LINES = 25

Daemon = Literal["standalonesession", "taskexecutor"]
_SCRIPTS: Mapping[Daemon, str] = {"standalonesession": "jobmanager.sh", "taskexecutor": "taskmanager.sh"}
_NAMES: Mapping[Daemon, str] = {"standalonesession": "JobManager", "taskexecutor": "TaskManager"}
_IDENTITY = "agents"
"""The part of the names of logs and pid files that is otherwise a user's name."""

_DEFAULTS: Mapping[str, Any] = {
    # By default, half a minute passes until a killed TaskManager is noticed.
    "heartbeat.interval": "2 s",
    # The maximum age of REST answers and of output files.
    "web.refresh-interval": "1 s",
    # Subtasks of a job go to different processes; by default, Flink fills one TaskManager first.
    "taskmanager.load-balance.mode": "slots",
}


@dataclass(frozen=True)
class ClusterStatus:
    """The status of a cluster.

    Attributes:
        address: The address of its REST interface; None if it was never started.
        jobmanagers: Process ids; one, or none if it is not running.
        taskmanagers: Process ids.
        directory: The directory of the cluster.
        answers: True if the REST interface answers.
        registered: The number of TaskManagers that the JobManager knows.
        slots: The number of their slots.
        free_slots: The number of unused slots.
    """

    address: str | None
    jobmanagers: list[int]
    taskmanagers: list[int]
    directory: Path
    answers: bool = False
    registered: int = 0
    slots: int = 0
    free_slots: int = 0

    @property
    def running(self) -> bool:
        """True if there is a JobManager that answers."""
        return bool(self.jobmanagers) and self.answers


class StandaloneCluster:
    """A Flink cluster on this machine: a JobManager and TaskManagers.

    Args:
        directory: The directory of its configuration, logs, checkpoints and savepoints.
    """

    def __init__(self, directory: Path = DEFAULT_DIRECTORY) -> None:
        self.directory = directory.absolute()

    def start(
        self,
        taskmanagers: int | None = None,
        slots: int | None = None,
        port: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> bool:
        """Start processes that are not running yet, and return when the cluster accepts jobs.

        If a process has died, the cluster gets what it was started with again. If several processes call
        this for one directory, one of them starts it.

        Args:
            taskmanagers: The number of TaskManagers; a running cluster gets the missing ones. Default: as
                before if the cluster was not stopped, else 2.
            slots: The number of slots of each TaskManager. Default: as before if a process has died, else 2.
            port: The REST port. Default: as before, else 8081.
            options: Flink's options, which override this class's. Default: as for slots.

        Returns:
            False if the cluster was running already, with as many TaskManagers.

        Raises:
            ClusterStartError: A process ended, the port is in use, or the time was too short.
            SetupError: There is no PyFlink or no Java.
        """
        try:
            with self._lock_start():
                return self._start_missing(taskmanagers, slots, port, options)
        except OSError as error:
            raise _unwritable_error(self.directory, error) from error

    def _start_missing(
        self,
        taskmanagers: int | None,
        slots: int | None,
        port: int | None,
        options: Mapping[str, Any] | None,
    ) -> bool:
        self._forget_dead()
        status = self.status()
        running_managers = status.taskmanagers
        arguments = self._start_arguments(taskmanagers, slots, options)
        wanted = max(int(arguments["taskmanagers"]), len(running_managers))
        if running_managers and (not status.jobmanagers or not self._are_registered(len(running_managers))):
            # They belong to a JobManager that is gone. Their jobs went with it.
            _end_processes(running_managers)
            self._forget_dead()
            running_managers = []
        missing = wanted - len(running_managers)
        if status.jobmanagers and not missing and status.answers:
            return False
        if not status.jobmanagers:
            port = port or self._configured_port() or DEFAULT_PORT
            _check_free(port)
            home = self._create_home(port, arguments["slots"], arguments["options"])
            self._arguments_file.write_text(json.dumps(arguments), "utf-8")
            self._launch_daemon(home, "standalonesession")
        else:
            home = FlinkHome.create(self.directory)
        for _ in range(missing):
            self._launch_daemon(home, "taskexecutor")
        self._wait_until_ready(wanted)
        return True

    @contextmanager
    def _lock_start(self) -> Iterator[None]:
        """Hold the lock of this cluster's start: wait until no other process is starting it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "start.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The daemons must not inherit it.
            os.set_inheritable(file.fileno(), False)
            yield

    def _start_arguments(
        self, taskmanagers: int | None, slots: int | None, options: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return the arguments of a start; by default, those of a last start without a stop."""
        previous_arguments: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            previous_arguments = json.loads(self._arguments_file.read_text("utf-8"))
        return {
            "taskmanagers": taskmanagers or previous_arguments.get("taskmanagers") or DEFAULT_TASKMANAGERS,
            "slots": slots or previous_arguments.get("slots") or DEFAULT_SLOTS,
            "options": dict(options or previous_arguments.get("options") or {}),
        }

    @property
    def _arguments_file(self) -> Path:
        return self.directory / "started-with.json"

    def _are_registered(self, taskmanagers: int) -> bool:
        """Wait until a running JobManager knows all TaskManagers; return True if it does."""
        deadline = time.monotonic() + REGISTRATION_SECONDS
        while (status := self.status()).registered < taskmanagers and status.jobmanagers:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return bool(status.jobmanagers)

    def stop(self) -> bool:
        """Stop all processes of the cluster; its files are kept. Return True if there were any.

        A process that only reuses the id of an earlier one is never touched.
        """
        # TaskManagers first: otherwise, they would look for a JobManager that is gone.
        pids = [*self._living_processes("taskexecutor"), *self._living_processes("standalonesession")]
        _end_processes(pids)
        for daemon in _SCRIPTS:
            self._pid_file(daemon).unlink(missing_ok=True)
        self._arguments_file.unlink(missing_ok=True)
        return bool(pids)

    def status(self) -> ClusterStatus:
        """Return the status of the cluster, for which its JobManager is asked if it runs."""
        port = self._configured_port()
        address = None if port is None else f"http://localhost:{port}"
        jobmanagers = self._living_processes("standalonesession")
        taskmanagers = self._living_processes("taskexecutor")
        overview: dict[str, Any] = {}
        if address is not None and jobmanagers:
            try:
                overview = ClusterRest(address).get("/overview")
            except ClusterError:
                overview = {}
        return ClusterStatus(
            address,
            jobmanagers,
            taskmanagers,
            self.directory,
            answers=bool(overview),
            registered=int(overview.get("taskmanagers", 0)),
            slots=int(overview.get("slots-total", 0)),
            free_slots=int(overview.get("slots-available", 0)),
        )

    # -- processes --------------------------------------------------------------------

    def _create_home(self, port: int, slots: int, options: Mapping[str, Any]) -> FlinkHome:
        cluster_options = {
            "rest.address": "localhost",
            "rest.bind-address": "localhost",
            "rest.port": port,
            "jobmanager.rpc.address": "localhost",
            "jobmanager.rpc.port": self._rpc_port(),
            "taskmanager.host": "localhost",
            "taskmanager.numberOfTaskSlots": slots,
            "io.tmp.dirs": str(self.directory / "tmp"),
            "state.backend.rocksdb.localdir": str(self._rocksdb_directory()),
            "execution.checkpointing.dir": (self.directory / "checkpoints").as_uri(),
            "execution.checkpointing.savepoint-dir": (self.directory / "savepoints").as_uri(),
        }
        return FlinkHome.create(self.directory, {**_DEFAULTS, **cluster_options, **options})

    def _rpc_port(self) -> int:
        """Return the port for RPC: as before, if it is free, so that TaskManagers can find it again."""
        previous_port = self._configured_value("jobmanager.rpc.port")
        if previous_port is not None and _is_free(int(previous_port)):
            return int(previous_port)
        return _free_port()

    def _rocksdb_directory(self) -> Path:
        """Return the directory of RocksDB's working files, which needs a long path.

        Flink makes RocksDB write logs to Flink's log directory if the path of a database is short enough to
        be the name of such a log. It ignores its own additions to the path when a job is rescaled from an
        incremental checkpoint: RocksDB cannot open that database. With a long path, logs stay next to the
        databases.
        """
        directory = self.directory / "tmp" / "rocksdb"
        missing = LONG_PATH - len(str(directory)) - 1
        return directory / ("x" * missing) if missing > 0 else directory

    def _launch_daemon(self, home: FlinkHome, daemon: Daemon) -> None:
        environment = home.environment() | {"FLINK_IDENT_STRING": _IDENTITY}
        command = [str(home.root / "bin" / _SCRIPTS[daemon]), "start"]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=self.directory,
            env=environment,
            start_new_session=True,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterStartError(
                f"{_SCRIPTS[daemon]} of Flink ended with {done.returncode}",
                found=(done.stdout + done.stderr).strip(),
            )

    def _wait_until_ready(self, taskmanagers: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        slots = int(self._configured_value("taskmanager.numberOfTaskSlots") or 1)
        while True:
            status = self.status()
            # A TaskManager that has just registered reports its slots a little later.
            if status.registered >= taskmanagers and status.slots >= taskmanagers * slots:
                return
            if not status.jobmanagers:
                raise self._not_started("standalonesession", ended=True)
            if len(status.taskmanagers) < taskmanagers:
                raise self._not_started("taskexecutor", ended=True)
            if time.monotonic() > deadline:
                raise self._not_started("taskexecutor", ended=False)
            time.sleep(POLL_SECONDS)

    def _not_started(self, daemon: Daemon, ended: bool) -> ClusterStartError:
        logs = sorted(
            (self.directory / "log").glob(f"flink-{_IDENTITY}-{daemon}-*.*"),
            key=lambda path: path.stat().st_mtime,
        )
        written = [path for path in logs if path.stat().st_size]
        end = written[-1].read_text("utf-8", "replace").splitlines()[-_LOG_LINES:] if written else []
        what = "ended during its start" if ended else f"was not ready in {START_SECONDS:g} s"
        return ClusterStartError(
            f"the {_NAMES[daemon]} {what}",
            found="\n".join([f"{written[-1]}:", *end]) if written else "no log",
            fix="fix the problem in the log; then `flink-agents cluster stop`, and start again",
        )

    def _living_processes(self, daemon: Daemon) -> list[int]:
        """Return the ids of the cluster's processes that are running."""
        try:
            lines = self._pid_file(daemon).read_text("ascii").split()
        except OSError:
            return []
        return [int(line) for line in lines if line.isdigit() and self._is_ours(int(line))]

    def _forget_dead(self) -> None:
        """Remove processes that have ended from the files of ids: scripts of Flink only add to them."""
        for daemon in _SCRIPTS:
            path = self._pid_file(daemon)
            if path.exists():
                path.write_text("".join(f"{pid}\n" for pid in self._living_processes(daemon)), "ascii")

    def _is_ours(self, pid: int) -> bool:
        """Return True if a process has this cluster's configuration in its command line."""
        return f"--configDir {self.directory / 'conf'}" in command_line(pid)

    def _pid_file(self, daemon: Daemon) -> Path:
        return self.directory / "tmp" / f"flink-{_IDENTITY}-{daemon}.pid"

    def _configured_port(self) -> int | None:
        """Return the REST port from the configuration."""
        port = self._configured_value("rest.port")
        return None if port is None else int(port)

    def _configured_value(self, key: str) -> Any:
        """Return the value of an option of Flink in the configuration of the cluster, or None."""
        try:
            text = (self.directory / "conf" / "config.yaml").read_text("utf-8")
            return dict(flatten_options(yaml.safe_load(text) or {})).get(key)
        except (OSError, ValueError, yaml.YAMLError):
            # It was never written, or the disk was full.
            return None


def command_line(pid: int) -> str:
    """Return the command line of a process, its words joined by spaces; empty if there is none."""
    proc = Path("/proc")
    if (proc / "self").exists():
        try:
            return (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            return ""
    done = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout


def default_address(directory: Path = DEFAULT_DIRECTORY) -> str:
    """Return the cluster address for a command that names none.

    This is the cluster of ``directory`` if it is running, else ``http://localhost:8081``.
    """
    status = StandaloneCluster(directory).status()
    if status.address is not None and status.jobmanagers:
        return status.address
    return f"http://localhost:{DEFAULT_PORT}"


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("localhost", port))
        except OSError as error:
            try:
                flink_version = ClusterRest(f"localhost:{port}").get("/overview")["flink-version"]
                occupant = f"another cluster, Flink {flink_version}"
            except (ClusterError, KeyError, TypeError):
                occupant = str(error)
            raise ClusterStartError(
                f"port {port} is in use",
                found=occupant,
                fix="stop what listens there, or pass another --port",
            ) from None


def _unwritable_error(directory: Path, error: OSError) -> ClusterStartError:
    # Copying a tree gives a list of (source, target, reason).
    several = error.args[0] if isinstance(error, shutil.Error) else None
    reason = several[0][2] if several and isinstance(several[0], tuple) else str(error)
    return ClusterStartError(
        f"the cluster cannot use its directory {directory}",
        expected="a directory that you can write to, with some space",
        found=reason,
        fix="make room or correct its permissions, or pass another --data",
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("localhost", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _end_processes(pids: list[int]) -> None:
    """Terminate processes, and kill those that have not ended after :data:`STOP_SECONDS`."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            _send_signal(pid, number)
        deadline = time.monotonic() + STOP_SECONDS
        while any(map(_is_living, pids)) and time.monotonic() < deadline:
            time.sleep(_END_POLL_SECONDS)
        pids = [pid for pid in pids if _is_living(pid)]


def _send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _is_living(pid: int) -> bool:
    # A process that has ended, but was not reaped by its parent, has no command line any more.
    return bool(re.search(r"\S", command_line(pid)))
