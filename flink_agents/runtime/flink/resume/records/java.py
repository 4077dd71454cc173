"""JVM functions for a resuming local job: a lock, a check of checkpoints, a stop with a savepoint.

PyFlink has no public API for any of it. The lock is held by the JVM, because that process runs the job: if
only the script dies, the lock stays until the JVM has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyflink.java_gateway as java_gateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.util.java_utils import get_j_env_configuration

FIXED_JOB_ID = "$internal.pipeline.job-id"


def _jvm() -> Any:
    return java_gateway.get_gateway().jvm


def url(path: Path) -> str:
    """Return a path in the form that Flink accepts; Flink does not decode the result of ``Path.as_uri``."""
    return f"file://{path}"


class JavaLock:
    """A lock of the operating system on a file, held by the JVM. It ends with that process in any case.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None

    def take(self) -> bool:
        """Acquire the lock; return False if another process or job holds it."""
        file = _jvm().java.io.RandomAccessFile(str(self._path), "rw")
        try:
            lock = file.getChannel().tryLock()
        except Py4JJavaError:  # another job of this JVM has it
            lock = None
        if lock is None:
            # Closing a file ends the locks that the process has on it, but there are none.
            file.close()
            return False
        self._file = file
        return True

    def release(self) -> None:
        """Release the lock. The JVM may be gone."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except (Py4JError, OSError):
                return


@dataclass(frozen=True)
class StateFile:
    """A file that a checkpoint refers to.

    Attributes:
        path: The file.
        size: Its size in bytes.
    """

    path: Path
    size: int


@dataclass(frozen=True)
class CheckpointContent:
    """The metadata of a checkpoint or savepoint.

    Attributes:
        number: Its number, which grows over all starts of a job run.
        files: The files with its state.
        operators: Ids of the operators with state.
        has_finished: True if an operator had finished before, for example because its input has ended.
    """

    number: int
    files: tuple[StateFile, ...]
    operators: frozenset[str]
    has_finished: bool = False


def read_checkpoint(directory: Path) -> CheckpointContent:
    """Return the metadata of the checkpoint in ``directory``.

    Raises:
        ValueError: Flink cannot read it.
    """
    jvm = _jvm()
    stream: Any = None
    try:
        stream = jvm.java.io.DataInputStream(jvm.java.io.FileInputStream(str(directory / "_metadata")))
        checkpoints = jvm.org.apache.flink.runtime.checkpoint.Checkpoints
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        metadata = checkpoints.loadCheckpointMetadata(stream, loader, url(directory))
        files: dict[Path, int] = {}
        operators: set[str] = set()
        has_finished = False
        for state in metadata.getOperatorStates().toArray():
            operators.add(str(state.getOperatorID().toString()))
            has_finished = has_finished or bool(state.isFullyFinished())
            for subtask in state.getStates().toArray():
                _collect(subtask, files)
        found = tuple(StateFile(path, size) for path, size in files.items())
        return CheckpointContent(int(metadata.getCheckpointId()), found, frozenset(operators), has_finished)
    except Py4JJavaError as error:
        raise ValueError(str(error.java_exception.toString())) from error
    finally:
        if stream is not None:
            stream.close()


def _collect(subtask: Any, files: dict[Path, int]) -> None:
    """Add the files of a subtask's state."""
    for kind in (
        "getManagedKeyedState",
        "getRawKeyedState",
        "getManagedOperatorState",
        "getRawOperatorState",
    ):
        for handle in getattr(subtask, kind)().toArray():
            for inner in _streams(handle):
                if "FileStateHandle" in inner.getClass().getSimpleName():
                    files[Path(inner.getFilePath().getPath())] = int(inner.getStateSize())


def _streams(handle: Any) -> list[Any]:
    """Return the handles of the streams that a state handle consists of."""
    if not handle.getClass().getSimpleName().startswith("IncrementalRemote"):
        return [handle.getDelegateStateHandle()]
    # RocksDB's files, for full checkpoints too.
    parts = [*handle.getPrivateState().toArray(), *handle.getSharedState().toArray()]
    return [handle.getMetaDataStateHandle(), *(part.getHandle() for part in parts)]


class SavepointFailed(Exception):
    """A job was not stopped with a savepoint; the message is the reason, and empty after a timeout."""


def stop_with_savepoint(client: Any, directory: Path, seconds: float) -> str:
    """Stop a job with a savepoint, and return its path.

    Args:
        client: Java's client of the job.
        directory: Directory of the savepoint.
        seconds: Timeout in seconds.

    Raises:
        SavepointFailed: It did not complete in time, or failed.
    """
    jvm = _jvm()
    kind = jvm.org.apache.flink.core.execution.SavepointFormatType.CANONICAL
    try:
        future = client.stopWithSavepoint(False, url(directory), kind)
        milliseconds = jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        return str(future.get(int(seconds * 1000), milliseconds))
    except Py4JJavaError as error:
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        late = cause.getClass().getSimpleName() == "TimeoutException"
        raise SavepointFailed("" if late else str(cause.toString()).partition("\n")[0]) from error


def cancel(client: Any) -> None:
    """Cancel a job, without waiting for its end."""
    client.cancel()


def unset(env: StreamExecutionEnvironment, keys: Mapping[str, str] | list[str]) -> None:
    """Remove options from an environment, so that they do not reach its next job."""
    configuration = get_j_env_configuration(env._j_stream_execution_environment)
    for key in keys:
        configuration.removeKey(key)


def leave_out(env: StreamExecutionEnvironment) -> None:
    """Remove the transformations of an environment without running them."""
    found = env._j_stream_execution_environment.getTransformations()
    # Py4J's own clear() removes from a list that it has emptied already.
    found.removeAll(_jvm().java.util.ArrayList(found))


def skipped_result(job_id: str) -> Any:
    """Return Java's result for a job that an earlier start has finished."""
    jvm = _jvm()
    id_ = jvm.org.apache.flink.api.common.JobID.fromHexString(job_id)
    return jvm.org.apache.flink.api.common.JobExecutionResult(id_, 0, jvm.java.util.HashMap())
