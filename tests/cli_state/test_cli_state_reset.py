"""``flink-agents journal reset`` on a file of the store ``sqlite``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from journal_files import Cli, loaded, write

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.runtime.serde.keys import encode_key

RECORD, LATER = (Record(RecordKind.CALL, seq, "0/pay", 0, b"data") for seq in (0, 1))


def test_reset(file: Path, cli: Cli) -> None:
    write(file, ("orders/shop", 1, [RECORD]), ("orders/shop", 2, [RECORD, LATER]), prune=0)
    write(file, ("orders/clerk", 1, [RECORD]), ("orders-2/shop", 1, [RECORD]), ("orders", 1, [RECORD]))
    assert "repeat with --yes" in cli("reset", "orders", code=1).stderr
    assert len(loaded(cli("list", "--json"))) == 5
    assert cli("reset", "orders", "--yes").stdout.splitlines() == [
        "job orders: 1 journals with 1 records forgotten",
        "job orders/clerk: 1 journals with 1 records forgotten",
        "job orders/shop: 2 journals with 1 records forgotten",
    ]
    assert [row["job"] for row in loaded(cli("list", "--json"))] == ["orders-2/shop"]
    assert "no journal of the job orders" in cli("reset", "orders", "--yes", code=1).stderr
    write(file, ("orders/shop", 1, [RECORD]))


def test_reset_of_one_agent(file: Path, cli: Cli) -> None:
    write(file, ("orders/shop", 1, [RECORD]), ("orders/clerk", 1, [RECORD]))
    (done,) = loaded(cli("reset", "orders/shop", "--yes", "--json"))
    assert done == {"job": "orders/shop", "journals": 1, "records": 1}
    assert [row["job"] for row in loaded(cli("list", "--json"))] == ["orders/clerk"]


def test_a_live_job_is_not_reset(file: Path, cli: Cli) -> None:
    async def live() -> None:
        store = SQLiteStore(file, lease_seconds=1.0)
        await store.open(Owner.create("flink-job", "orders/shop"))
        journals = [JournalKey("orders/clerk", encode_key(1)), JournalKey("orders/shop", encode_key(1))]
        for journal in journals:
            await store.append(journal, [RECORD])
        refused = await asyncio.to_thread(cli, "reset", "orders", "--yes", code=2)
        assert "FA6002" in refused.stderr
        assert [len(await store.scan(journal)) for journal in journals] == [1, 1], (
            "nothing of it was forgotten"
        )
        await store.append(journals[1], [LATER])
        await store.close()

    asyncio.run(live())
