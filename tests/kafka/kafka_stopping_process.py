"""A process that stops itself at one point of an append to a store ``kafka``, and logs the outcome.

``python kafka_stopping_process.py BROKERS TOPIC FILE POINT LEASE``: it opens the store, appends until its
lease runs, then appends once more. At one of the :data:`POINTS` of that append it sends itself SIGSTOP. When
somebody has let it go on, it writes ``stored`` or ``refused``.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.errors import FencedOwnerError
from flink_agents.connectors.action_state.kafka.ownership.lease import Lease
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.connectors.action_state.kafka.writer import KafkaWriter

POINTS: dict[str, tuple[type, str, bool]] = {
    "before it is sent": (KafkaWriter, "_send_batches", False),
    "behind its acknowledgement": (KafkaWriter, "_await_acknowledgements", True),
    "behind the clock": (Lease, "covers", True),
    "before the claims are asked for": (Lease, "check_owner", False),
}
"""Where it stops: a method, and whether it stops behind it."""


def stop_at(point: str) -> None:
    """Have the next call of a method stop the process."""
    owner, name, behind = POINTS[point]
    method: Callable[..., Any] = getattr(owner, name)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread goes no further

    def stopping(*arguments: Any) -> Any:
        if not behind:
            stop()
        result = method(*arguments)
        if behind:
            stop()
        return result

    setattr(owner, name, stopping)


async def main(brokers: str, topic: str, file: str, point: str, lease: str) -> None:
    lasts = float(lease)
    settings = KafkaSettings(brokers, topic, partitions=4, append_lease_seconds=lasts, append_seconds=30.0)
    store = KafkaStore(settings)
    await store.open(Owner.create("job-1", "orders/agent"))
    writer = store._writer
    assert isinstance(writer, KafkaWriter)
    seq = 0
    while seq == 0 or (lasts and not writer._lease.covers()):
        await store.append(JournalKey("job", "before"), [Record(RecordKind.CALL, seq, "", 0, b"")])
        seq += 1
    while POINTS[point][:2] == (Lease, "check_owner") and writer._lease.covers():
        await asyncio.sleep(0.01)  # an append within the lease does not look
    stop_at(point)
    try:
        await store.append(JournalKey("job", "last"), [Record(RecordKind.CALL, 0, "", 0, b"")])
        outcome = "stored"
    except FencedOwnerError:
        outcome = "refused"
    Path(file).write_text(outcome, encoding="utf-8")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
