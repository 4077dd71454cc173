"""Lists of outputs of a whole job run: files that Flink commits with the checkpoints of the job.

``to_list()`` of a job that resumes must have the outputs of all its starts, each of them once. So the outputs
go to Flink's file sink: a file becomes visible when the checkpoint completes that has its outputs. Lists are
read when the job has finished.

The state of the sink has the absolute paths of its files. The folder of a job can be moved, so these paths go
through a link, which has the same path on each machine and which each start makes again.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyflink.common import Encoder, Types
from pyflink.datastream import DataStream, MapFunction, RuntimeContext
from pyflink.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy
from typing_extensions import override

from flink_agents.runtime.flink import compat as flink_compat

LINK = "link"
"""Under which name the job run keeps the path of the link."""

_NEWER = "after-damaged-checkpoint"


def new_link() -> str:
    """Return the path of a link that no other job run has."""
    directory = "/var/tmp" if Path("/var/tmp").is_dir() else "/tmp"
    return f"{directory}/flink-agents-{uuid.uuid4().hex}"


class _Numbered(MapFunction):
    """Makes a line of each output, with its place among all outputs of the job run.

    Args:
        start: The number of the start.
    """

    def __init__(self, start: int) -> None:
        self._start = start

    @override
    def open(self, runtime_context: RuntimeContext) -> None:
        self._prefix = f"{self._start:09}.{flink_compat.task_info(runtime_context).attempt:09}"
        self._count = 0

    @override
    def map(self, value: Any) -> Any:
        self._count += 1
        return f"{self._prefix}.{self._count:015} {base64.b64encode(pickle.dumps(value)).decode()}"


class ListFile:
    """The outputs of one stream of a job run.

    Args:
        outputs: The directory of all outputs of the job run.
        index: Which list of the job it is.
    """

    def __init__(self, outputs: Path, index: int) -> None:
        self._directory = outputs / str(index)
        self._index = index

    def write(self, stream: DataStream, link: str, start: int) -> None:
        """Have a stream written to the files of the list.

        Args:
            stream: The stream.
            link: The path of the link to the directory of all outputs.
            start: The number of the start.
        """
        name, uid = f"list {self._index}", f"flink-agents-list-{self._index}"
        lines = stream.map(_Numbered(start), output_type=Types.STRING()).set_parallelism(1)
        sink = (
            FileSink.for_row_format(f"file://{link}/{self._index}", Encoder.simple_string_encoder())
            .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
            .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
            .build()
        )
        lines.name(name).uid(f"{uid}-lines").sink_to(sink).set_parallelism(1).name(name).uid(uid)

    def read(self) -> list[Any]:
        """Return all outputs that are committed, in the order in which they came."""
        lines = sorted(self._lines())
        return [pickle.loads(base64.b64decode(line.partition(" ")[2])) for line in lines]

    def _lines(self) -> Iterator[str]:
        for path in _committed(self._directory):
            yield from path.read_text(encoding="ascii").splitlines()


def _committed(directory: Path) -> list[Path]:
    # What Flink has not committed begins with a dot.
    return [path for path in directory.glob("part-*") if path.is_file()]


def link_to(outputs: Path, link: str) -> None:
    """Make the link to the directory of all outputs, and the directory itself.

    Raises:
        OSError: It cannot be made.
    """
    outputs.mkdir(parents=True, exist_ok=True)
    path = Path(link)
    if path.is_symlink():
        path.unlink()
    path.symlink_to(outputs.absolute(), target_is_directory=True)


def unlink(link: str | None) -> None:
    """Remove the link, if it is there."""
    if link is not None:
        with contextlib.suppress(OSError):
            Path(link).unlink()


def drop_newer(outputs: Path, checkpoint: Path | None) -> int:
    """Set outputs aside that a job will put out again, since it resumes from an older checkpoint.

    Args:
        outputs: The directory of all outputs.
        checkpoint: The checkpoint that it resumes from; None if it begins with nothing.

    Returns:
        How many files those were.
    """
    until = 0.0 if checkpoint is None else (checkpoint / "_metadata").stat().st_mtime
    newer = [path for path in outputs.glob("*/part-*") if path.stat().st_mtime > until]
    for path in newer:
        aside = outputs / _NEWER / path.parent.name
        aside.mkdir(parents=True, exist_ok=True)
        path.replace(aside / path.name)
    return len(newer)
