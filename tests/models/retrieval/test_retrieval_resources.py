"""Vector stores and memories as resources: forms, options, events, tools, stores of third parties."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from retrieval_agents import WORDS, Rag

from flink_agents import (
    Agent,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
)
from flink_agents.api.errors import (
    AgentDefinitionError,
    MissingResourceError,
    OptionError,
    UnknownStoreError,
)
from flink_agents.api.models.retrieval import ContextRetrievalRequestEvent, ContextRetrievalResponseEvent
from flink_agents.api.vector_store import Document
from flink_agents.models.retrieval.sqlite.store import SQLiteVectorStore
from flink_agents.models.retrieval.store_calls import open_vector_store
from flink_agents.models.retrieval.tool import retrieval_tool
from flink_agents.models.retrieval.wordllama import WordLlamaEmbeddingModel
from flink_agents.plan import AgentPlan, compile_agent, load_yaml
from flink_agents.testing import OperatorHarness

TEXTS = ("How do I reset my password?", "Shipping to Norway takes five days")


async def learn_and_find(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
    store = ctx.vector_store("docs")
    await store.add([Document(text, str(n)) for n, text in enumerate(TEXTS)])
    await ctx.long_term_memory("questions", name="memory").add(event.input)
    documents = await ctx.retrieve("docs", event.input, k=1)
    return OutputEvent(output=[document.id for document in documents])


def built(path: Path) -> Agent:
    agent = Agent(name="Finds").add_action("find", InputEvent, learn_and_find)
    agent.add_resource("words", "embedding_model", ResourceDescriptor(model=WORDS))
    agent.add_resource("docs", "vector_store", ResourceDescriptor(path=str(path), embedding_model="words"))
    return agent.add_resource("memory", "long_term_memory", ResourceDescriptor(vector_store="docs"))


def from_yaml(path: Path) -> Agent:
    return read(
        path,
        f"""
    embedding_models:
      - {{name: words, model: "{WORDS}"}}
    vector_stores:
      - {{name: docs, path: {path}, embedding_model: words}}
    long_term_memories:
      - {{name: memory, vector_store: docs}}
""",
    )


def from_yaml_without_types(path: Path) -> Agent:
    return read(
        path,
        f"""
    resources:
      - {{name: words, type: embedding_model, arguments: {{model: "{WORDS}"}}}}
      - {{name: docs, type: vector_store, arguments: {{path: {path}, embedding_model: words}}}}
      - {{name: memory, type: long_term_memory, arguments: {{vector_store: docs}}}}
""",
    )


def read(path: Path, resources: str) -> Agent:
    text = f"""
agents:
  - name: Finds
    actions:
      - {{name: find, triggers: [_input_event], function: "{__name__}:learn_and_find"}}{resources}"""
    file = path.with_suffix(".yaml")
    file.write_text(text)
    return load_yaml(file)["Finds"]


CONFIG = {"job-identifier": "job"}


@pytest.mark.parametrize("make", [built, from_yaml, from_yaml_without_types])
def test_each_form_makes_the_same(
    agent_harness: Callable[..., OperatorHarness], tmp_path: Path, make: Callable[[Path], Agent]
) -> None:
    agent = make(tmp_path / "v.sqlite")
    harness = agent_harness(agent, config=CONFIG)
    assert harness.push("forgot login credentials") == [["0"]]
    plan = compile_agent(agent)
    assert AgentPlan.from_json(plan.to_json()) == plan
    assert {
        resource.type.value: [ref.name for ref in resource.references] for resource in plan.resources
    } == {
        "embedding_model": [],
        "vector_store": ["words"],
        "long_term_memory": ["docs"],
    }


def test_a_store_names_a_model_that_the_agent_has(tmp_path: Path) -> None:
    agent = Agent(name="a").add_action("find", InputEvent, learn_and_find)
    agent.add_resource("docs", "vector_store", ResourceDescriptor(path="x", embedding_model="words"))
    with pytest.raises(MissingResourceError, match="'words'"):
        compile_agent(agent)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, "path: Field required"),
        ({"path": "x", "cache": 3}, "cache: Extra inputs are not permitted"),
        ({"store": "chroma"}, "pass the path of an embedded database, or the host of a server"),
        ({"store": "chroma", "path": "x", "headers": {"a": {"env": 1}}}, "headers.a"),
    ],
)
def test_options_of_a_store_are_checked_when_the_agent_is_compiled(said: dict[str, Any], found: str) -> None:
    agent = Agent(name="a").add_action("find", InputEvent, learn_and_find)
    agent.add_resource("docs", "vector_store", ResourceDescriptor(**said))
    with pytest.raises(AgentDefinitionError) as caught:
        compile_agent(agent)
    assert found in (caught.value.found or "")


def test_options_of_the_job_go_before_the_description(
    agent_harness: Callable[..., OperatorHarness], tmp_path: Path
) -> None:
    described_path = tmp_path / "said.sqlite"
    job_path = tmp_path / "other.sqlite"
    config: dict[str, Any] = {
        **CONFIG,
        "vector-stores.docs.path": str(job_path),
        "vector-stores.docs.collection": "c",
    }
    config["embedding-models.words.dimensions"] = 64
    agent_harness(built(described_path), config=config).push("x")
    store = open_vector_store("sqlite", {"path": str(job_path)})
    space = store.space("c")
    assert space is not None and space.dimension == 64
    assert not described_path.exists()


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("vector-stores.docs.pth", "x", "unknown option"),
        ("vector-stores.docs.lease", "x", "is invalid"),
        ("embedding-models.words.batch_size", 0, "is invalid"),
        ("embedding-models.words.batch", 1, "unknown option"),
    ],
)
def test_an_option_that_fits_nothing_is_refused(
    agent_harness: Callable[..., OperatorHarness], tmp_path: Path, option: str, value: Any, found: str
) -> None:
    with pytest.raises(OptionError, match=found):
        agent_harness(built(tmp_path / "v.sqlite"), config={**CONFIG, option: value})


# -- events and tools -----------------------------------------------------------------


class Asks(Rag):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> ContextRetrievalRequestEvent:  # pyright: ignore[reportIncompatibleMethodOverride]
        await ctx.vector_store("docs").add([Document(text, str(n)) for n, text in enumerate(TEXTS)])
        return ContextRetrievalRequestEvent(query=event.input, vector_store="docs", k=1, tag=["t"])

    @action(ContextRetrievalResponseEvent)
    def found(self, event: ContextRetrievalResponseEvent, ctx: RunnerContext) -> OutputEvent:
        request_fields = (event.request_id != "", event.tag, event.query)
        return OutputEvent(output=(*request_fields, [document.id for document in event.documents]))


@pytest.mark.parametrize("crash", ["", "everywhere"])
def test_an_event_is_answered_by_an_action_of_the_plan(
    agent_harness: Callable[..., OperatorHarness], tmp_path: Path, crash: str
) -> None:
    harness = agent_harness(Asks(str(tmp_path / "v.sqlite")), crash=crash)
    assert harness.push("delivery abroad") == [(True, ["t"], "delivery abroad", ["1"])]
    assert "answer_context_retrieval_request" in [plan_action.name for plan_action in harness.plan.actions]


def test_a_tool_finds_documents(agent_harness: Callable[..., OperatorHarness], tmp_path: Path) -> None:
    tool = retrieval_tool("docs")
    assert (tool.name, list(tool.parameters["properties"])) == ("search_docs", ["query"])

    async def use(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        documents = [Document(text, str(n), {"public": n == 1}) for n, text in enumerate(TEXTS)]
        await ctx.vector_store("docs").add(documents)
        search = retrieval_tool("docs", k=1, filter={"public": True})
        return OutputEvent(output=await search(query=event.input, ctx=ctx))

    agent = built(tmp_path / "v.sqlite").add_action("use", InputEvent, use)
    outputs = agent_harness(agent, config=CONFIG).push("forgot login credentials")
    assert [{"id": "1", "text": TEXTS[1], "metadata": {"public": True}}] in outputs


# -- third parties --------------------------------------------------------------------

THEIRS = """
from flink_agents.models.retrieval.sqlite.store import SQLiteVectorStore

def make(options):
    return SQLiteVectorStore({"path": options["file"]})
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a distribution that has a store ``theirs``."""
    (tmp_path / "their_vectors.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_vectors", raising=False)

    def install(target: str) -> None:
        info = tmp_path / "theirs-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[flink_agents.vector_stores]\ntheirs = {target}\n")

    return install


def test_a_store_of_a_third_party_is_found_by_name(
    agent_harness: Callable[..., OperatorHarness], tmp_path: Path, install: Callable[[str], None]
) -> None:
    install("their_vectors:make")
    agent = Agent(name="Finds").add_action("find", InputEvent, learn_and_find)
    agent.add_resource("words", "embedding_model", ResourceDescriptor(model=WORDS))
    options = {"store": "theirs", "file": str(tmp_path / "v.sqlite"), "embedding_model": "words"}
    agent.add_resource("docs", "vector_store", ResourceDescriptor(**options))
    agent.add_resource("memory", "long_term_memory", ResourceDescriptor(vector_store="docs"))
    assert agent_harness(agent, config=CONFIG).push("forgot login credentials") == [["0"]]


def make_store(options: dict[str, Any]) -> SQLiteVectorStore:
    return SQLiteVectorStore({"path": options["file"]})


def test_classes_of_the_author_make_store_and_model(
    agent_harness: Callable[..., OperatorHarness], tmp_path: Path
) -> None:
    agent = Agent(name="Finds").add_action("find", InputEvent, learn_and_find)
    model = {"model": "mine:small", "options": {"settings": {"dimensions": 64}}}
    agent.add_resource("words", "embedding_model", ResourceDescriptor(clazz=WordLlamaEmbeddingModel, **model))
    options = {"file": str(tmp_path / "v.sqlite"), "embedding_model": "words"}
    store = ResourceDescriptor(clazz=f"{__name__}:make_store", **options)
    agent.add_resource("docs", "vector_store", store)
    agent.add_resource("memory", "long_term_memory", ResourceDescriptor(vector_store="docs"))
    assert agent_harness(agent, config=CONFIG).push("forgot login credentials") == [["0"]]
    space = make_store(options).space("docs")
    assert space is not None and (space.dimension, space.model) == (64, "mine:small")


def test_a_store_that_nobody_has_is_named(tmp_path: Path) -> None:
    agent = Agent(name="a").add_action("find", InputEvent, learn_and_find)
    agent.add_resource("docs", "vector_store", ResourceDescriptor(store="theirs"))
    with pytest.raises(UnknownStoreError, match=r"unknown vector store 'theirs'[\s\S]*chroma, sqlite"):
        compile_agent(agent)


def test_a_provider_that_makes_no_store_is_named(install: Callable[[str], None]) -> None:
    install("builtins:dict")
    with pytest.raises(UnknownStoreError, match="returned a value that is not a store"):
        open_vector_store("theirs", {})
