"""Changes of a table as inputs of an agent, and the policies for tables that change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

OnChange = Literal["fail", "latest", "all"]
"""Policy for updates and deletes of a table; see ``from_table``."""

ON_CHANGE: tuple[OnChange, ...] = ("fail", "latest", "all")
"""All policies for updates and deletes."""

ChangeKind = Literal["insert", "update-before", "update-after", "delete"]


@dataclass(frozen=True)  # with slots, TableChange[int](...) would fail
class TableChange(Generic[T]):
    """One change of a table, an input of ``from_table(..., changes="all")``.

    Attributes:
        kind: ``insert``; ``update-before`` with the replaced row, if the table has it; ``update-after`` with
            its replacement; ``delete``.
        value: The row, or the object created from it.
    """

    kind: ChangeKind
    value: T
