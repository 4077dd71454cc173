"""The store on a broker that wants TLS and a password: options of the client pass through."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.errors import StoreUnavailableError
from flink_agents.api.settings.stores import open_store
from flink_agents.testing.kafka import KafkaBroker

JOURNAL = JournalKey("job", "skey")
RECORD = Record(RecordKind.CALL, 0, "step", 0, b"data")


# kafka-python leaves the socket of a login that failed to the collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broker_with_tls_and_a_password(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", security="SASL_SSL") as broker:
        client = {f"client.{name}": value for name, value in broker.client_options.items()}
        options = {"bootstrap-servers": client.pop("client.bootstrap_servers"), "partitions": 2, **client}

        async def append_and_read() -> list[Record]:
            store = open_store("kafka", options)
            await store.open(Owner.create("job", "job/agent"))
            try:
                await store.append(JOURNAL, [RECORD])
                return await store.scan(JOURNAL)
            finally:
                await store.close()

        async def without_the_password() -> None:
            wrong = {**options, "client.sasl_plain_password": "wrong", "client.bootstrap_timeout_ms": "3000"}
            await open_store("kafka", wrong).open(Owner.create("job", "job/agent"))

        assert asyncio.run(append_and_read()) == [RECORD]
        with pytest.raises(StoreUnavailableError):
            asyncio.run(without_the_password())
