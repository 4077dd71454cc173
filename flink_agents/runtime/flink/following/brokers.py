"""The Kafka brokers that jobs of this process use: Flink's message for a failure does not name them."""

from __future__ import annotations

_addresses: dict[str, None] = {}


def note_brokers(addresses: str) -> None:
    """Record the ``bootstrap_servers`` of a source or a sink."""
    _addresses[addresses] = None


def noted_brokers() -> str:
    """Return the noted addresses in a form to display; empty if there are none."""
    return ", ".join(_addresses)
