"""The list that ``to_list()`` and ``collect()`` return: it says so if it is read before the job ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flink_agents.api.errors import OutputsNotReadyError
from flink_agents.api.places import authors_place


class Outputs(list[Any]):
    """A list that a job fills. Until the job is submitted, reading it raises.

    Attributes:
        place: Where the author asked for it.
        submitted: Whether the job has been submitted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = authors_place()
        self.submitted = False

    def __reduce__(self) -> tuple[Any, ...]:
        self._check()
        return (list, (list(self),))

    def __repr__(self) -> str:
        return super().__repr__() if self.submitted else "<outputs of a job that has not been executed>"

    def _check(self) -> None:
        if not self.submitted:
            raise OutputsNotReadyError(
                "the outputs of a job are read before it is executed",
                expected="execute() of the environment, which fills the list",
                found=f"the list that was made at {self.place}",
                fix="call env.execute() first",
                where=authors_place(),
            )


def _checked(name: str) -> Callable[..., Any]:
    plain = getattr(list, name)

    def read(self: Outputs, *args: Any) -> Any:
        if not self.submitted:
            self._check()
        return plain(self, *args)

    read.__name__ = read.__qualname__ = name
    return read


_READS = (
    "__len__", "__iter__", "__getitem__", "__contains__", "__reversed__", "__eq__", "__ne__", "__lt__",
    "__le__", "__gt__", "__ge__", "__add__", "__mul__", "__rmul__", "copy", "count", "index", "sort", "pop",
)  # fmt: skip
for _name in _READS:
    setattr(Outputs, _name, _checked(_name))
