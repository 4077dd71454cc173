"""Durable calls in jobs that fail on the way: what was recorded is not done again.

Effects are lines of a file, which nothing takes back: ``call`` when a function is called, and
``back`` when its action goes on. A call that came back was recorded, and is called no more; one that
was in flight at the failure may be.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, Event, InputEvent, OutputEvent, action
from flink_agents.api.action_state import JournalKey
from flink_agents.api.errors import OptionError, StoreNotConfiguredError, UnknownStoreError
from flink_agents.api.settings.stores import open_store
from flink_agents.runtime.flink import compat as flink_compat
from tests.minicluster.sources import numbers, restarting

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

RECORDS = 400
KEYS = 11
FAILS = 203
"""The number at which an action fails once, behind its durable call."""


def note(directory: str, *words: object) -> None:
    """Add a line; short ones are written as a whole."""
    file = os.open(Path(directory) / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)


def noted(directory: Path) -> list[str]:
    """All lines."""
    return (directory / "effects").read_text("utf-8").splitlines()


def fail_once(directory: str) -> None:
    try:
        os.close(os.open(Path(directory) / "failed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    raise RuntimeError("fails once")


def price(directory: str, number: int) -> int:
    note(directory, "call", "price", number)
    return number * 10


async def price_async(directory: str, number: int) -> int:
    return price(directory, number)


def book(directory: str, number: int, idempotency_key: str) -> str:
    note(directory, "call", "book", number)
    return idempotency_key


class Priced(Event):
    number: int
    price: int


class Orders(Agent):
    """Two chained actions, each with a durable call; the second one fails once behind its call."""

    def __init__(self, directory: str, waits: bool, fails: bool = True) -> None:
        self.directory = directory
        self.waits = waits
        self.fails = fails

    @action(InputEvent)
    def price(self, event: InputEvent, ctx: Any) -> Any:
        if self.waits:
            return self.price_later(event.input, ctx)
        value = ctx.durable_execute(price, self.directory, event.input)
        note(self.directory, "back", "price", event.input)
        return Priced(number=event.input, price=value)

    async def price_later(self, number: int, ctx: Any) -> Priced:
        value = await ctx.durable_execute_async(price_async, self.directory, number)
        await asyncio.sleep(number % 5 / 1000)
        note(self.directory, "back", "price", number)
        return Priced(number=number, price=value)

    @action(Priced)
    def book(self, event: Priced, ctx: Any) -> OutputEvent:
        key = ctx.durable_execute(book, self.directory, event.number)
        note(self.directory, "back", "book", event.number)
        if self.fails and event.number == FAILS:
            fail_once(self.directory)
        total = ctx.short_term_memory.get("total", 0) + event.price
        ctx.short_term_memory.set("total", total)
        return OutputEvent(output=(ctx.key, event.number, total, key))


def slowly(number: int) -> int:
    """A source that lasts over the failure and some checkpoints."""
    time.sleep(0.004)
    return number


def keyed_numbers(env: AgentsExecutionEnvironment, count: int = RECORDS) -> Any:
    slow = numbers(env, count).map(slowly).set_parallelism(1)
    return env.from_datastream(slow, lambda number: number % KEYS)


def in_store(path: Path) -> list[JournalKey]:
    """The journals that a file has."""

    async def read() -> list[JournalKey]:
        store = open_store("sqlite", {"path": str(path)})
        await store.open(None)
        journals = [info.journal for info in await store.journals()]
        await store.close()
        return [journal for journal in journals if not journal.journal_id.startswith("\x00")]

    return asyncio.run(read())


def repeated(lines: list[str]) -> list[str]:
    """Calls that were made although they had come back."""
    back: set[str] = set()
    repeats: list[str] = []
    for line in lines:
        word, _, call = line.partition(" ")
        if word == "back":
            back.add(call)
        elif call in back:
            repeats.append(call)
    return repeats


def totals(count: int = RECORDS) -> dict[int, list[tuple[int, int]]]:
    """Number and total of each output, by key."""
    totals_by_key: dict[int, list[tuple[int, int]]] = {}
    for key in range(KEYS):
        key_numbers = list(range(key, count, KEYS))
        totals_by_key[key] = [
            (number, 10 * sum(key_numbers[: place + 1])) for place, number in enumerate(key_numbers)
        ]
    return totals_by_key


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize(
    ("waits", "interval"),
    [(False, "200 ms"), (True, "200 ms"), (True, "1 h")],
    ids=["def", "async", "before the first checkpoint"],
)
def test_what_was_recorded_is_not_done_again(
    agents_environment: MakeEnvironment, waits: bool, interval: str, tmp_path: Path
) -> None:
    path = tmp_path / "calls" / "store.db"
    env = agents_environment(
        parallelism=2,
        flink=restarting(tmp_path, interval),
        config={"action-state.sqlite.path": str(path), "action-state.reorder-timeout": "1 h"},
    )
    outputs = keyed_numbers(env).apply(Orders(directory=str(tmp_path), waits=waits)).to_list()
    env.execute()

    lines = noted(tmp_path)
    assert (tmp_path / "failed").exists()
    counts = Counter(lines)
    assert (counts[f"call book {FAILS}"], counts[f"back book {FAILS}"]) == (1, 2)
    assert repeated(lines) == []
    totals_by_key: dict[int, list[tuple[int, int]]] = {key: [] for key in range(KEYS)}
    for key, number, total, _ in outputs:
        totals_by_key[key].append((number, total))
    assert totals_by_key == totals()
    assert len({idempotency_key for *_, idempotency_key in outputs}) == RECORDS
    assert {journal.key for journal in in_store(path)} == {f"i{key}" for key in range(KEYS)}


class Chained(Agent):
    """Makes one durable call for what another agent made."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @action(InputEvent)
    async def book(self, event: InputEvent, ctx: Any) -> OutputEvent:
        number = event.input if isinstance(event.input, int) else event.input[0]
        key = await ctx.durable_execute_async(book, f"{self.directory}/{ctx.agent_name}", number)
        note(f"{self.directory}/{ctx.agent_name}", "back", "book", number)
        if ctx.agent_name == "second" and number == FAILS:
            fail_once(f"{self.directory}/{ctx.agent_name}")
        return OutputEvent(output=(number, key))


@pytest.mark.nightly
def test_agents_of_a_job_share_a_file_and_nothing_else(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    path = tmp_path / "store.db"
    env = agents_environment(
        parallelism=2,
        flink=restarting(tmp_path),
        config={"action-state.sqlite.path": str(path), "action-state.reorder-timeout": "1 h"},
    )
    agent = Chained(directory=str(tmp_path))
    first = keyed_numbers(env).apply(agent, name="first")
    second = env.from_datastream(first.to_datastream(), lambda output: output[0] % KEYS).apply(
        agent, name="second"
    )
    first_outputs = first.to_list()
    behind = second.to_list()
    env.execute()

    assert (tmp_path / "second" / "failed").exists()
    for name, outputs in (("first", first_outputs), ("second", behind)):
        assert sorted(number for number, _ in outputs) == list(range(RECORDS))
        assert repeated(noted(tmp_path / name)) == []
    assert Counter(noted(tmp_path / "second"))[f"call book {FAILS}"] == 1
    assert not {key for _, key in first_outputs} & {key for _, key in behind}, (
        "two calls with one idempotency key"
    )
    assert len(in_store(path)) == 2 * KEYS


def test_the_job_identifier_says_whose_records_a_new_job_uses(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    count = 40

    def run(identifier: str) -> list[Any]:
        env = agents_environment(config={"action-state.sqlite.path": str(path), "job-identifier": identifier})
        outputs = (
            keyed_numbers(env, count)
            .apply(Orders(directory=str(tmp_path), waits=True, fails=False))
            .to_list()
        )
        env.execute()
        return sorted(outputs)

    first = run("orders")
    assert Counter(noted(tmp_path))["call book 7"] == 1
    journals = in_store(path)
    assert run("orders") == first
    assert in_store(path) == journals
    assert Counter(noted(tmp_path))["call book 7"] == 1
    other_outputs = run("others")
    assert Counter(noted(tmp_path))["call book 7"] == 2
    assert [output[:3] for output in other_outputs] == [output[:3] for output in first]
    assert not {output[3] for output in other_outputs} & {output[3] for output in first}
    assert len(in_store(path)) == 2 * len(journals)


def on_a_cluster(env: AgentsExecutionEnvironment) -> AgentsExecutionEnvironment:
    """What ``flink run`` makes; nothing is executed there."""
    flink_compat.set_options(env.stream_env, {"execution.target": "remote"})
    return env


def test_a_job_on_a_cluster_has_to_name_its_store(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    orders = Orders(directory=str(tmp_path), waits=False)
    with pytest.raises(StoreNotConfiguredError, match=r"action-state\.store"):
        keyed_numbers(on_a_cluster(agents_environment())).apply(orders)
    keyed_numbers(agents_environment()).apply(orders)
    config = {"action-state.store": "sqlite", "action-state.sqlite.path": str(tmp_path / "store.db")}
    keyed_numbers(on_a_cluster(agents_environment(config=config))).apply(orders)


def test_a_store_that_cannot_be_made_is_refused_when_the_agent_is_applied(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    orders = Orders(directory=str(tmp_path), waits=False)
    with pytest.raises(UnknownStoreError, match=r"(?s)unknown store 'postgres'.*FA3006"):
        keyed_numbers(agents_environment(config={"action-state.store": "postgres"})).apply(orders)
    with pytest.raises(OptionError, match=r"action-state\.sqlite\.path"):
        keyed_numbers(on_a_cluster(agents_environment(config={"action-state.store": "sqlite"}))).apply(orders)
