"""The lists that ``to_list()`` and ``collect()`` return: reading one before the job ran raises.

``to_list()`` of a job that resumes must have the outputs of all its starts, each of them once. So the outputs
go to Flink's file sink: a file becomes visible when the checkpoint completes that has its outputs. Lists are
read when the job has finished.

The state of the sink has the absolute paths of its files. The folder of a job can be moved, so these paths
lead through a link, which has the same path on each machine and which each start creates again.

Flink commits a file once, for good. If the newest checkpoint is damaged, a start resumes from an older one,
and emits some lines again. So each line holds the number of the checkpoint barrier before it, and each start
records the checkpoint that it resumed from. Lines of earlier starts after that checkpoint do not count. Names
and times of files are not used: a copied folder has other times.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyflink.common import Encoder, Types
from pyflink.datastream import DataStream, MapFunction, RuntimeContext
from pyflink.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy
from typing_extensions import override

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import OutputsNotReadyError
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.internals.task import Barriers
from flink_agents.runtime.flink.resume.state_fit import OUTPUTS


class Outputs(list[Any]):
    """A list that a job fills. Until the job is submitted, reading it raises.

    Attributes:
        place: The user's line.
        submitted: True if the job has been submitted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = authors_place()
        self.submitted = False

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_submitted()
        return (list, (list(self),))

    def __repr__(self) -> str:
        return super().__repr__() if self.submitted else "<outputs of a job that has not been executed>"

    def _check_submitted(self) -> None:
        if not self.submitted:
            raise OutputsNotReadyError(
                "the outputs of a job are read before it is executed",
                expected="execute() of the environment, which fills the list",
                found=f"the list that was created at {self.place}",
                fix="call env.execute() first",
                where=authors_place(),
            )


def _checked_method(name: str) -> Callable[..., Any]:
    plain = getattr(list, name)

    def read(self: Outputs, *args: Any) -> Any:
        if not self.submitted:
            self._check_submitted()
        return plain(self, *args)

    read.__name__ = read.__qualname__ = name
    return read


_READS = (
    "__len__", "__iter__", "__getitem__", "__contains__", "__reversed__", "__eq__", "__ne__", "__lt__",
    "__le__", "__gt__", "__ge__", "__add__", "__mul__", "__rmul__", "copy", "count", "index", "sort", "pop",
)  # fmt: skip
for _name in _READS:
    setattr(Outputs, _name, _checked_method(_name))


@dataclass
class Collecting:
    """A stream that fills a list.

    Attributes:
        stream: The stream.
        outputs: The list.
        source: The source of its outputs; None until the job is prepared.
    """

    stream: DataStream
    outputs: Outputs
    source: flink_compat.Collector | ListFile | None = None

    def start_reader(self) -> ListReader:
        """Start filling the list."""
        assert self.source is not None
        if isinstance(self.source, flink_compat.Collector):
            return _StreamReader(self.source, self.outputs)
        return _FileReader(self.source, self.outputs)


class _FileReader:
    """Fills a list when the job has finished.

    Args:
        file: The file with the outputs.
        outputs: The list.
    """

    def __init__(self, file: ListFile, outputs: list[Any]) -> None:
        self._file = file
        self.outputs = outputs

    def finish(self) -> None:
        """Fill the list."""
        self.outputs.extend(self._file.read())


class _StreamReader(threading.Thread):
    """Fills a list while the job runs, so that the job never waits for its reader."""

    def __init__(self, collector: flink_compat.Collector, outputs: list[Any]) -> None:
        super().__init__(name="agents-collect", daemon=True)
        self._collector = collector
        self.outputs = outputs
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Read to the end of the stream."""
        try:
            for batch in self._collector.batches():
                self.outputs.extend(pickle.loads(record) for record in batch)
        except Exception as error:
            self._error = error

    def finish(self) -> None:
        """Wait for the end of the stream.

        Raises:
            Exception: What reading raised.
        """
        self.join()
        self._collector.close()
        if self._error is not None:
            raise self._error


ListReader = _StreamReader | _FileReader
"""Fills a list."""


LINK = "link"
"""Key of the link's path in the record of the job run."""

_NO_CHECKPOINT = -1
"""Lower than the number of any checkpoint: no line of a start without one counts."""


def new_link() -> str:
    """Return a new path for a link, which no other job run has."""
    directory = "/var/tmp" if Path("/var/tmp").is_dir() else "/tmp"
    return f"{directory}/flink-agents-{uuid.uuid4().hex}"


class _Numbered(MapFunction):
    """Converts each output to a line, with its position among all outputs of the job run.

    Args:
        start: The number of the start.
    """

    def __init__(self, start: int) -> None:
        self._start = start

    @override
    def open(self, runtime_context: RuntimeContext) -> None:
        self._prefix = f"{self._start:09}.{flink_compat.task_info(runtime_context).attempt:09}"
        self._count = 0
        self._passed = Barriers(runtime_context).last_checkpoint

    @override
    def map(self, value: Any) -> Any:
        self._count += 1
        data = base64.b64encode(pickle.dumps(value)).decode()
        return f"{self._prefix}.{self._count:015} {self._passed()} {data}"


class ListFile:
    """The outputs of one stream of a job run.

    Args:
        outputs: The directory of all outputs of the job run.
        name: Its name, which it keeps when the job gets further lists.
        lineage: The starts that its outputs come from, and the last checkpoint of each that counts; None
            means to the end.
    """

    def __init__(self, outputs: Path, name: str, lineage: Mapping[int, int | None]) -> None:
        self._directory = outputs / name
        self._name = name
        self._lineage = lineage

    def write(self, stream: DataStream, link: str, start: int) -> None:
        """Write a stream to the files of the list.

        Args:
            stream: The stream.
            link: The path of the link to the directory of all outputs.
            start: The number of the start.
        """
        name = f"list {self._name}"
        uid = OUTPUTS + self._name
        lines = stream.map(_Numbered(start), output_type=Types.STRING()).set_parallelism(1)
        sink = (
            FileSink.for_row_format(f"file://{link}/{self._name}", Encoder.simple_string_encoder())
            .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
            .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
            .build()
        )
        lines.name(name).uid(f"{uid}-lines").sink_to(sink).set_parallelism(1).name(name).uid(uid)

    def read(self) -> list[Any]:
        """Return all outputs of the job run, in the order in which they were emitted."""
        lines = sorted(current_lines(self._read_lines(), self._lineage))
        return [pickle.loads(base64.b64decode(line.rpartition(" ")[2])) for line in lines]

    def _read_lines(self) -> Iterator[str]:
        for path in _committed_files(self._directory):
            yield from path.read_text(encoding="ascii").splitlines()


def _committed_files(directory: Path) -> list[Path]:
    # Files that Flink has not committed start with a dot.
    return [path for path in directory.glob("part-*") if path.is_file()]


def link_to(outputs: Path, link: str) -> None:
    """Create the link to the directory of all outputs, and the directory itself.

    Raises:
        OSError: It cannot be created.
    """
    outputs.mkdir(parents=True, exist_ok=True)
    path = Path(link)
    if path.is_symlink():
        path.unlink()
    path.symlink_to(outputs.absolute(), target_is_directory=True)


def remove_link(link: str | None) -> None:
    """Remove the link, if it exists."""
    if link is not None:
        with contextlib.suppress(OSError):
            Path(link).unlink()


def current_lines(lines: Iterable[str], lineage: Mapping[int, int | None]) -> Iterator[str]:
    """Yield the lines that count, each once, without those that a later start emitted again.

    Args:
        lines: All lines that Flink has committed.
        lineage: The starts that the outputs of the job run come from, and the last checkpoint of each that
            counts.
    """
    # If Flink restores a line that was between two tasks, it commits the same line again.
    for line in set(lines):
        place, after, _ = line.split(" ", 2)
        start = int(place.partition(".")[0])
        until = lineage.get(start, _NO_CHECKPOINT)
        if until is None or int(after) < until:
            yield line
