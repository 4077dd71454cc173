"""A mutation, and its application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

Change = Callable[[Any], Any]
"""Makes what takes the place of a function, out of that."""


@dataclass(frozen=True)
class Mutation:
    """One defect.

    Attributes:
        name: What it is called on the command line.
        target: What is replaced: ``module:Class.function``, below ``flink_agents``.
        change: What takes its place.
        about: What was wrong, in words.
        waits: Whether only programs find it that pause, and wait for signals.
        overtakes: Whether only programs find it whose inputs overtake such runs.
        chats: Whether random conversations find it, and not programs.
    """

    name: str
    target: str
    change: Change
    about: str
    waits: bool = False
    chats: bool = False
    overtakes: bool = False

    def apply(self) -> None:
        """Put the defect into this process.

        Raises:
            AttributeError: There is no such thing any more.
        """
        module, _, path = self.target.partition(":")
        owner: Any = import_module(f"flink_agents.{module}")
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        # As it stands in the class, so that properties and static methods are seen as such.
        original = vars(owner)[name]
        setattr(owner, name, self.change(original))


TABLE: dict[str, Mutation] = {}


def mutation(
    name: str, target: str, waits: bool = False, chats: bool = False, overtakes: bool = False
) -> Callable[[Change], Change]:
    """Put a mutation into the table; the docstring of the function says what it is about."""

    def register(change: Change) -> Change:
        about = (change.__doc__ or "").strip()
        TABLE[name] = Mutation(name, target, change, about, waits, chats, overtakes)
        return change

    return register
