"""Options for named resources: a wrong name, field or value is found when the job is built."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, action
from flink_agents.api.errors import OptionError
from flink_agents.api.resources import ResourceDescriptor
from flink_agents.api.settings.options import Configuration, environment_name
from flink_agents.plan import LoadedAgent, compile_with_code
from flink_agents.plan.binding.needs import ResourceOptions
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

RESOURCES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat-models": ("chat_model", {"model": "openai:gpt-5"}),
    "embedding-models": ("embedding_model", {"model": "openai:text-embedding-3-small"}),
    "skills": ("skills", {"path": "skills"}),
    "vector-stores": ("vector_store", {"store": "sqlite", "embedding_model": "words", "path": "notes.db"}),
    "mcp-servers": ("mcp_server", {"url": "http://localhost:8000/mcp"}),
}
"""The kind and the arguments of a resource for each option."""

CASES: list[tuple[str, dict[str, Any], str | None]] = [
    # The option, its entries, and a part of the error.
    ("chat-models", {"analyst.base_url": "http://here/v1"}, None),
    ("chat-models", {"analyst.max-concurrency": "3"}, None),
    ("chat-models", {"analyst.limits.requests": 3}, None),
    ("chat-models", {"analist.base_url": "http://here/v1"}, "did you mean 'chat-models.analyst.base_url'"),
    ("chat-models", {"other.base_url": "http://here/v1"}, "analyst"),
    ("chat-models", {"analyst.bas_url": "http://here/v1"}, "did you mean 'base_url'"),
    ("chat-models", {"analyst.max_concurrency": "many"}, "max_concurrency"),
    ("chat-models", {"analyst.limits.requests": "many"}, "limits.requests"),
    ("chat-models", {"analyst.limits.request": 3}, "limits.request"),
    ("chat-models", {"analyst": "http://here/v1"}, "analyst"),
    ("embedding-models", {"analyst.base_url": "http://here/v1"}, None),
    ("embedding-models", {"analist.base_url": "http://here/v1"}, "did you mean"),
    ("embedding-models", {"analyst.bas_url": "http://here/v1"}, "did you mean 'base_url'"),
    ("embedding-models", {"analyst.max_concurrency": "many"}, "max_concurrency"),
    ("skills", {"analyst.path": "elsewhere"}, None),
    ("skills", {"analist.path": "elsewhere"}, "did you mean"),
    ("skills", {"analyst.pth": "elsewhere"}, "did you mean 'path'"),
    ("skills", {"analyst.scripts": "maybe"}, "scripts"),
    ("vector-stores", {"analyst.path": "elsewhere.db"}, None),
    ("vector-stores", {"analist.path": "elsewhere.db"}, "did you mean"),
    ("vector-stores", {"analyst.pth": "elsewhere.db"}, "did you mean 'path'"),
    ("mcp-servers", {"analyst.url": "http://there/mcp"}, None),
    ("mcp-servers", {"analist.url": "http://there/mcp"}, "did you mean"),
    ("mcp-servers", {"analyst.ur": "http://there/mcp"}, "did you mean 'url'"),
    ("mcp-servers", {"analyst.transport": "pigeon"}, "transport"),
]


def agent_with(*resources: tuple[str, str], name: str = "agent") -> Agent:
    """Return an agent with a resource for each option and name."""

    async def act(event: InputEvent, ctx: Any) -> None:
        pass

    agent = Agent(name=name).add_action("act", [InputEvent], act)
    for option, resource in resources:
        kind, arguments = RESOURCES[option]
        if kind == "vector_store":
            words, model = RESOURCES["embedding-models"]
            agent.add_resource("words", words, ResourceDescriptor(**model))
        agent.add_resource(resource, kind, ResourceDescriptor(**arguments))
    return agent


def from_code(option: str, entries: Mapping[str, Any], *_: Any) -> Configuration:
    return Configuration({f"{option}.{entry}": value for entry, value in entries.items()})


def from_yaml(
    option: str, entries: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, path: Path
) -> Configuration:
    file = path / "options.yaml"
    file.write_text("".join(f"{option}.{entry}: {value}\n" for entry, value in entries.items()), "utf-8")
    return Configuration.from_yaml(file)


def from_flink(option: str, entries: Mapping[str, Any], *_: Any) -> Configuration:
    return Configuration.from_flink(
        {f"flink-agents.{option}.{entry}": str(value) for entry, value in entries.items()}
    )


def from_environment(option: str, entries: Mapping[str, Any], *_: Any) -> Configuration:
    return Configuration.from_environment(
        {environment_name(f"{option}.{entry}"): str(value) for entry, value in entries.items()}
    )


SOURCES = (from_code, from_yaml, from_flink, from_environment)


@each_case(
    ("case", "load"),
    product(CASES, SOURCES),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_harness_rejects_a_wrong_option_by_name(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[str, dict[str, Any], str | None],
    load: Any,
) -> None:
    option, entries, problem = case
    config = load(option, entries, monkeypatch, tmp_path_factory.mktemp("options"))
    agent = agent_with((option, "analyst"))
    if problem is None:
        OperatorHarness(agent, config=dict(config)).close()
        return
    with pytest.raises(OptionError) as raised:
        OperatorHarness(agent, config=dict(config))
    text = str(raised.value)
    if load is from_environment:
        text = text.lower()
        problem = "analyst" if "did you mean" in problem else problem.rpartition(".")[2]
    assert problem in text


def test_a_name_may_belong_to_another_agent_of_the_job() -> None:
    config = Configuration({"chat-models.writer.base_url": "http://here/v1", "skills.books.path": "s"})
    options = ResourceOptions(config)
    for resource in (("chat-models", "analyst"), ("chat-models", "writer"), ("skills", "books")):
        with_agent(options, agent_with(resource))
    options.check()


def test_a_name_of_no_agent_is_rejected_with_all_names() -> None:
    options = ResourceOptions(Configuration({"chat-models.nobody.base_url": "http://here/v1"}))
    with_agent(options, agent_with(("chat-models", "analyst")))
    with_agent(options, agent_with(("chat-models", "writer")))
    with pytest.raises(OptionError) as raised:
        options.check()
    assert "analyst, writer" in str(raised.value)


def with_agent(options: ResourceOptions, agent: Agent) -> None:
    options.add(LoadedAgent(*compile_with_code(agent)))


def test_a_harness_of_one_agent_ignores_kinds_that_the_agent_does_not_use() -> None:
    agent = agent_with(("chat-models", "analyst"))
    OperatorHarness(agent, config={"skills.books.path": "elsewhere"}).close()


class Writer(Agent):
    """A sub-agent."""

    def __init__(self) -> None:
        super().__init__()
        kind, arguments = RESOURCES["chat-models"]
        self.add_resource("writer", kind, ResourceDescriptor(**arguments))

    @action(InputEvent)
    async def write(self, event: InputEvent, ctx: Any) -> None:
        pass


class Caller(Agent):
    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> None:
        await ctx.call_agent(Writer, event.input)


def test_a_name_may_belong_to_a_sub_agent() -> None:
    OperatorHarness(Caller, config={"chat-models.writer.base_url": "http://here/v1"}).close()
    for entry in ("writr.base_url", "writer.bas_url"):
        with pytest.raises(OptionError):
            OperatorHarness(Caller, config={f"chat-models.{entry}": "http://here/v1"})
