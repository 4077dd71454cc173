"""What vector stores and memories cannot keep is refused by name, and nothing of it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from retrieval_agents import Rag

from flink_agents import Document, DocumentUpdate, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import ActionFailedError, DocumentError, VectorFilterError
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

Make = Callable[..., OperatorHarness]
HALF = "half of a character: \ud83d"
NUMBER: Any = 3
ONE: Any = Document("x", "one")
ASKED: list[Callable[[RunnerContext], Any]] = []


class Asks(Rag):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:  # type: ignore[override]
        return OutputEvent(output=await ASKED[0](ctx))


async def count_stored(ctx: RunnerContext) -> Any:
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
    snapshot = harness.snapshot()
    ASKED[:] = [ask]
    with pytest.raises(ActionFailedError) as caught:
        harness.push("go")
    assert isinstance(caught.value.__cause__, DocumentError)
    assert text in str(caught.value)
    harness.restore(snapshot)
    ASKED[:] = [count_stored]
    assert harness.push("look") == [(0, 0)]


def embedded(vector: Any) -> Document:
    return Document("x", "one", {}, vector)


NO_VECTORS: list[Any] = [[], [[1.0]], 5.0, "10", [None], ["1"], [float("nan")], [1e300]]


def page(**arguments: Any) -> Callable[[RunnerContext], Any]:
    return lambda ctx: ctx.vector_store("docs").get(**arguments)


def query(asked: Any, k: Any = 1) -> Callable[[RunnerContext], Any]:
    return lambda ctx: ctx.vector_store("docs").query(asked, k)


@each_case(
    ("ask", "kind"),
    [
        *((lambda ctx, v=v: ctx.vector_store("docs").add(embedded(v)), DocumentError) for v in NO_VECTORS),
        *(
            (
                lambda ctx, v=v: ctx.vector_store("docs").update(DocumentUpdate("a", embedding=v)),
                DocumentError,
            )
            for v in NO_VECTORS
        ),
        *((query(v), VectorFilterError) for v in NO_VECTORS if not isinstance(v, str)),
        *((page(limit=limit), VectorFilterError) for limit in (-1, 0, True, False, 2**63, 10**30, 1.0, "1")),
        *((page(offset=offset), VectorFilterError) for offset in (-1, True, 2**63, 1.0, None)),
        *((query("x", k), VectorFilterError) for k in (-1, 0, True, 2**63, 1.5, "1", None)),
        *((query([1.0], k), VectorFilterError) for k in (-1, 0, True)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_no_vector_and_no_number_reach_a_store(
    agent_harness: Make, tmp_path: Path, ask: Callable[[RunnerContext], Any], kind: type[Exception]
) -> None:
    harness = agent_harness(Asks(str(tmp_path / "v.sqlite")), crash=None, forced_replay=False)
    ASKED[:] = [ask]
    with pytest.raises(ActionFailedError) as caught:
        harness.push("go")
    assert type(caught.value.__cause__) is kind
    assert list(tmp_path.iterdir()) == []


def test_one_document_may_stand_without_a_list(agent_harness: Make, tmp_path: Path) -> None:
    harness = agent_harness(Asks(str(tmp_path / "v.sqlite")), config={"job-identifier": "j"})
    ASKED[:] = [lambda ctx: ctx.vector_store("docs").add(ONE)]
    assert harness.push("go") == [["one"]]
