"""Memory of an agent: values under dotted paths, scoped to (agent name, key).

Sensory memory lives as long as one run; short-term memory belongs to the key and is part of Flink's
checkpoints. Values are JSON values, bytes, tuples, sets, dates, decimals, enums, dataclasses and pydantic
models; each keeps its type, and each read returns a new copy::

    visits = ctx.short_term_memory.get("visits", 0) + 1
    ctx.short_term_memory.set("visits", visits)
    ctx.short_term_memory.set("last.order", order)

An action's writes become visible to later actions of the run at once, and reach state only when the whole run
is committed. A failed action changes nothing in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


class ResolvingContext(Protocol):
    """The part of an action's context that a :class:`MemoryRef` needs. Contexts import this module."""

    def resolve(self, ref: MemoryRef) -> Any:
        """Return the present value at the place that ``ref`` names."""
        ...


class MemoryScope(StrEnum):
    """One of an agent's memories, to which a path belongs."""

    SENSORY = "sensory"
    SHORT_TERM = "short-term"


@dataclass(frozen=True, slots=True)
class MemoryRef:
    """A pointer to a value in memory, small enough to travel in an event.

    Attributes:
        scope: The memory that holds the value.
        path: Its absolute dotted path.
    """

    scope: MemoryScope
    path: str

    def resolve(self, ctx: ResolvingContext) -> Any:
        """Return the present value at the pointer's path.

        Args:
            ctx: The context of an action of the same agent and key.

        Raises:
            MemoryPathError: No value is stored there, or it was removed.
        """
        return ctx.resolve(self)


class MemoryObject(ABC):
    """A node of memory with named fields; the root of a memory is one too.

    Paths are relative to the node: ``"order.total"`` is field ``total`` of object ``order``.
    """

    __given_to_tools__ = True

    @abstractmethod
    def get(self, path: str | MemoryRef, default: Any = None) -> Any:
        """Return the value at ``path``, a ``MemoryObject`` for an object; ``default`` if there is none.

        Raises:
            MemoryPathError: The path is malformed, or leads through a plain value.
            ContextMisuseError: The call came from another thread, inside a durable function, or after the
                action ended.
        """

    @abstractmethod
    def set(self, path: str, value: Any) -> MemoryRef:
        """Store ``value`` at ``path``, and return a pointer to it; objects on the way there are created.

        Raises:
            MemoryPathError: The path is malformed, leads through a plain value, or names an
                object.
            UnserializableValueError: State cannot hold the value.
            ContextMisuseError: The call came from another thread or after the action ended.
        """

    @abstractmethod
    def append(self, path: str, value: Any) -> MemoryRef:
        """Add ``value`` to the end of the list at ``path``, and return a pointer to the list.

        A list is created if there is no value.

        Raises:
            MemoryPathError: The path is malformed, leads through a plain value, or has another value than a
                list.
            UnserializableValueError: State cannot hold the value.
        """

    @abstractmethod
    def delete(self, path: str) -> bool:
        """Remove the value or the whole object at ``path``; return False if there was none.

        Raises:
            MemoryPathError: The path is malformed.
        """

    @abstractmethod
    def new_object(self, path: str, overwrite: bool = False) -> MemoryObject:
        """Return the object at ``path``, created if missing.

        Args:
            path: Dotted path, relative to this object.
            overwrite: True to replace a plain value at the path by an empty object.

        Raises:
            MemoryPathError: A plain value is there and ``overwrite`` is False.
        """

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return True if a value or an object is at ``path``.

        Raises:
            MemoryPathError: The path is malformed.
        """

    @abstractmethod
    def field_names(self) -> list[str]:
        """Return the names of this object's own fields, sorted."""

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return the fields of this object by name, with nested objects as ``MemoryObject``."""
