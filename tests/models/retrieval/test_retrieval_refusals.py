"""What vector stores and memories cannot keep is refused by name, and nothing of it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from retrieval_agents import Rag

from flink_agents import Document, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import ActionFailedError, DocumentError
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]
HALF = "half of a character: \ud83d"
NUMBER: Any = 3
ONE: Any = Document("x", "one")
ASKED: list[Callable[[RunnerContext], Any]] = []


class Asks(Rag):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:  # type: ignore[override]
        return OutputEvent(output=await ASKED[0](ctx))


async def kept(ctx: RunnerContext) -> Any:
    return await ctx.vector_store("docs").count(), len(await ctx.long_term_memory().get())


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda ctx: ctx.long_term_memory(subject=HALF).add("x"), "the subject of a long-term memory"),
        (lambda ctx: ctx.long_term_memory(subject=("a", HALF)).add("x"), "the subject of a long-term memory"),
        (lambda ctx: ctx.long_term_memory(subject=[1]).add("x"), "a list cannot be the subject"),
        (lambda ctx: ctx.long_term_memory(HALF).add("x"), "the scope of a long-term memory"),
        (lambda ctx: ctx.long_term_memory(3).add("x"), "the scope of a long-term memory"),
        (lambda ctx: ctx.long_term_memory().add(5), "a text or an id"),
        (lambda ctx: ctx.long_term_memory().add(None), "a text or an id"),
        (lambda ctx: ctx.long_term_memory().add(["x", 3]), "a text or an id"),
        (lambda ctx: ctx.long_term_memory().add("x", ids=3), "a text or an id"),
        (lambda ctx: ctx.vector_store("docs").add("text"), "a value that is not a Document"),
        (lambda ctx: ctx.vector_store("docs").add(["text"]), "a value that is not a Document"),
        (
            lambda ctx: ctx.vector_store("docs").add(Document("x", NUMBER)),
            "the id of document 3 is not a string",
        ),
        (
            lambda ctx: ctx.vector_store("docs").update([Document("x")]),
            "not a DocumentUpdate",
        ),
    ],
)
def test_it_is_refused(
    agent_harness: Make, tmp_path: Path, ask: Callable[[RunnerContext], Any], text: str
) -> None:
    harness = agent_harness(
        Asks(str(tmp_path / "v.sqlite")), config={"job-identifier": "j"}, crash=None, forced_replay=False
    )
    before = harness.snapshot()
    ASKED[:] = [ask]
    with pytest.raises(ActionFailedError) as caught:
        harness.push("go")
    assert isinstance(caught.value.__cause__, DocumentError)
    assert text in str(caught.value)
    harness.restore(before)
    ASKED[:] = [kept]
    assert harness.push("look") == [(0, 0)]


def test_one_document_may_stand_without_a_list(agent_harness: Make, tmp_path: Path) -> None:
    harness = agent_harness(Asks(str(tmp_path / "v.sqlite")), config={"job-identifier": "j"})
    ASKED[:] = [lambda ctx: ctx.vector_store("docs").add(ONE)]
    assert harness.push("go") == [["one"]]
