"""Prepares the JVM that PyFlink starts, whatever makes PyFlink start it.

``StreamExecutionEnvironment.get_execution_environment()`` starts the JVM with the present
environment variables of this process. :func:`prepare_jvms` wraps the function that starts the JVM,
once its module is loaded. Naming ``flink_agents.AgentsExecutionEnvironment`` calls it, which a job
does at its top, before any line can start a JVM; importing ``flink_agents`` alone changes nothing.

Once it runs, calls of background threads stay off the connections that the user's code uses. Py4J lends any
idle connection to the next call, and the JVM serves each connection with a thread of its own. Flink's planner
works only in the thread that created it. So if a background thread has the user's connection for a moment,
SQL in the user's next call fails in the planner with a ``NullPointerException``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import UnsupportedExecutionError
from flink_agents.foreign_imports import import_quietly, when_imported
from flink_agents.runtime.flink.launch.beam import (
    leave_out_beam,
    leave_out_loopback_server,
    prepare_workers,
)
from flink_agents.runtime.flink.launch.jvm import in_flink_worker, prepare_process

_MODULE = "pyflink.java_gateway"
_WORKER_POOL = "pyflink.fn_execution.beam.beam_worker_pool_service"
GONE_SECONDS = 1.0
"""Time that a JVM may take to end after its connections have broken."""


def prepare_jvms() -> None:
    """Prepare each JVM that starts from now on. Can be called again."""
    if not in_flink_worker():
        when_imported(_MODULE, _wrap_launch)
        when_imported(_WORKER_POOL, _wrap_exit)
        leave_out_beam()
        leave_out_loopback_server()
        import_quietly("pyflink.table")


def refuse_in_worker() -> None:
    """Let no code of this worker start a JVM of its own, which has 90 MB and no object of the job.

    In process mode PyFlink refuses it itself. Its descriptions of state with a lifetime ask for a duration
    that nothing reads, and would start one.
    """
    launching: Any = importlib.import_module(_MODULE)
    launching.launch_gateway = _refuse_launch
    describing: Any = importlib.import_module("pyflink.datastream.state")
    describing.Duration = _UnusedDuration


def _refuse_launch() -> Any:
    raise UnsupportedExecutionError(
        "this code calls PyFlink for a Java object, and runs in a worker of Flink",
        expected="such calls in the script, which has the connection to Java",
        found="a call that would start a JVM of the worker's own",
        fix="create the object in the script; in actions, use datetime.timedelta instead of Duration",
        where=authors_place(),
    )


class _UnusedDuration:
    """Replaces PyFlink's ``Duration`` in its descriptions of state."""

    @classmethod
    def of_days(cls, days: int) -> _UnusedDuration:
        """Return an object without a value, in place of a duration of Java."""
        return cls()


def check_prepared() -> None:
    """Check that workers will find this process's Python.

    Raises:
        UnsupportedExecutionError: The JVM was started before the environment was named, and finds
            another Python or none.
    """
    python = shutil.which("python")
    same = python is not None and os.path.dirname(python) == os.path.dirname(os.path.abspath(sys.executable))
    if _started_before and not same:
        raise UnsupportedExecutionError(
            "PyFlink's JVM was started before AgentsExecutionEnvironment was imported, "
            "and does not find this Python",
            expected=f"python on PATH to be {sys.executable}",
            found=python or "no python on PATH",
            fix="write 'from flink_agents import AgentsExecutionEnvironment' before the "
            "StreamExecutionEnvironment is created, or activate the virtual environment",
        )


def _wrap_exit(module: Any) -> None:
    """Let PyFlink's worker pool stop without a thread: in Python 3.12, none starts at the end."""
    module.atexit = _StopsAtOnce()


class _StopsAtOnce:
    """Replaces the module ``atexit`` in the module of PyFlink's worker pool."""

    def register(self, stop_after_grace: Any) -> None:
        """Register the stop of a gRPC server without its period of grace, which needs a thread."""
        atexit.register(stop_after_grace.func, None)


def _wrap_launch(module: Any) -> None:
    launch = module.launch_gateway_server_process
    if getattr(launch, "prepares", False):
        return
    if module._gateway is not None and "PYFLINK_GATEWAY_PORT" not in os.environ:
        global _started_before
        _started_before = True

    def prepare_and_launch(env: dict[str, str], args: Any) -> Any:
        prepare_process()
        env.update(os.environ)
        # It is for this process, as -W is. In workers, PyFlink imports the same modules before this package.
        env.pop("PYTHONWARNINGS", None)
        prepare_workers(env)
        with _child_ignores_termination():
            process: Any = launch(env, args)
        if process.stderr is not None:
            process.stderr = _Tee(process.stderr)
        _jvm_processes.append(process)
        # It is never collected: Python would warn at its own end, and close the pipe whose end ends the JVM.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(process))
        if not any(isinstance(log_filter, _UntilGone) for log_filter in logging.root.filters):
            logging.root.addFilter(_UntilGone())
            logging.getLogger("py4j.java_gateway").addFilter(_UntilGone())
        return process

    prepare_and_launch.prepares = True  # pyright: ignore[reportFunctionMemberAccess]
    module.launch_gateway_server_process = prepare_and_launch


@contextmanager
def _child_ignores_termination() -> Iterator[None]:
    """Make the JVM ignore SIGTERM, which supervisors send to all processes: it ends with this process.

    A JVM that ended at once could take no savepoint. It keeps ignoring signals that are ignored at its start.
    This process does not ignore them meanwhile: a signal of just then would be lost.
    """
    server = importlib.import_module("pyflink.pyflink_gateway_server")
    popen = server.Popen

    def start(*arguments: Any, preexec_fn: Callable[[], object] | None = None, **options: Any) -> Any:
        def prepare() -> None:
            if preexec_fn is not None:
                preexec_fn()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        return popen(*arguments, preexec_fn=prepare, **options)

    server.Popen = start  # type: ignore[attr-defined]
    try:
        yield
    finally:
        server.Popen = popen  # type: ignore[attr-defined]


def is_gone(seconds: float = 0.0) -> bool:
    """Return True if a JVM that this process started has ended, or ends within ``seconds``."""
    for process in _jvm_processes:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        return True
    return False


def leave_alone() -> None:
    """Stop all calls to a JVM that is gone: each Java object would try to report its own end to it."""
    gateway = getattr(sys.modules.get(_MODULE), "_gateway", None)
    if gateway is not None and is_gone(GONE_SECONDS):
        gateway._gateway_client.is_connected = False


_OF_A_GONE_JVM = ("Exception while sending command", "An error occurred while trying to connect to the Java")


class _UntilGone(logging.Filter):
    """Drops Py4J's log records about calls that were in flight when the JVM died: the job reports it once."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_OF_A_GONE_JVM) or not is_gone(GONE_SECONDS)


def kill_jvm() -> None:
    """Kill the JVM."""
    for process in _jvm_processes:
        process.kill()


_started_before = False
_jvm_processes: list[Any] = []
"""Handles of JVMs: PyFlink drops its own, and a garbage-collected ``Popen`` warns and closes pipes."""


class _Tee:
    """Passes the JVM's stderr on to this process's; keeps its start for later readers.

    PyFlink opens it as a pipe and never reads it: after 64 KB of output every task would hang.
    """

    _LIMIT = 65536

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._captured = bytearray()
        self._thread = threading.Thread(target=self._drain_pipe, name="jvm-stderr", daemon=True)
        self._thread.start()

    def _drain_pipe(self) -> None:
        for line in self._pipe:
            # Flink opens modules that the trimmed JVM from PyPI leaves out.
            if line.startswith(b"WARNING: Unknown module: "):
                continue
            if len(self._captured) < self._LIMIT:
                self._captured += line
            sys.stderr.write(line.decode("utf-8", "replace"))
            sys.stderr.flush()

    def read(self) -> bytes:
        """Return the kept part, after the pipe has ended."""
        self._thread.join()
        return bytes(self._captured)

    def close(self) -> None:
        """Do nothing: the background thread reads the pipe to its end, and then closes it."""


def separate_background_calls() -> None:
    """Give each background thread connections of its own, from now on. Can be called again."""
    client: Any = importlib.import_module(_MODULE).get_gateway()._gateway_client
    if not isinstance(client.deque, _ConnectionPool):
        client.deque = _ConnectionPool(client.deque)


class _ConnectionPool(deque[Any]):
    """The idle connections of Py4J's client. Those of a background thread end with it.

    All daemon threads are background threads: those of this package, of Py4J's callbacks and of other
    libraries. Python's garbage collector reports Java objects to the JVM in any of them.
    """

    def __init__(self, connections: deque[Any]) -> None:
        super().__init__(connections)
        self._local = threading.local()

    def pop(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the connection of the present thread that was used last."""
        return self._of_thread().pop() if threading.current_thread().daemon else super().pop()

    def append(self, connection: Any) -> None:
        """Take back a connection of the present thread."""
        if threading.current_thread().daemon:
            self._of_thread().append(connection)
        else:
            super().append(connection)

    def _of_thread(self) -> _ThreadConnections:
        try:
            return self._local.connections
        except AttributeError:
            self._local.connections = connections = _ThreadConnections()
            return connections


class _ThreadConnections(deque[Any]):
    """The idle connections of a background thread."""

    def __del__(self) -> None:
        for connection in self:
            with contextlib.suppress(Exception):
                connection.close()
