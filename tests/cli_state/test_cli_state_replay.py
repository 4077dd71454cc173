"""``flink-agents journal replay``: a recorded run again, without its effects."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flink_agents.cli.main import app
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

SHOP = """
from flink_agents import Agent, InputEvent, OutputEvent, action


def charge(order, total):
    with open("effects", "a") as effects:
        effects.write(order)
    return {"id": total * 2}


class Shop(Agent):
    @action(InputEvent)
    async def pay(self, event, ctx):
        order, total = event.input
        spent = ctx.short_term_memory.get("spent", 0) + total
        ctx.short_term_memory.set("spent", spent)
        first = await ctx.durable_execute_async(charge, order, total)
        second = await ctx.durable_execute_async(charge, order, first["id"])
        return OutputEvent(output=(second["id"], spent))
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the records of two runs of the agent in ``shop_agent.py``; nothing else is left."""
    from flink_agents.plan.files.targets import load_agent

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_agent.py").write_text(SHOP)
    file = tmp_path / "shop.sqlite"
    agent = load_agent("shop_agent:Shop")
    with OperatorHarness(agent, lambda record: record[0], store=lambda: SQLiteStore(file)) as harness:
        assert harness.push_all([("a", 1), ("a", 10)]) == [(4, 1), (40, 11)]
    (tmp_path / "effects").unlink()
    return file


def replay(shop: Path, *arguments: str) -> Result:
    words = ["journal", "replay", "a", *arguments, "--agent", "shop_agent:Shop", "--path", str(shop)]
    return CliRunner().invoke(app, [*words, "--store", "sqlite"])


def test_replay_gives_back_what_was_recorded(shop: Path) -> None:
    done = replay(shop, "1")
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["action", "call", "function", "request"]
    assert lines[1] == ["pay", "0", "shop_agent:charge", "order='a',", "total=10"]
    assert lines[2] == ["pay", "1", "shop_agent:charge", "order='a',", "total=20"]
    assert done.stdout.splitlines()[3:] == ["output: (40, 11)", "memory: spent = 11", "completed"]
    assert not (shop.parent / "effects").exists()


def test_replay_until_a_call(shop: Path) -> None:
    done = replay(shop, "1", "--until-call", "1")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-2:] == [
        "memory: spent = 1",
        "ended early: before call 1 of action pay: shop_agent:charge",
    ]
    assert "output" not in done.stdout


def test_replay_ends_where_the_journal_ends(shop: Path) -> None:
    (shop.parent / "shop_agent.py").write_text(SHOP + "        ")
    changed = SHOP.replace(
        "return OutputEvent(output=(second",
        'await ctx.durable_execute_async(charge, "new", 1)\n        return OutputEvent(output=(second',
    )
    (shop.parent / "changed_agent.py").write_text(
        changed.replace("def charge", "from shop_agent import charge\n\n\ndef unused")
    )
    words = [
        "journal",
        "replay",
        "a",
        "1",
        "--agent",
        "changed_agent:Shop",
        "--path",
        str(shop),
        "--store",
        "sqlite",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert (
        done.stdout.splitlines()[-1] == "ended early: call 2 of action pay, shop_agent:charge, has no record"
    )
    assert not (shop.parent / "effects").exists()


def test_replay_of_a_run_that_was_not_recorded(shop: Path) -> None:
    done = replay(shop, "7")
    assert done.exit_code == 2
    assert "FA6010" in done.stderr


WAITING = """
from flink_agents import Agent, InputEvent, OutputEvent, action


def charge(total):
    return total


class Waiting(Agent):
    @action(InputEvent)
    async def wait(self, event, ctx):
        await ctx.durable_execute_async(charge, 1)
        if event.input == "signal":
            await ctx.wait_for_signal("paid")
        if event.input == "timeout":
            await ctx.wait_for_signal("paid", timeout=60)
        if event.input == "pause":
            await ctx.sleep(3600)
        if event.input == "approval":
            await ctx.request_approval("refund", {"total": 1})
        if event.input == "several":
            await ctx.gather(ctx.wait_for_signal("paid"), ctx.wait_for_signal("sent"))
        return OutputEvent(output=1)
"""


@each_case(
    ("kind", "end"),
    [
        ("signal", "the run has not ended: it waits for the signal 'paid'"),
        ("timeout", "the run has not ended: it waits for the signal 'paid'"),
        ("pause", "the run has not ended: it waits for a timer"),
        ("approval", "the run has not ended: it waits for an approval"),
        ("several", "the run has not ended: it waits for the signal 'paid'; or the signal 'sent'"),
        ("nothing", "completed"),
    ],
)
def test_replay_of_a_run_that_waits(
    kind: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flink_agents.plan.files.targets import load_agent

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "waiting_agent.py").write_text(WAITING)
    file = tmp_path / f"{kind}.sqlite"
    agent = load_agent("waiting_agent:Waiting")
    with OperatorHarness(agent, lambda record: "a", store=lambda: SQLiteStore(file)) as harness:
        harness.push(kind)
    words = ["a", "0", "--agent", "waiting_agent:Waiting", "--path", str(file), "--store", "sqlite"]
    done = CliRunner().invoke(app, ["journal", "replay", *words])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == end
