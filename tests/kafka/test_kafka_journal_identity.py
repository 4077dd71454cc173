"""A restore with another topic, or one that lacks records, fails when it opens, whatever keys come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.errors import RecordsPrunedError, StoreMismatchError
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.testing import OperatorHarness
from flink_agents.testing.kafka import KafkaBroker
from tests.kafka.kafka_stores import admin, delete_records, make_settings, wait_until
from tests.suite import conditions
from tests.suite.tables import each_case

CALLS: list[str] = []


def charge(order: str) -> str:
    CALLS.append(order)
    return order


class Payments(Agent):
    @action(InputEvent)
    def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=ctx.durable_execute(charge, event.input))


def delete(*topics: str) -> Callable[[KafkaSettings], KafkaSettings]:
    def act(settings: KafkaSettings) -> KafkaSettings:
        names = [getattr(settings, topic) for topic in topics]
        with admin(settings) as client:
            client.delete_topics(names)
            wait_until(lambda: not set(names) & set(client.list_topics()))
        return settings

    return act


def truncate(settings: KafkaSettings) -> KafkaSettings:
    for partition in range(settings.partitions):
        delete_records(settings, partition, -1)
    return settings


def take_another(settings: KafkaSettings) -> KafkaSettings:
    return replace(settings, topic=f"{settings.topic}-other")


def keep_settings(settings: KafkaSettings) -> KafkaSettings:
    return settings


LOSSES: list[tuple[str, Callable[[KafkaSettings], KafkaSettings], type[Exception] | None]] = [
    ("both topics deleted", delete("topic", "claims_topic"), StoreMismatchError),
    ("journals deleted", delete("topic"), StoreMismatchError),
    ("truncated", truncate, RecordsPrunedError),
    ("another topic", take_another, StoreMismatchError),
    ("kept", keep_settings, None),
]


@pytest.mark.nightly
@each_case(("name", "lose", "error"), LOSSES)
@each_case("parallelism", [(1, 1), (1, 2), (2, 1)])
def test_a_restore_compares_the_journals_before_any_effect(
    cleaning_broker: KafkaBroker,
    parallelism: tuple[int, int],
    name: str,
    lose: Callable[[KafkaSettings], KafkaSettings],
    error: type[Exception] | None,
) -> None:
    present = [make_settings(cleaning_broker)]
    initial_parallelism, after = parallelism
    with OperatorHarness(
        Payments,
        lambda order: order,
        config={"job-identifier": "paying"},
        store=lambda: KafkaStore(present[-1]),
        parallelism=initial_parallelism,
        **conditions.UNFORCED,
    ) as harness:
        harness.push_all(["o1", "o2"])
        checkpoint = harness.snapshot()
        harness.push_all(["later1", "later2"])
        harness.close()
        present.append(lose(present[-1]))
        CALLS.clear()
        if error is not None:
            with pytest.raises(error):
                harness.restore(checkpoint, after)
            assert not CALLS
            return
        harness.restore(checkpoint, after)
        assert harness.push_all(["later1", "later2"]) == ["later1", "later2"]
        assert not CALLS
        assert harness.push("new") == ["new"]


def test_a_checkpoint_without_any_key_names_the_journals(settings: KafkaSettings) -> None:
    with OperatorHarness(
        Payments,
        lambda order: order,
        config={"job-identifier": "paying"},
        store=lambda: KafkaStore(settings),
        **conditions.UNFORCED,
    ) as harness:
        checkpoint = harness.snapshot()
        harness.push("later")
        harness.close()
        truncate(settings)
        with pytest.raises(RecordsPrunedError):
            harness.restore(checkpoint, 1)
