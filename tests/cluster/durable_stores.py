"""The stores of chaos runs: their places, duplicate records, and journals of keys that are stuck."""

from __future__ import annotations

import json
import secrets
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from flink_agents.api.action_state import ActionStateStore, JournalKey, RecordKind
from flink_agents.cli.journals.operations import PAGE, Place, list_journals, show_key
from flink_agents.cli.main import app
from flink_agents.runtime.journal.records import CallRecord
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import encode_key
from tests.cluster.durable_check import recorded_twice

OPTIONS: dict[str, Callable[[Path], Mapping[str, str]]] = {
    "sqlite": lambda directory: {"path": str(directory / "action-state.sqlite")},
}
"""Options of a store for a run in a directory; other stores get only those that are given."""

FREE: dict[str, Callable[[Mapping[str, str]], bool]] = {
    "sqlite": lambda options: _unlocked(Path(options["path"])),
}
"""Of stores in which a process that stands still can be in the way of all others: whether none is."""

KINDS = (RecordKind.CALL, RecordKind.ACTION)


@dataclass(frozen=True)
class RunStore:
    """The store of one run.

    Attributes:
        name: Its name.
        options: Its options, without a prefix.
    """

    name: str
    options: Mapping[str, str]

    @classmethod
    def for_directory(cls, name: str, directory: Path, given: Mapping[str, str] | None = None) -> RunStore:
        """A store in ``directory``, or wherever the options that are given say."""
        defaults = OPTIONS[name](directory) if name in OPTIONS else {}
        return cls(name, {**defaults, **(given or {})})

    @classmethod
    def in_kafka(cls, bootstrap_servers: str, given: Mapping[str, str] | None = None) -> RunStore:
        """A store in topics of its own, unless the options that are given say otherwise."""
        defaults = {"bootstrap-servers": bootstrap_servers, "topic": f"run-{secrets.token_hex(4)}"}
        return cls("kafka", {**defaults, **(given or {})})

    @property
    def flink_options(self) -> dict[str, str]:
        """What the job is submitted with."""
        options = {
            f"flink-agents.action-state.{self.name}.{key}": value for key, value in self.options.items()
        }
        return {"flink-agents.action-state.store": self.name, **options}

    def recorded_twice(self) -> list[str]:
        """Calls and actions that have more than one record."""

        async def find(store: ActionStateStore) -> list[str]:
            duplicates: list[str] = []
            after: JournalKey | None = None
            while page := await store.journals(None, after, PAGE):
                for info in page:
                    records = await store.scan(info.journal)
                    duplicates += recorded_twice(
                        (info.journal, record.seq, record.step, record.kind.name, record.index)
                        for record in records
                        if record.kind in KINDS
                    )
                after = page[-1].journal
            return duplicates

        return Place(self.name, self.options).run_query(find)

    def journals(self) -> list[dict[str, Any]]:
        """What ``flink-agents journal list --json`` shows."""
        return Place(self.name, self.options).run_query(lambda store: list_journals(store, None, sys.maxsize))

    def returned(self) -> set[str]:
        """The values that recorded calls returned."""
        codec = ValueCodec(allow_pickle=False)

        async def find(store: ActionStateStore) -> set[str]:
            values: set[str] = set()
            for journal in await list_journals(store, None, sys.maxsize):
                for record in await store.scan(JournalKey(journal["job"], journal["raw"])):
                    if record.kind is RecordKind.CALL:
                        call = CallRecord.unpack(codec, record.data)
                        values |= set() if call.value is None else {codec.decode(call.value)}
            return values

        return Place(self.name, self.options).run_query(find)

    def prune(self, job: str, key: str, through: int) -> None:
        """Remove the runs of a key up to ``through``, by ``flink-agents journal prune``."""
        options = [word for name, value in self.options.items() for word in ("--option", f"{name}={value}")]
        words = ["journal", "prune", key, "--through", str(through), "--job", job, "--store", self.name]
        done = CliRunner().invoke(app, [*words, *options])
        assert done.exit_code == 0, done.output

    def is_free(self) -> bool:
        """Whether another process may append; for a moment at which the one that does stands still."""
        return self.name not in FREE or FREE[self.name](self.options)

    def show(self, runs: Iterable[tuple[int, int]]) -> str:
        """What the journals say about runs, given by key and sequence number."""
        return "\n".join(self._show(key, seq) for key, seq in runs)

    def _show(self, key: int, seq: int) -> str:
        title = f"--- journal of key {key}, run {seq}"
        try:
            place = Place(self.name, self.options)
            journals = place.run_query(lambda store: show_key(store, encode_key(key), None, seq))
        except Exception as error:
            # A report about a failure must not hide it by another one.
            return f"{title}: {type(error).__name__}: {error}"
        lines = [json.dumps(line) for journal in journals for run in journal["runs"] for line in _lines(run)]
        return "\n".join([title, *lines])


def _lines(run: dict[str, Any]) -> list[dict[str, Any]]:
    """What is known of a run, and its records, a line each."""
    return [{name: value for name, value in run.items() if name != "records"}, *run["records"]]


def _unlocked(path: Path) -> bool:
    """Whether no transaction that writes is open in a file."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
    return True
