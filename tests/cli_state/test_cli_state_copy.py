"""``flink-agents journal copy``: a job continues with a copy of its journals in another store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from journal_files import Cli, loaded, write

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.errors import OptionError
from flink_agents.cli.journals.operations import Place, copy_journals
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.runtime.serde.keys import encode_key
from tests.cli_state.copied_jobs import continues_with_a_copy

FIRST, SECOND, THIRD = (Record(RecordKind.CALL, seq, "0/pay", 0, b"data") for seq in (0, 1, 2))


@pytest.mark.own_conditions
def test_a_job_continues_with_a_copy(file: Path, cli: Cli) -> None:
    copy_file = file.with_name("copy.db")
    to = ("--to", "sqlite", "--to-option", f"path={copy_file}")
    continues_with_a_copy(lambda: SQLiteStore(copy_file), lambda: cli("copy", *to), file)


def test_a_copy_has_all_journals_and_what_was_pruned(file: Path, cli: Cli) -> None:
    copy_file = file.with_name("copy.db")
    write(file, ("orders/shop", 1, [FIRST, SECOND, THIRD]), ("orders/shop", 2, [FIRST]), prune=0)
    write(file, ("orders/clerk", ("a", 1), [FIRST, SECOND]))
    to = ("--to", "sqlite", "--to-option", f"path={copy_file}")
    assert "copied 3 journals with 4 records; 4 of them were missing" in cli("copy", *to).stdout
    listed = loaded(cli("list", "--json"))
    assert loaded(cli("list", "--json", "--path", str(copy_file))) == listed
    again = loaded(cli("copy", *to, "--json"))
    assert (again["journals"], again["records"], again["appended"]) == (3, 4, 0)


def test_an_interrupted_copy_is_completed(file: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever append a copy dies at, nothing starts from it, and the next one completes it."""
    write(file, ("orders/shop", 1, [FIRST, SECOND, THIRD]), ("orders/shop", 2, [FIRST, SECOND]), prune=0)
    monkeypatch.setattr("flink_agents.cli.journals.operations.PORTION_BYTES", 1)
    source = Place("sqlite", {"path": str(file)})
    append = SQLiteStore.append
    for allowed in range(8):
        copy_file = file.with_name(f"copy-{allowed}.db")
        target = Place("sqlite", {"path": str(copy_file)})
        remaining_appends = [allowed]

        async def dies(self: SQLiteStore, *arguments: Any, left: list[int] = remaining_appends) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            await append(self, *arguments)

        monkeypatch.setattr(SQLiteStore, "append", dies)
        died = False
        try:
            asyncio.run(copy_journals(source, target))
        except KeyboardInterrupt:
            died = True
        monkeypatch.setattr(SQLiteStore, "append", append)
        assert asyncio.run(origins(copy_file)) == (0 if died else 1), allowed
        asyncio.run(copy_journals(source, target))
        assert asyncio.run(origins(copy_file)) == 1
        assert loaded(cli("list", "--json", "--path", str(copy_file))) == loaded(cli("list", "--json"))


async def origins(file: Path) -> int:
    store = SQLiteStore(file)
    await store.open(Owner.create("look", "look"))
    try:
        return len(await store.origins())
    finally:
        await store.close()


def test_what_cannot_be_copied(file: Path, cli: Cli) -> None:
    target_file = file.with_name("copy.db")
    write(file, ("orders/shop", 1, [FIRST]))
    write(target_file, ("orders/shop", 1, [FIRST._replace(data=b"other")]))
    refused = cli("copy", "--to", "sqlite", "--to-option", f"path={target_file}", code=2)
    assert "other records of key" in refused.stderr
    into_itself = cli("copy", "--to", "sqlite", "--to-option", f"path={file}", code=2)
    assert "into itself" in into_itself.stderr
    with pytest.raises(OptionError, match="into itself"):
        place = Place("sqlite", {"path": str(file)})
        asyncio.run(copy_journals(place, place))


def test_a_running_job_is_not_copied(file: Path, cli: Cli) -> None:
    async def live() -> None:
        store = SQLiteStore(file, lease_seconds=1.0)
        await store.open(Owner.create("flink-job", "orders/shop"))
        await store.append(JournalKey("orders/shop", encode_key(1)), [FIRST])
        to = f"path={file.with_name('copy.db')}"
        rejected = await asyncio.to_thread(cli, "copy", "--to", "sqlite", "--to-option", to, code=2)
        assert "FA6002" in rejected.stderr
        await store.append(JournalKey("orders/shop", encode_key(1)), [SECOND])
        await store.close()

    asyncio.run(live())
