"""The configuration that ``docs/security.md`` shows, against a broker with TLS and passwords."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from flink_agents import redaction
from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.errors import AgentsError, KafkaStreamError
from flink_agents.api.settings.stores import open_store
from flink_agents.connectors.kafka import KafkaApprovals
from flink_agents.connectors.kafka.client import java_properties
from flink_agents.testing.kafka import KafkaBroker

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
PREFIX = "action-state.kafka."
RECORD = Record(RecordKind.CALL, 0, "step", 0, b"data")


def functions_of_the_page() -> dict[str, Any]:
    snippet = re.search(r"```python\n(# kafka_options\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert snippet is not None
    namespace: dict[str, Any] = {}
    exec(snippet[1], namespace)
    return namespace


# kafka-python leaves the socket of a login that failed to the collector.
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_configuration_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with KafkaBroker(tmp_path / "kafka", security="SASL_SSL") as broker:
        client = broker.client_options
        monkeypatch.setenv("KAFKA_SERVERS", client["bootstrap_servers"])
        monkeypatch.setenv("KAFKA_CA", client["ssl_cafile"])
        monkeypatch.setenv("KAFKA_USER", client["sasl_plain_username"])
        monkeypatch.setenv("KAFKA_PASSWORD", client["sasl_plain_password"])
        page = functions_of_the_page()
        desk = KafkaApprovals("answers", "approvals", **page["kafka_options"]())
        desk.create_topics()
        assert desk.pending() == []
        options = {name.removeprefix(PREFIX): value for name, value in page["store_options"]().items()}
        assert options.pop("action-state.store") == "kafka"

        async def append_and_read() -> list[Record]:
            store = open_store("kafka", options)
            await store.open(Owner.create("job", "job/agent"))
            try:
                await store.append(JournalKey("job", "skey"), [RECORD])
                return await store.scan(JournalKey("job", "skey"))
            finally:
                await store.close()

        assert asyncio.run(append_and_read()) == [RECORD]
        # What Flink's connector gets has the password, and no text of this process has.
        properties = java_properties(page["kafka_options"](), {})
        assert client["sasl_plain_password"] in properties["sasl.jaas.config"]
        assert client["sasl_plain_password"] not in redaction.hide(properties)
        monkeypatch.setenv("KAFKA_PASSWORD", "wrong-password")
        wrong = KafkaApprovals("answers", "approvals", **page["kafka_options"](), bootstrap_timeout_ms=3000)
        with pytest.raises((KafkaStreamError, AgentsError)) as caught:
            wrong.pending()
        assert "wrong-password" not in str(caught.value)
