"""The files of a correct chaos run, for tests to change."""

from __future__ import annotations

from flink_agents.api.action_state import JournalKey, Owner, Record
from flink_agents.api.settings.stores import open_store
from flink_agents.runtime.serde.keys import encode_key
from tests.cluster.durable_agent import steps_of
from tests.cluster.durable_check import Verdict, Workload, judge
from tests.cluster.durable_stores import RunStore

WORK = Workload(events=900, keys=4)


def token(number: int, step: str) -> str:
    return f"{number}/{step}"


def effect(
    number: int, step: str, again: str = "", idempotency_key: str | None = None, process: int = 77
) -> str:
    name = token(number, step)
    key = idempotency_key or f"id{name}"
    return f"effect {number % WORK.keys} {number} {step} {name}{again} {key} {process}"


def record(number: int, step: str, again: str = "") -> str:
    return f"record {number % WORK.keys} {number} {step} {token(number, step)}{again}"


class Files:
    """Outputs, windows and effects, in the order of writing."""

    def __init__(self) -> None:
        lines = WORK.outputs().items()
        self.outputs = [
            f"{line} {','.join(token(number, step) for step in steps_of(number))}" for number, line in lines
        ]
        self.windows = list(WORK.windows().values())
        self.effects: list[str] = []
        for number in range(WORK.events):
            for step in steps_of(number):
                self.effects += [effect(number, step), record(number, step)]

    def insert(self, line: str, behind: str) -> None:
        self.effects.insert(self.effects.index(behind) + 1, line)

    def judge(self) -> Verdict:
        return judge(self.outputs, self.windows, self.effects, WORK)

    def differences(self) -> dict[str, int]:
        """The numbers of differences that are not 0."""
        return {name: count for name, count in self.judge().counts().items() if count}


async def fill(store: RunStore, *records: Record) -> None:
    opened = open_store(store.name, store.options)
    await opened.open(Owner.create("job", "group"))
    await opened.append(JournalKey("job", encode_key(3)), records)
    await opened.close()
