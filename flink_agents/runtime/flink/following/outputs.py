"""The lists that ``to_list()`` and ``collect()`` return: reading one before the job ran raises."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyflink.datastream import DataStream

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import OutputsNotReadyError
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.following.list_files import ListFile


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
