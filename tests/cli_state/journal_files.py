"""Files of the store ``sqlite`` with journals in them, and the command that reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import Result

from flink_agents.api.action_state import JournalKey, Owner, Record
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.runtime.serde.keys import encode_key

Cli = Callable[..., Result]


def write(file: Path, *journals: tuple[str, Any, list[Record]], prune: int | None = None) -> None:
    async def append() -> None:
        store = SQLiteStore(file)
        await store.open(Owner.create("flink-job", "orders/shop"))
        for job, key, records in journals:
            await store.append(JournalKey(job, encode_key(key)), records)
            if prune is not None:
                await store.prune(JournalKey(job, encode_key(key)), prune)
        await store.close()

    asyncio.run(append())


def loaded(result: Result) -> Any:
    return json.loads(result.stdout)
