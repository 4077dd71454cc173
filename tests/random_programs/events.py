"""The event that one action sends another."""

from __future__ import annotations

from typing import Any

from flink_agents import Event


class Nested(Event):
    """What an input leads to."""

    name: str
    place: str
    ops: list[Any]
    data: dict[str, Any]
