"""What a change of a table is to an agent, and the policies for tables that change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

OnChange = Literal["fail", "latest", "all"]
"""What becomes of updates and deletes of a table; ``from_table`` says what each means."""

ON_CHANGE: tuple[OnChange, ...] = ("fail", "latest", "all")

ChangeKind = Literal["insert", "update-before", "update-after", "delete"]


@dataclass(frozen=True)  # with slots, TableChange[int](...) would fail
class TableChange(Generic[T]):
    """One change of a table, as ``from_table(..., changes="all")`` gives it.

    Attributes:
        kind: ``insert``; ``update-before`` with the row that is replaced, where the table tells it;
            ``update-after`` with the row that takes its place; ``delete``.
        value: The row, or what is made of it.
    """

    kind: ChangeKind
    value: T
