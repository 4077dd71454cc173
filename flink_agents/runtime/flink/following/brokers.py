"""Where the Kafka brokers are that jobs of this process use: Flink's own text of a failure names none."""

from __future__ import annotations

_addresses: dict[str, None] = {}


def note_brokers(addresses: str) -> None:
    """Note the ``bootstrap_servers`` of a source or a sink."""
    _addresses[addresses] = None


def noted_brokers() -> str:
    """Return the addresses that were noted, for people; empty if there are none."""
    return ", ".join(_addresses)
