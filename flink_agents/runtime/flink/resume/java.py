"""JVM functions for a resuming local job: a lock, a check of checkpoints, a stop with a savepoint.

PyFlink has no public API for any of it. The lock is held by the JVM, because that process runs the job: if
only the script dies, the lock stays until the JVM has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyflink.java_gateway as java_gateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.util.java_utils import get_j_env_configuration

from flink_agents.runtime.flink.resume.state_fit import Ended, RestoredOperator

FIXED_JOB_ID = "$internal.pipeline.job-id"


def _jvm() -> Any:
    return java_gateway.get_gateway().jvm


def flink_url(path: Path) -> str:
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

    def acquire(self) -> bool:
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
        file = self._file
        self._file = None
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
        states: The operators, by id.
    """

    number: int
    files: tuple[StateFile, ...]
    operators: frozenset[str]
    has_finished: bool = False
    states: Mapping[str, RestoredOperator] = field(default_factory=dict[str, RestoredOperator])


def read_checkpoint(directory: Path) -> CheckpointContent:
    """Return the metadata of the checkpoint in ``directory``.

    Raises:
        ValueError: Flink cannot read it.
    """
    try:
        return _read_content(
            _jvm().java.io.FileInputStream(str(directory / "_metadata")), flink_url(directory)
        )
    except Py4JJavaError as error:
        raise ValueError(str(error.java_exception.toString())) from error


def read_restored(pointer: str) -> CheckpointContent | None:
    """Return the metadata of the checkpoint at a path or URL of Flink; None if it cannot be read here."""
    places = _jvm().org.apache.flink.runtime.state.filesystem.AbstractFsCheckpointStorageAccess
    try:
        place = places.resolveCheckpointPointer(pointer)
        return _read_content(place.getMetadataHandle().openInputStream(), place.getExternalPointer())
    except Py4JJavaError:
        return None


def _read_content(file: Any, place: str) -> CheckpointContent:
    jvm = _jvm()
    stream: Any = jvm.java.io.DataInputStream(file)
    try:
        checkpoints = jvm.org.apache.flink.runtime.checkpoint.Checkpoints
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        metadata = checkpoints.loadCheckpointMetadata(stream, loader, place)
        files: dict[Path, int] = {}
        states: dict[str, RestoredOperator] = {}
        for state in metadata.getOperatorStates().toArray():
            subtasks = state.getStates().toArray()
            states[str(state.getOperatorID().toString())] = _read_state(state, subtasks)
            for subtask in subtasks:
                _collect_files(subtask, files)
        has_finished = any(state.ended is Ended.ALL for state in states.values())
        state_files = tuple(StateFile(path, size) for path, size in files.items())
        number = int(metadata.getCheckpointId())
        return CheckpointContent(number, state_files, frozenset(states), has_finished, states)
    finally:
        stream.close()


def _read_state(state: Any, subtasks: Any) -> RestoredOperator:
    if state.isFullyFinished():
        ended = Ended.ALL
    else:
        ended = Ended.SOME if any(subtask.isFinished() for subtask in subtasks) else Ended.NONE
    has_state = state.getCoordinatorState() is not None or any(subtask.hasState() for subtask in subtasks)
    name, uid = (str(optional.orElse("")) for optional in (state.getOperatorName(), state.getOperatorUid()))
    return RestoredOperator(name, uid, ended, has_state, int(state.getMaxParallelism()))


def _collect_files(subtask: Any, files: dict[Path, int]) -> None:
    """Add the files of a subtask's state."""
    for kind in (
        "getManagedKeyedState",
        "getRawKeyedState",
        "getManagedOperatorState",
        "getRawOperatorState",
    ):
        for handle in getattr(subtask, kind)().toArray():
            for inner in _stream_handles(handle):
                if "FileStateHandle" in inner.getClass().getSimpleName():
                    files[Path(inner.getFilePath().getPath())] = int(inner.getStateSize())


def _stream_handles(handle: Any) -> list[Any]:
    """Return the handles of the streams that a state handle consists of."""
    kind = str(handle.getClass().getSimpleName())
    if kind.startswith("ChangelogStateBackendHandle"):
        inner = [
            *handle.getMaterializedStateHandles().toArray(),
            *handle.getNonMaterializedStateHandles().toArray(),
        ]
        return [stream for part in inner for stream in _stream_handles(part)]
    if kind.startswith("ChangelogStateHandle"):
        return [pair.getField(0) for pair in handle.getHandlesAndOffsets().toArray()]
    if kind.startswith("InMemoryChangelog"):
        return []
    if not kind.startswith("IncrementalRemote"):
        return [handle.getDelegateStateHandle()]
    # RocksDB's files, for full checkpoints too.
    parts = [*handle.getPrivateState().toArray(), *handle.getSharedState().toArray()]
    return [handle.getMetaDataStateHandle(), *(part.getHandle() for part in parts)]


class SavepointFailed(Exception):
    """A job was not stopped with a savepoint. The message is the reason; it is empty after a timeout."""


def stop_with_savepoint(client: Any, directory: Path, seconds: float) -> str:
    """Stop a job with a savepoint, wait until it is complete, and return its path.

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
        future = client.stopWithSavepoint(False, flink_url(directory), kind)
        milliseconds = jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        return str(future.get(int(seconds * 1000), milliseconds))
    except Py4JJavaError as error:
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        late = cause.getClass().getSimpleName() == "TimeoutException"
        raise SavepointFailed("" if late else str(cause.toString()).partition("\n")[0]) from error


def cancel_job(client: Any) -> None:
    """Cancel a job, without waiting for its end."""
    client.cancel()


def remove_options(env: StreamExecutionEnvironment, keys: Mapping[str, str] | list[str]) -> None:
    """Remove options from an environment, so that they do not reach its next job."""
    configuration = get_j_env_configuration(env._j_stream_execution_environment)
    for key in keys:
        configuration.removeKey(key)


def leave_out(env: StreamExecutionEnvironment) -> None:
    """Remove the transformations of an environment without running them."""
    transformations = env._j_stream_execution_environment.getTransformations()
    # Py4J's own clear() removes from a list that it has emptied already.
    transformations.removeAll(_jvm().java.util.ArrayList(transformations))


def skipped_result(job_id: str) -> Any:
    """Return Java's result for a job that an earlier start has finished."""
    jvm = _jvm()
    id_ = jvm.org.apache.flink.api.common.JobID.fromHexString(job_id)
    return jvm.org.apache.flink.api.common.JobExecutionResult(id_, 0, jvm.java.util.HashMap())
