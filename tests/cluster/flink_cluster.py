"""A standalone Flink cluster out of the PyFlink package: its own processes, ports, directories.

    with FlinkCluster(directory) as cluster:
        cluster.fresh_taskmanagers(count=2, slots=1)
        job = cluster.submit(Path("job.py"), "--records", "100", parallelism=2)
        cluster.kill(cluster.taskmanagers[0])

Every wait has a deadline; one that passes fails with the job's exceptions and the ends of all
logs. Processes end with the ``with`` block and, on Linux, with the thread that started them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from flink_agents import AgentsExecutionEnvironment
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.runtime.flink.launch.flink_home import FlinkHome, Part
from flink_agents.runtime.flink.launch.standalone import StandaloneCluster
from tests.cluster.flink_rest import ClusterJob, FlinkRest
from tests.cluster.waiting import tail, wait_until

T = TypeVar("T")

START_SECONDS = 180
SUBMIT_SECONDS = 180
PROGRESS_SECONDS = 180
DEAD_STATES = ("FAILED", "CANCELED", "SUSPENDED")

# An exec keeps the signal that the kernel sends at the death of the parent, so that the scripts
# and Java behind them have it as well. A preexec_fn would do the same, but is unsafe with threads.
_LAUNCH = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""


SMALL = {"taskmanager.memory.process.size": "1 gb", "jobmanager.memory.process.size": "1 gb"}
"""Options of a cluster that shares its machine with others."""


@contextmanager
def small_cluster(directory: Path, **options: str) -> Iterator[ClusterRest]:
    """A cluster of the command line with one slot, at a free port."""
    cluster = StandaloneCluster(directory)
    try:
        cluster.start(1, 1, free_ports(1)[0], SMALL | options)
        address = cluster.status().address
        assert address is not None
        yield ClusterRest(address)
    finally:
        cluster.stop()


@dataclass(frozen=True)
class FlinkProcess:
    """A JobManager or TaskManager.

    Attributes:
        name: Its name in the tests; Flink knows a TaskManager by it, too.
        popen: The process; Flink's scripts become Java by ``exec``, so that its id stays.
        log: What it writes.
    """

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """End it by SIGKILL, and whatever it has started."""
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()

    def freeze(self) -> None:
        """Stop it by SIGSTOP: from then on it does nothing at all, but its connections stay open."""
        os.killpg(self.popen.pid, signal.SIGSTOP)
        os.waitpid(self.popen.pid, os.WUNTRACED)

    def thaw(self) -> None:
        """Let it go on."""
        os.killpg(self.popen.pid, signal.SIGCONT)


class FlinkCluster:
    """See the module.

    Args:
        directory: Where configuration, logs, checkpoints and temporary files go.
        options: Flink options of the cluster, over :data:`DEFAULTS`.
        taskmanager_options: Those of TaskManagers alone, over these.
    """

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, str] | None = None,
        taskmanager_options: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._taskmanager_options = taskmanager_options or {}
        self.taskmanagers: list[FlinkProcess] = []
        self.killed: set[int] = set()
        self._processes: list[FlinkProcess] = []
        rest_port, rpc_port = free_ports(2)
        cluster_options = {
            "jobmanager.rpc.port": rpc_port,
            "rest.address": "localhost",
            "rest.port": rest_port,
            "io.tmp.dirs": str(directory / "tmp"),
            "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
        }
        self._options = {**DEFAULTS, **cluster_options, **(options or {})}
        self._home = FlinkHome.create(directory, self._options)
        # What is left of a killed process stays in here; the quick compiler starts sooner.
        quick = {"JVM_ARGS": f"-Djava.io.tmpdir={directory / 'tmp'} -XX:TieredStopAtLevel=1"}
        self._environment = self._home.environment() | quick
        self.rest = FlinkRest(f"http://localhost:{rest_port}")

    def __enter__(self) -> FlinkCluster:
        self._start("jobmanager")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill all processes, and remove their temporary files. Logs and checkpoints stay."""
        for process in self._processes:
            process.kill()
        self._processes = []
        self.taskmanagers = []
        shutil.rmtree(self.directory / "tmp", ignore_errors=True)

    # -- TaskManagers -----------------------------------------------------------------

    def start_taskmanager(self, slots: int) -> FlinkProcess:
        """Start a TaskManager. Does not wait for it: jobs wait until there are slots for them."""
        options = {**self._taskmanager_options, "taskmanager.numberOfTaskSlots": str(slots)}
        started = self._start("taskmanager", *(f"-D{key}={value}" for key, value in options.items()))
        self.taskmanagers.append(started)
        return started

    def fresh_taskmanagers(self, count: int, slots: int) -> None:
        """Replace all TaskManagers, so that a test meets nothing of an earlier one."""
        for process in list(self.taskmanagers):
            self.kill(process)
        for _ in range(count):
            self.start_taskmanager(slots)

    def kill(self, taskmanager: FlinkProcess) -> None:
        """End a TaskManager by SIGKILL."""
        self.taskmanagers.remove(taskmanager)
        self._processes.remove(taskmanager)
        self.killed.add(taskmanager.popen.pid)
        taskmanager.kill()

    def knows(self, taskmanager: FlinkProcess) -> bool:
        """Whether the JobManager counts a TaskManager among its own."""
        taskmanagers = self.rest.get("/taskmanagers")["taskmanagers"]
        return any(manager["id"] == taskmanager.name for manager in taskmanagers)

    def replace_broken(self, job: ClusterJob, slots: int) -> int:
        """Replace TaskManagers that can run no Python any more, as a supervisor would; returns how many."""
        names = job.without_python()
        broken = [process for process in self.taskmanagers if process.name in names]
        for process in broken:
            self.kill(process)
            self.start_taskmanager(slots)
        return len(broken)

    # -- jobs -------------------------------------------------------------------------

    def submit(
        self,
        script: Path,
        *arguments: str,
        parallelism: int,
        savepoint: str | None = None,
        options: Mapping[str, str] | None = None,
        shipped: Path | None = None,
    ) -> ClusterJob:
        """Submit a Python job by ``flink run``, detached.

        Args:
            script: The job.
            arguments: Its arguments.
            parallelism: Default parallelism of its operators.
            savepoint: Where it begins.
            options: Flink options of the job.
            shipped: A directory of modules that go to the workers with the job (``-pyfs``).
        """
        self.wait_for("the JobManager", self._answers, seconds=START_SECONDS)
        files = [] if shipped is None else ["-pyfs", str(shipped)]
        settings = [f"-D{key}={value}" for key, value in (options or {}).items()]
        start = [] if savepoint is None else ["-s", savepoint]
        command = self._home.flink("run", "-d", "-p", str(parallelism), *settings, *start)
        command += ["-pyclientexec", sys.executable, *files, "-py", str(script), *arguments]
        log = self.directory / "log" / "submit.log"
        with log.open("wb") as stream:
            status = self._run(command, stream)
        text = log.read_text(encoding="utf-8", errors="replace")
        match = re.search(r"submitted with JobID ([0-9a-f]{32})", text)
        if status != 0 or match is None:
            raise AssertionError(f"flink run ended with {status}\n{tail(log)}\n{self.report()}")
        return ClusterJob(self.rest, match[1])

    def submit_here(
        self,
        build: Callable[[AgentsExecutionEnvironment], None],
        parallelism: int,
        savepoint: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> ClusterJob:
        """Submit a job from this process. Its JVM starts once; ``flink run`` takes seconds each time.

        Args:
            build: Adds the job to an environment.
            parallelism: Default parallelism of its operators.
            savepoint: Where it begins; a checkpoint will do.
            options: Flink options of the job.
        """
        from flink_agents.runtime.flink import compat as flink_compat, environment

        self.wait_for("the JobManager", self._answers, seconds=START_SECONDS)
        flink_options = {**self._options, **(options or {}), "parallelism.default": str(parallelism)}
        flink_options["pipeline.jars"] = self._home.python_jar.as_uri()
        if savepoint is not None:
            flink_options["execution.state-recovery.path"] = savepoint
        environment.gateway.prepare_jvms()
        configuration = environment.FlinkConfiguration()
        for key, value in flink_options.items():
            configuration.set_string(key, str(value))
        flink = environment.StreamExecutionEnvironment.get_execution_environment(configuration)
        # An environment that is made outside of `flink run` is local at first.
        flink_compat.set_options(flink, {"execution.target": "remote"})
        env = environment.create_environment(flink, None, None)
        build(env)
        return ClusterJob(self.rest, str(env.stream_env.execute_async().get_job_id()))

    def _run(self, command: list[str], stream: Any) -> int:
        client = FlinkProcess("flink run", self._popen(command, stream), self.directory / "log")
        try:
            return client.popen.wait(SUBMIT_SECONDS)
        finally:
            client.kill()

    # -- waiting ----------------------------------------------------------------------

    def wait_for(
        self,
        what: str,
        condition: Callable[[], T | None],
        job: ClusterJob | None = None,
        seconds: float = PROGRESS_SECONDS,
    ) -> T:
        """Wait for ``condition``; fail at once where the job or a process of the cluster is dead."""

        def checked() -> T | None:
            result = condition()
            if not result:
                self._check_alive(what, job)
            return result

        return wait_until(what, checked, seconds, lambda: self.report(job))

    def _check_alive(self, what: str, job: ClusterJob | None) -> None:
        dead = [process.name for process in self._processes if process.popen.poll() is not None]
        if dead:
            raise AssertionError(f"waited for {what}, but {', '.join(dead)} ended\n{self.report(job)}")
        if job is not None and (state := job.state()) in DEAD_STATES:
            raise AssertionError(f"waited for {what}, but the job is {state}\n{self.report(job)}")

    def report(self, job: ClusterJob | None = None) -> str:
        """The job's state and exceptions, and the ends of all logs."""
        parts: list[str] = []
        if job is not None:
            try:
                parts += [f"job {job.id}: {job.state()}, checkpoints {job.checkpoints()}", job.exceptions()]
            except (OSError, AssertionError) as error:
                parts.append(f"the JobManager does not answer: {error}")
        return "\n".join([*parts, *(tail(process.log) for process in self._processes)])

    def _answers(self) -> bool:
        try:
            return self.rest.get("/overview") is not None
        except (OSError, AssertionError):
            return False

    # -- processes --------------------------------------------------------------------

    def _start(self, kind: Part, *arguments: str) -> FlinkProcess:
        number = len(list((self.directory / "log").glob(f"{kind}-*.out")))
        name = f"{kind}-{number}"
        log = self.directory / "log" / f"{name}.out"
        named = [f"-Dtaskmanager.resource-id={name}"] if kind == "taskmanager" else []
        command = self._home.command(kind, *named, *arguments)
        with log.open("wb") as stream:
            process = FlinkProcess(name, self._popen(command, stream), log)
        self._processes.append(process)
        return process

    def _popen(self, command: list[str], stream: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            env=self._environment,
            start_new_session=True,
        )


DEFAULTS: Mapping[str, Any] = {
    # The death of a process is seen by its closed port: two missed heartbeats.
    "heartbeat.interval": "500 ms",
    "heartbeat.timeout": "60 s",
    "execution.checkpointing.interval": "200 ms",
    "execution.checkpointing.timeout": "2 min",
    # Survives as many kills as there are, each with several restarts until Flink knows which
    # TaskManager is gone, and ends a job that goes on failing.
    "restart-strategy.type": "failure-rate",
    "restart-strategy.failure-rate.delay": "300 ms",
    "restart-strategy.failure-rate.failure-rate-interval": "20 s",
    "restart-strategy.failure-rate.max-failures-per-interval": 1000,
    "taskmanager.memory.process.size": "1 gb",
    "jobmanager.memory.process.size": "1 gb",
}
"""Options of every cluster."""


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for free_socket in sockets:
            free_socket.bind(("127.0.0.1", 0))
        return [bound_socket.getsockname()[1] for bound_socket in sockets]
    finally:
        for free_socket in sockets:
            free_socket.close()
