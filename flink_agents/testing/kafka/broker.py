"""Starts, stops, pauses and kills a broker."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flink_agents.api.errors import BrokerError, BrokerMismatchError, BrokerStartError
from flink_agents.testing.kafka import process as processes, settings, tools
from flink_agents.testing.kafka.artifacts import (
    KAFKA_VERSION,
    class_path,
    find_java,
    lock_path,
    replace_text,
    require_extra,
)
from flink_agents.testing.kafka.guard import ProcessGuard
from flink_agents.testing.kafka.settings import DEFAULT_DATA, BrokerState, Security

if TYPE_CHECKING:
    import psutil

_POLL_SECONDS = 0.05

_ROOT = str(Path(__file__).resolve().parents[3])
_KILL = (
    "import sys; sys.path[0] = sys.argv[1]; from flink_agents.testing.kafka import broker; "
    "broker.kill_forgotten(sys.argv[2])"
)
"""Code of the guard process of a broker. It adds the path of the package, which may not be installed."""


@dataclass(frozen=True)
class BrokerStatus:
    """The state of a broker, by its directory and its process.

    Attributes:
        running: True if its process exists.
        pid: Its process id; None if it does not run.
        bootstrap_servers: The address for clients; None before the first start.
        security: Encryption and authentication of clients; None before the first start.
        data: Its directory.
        log: The file with all its output.
        version: The version of Kafka that a start uses.
    """

    running: bool
    pid: int | None
    bootstrap_servers: str | None
    security: Security | None
    data: Path
    log: Path
    version: str = KAFKA_VERSION


class KafkaBroker:
    """An Apache Kafka broker on this machine: one node, in KRaft mode, without Docker.

    As a context manager it is started, and stopped if it did not run before, even if this process is
    killed. Otherwise it keeps running after this process until it is stopped. Another ``KafkaBroker`` with
    the same directory is the same broker.

    Args:
        data: Its directory, ``.flink-agents/kafka`` by default, with records, port and password.
        port: The port for clients. By default that of the last start, else a free one.
        security: Encryption and authentication, by default as at the last start, else ``PLAINTEXT``. With
            ``SSL`` it makes its own certificate, with ``SASL`` a single user with a password, both in
            ``client_options``.
        options: More properties of the broker, which take precedence over those set here.
        memory: Its heap limit, in Java's syntax.
        timeout: Seconds until a broker that does not answer counts as failed.
    """

    def __init__(
        self,
        data: str | Path = DEFAULT_DATA,
        *,
        port: int | None = None,
        security: Security | None = None,
        options: Mapping[str, str] | None = None,
        memory: str = "512m",
        timeout: float = 120.0,
    ) -> None:
        if security is not None and security not in settings.SECURITIES:
            raise ValueError(f"security is one of {', '.join(settings.SECURITIES)}, not {security!r}")
        require_extra()
        self.data = Path(data).resolve()
        self._port = port
        self._security: Security | None = security
        self._options = dict(options or {})
        self._memory = memory
        self._timeout = timeout
        self._child: subprocess.Popen[bytes] | None = None
        self._guard: ProcessGuard | None = None

    def __enter__(self) -> KafkaBroker:
        if self.start():
            self._guard = ProcessGuard([sys.executable, "-c", _KILL, _ROOT, str(self.data)])
        return self

    def __exit__(self, *raised: object) -> None:
        if self._guard is not None:
            self.stop()
            self._guard.end_guard()
            self._guard = None

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients, ``host:port``."""
        return self.client_options["bootstrap_servers"]

    @property
    def client_options(self) -> dict[str, Any]:
        """Options for clients of kafka-python: address, and certificate and user if security needs them."""
        return settings.client_options(self._known_state(), self.data / tools.CERTIFICATE)

    @property
    def running(self) -> bool:
        """True while its process exists, also while it is paused."""
        return self._find_process() is not None

    @property
    def log(self) -> Path:
        """Path of the file with all of its output."""
        return self.data / "broker.log"

    def status(self) -> BrokerStatus:
        """Return its address, its files, and if its process runs, without a request to it."""
        state = self._read_state()
        process = self._find_process()
        return BrokerStatus(
            running=process is not None,
            pid=None if process is None else process.pid,
            bootstrap_servers=None if state is None else f"{settings.HOST}:{state.port}",
            security=None if state is None else state.security,
            data=self.data,
            log=self.log,
        )

    def start(self) -> bool:
        """Start it, and return when it answers requests.

        Returns:
            False if it was running already.

        Raises:
            BrokerPortInUseError: Another program has the port.
            BrokerMismatchError: It is running already, with another port or security than requested.
            BrokerDownloadError: Kafka cannot be downloaded.
            BrokerStartError: It ended at once, or did not answer in time.
            JavaNotFoundError: There is no Java runtime for it.
        """
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            with lock_path(self.data / "lock"):
                if self.running:
                    self._require_same()
                    self._wait_for_answer(log_start=0)
                    return False
                self._start_process()
                return True
        except OSError as error:
            raise BrokerStartError(
                f"A Kafka broker cannot use the directory {self.data}.",
                found=f"{type(error).__name__}: {error}",
                fix="name another directory, or correct its permissions",
            ) from error

    def stop(self, timeout: float = 30.0) -> bool:
        """Stop it cleanly; kill it if it has not ended after ``timeout`` seconds.

        Returns:
            False if it was not running.
        """
        if not self.data.is_dir():
            return False
        with lock_path(self.data / "lock"):
            process = self._find_process()
            if process is not None:
                processes.end_process(process, timeout)
                self._reap_process(ended=True)
            state = self._read_state()
            if state is not None and state.pid is not None:
                replace(state, pid=None).write(self._state_file)
            return process is not None

    def restart(self) -> None:
        """Stop it, and start it again with its records and port."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill its process with SIGKILL, as a crash does."""
        processes.kill_process(self._living_process())
        self._reap_process(ended=True)

    def pause(self) -> None:
        """Pause it (SIGSTOP): it keeps its connections and answers nothing."""
        import psutil

        process = self._living_process()
        process.send_signal(signal.SIGSTOP)
        # One thread takes the signal when it is scheduled. On a loaded machine, the others answer until then.
        while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(0.001)

    def resume(self) -> None:
        """Resume its process after :meth:`pause`."""
        self._living_process().send_signal(signal.SIGCONT)

    @property
    def _state_file(self) -> Path:
        return self.data / "broker.json"

    @property
    def _properties(self) -> Path:
        return self.data / tools.PROPERTIES

    def _read_state(self) -> BrokerState | None:
        return settings.read_state(self._state_file)

    def _known_state(self) -> BrokerState:
        state = self._read_state()
        if state is None:
            raise BrokerError("The Kafka broker was never started.", fix=f"start it: directory {self.data}")
        return state

    def _find_process(self) -> psutil.Process | None:
        import psutil

        self._reap_process()
        state = self._read_state()
        if state is None or state.pid is None:
            return None
        if self._child is not None and self._child.pid == state.pid:
            # Its arguments can only be read a moment later.
            return psutil.Process(state.pid)
        return processes.find_process(state.pid, self._properties)

    def _living_process(self) -> psutil.Process:
        process = self._find_process()
        if process is None:
            raise BrokerError("The Kafka broker does not run.", fix=f"start it: directory {self.data}")
        return process

    def _reap_process(self, ended: bool = False) -> None:
        """Reap the process if this one started it and it has ended; with ``ended``, wait for its end."""
        if self._child is not None and ended:
            self._child.wait()
        if self._child is not None and self._child.poll() is not None:
            self._child = None

    def _require_same(self) -> None:
        state = self._known_state()
        for what, requested, actual_value in (
            ("port", self._port, state.port),
            ("security", self._security, state.security),
        ):
            if requested is not None and requested != actual_value:
                raise BrokerMismatchError(
                    f"The Kafka broker of {self.data} runs already, with another {what}.",
                    expected=f"{what} {requested}",
                    found=f"{what} {actual_value}",
                    fix="stop it first, or name another directory",
                )

    def _start_process(self) -> None:
        state = self._next_state()
        settings.require_free(state.port)
        java = find_java()
        jars = class_path()
        replace_text(self._properties, settings.broker_properties(state, self._options))
        replace_text(self.data / "log4j2.properties", settings.LOG4J)
        state.write(self._state_file)
        if state.security.endswith("SSL"):
            tools.make_certificate(java, self.data, state.store_password)
        tools.format_storage(java, jars, self.data, state.cluster)
        start = self.log.stat().st_size if self.log.exists() else 0
        self._child = child = self._execute_java(java, jars)
        try:
            replace(state, pid=child.pid).write(self._state_file)
            self._wait_for_answer(start)
        except BaseException:
            # The caller does not have it yet, and would leave it running.
            child.kill()
            child.wait()
            state.write(self._state_file)
            raise

    def _next_state(self) -> BrokerState:
        last_state = self._read_state()
        if last_state is None:
            return settings.new_state(self._security or "PLAINTEXT", self._port)
        port = self._port or last_state.port
        # Only the broker itself knows this password.
        controller = last_state.controller_port
        if controller == port or not settings.is_free(controller):
            controller = settings.free_port(port)
        security = self._security or last_state.security
        return replace(last_state, port=port, controller_port=controller, security=security, pid=None)

    def _execute_java(self, java: Path, jars: list[Path]) -> subprocess.Popen[bytes]:
        command = [
            str(java / "bin" / "java"),
            f"-Xmx{self._memory}",
            # Tests start it often; the other compiler and collectors cost more than they save in a short run.
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError",
            "-Dlog4j2.configurationFile=log4j2.properties",
            "-cp",
            tools.join_jars(jars),
            processes.MAIN_CLASS,
            str(self._properties),
        ]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.data,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal is for the caller, which stops the broker cleanly.
                start_new_session=True,
            )

    def _wait_for_answer(self, log_start: int) -> None:
        """Wait until it answers; raises if its process ends, or if that takes too long."""
        deadline = time.monotonic() + self._timeout
        while not processes.is_answering(self.client_options):
            ended = not self.running
            if ended or time.monotonic() > deadline:
                raise self._failed_error(
                    log_start, "ended at once" if ended else f"no answer in {self._timeout} s"
                )
            time.sleep(_POLL_SECONDS)

    def _failed_error(self, log_start: int, what: str) -> BrokerError:
        with self.log.open("rb") as file:
            file.seek(log_start)
            text = file.read().decode("utf-8", "replace")
        if "Address already in use" in text:
            state = self._known_state()
            return settings.port_in_use(f"port {state.port} or {state.controller_port}")
        return BrokerStartError(
            "The Kafka broker did not start.",
            expected="a process that answers requests",
            found=f"{what}; the end of {self.log}:\n{processes.error_lines(text)}",
            fix="fix the error in its log; if you do not need its records, remove its directory",
        )


def kill_forgotten(data: str) -> None:
    """Kill the broker with files in a directory, if it runs."""
    broker = KafkaBroker(data)
    if broker.running:
        broker.kill()
