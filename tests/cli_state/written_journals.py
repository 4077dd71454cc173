"""Journals in a file of the store ``sqlite``, as the runtime writes them."""

from __future__ import annotations

from typing import Any

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.journal.records import CallIdentity, CallRecord, RunHeader
from flink_agents.runtime.serde.codec import ValueCodec

CODEC = ValueCodec()


BEGUN = 1_700_000_000_000


CHARGE = CallIdentity("shop:charge", b"\x01" * 16, "order='order-1', total=5")


def call(value: Any = None, error: dict[str, Any] | None = None, attempts: int = 1) -> bytes:
    encoded = None if error is not None else CODEC.encode(value)
    return CallRecord(CHARGE, encoded, error, attempts, BEGUN + 1500, 4).pack(CODEC)


def header(seq: int) -> Record:
    return Record(
        RecordKind.RUN,
        seq,
        "",
        0,
        RunHeader(b"\x0a" * 16, BEGUN, "plan-1", CODEC.encode(["order", 5])).pack(CODEC),
    )
