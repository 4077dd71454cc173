"""``flink-agents state`` on a store ``kafka``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.errors import FencedOwnerError, JobIdentifierInUseError
from flink_agents.cli.main import app
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.runtime.journal.records import CallIdentity, CallRecord, RunHeader
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import encode_key
from tests.kafka.kafka_stores import batches, raw_records, record, run

CODEC = ValueCodec()
JOB = "orders/shop"

Cli = Callable[..., Result]


def journal(key: Any, job: str = JOB) -> JournalKey:
    return JournalKey(job, encode_key(key))


async def owned(settings: KafkaSettings, group: str = JOB, job_id: str = "flink-job") -> KafkaStore:
    store = KafkaStore(settings)
    await store.open(Owner.create(job_id, group))
    await store.rebuild()
    return store


async def fill(settings: KafkaSettings, *journals: JournalKey, runs: int = 1) -> None:
    store = await owned(settings)
    for seq in range(runs):
        for journal_key in journals:
            await store.append(journal_key, [record(seq)])
    await store.close()


def silence(store: KafkaStore) -> None:
    """Let it show no sign of life any more."""
    writer: Any = store._writer

    def no_beat() -> None:
        writer._beat_at = time.monotonic() + 3600

    writer._renew_idle_lease = no_beat


@pytest.fixture
def cli(settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in ("FLINK_AGENTS_CONFIG", "FLINK_AGENTS_ACTION_STATE_STORE"):
        monkeypatch.delenv(name, raising=False)
    options = [f"bootstrap-servers={settings.bootstrap_servers}", f"topic={settings.topic}", "lease=1 s"]

    def call(*arguments: str, code: int = 0) -> Result:
        store_options = [word for option in options for word in ("-o", option)]
        result = CliRunner().invoke(app, ["journal", *arguments, "--store", "kafka", *store_options])
        assert result.exit_code == code, result.output
        return result

    return call


def loaded(result: Result) -> Any:
    return json.loads(result.stdout)


def test_list_and_show(settings: KafkaSettings, cli: Cli) -> None:
    call = CallRecord(CallIdentity("shop:charge", b"\x01" * 16, "5"), CODEC.encode("paid"), None, 1, 1, 4)
    header = RunHeader(b"\x0a" * 16, 1, "plan-1", CODEC.encode(5))

    async def write() -> None:
        store = await owned(settings)
        records = [
            Record(RecordKind.RUN, 0, "", 0, header.pack(CODEC)),
            Record(RecordKind.CALL, 0, "0/pay", 0, call.pack(CODEC)),
        ]
        await store.append(journal("order-1"), records)
        await store.append(journal(7, "bills/shop"), [record()])
        await store.close()

    run(write())
    assert [(row["job"], row["key"], row["records"]) for row in loaded(cli("list", "--json"))] == [
        ("bills/shop", "7", 1),
        (JOB, "'order-1'", 2),
    ]
    (shown,) = loaded(cli("show", "order-1", "--json"))
    assert shown["runs"][0]["records"][0]["returned"] == "'paid'"


def test_stats(settings: KafkaSettings, cli: Cli) -> None:
    run(fill(settings, journal(1), journal(2), runs=3))
    stats = loaded(cli("stats", "--json"))
    assert {name: stats[name] for name in ("journals", "records", "bytes", "batches_kept", "owners")} == {
        "journals": 2,
        "records": 6,
        "bytes": 24,
        "batches_kept": 6,
        "owners": [],
    }
    assert stats["stored_bytes"] > 6 * 24
    assert stats["oldest_records_seconds"] >= 0
    assert "oldest_records " in cli("stats").stdout


def test_the_oldest_records_are_those_that_are_kept(settings: KafkaSettings, cli: Cli) -> None:
    run(fill(settings, journal(1)))
    previous_stats = loaded(cli("stats", "--json"))
    cli("prune", "1", "--through", "0")
    after = loaded(cli("stats", "--json"))
    assert "oldest_records" in previous_stats
    assert "oldest_records" not in after, "only a removal is kept"
    assert after["records"] == 0


def test_who_looks_leaves_the_topic_as_it_is(settings: KafkaSettings, cli: Cli) -> None:
    async def write() -> None:
        store = await owned(settings)
        await store.append(journal(1), [record(0)])
        await store.append(journal(1), [record(1)])
        store.kill()
        # Of this one, all that it knows of is needed; the first batch of the other is not.
        other_store = KafkaStore(settings)
        await other_store.open(None)
        await other_store.rebuild()
        await other_store.prune(journal(1), 0)
        other_store.kill()

    run(write())
    previous_records = raw_records(settings)
    for arguments in (["list"], ["stats"], ["show", "1"], ["show", "2"]):
        cli(*arguments, code=int(arguments == ["show", "2"]))
    assert raw_records(settings) == previous_records


def test_prune_removes_what_nobody_needs(settings: KafkaSettings, cli: Cli) -> None:
    run(fill(settings, journal(1), runs=3))
    assert len(batches(settings)) == 3
    (pruned,) = loaded(cli("prune", "1", "--through", "1", "--json"))
    assert (pruned["removed"], pruned["pruned"]) == (2, 1)
    entries = [entry for batch in batches(settings) for entry in batch.entries or ()]
    assert [(entry.through, [stored_record.seq for stored_record in entry.records]) for entry in entries] == [
        (None, [2]),
        (1, []),
    ]


def test_reset(settings: KafkaSettings, cli: Cli) -> None:
    other_journals = [journal(1, name) for name in ("orders", "orders-2/shop", "orders/eu/shop")]
    run(fill(settings, journal(1), journal(2), journal(1, "orders/clerk"), *other_journals, runs=2))
    cli("prune", "1", "--job", JOB, "--through", "0")
    refused = cli("reset", "orders", code=1)
    assert "repeat with --yes" in refused.stderr
    assert len(loaded(cli("list", "--json"))) == 6

    assert loaded(cli("reset", "orders", "--yes", "--json")) == [
        {"job": "orders", "journals": 1, "records": 2},
        {"job": "orders/clerk", "journals": 1, "records": 2},
        {"job": JOB, "journals": 2, "records": 3},
    ]
    assert [row["job"] for row in loaded(cli("list", "--json"))] == ["orders-2/shop", "orders/eu/shop"]
    assert "no journal of the job orders" in cli("reset", "orders", "--yes", code=1).stderr
    remaining_journals = [
        entry.journal for batch in batches(settings) for entry in batch.entries or () if entry.records
    ]
    assert {journal.journal_id for journal in remaining_journals} == {"orders-2/shop", "orders/eu/shop"}


def test_a_live_job_is_not_reset(settings: KafkaSettings, cli: Cli) -> None:
    async def live() -> None:
        store = await owned(settings)
        await store.append(journal(1), [record()])
        refused = await asyncio.to_thread(cli, "reset", "orders", "--yes", code=2)
        assert JobIdentifierInUseError.code in refused.stderr
        await store.append(journal(1), [record(1)])
        assert len(await store.scan(journal(1))) == 2
        await store.close()

    run(live())


def test_a_job_that_was_reset_cannot_append_later(settings: KafkaSettings, cli: Cli) -> None:
    """It stood still for longer than its lease, and was taken for dead."""

    async def stale() -> None:
        store = await owned(settings)
        await store.append(journal(1), [record()])
        silence(store)
        await asyncio.to_thread(cli, "reset", "orders", "--yes")
        with pytest.raises(FencedOwnerError):
            await store.append(journal(1), [record(1)])
        await store.close()

    run(stale())
    assert loaded(cli("list", "--json")) == []


def test_a_topic_that_is_not_there(settings: KafkaSettings, cli: Cli) -> None:
    assert "does not exist" in cli("list", code=2).stderr
