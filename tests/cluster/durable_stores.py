"""The stores of chaos runs: where each records, what it recorded twice, journals of keys that are stuck."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flink_agents.api.action_state import ActionStateStore, JournalKey, RecordKind
from flink_agents.cli.journals import PAGE, Place, show_key
from flink_agents.runtime.keys import encode_key
from tests.cluster.durable_check import recorded_twice

OPTIONS: dict[str, Callable[[Path], Mapping[str, str]]] = {
    "sqlite": lambda directory: {"path": str(directory / "action-state.sqlite")},
}
"""Options of a store for a run in a directory; other stores get only those that are given."""

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
    def of(cls, name: str, directory: Path, given: Mapping[str, str] | None = None) -> RunStore:
        """A store in ``directory``, or wherever the options that are given say."""
        own = OPTIONS[name](directory) if name in OPTIONS else {}
        return cls(name, {**own, **(given or {})})

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
            found: list[str] = []
            after: JournalKey | None = None
            while page := await store.journals(None, after, PAGE):
                for info in page:
                    records = await store.scan(info.journal)
                    found += recorded_twice(
                        (info.journal.key, record.seq, record.step, record.kind.name, record.index)
                        for record in records
                        if record.kind in KINDS
                    )
                after = page[-1].journal
            return found

        return Place(self.name, self.options).ask(find)

    def show(self, runs: Iterable[tuple[int, int]]) -> str:
        """What the journals say about runs, given by key and sequence number."""
        return "\n".join(self._show(key, seq) for key, seq in runs)

    def _show(self, key: int, seq: int) -> str:
        title = f"--- journal of key {key}, run {seq}"
        try:
            place = Place(self.name, self.options)
            found = place.ask(lambda store: show_key(store, encode_key(key), None, seq))
        except Exception as error:
            # A report about a failure must not hide it by another one.
            return f"{title}: {type(error).__name__}: {error}"
        lines = [json.dumps(line) for journal in found for run in journal["runs"] for line in _lines(run)]
        return "\n".join([title, *lines])


def _lines(run: dict[str, Any]) -> list[dict[str, Any]]:
    """What is known of a run, and its records, a line each."""
    return [{name: value for name, value in run.items() if name != "records"}, *run["records"]]
