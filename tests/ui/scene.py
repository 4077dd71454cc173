"""Trace files with something of everything, for screenshots and the test in a real browser.

Its runs are made up: an agent that pays refunds, with failures and suspensions, around a given time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.events import Event
from flink_agents.trace.records import TraceRecord, run_id_of, span_id
from tests.ui.samples import write

ERRORS = (
    ("CardRejectedError", "the bank rejected the card", "refunds.py:48"),
    ("TimeoutError", "the ledger did not answer in 30 s", "refunds.py:61"),
    ("ValueError", "a negative amount", "refunds.py:23"),
)


class Judged(Event):
    amount: float


class Paid(Event):
    receipt: str


class Refunds(Agent):
    """Judges claims with a model, pays, and writes to the customer."""

    @action(InputEvent)
    async def judge(self, event: InputEvent, ctx: Any) -> Judged:
        return Judged(amount=event.input)

    @action(Judged, needs_approval=True)
    async def pay(self, event: Judged, ctx: Any) -> Paid:
        return Paid(receipt=str(event.amount))

    @action(Paid)
    async def write_letter(self, event: Paid, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.receipt)


class Run:
    """Makes the records of one run, step after step."""

    def __init__(self, number: int, key: str, begin: float, agent: str = "Refunds") -> None:
        self.number = number
        self.key = key
        self.now = begin
        self.begin = begin
        self.agent = agent
        self.run_id = run_id_of("refunds-job", f"s{key}", number)
        self.records: list[TraceRecord] = []
        self.add_record("run", agent, "started", (), None)

    def add_record(
        self, kind: str, name: str, outcome: str, path: tuple[Any, ...], parent: str | None, **more: Any
    ) -> None:
        seconds = more.pop("seconds", None)
        record = TraceRecord(
            kind, name, outcome, "refunds-job", self.agent, self.number % 2, 0, f"s{self.key}", self.number,
            self.run_id, span_id(self.run_id, *path), parent, self.now, seconds, False, more,
        )  # fmt: skip
        self.records.append(record)

    def action(
        self, name: str, calls: list[tuple[str, float]], error: tuple[str, str, str] | None = None
    ) -> None:
        begin = self.now
        for number, (call, seconds) in enumerate(calls):
            self.now += seconds
            failed = error is not None and number == len(calls) - 1
            failure = dict(zip(("error", "message", "where"), error, strict=True)) if error and failed else {}
            parent = span_id(self.run_id, name)
            more = {"action": name, "request": f'["{self.key}"]', **failure}
            outcome = "failed" if failed else "ok"
            self.add_record("call", call, outcome, (name, call), parent, seconds=seconds, **more)
        self.now += 0.02
        outcome = "failed" if error else "ok"
        self.add_record("action", name, outcome, (name,), span_id(self.run_id), seconds=self.now - begin)

    def end(self, outcome: str, segment: float, path: tuple[Any, ...] = (), **more: Any) -> None:
        parent = None if not path else span_id(self.run_id)
        attributes = {"phases": {"queued": 0.012, "slot": 0.21}, **more}
        self.add_record("run", self.agent, outcome, path, parent, seconds=self.now - segment, **attributes)


def scene(now: float, runs: int = 1200, seed: int = 5) -> Iterator[TraceRecord]:
    """Yield the records of runs of the last two hours."""
    chosen = random.Random(seed)
    numbers: dict[str, int] = {}
    for index in range(runs):
        key = f"customer-{chosen.randrange(400)}"
        number = numbers[key] = numbers.get(key, -1) + 1
        begin = now - 7200 * (1 - index / runs) ** 1.15 - 4
        yield from _add_run(chosen, number, key, begin, now).records


def long_run(now: float) -> Run:
    """Return a run that waited for an approval for hours, between two segments."""
    run = Run(0, "customer-ada", now - 5 * 3600)
    run.action("judge", [("load_claim", 0.08), ("chat gpt-5-mini", 1.9)])
    wait = {"kind": "signal", "name": "flink-agents.approval", "deadline": None, "id": "pay||0"}
    run.end("suspended", run.begin, ("pay||0",), waits=[wait])
    segment = run.now = run.now + 4.6 * 3600
    run.action("pay", [("charge_ledger", 0.7), ("book", 0.25)])
    run.action("write_letter", [("chat gpt-5-mini", 1.2), ("send_mail", 0.4)])
    run.end("completed", segment)
    return run


def _add_run(chosen: random.Random, number: int, key: str, begin: float, now: float) -> Run:
    run = Run(number, key, begin)
    kind = chosen.random()
    run.action(
        "judge", [("load_claim", chosen.uniform(0.02, 0.1)), ("chat gpt-5-mini", chosen.uniform(0.5, 2))]
    )
    if kind > 0.985:
        wait = {
            "kind": "signal",
            "name": "flink-agents.approval",
            "deadline": (now + 86400) * 1000,
            "id": "pay||0",
        }
        run.end("suspended", run.begin, ("pay||0",), waits=[wait])
    elif kind > 0.975:
        wait = {"kind": "signal", "name": "receipt", "deadline": (now + 7200) * 1000, "id": "pay||1"}
        run.end("suspended", run.begin, ("pay||1",), waits=[wait])
    elif kind > 0.93:
        error = chosen.choice(ERRORS)
        run.action("pay", [("charge_ledger", chosen.uniform(0.1, 0.9))], error)
        failure = dict(zip(("error", "message", "where"), error, strict=True))
        run.end("failed" if kind > 0.972 else "dead-lettered", run.begin, error=failure)
    elif kind > 0.925:
        run.now += 1.0
    else:
        run.action("pay", [("charge_ledger", chosen.uniform(0.1, 0.9)), ("book", chosen.uniform(0.05, 0.3))])
        run.action("write_letter", [("chat gpt-5-mini", chosen.uniform(0.5, 2)), ("send_mail", 0.3)])
        run.end("completed", run.begin)
    return run


def write_scene(place: Path, now: float) -> Run:
    """Write a scene into a directory, and return the run that waited long."""
    run = long_run(now)
    write(place, [*scene(now), *run.records], "Refunds-0")
    return run
