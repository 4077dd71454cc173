"""No encoding of a secret reaches a trace, what reads it, or the shown journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, redaction
from flink_agents.api.settings.stores import open_store
from flink_agents.cli.main import app
from flink_agents.connectors.action_state.memory.store import MemoryStore
from flink_agents.testing import OperatorHarness
from flink_agents.ui.rendering import link_to
from flink_agents.ui.settings import ConsoleSettings
from tests.runtime.serde.test_serde_redacted import FORMS, SECRET, pieces
from tests.trace.test_trace_records import PLAIN
from tests.ui.consoles import console

pytestmark = pytest.mark.own_conditions


@pytest.fixture(autouse=True)
def registered_secret() -> Iterator[None]:
    redaction.add_secrets(SECRET)
    yield
    redaction.forget_all()


def texts() -> list[str]:
    """The secret in each encoding, also where a long text is cut."""
    encoded_texts = [f"{name}: {form(SECRET)} end" for name, form in FORMS.items()]
    return [
        *encoded_texts,
        *("x" * (4096 - 8 - cut) + FORMS["as it is"](SECRET) * 2 for cut in range(0, 24, 3)),
    ]


async def act(event: Any, ctx: RunnerContext) -> OutputEvent:
    async def ask(question: str, more: dict[str, Any]) -> dict[str, Any]:
        return {"answer": [question], **more}

    for number, text in enumerate(texts()):
        await ctx.durable_execute_async(ask, text, {"n": number, text: text})
    ctx.short_term_memory.set(f"m {SECRET}", SECRET)
    raise ValueError(" ".join(texts()[: len(FORMS)]))


def test_no_encoding_of_a_secret_is_shown(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    journal = tmp_path / "journal.db"
    options = {"trace.level": "content", "trace.directory": str(traces), "job-identifier": "job"}
    agent = Agent(name="asking").add_action("act", [InputEvent], act, on_error="dead-letter")
    with OperatorHarness(
        agent,
        lambda value: "k",
        config=options,
        store=lambda: open_store("sqlite", {"path": str(journal)}),
        **PLAIN,
    ) as harness:
        harness.push("go")
    shown: dict[str, str] = {
        file.name: file.read_text() for file in traces.iterdir() if file.suffix == ".jsonl"
    }
    assert sum("***" in text for text in shown.values()) == 1
    page = tmp_path / "page.html"
    commands: dict[str, list[str]] = {
        "trace": ["trace", "--key", "k", "--path", str(traces)],
        "html": ["trace", "--key", "k", "--path", str(traces), "--html", str(page)],
        "runs": ["runs", "--path", str(traces), "--json"],
        "why": ["why", "k", "--path", str(traces), "--journal", str(journal), "--store", "sqlite"],
        "journal": ["journal", "show", "k", "--store", "sqlite", "--path", str(journal)],
        "journal as JSON": ["journal", "show", "k", "--store", "sqlite", "--path", str(journal), "--json"],
    }
    for name, arguments in commands.items():
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, (name, result.output)
        shown[name] = result.output
    shown["page"] = page.read_text()
    with console(ConsoleSettings(trace=traces)) as (browser, index, _):
        [row] = index.query("SELECT run_id FROM runs")
        for path in ("/", "/runs", "/keys?key=k", link_to("/run", id=row["run_id"])):
            shown[path] = browser.page(path)
    assert {name: leaks for name, text in shown.items() if (leaks := pieces(text))} == {}


async def answer_at_length(event: Any, ctx: RunnerContext) -> OutputEvent:
    async def ask(question: str) -> dict[str, list[str]]:
        return {"answer": [question, "y" * 3_000_000]}

    return OutputEvent(output=len(await ctx.durable_execute_async(ask, "x" * 2_000_000)))


def test_long_content_is_cut_before_it_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search runs on the event loop, where it would stop all other runs."""
    searched: list[int] = []

    def hide(text: str, search: Any = redaction.hide) -> str:
        searched.append(len(text))
        return search(text)

    monkeypatch.setattr(redaction, "hide", hide)
    options = {"trace.level": "content", "trace.directory": str(tmp_path), "job-identifier": "job"}
    agent = Agent(name="asking").add_action("act", [InputEvent], answer_at_length)
    with OperatorHarness(agent, lambda value: "k", config=options, store=MemoryStore, **PLAIN) as harness:
        harness.push("go")
        assert harness.outputs == [1]
    trace_text = "".join(file.read_text() for file in tmp_path.iterdir() if file.suffix == ".jsonl")
    assert "xxx" in trace_text and "yyy" in trace_text
    assert max(searched) < 50_000
