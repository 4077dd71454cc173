"""Records in Kafka of keys that never come again after a restart are removed, and only their part is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.api.durable import Prune
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.runtime.operator.assembly import OperatorHost
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.testing import OperatorHarness
from tests.cluster.waiting import wait_until
from tests.kafka.kafka_stores import batches


async def effect(value: Any) -> Any:
    return value


async def pay(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=await ctx.durable_execute_async(effect, event.input))


def unpruned_keys(settings: KafkaSettings) -> set[str]:
    """The keys of which the topic has records that count."""
    through: dict[str, int] = {}
    seqs: dict[str, set[int]] = {}
    for batch in batches(settings):
        for entry in batch.entries or ():
            if entry.journal.journal_id.startswith("\x00"):
                continue
            if entry.through is not None:
                through[entry.journal.key] = max(entry.through, through.get(entry.journal.key, -1))
            seqs.setdefault(entry.journal.key, set()).update(
                stored_record.seq for stored_record in entry.records
            )
    return {key for key, key_seqs in seqs.items() if any(seq > through.get(key, -1) for seq in key_seqs)}


def test_records_of_keys_that_never_come_again_go(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = OperatorHarness._create_host

    def host(self: OperatorHarness, *arguments: Any) -> OperatorHost:
        return replace(
            plain(self, *arguments),
            make_pruner=lambda metrics: Pruner(Prune.RESTORE_ONLY, 0, metrics, None, True),
        )

    monkeypatch.setattr(OperatorHarness, "_create_host", host)
    agent = Agent(name="unpruned").add_action("pay", [InputEvent], pay)
    stores: list[KafkaStore] = []

    def make() -> KafkaStore:
        stores.append(KafkaStore(settings))
        return stores[-1]

    with OperatorHarness(agent, lambda key: key, store=make) as harness:
        harness.push_all(["a", "b", "c"])
        harness.push("a")
        assert unpruned_keys(settings) == {"sa", "sb", "sc"}
        harness.restore(harness.checkpoint())
        harness.run_until_idle()
        wait_until(
            "the removal of all records",
            lambda: not unpruned_keys(settings),
            60,
            lambda: str(unpruned_keys(settings)),
        )
        assert harness.push("b") == ["b"]
        assert unpruned_keys(settings) == {"sb"}
