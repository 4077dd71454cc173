"""Makes PyFlink's own ways to run a job do what this package's ``execute()`` does.

``stream_env.execute()``, ``execute_async()``, ``stream.execute_and_collect()`` and the methods that run
tables do not handle agents: without this module, a job that they run is not checked, restarts forever,
never prunes its records, and reports failures in Java's words. So they are wrapped, once per process. An
environment that this package did not create is left as it is.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from py4j.protocol import Py4JJavaError
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.datastream.data_stream import CloseableIterator

from flink_agents.api.errors import AgentsError
from flink_agents.foreign_imports import when_imported
from flink_agents.runtime.flink import compat as flink_compat

T = TypeVar("T")

_DEFAULT_NAME = "Flink Streaming Job"
_RUNS_A_JOB = re.compile(
    r"\s*(?:/\*.*?\*/\s*|--[^\n]*\n\s*)*(?:insert|select|with|execute|values|create\b.*\bas\s+select)\b",
    re.IGNORECASE | re.DOTALL,
)
"""SQL statements that run a job; others describe tables, perhaps before the job is complete."""


class Runnable(Protocol):
    """A job in the form that the wrapped methods need."""

    def execute(self, job_name: str | None = None) -> Any:
        """Run the job to its end."""
        ...

    def execute_async(self, job_name: str | None = None) -> Any:
        """Submit the job, and return PyFlink's client of it."""
        ...

    def execute_and_collect(self, stream: DataStream, job_name: str | None, limit: int | None) -> Any:
        """Run the job, and return the records of a stream."""
        ...

    def before_tables(self, tables: Any) -> None:
        """Prepare a job that tables run.

        Args:
            tables: PyFlink's table environment.
        """
        ...


def collect_async(stream: DataStream) -> CloseableIterator:
    """Return an iterator over the records of a stream, from the next submitted job."""
    return CloseableIterator(flink_compat.java_stream(stream).collectAsync(), stream.get_type())


class RecordIterator(CloseableIterator):
    """The records of a job's stream; an error of Java becomes one of this package.

    Args:
        records: Returns the records.
        explain: Returns the error to raise for one of Java.
    """

    def __init__(self, records: CloseableIterator, explain: Callable[[Py4JJavaError], Exception]) -> None:
        self._records = records
        self._explain = explain

    def next(self) -> Any:
        """Return the next record.

        Raises:
            JobFailedError: The job failed.
        """
        try:
            return self._records.next()
        except Py4JJavaError as error:
            explained = self._explain(error)
        raise explained from None

    def close(self) -> None:
        """Release the job, which is cancelled if it is still running."""
        self._records.close()


_jobs: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The job that runs the jobs of an environment, by the identity of the Java environment."""

_state = threading.local()
"""``depth``: how many calls of :func:`by_pyflink` this thread is in."""


_started: deque[Runnable] = deque(maxlen=100)
"""Jobs with agents: your script may hold only their streams, which do not refer to the job."""


def keep_job(job: Runnable) -> None:
    """Keep a job in memory, until a hundred others have been kept."""
    if job not in _started:
        _started.append(job)


def run_through_job(job: Runnable, env: StreamExecutionEnvironment) -> None:
    """Make PyFlink run the jobs of ``env`` through ``job``, as long as it exists."""
    _install_hooks()
    _jobs[flink_compat.identity_of_environment(flink_compat.java_environment(env))] = job


def is_enlisted(env: StreamExecutionEnvironment) -> bool:
    """Return True if jobs of ``env`` are run by this package."""
    return flink_compat.identity_of_environment(flink_compat.java_environment(env)) in _jobs


@contextmanager
def by_pyflink() -> Iterator[None]:
    """Use PyFlink's original methods in this thread."""
    _state.depth = getattr(_state, "depth", 0) + 1
    try:
        yield
    finally:
        _state.depth -= 1


def _job_of(java_env: Callable[[], Any]) -> Runnable | None:
    """Return the job that runs the jobs of an environment; None if PyFlink itself does."""
    if not _jobs or getattr(_state, "depth", 0):
        return None
    return _jobs.get(flink_compat.identity_of_environment(java_env()))


def _install_hooks() -> None:
    if getattr(StreamExecutionEnvironment.execute, "knows_agents", False):
        return
    _wrap_method(StreamExecutionEnvironment, "execute", _wrap_execute)
    _wrap_method(StreamExecutionEnvironment, "execute_async", _execute_async)
    _wrap_method(DataStream, "execute_and_collect", _execute_and_collect)
    when_imported("pyflink.table.table_environment", _wrap_tables)


def _wrap_tables(module: Any) -> None:
    _wrap_method(module.TableEnvironment, "execute_sql", _execute_sql)
    _wrap_method(module.TableEnvironment, "_before_execute", _before_execute)


def _wrap_method(cls: type[Any], name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace a method by the one that ``make`` returns for it."""
    original = getattr(cls, name)
    wrapped: Any = wraps(original)(make(original))
    wrapped.knows_agents = True
    setattr(cls, name, wrapped)


def at_users_line(run: Callable[[], T]) -> T:
    """Run a job; the traceback of an error of this package ends soon after the line that called us."""
    try:
        return run()
    except AgentsError as error:
        raise error.with_traceback(None) from error.__cause__


def _wrap_execute(original: Any) -> Callable[..., Any]:
    def execute(self: StreamExecutionEnvironment, job_name: str | None = None) -> Any:
        job = _job_of(lambda: flink_compat.java_environment(self))
        return original(self, job_name) if job is None else at_users_line(lambda: job.execute(job_name))

    return execute


def _execute_async(original: Any) -> Callable[..., Any]:
    def execute_async(self: StreamExecutionEnvironment, job_name: str = _DEFAULT_NAME) -> Any:
        job = _job_of(lambda: flink_compat.java_environment(self))
        return original(self, job_name) if job is None else job.execute_async(job_name)

    return execute_async


def _execute_and_collect(original: Any) -> Callable[..., Any]:
    def execute_and_collect(
        self: DataStream, job_execution_name: str | None = None, limit: int | None = None
    ) -> Any:
        job = _job_of(lambda: flink_compat.java_stream(self).getExecutionEnvironment())
        if job is None:
            return original(self, job_execution_name, limit)
        return job.execute_and_collect(self, job_execution_name, limit)

    return execute_and_collect


def _execute_sql(original: Any) -> Callable[..., Any]:
    def execute_sql(self: Any, stmt: str) -> Any:
        if _RUNS_A_JOB.match(stmt):
            return original(self, stmt)
        with by_pyflink():
            return original(self, stmt)

    return execute_sql


def _before_execute(original: Any) -> Callable[..., Any]:
    def before_execute(self: Any) -> Any:
        job = _job_of(lambda: flink_compat.environment_of_tables(self))
        if job is not None:
            job.before_tables(self)
        return original(self)

    return before_execute
