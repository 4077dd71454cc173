"""A job moves from a file to Kafka, and back, with its journals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flink_agents.cli.journals.operations import Place, copy_journals
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from tests.cli_state.copied_jobs import continues_with_a_copy


def place(settings: KafkaSettings) -> Place:
    options = {"bootstrap-servers": settings.bootstrap_servers, "topic": settings.topic}
    return Place("kafka", options | {"partitions": str(settings.partitions)})


@pytest.mark.own_conditions
def test_a_job_moves_to_kafka_and_back(settings: KafkaSettings, tmp_path: Path) -> None:
    file = tmp_path / "calls.db"
    again = tmp_path / "again.db"
    to_kafka = [Place("sqlite", {"path": str(file)}), place(settings)]
    continues_with_a_copy(lambda: KafkaStore(settings), lambda: asyncio.run(copy_journals(*to_kafka)), file)
    back = asyncio.run(copy_journals(place(settings), Place("sqlite", {"path": str(again)})))
    assert back.appended == back.records > 0
