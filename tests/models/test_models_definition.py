"""How chat models are declared: decorator, builder, YAML, options; and what is refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from flink_agents import (
    Agent,
    ChatModel,
    ChatModelConnection,
    Configuration,
    InputEvent,
    OutputEvent,
    RateLimit,
    ResourceDescriptor,
    Secret,
    UsageLimits,
    chat_model,
    chat_model_connection,
)
from flink_agents.api.common.installation import install_command
from flink_agents.api.errors import AgentDefinitionError, MissingExtraError, OptionError
from flink_agents.api.models.chat import ChatModelSpec
from flink_agents.models.chat.options import override_spec
from flink_agents.models.setup import extras
from flink_agents.models.setup.secrets import Secrets
from flink_agents.plan import compile_agent, load_yaml

pytestmark = pytest.mark.own_conditions

YAML = """
agents:
  - name: Shop
    actions: [{name: read, triggers: [_input_event], function: "test_models_definition:read"}]
    tools: [{name: look, function: "test_models_definition:look"}]
    chat_model_connections:
      - {name: gateway, base_url: "http://here", api_key: {env: KEY}, headers: {x-team: orders}}
    chat_models:
      - name: analyst
        model: openai:gpt-5-mini
        connection: gateway
        tools: [look]
        limits: {requests: 3, cost: 0.5}
        rate_limit: {calls: 5, per: 1}
"""


def read(event: InputEvent, ctx: Any) -> OutputEvent:
    return OutputEvent(output=event.input)


def look(item: str) -> str:
    """Look."""
    return item


def gateway() -> ChatModelConnection:
    return ChatModelConnection(
        base_url="http://here", api_key=Secret(env="KEY"), headers={"x-team": "orders"}
    )


def analyst() -> ChatModel:
    return ChatModel(
        "openai:gpt-5-mini",
        connection="gateway",
        tools=["look"],
        limits=UsageLimits(requests=3, cost=0.5),
        rate_limit=RateLimit(5, per=1),
    )


class Shop(Agent):
    @chat_model_connection
    def gateway(self) -> ResourceDescriptor:
        return gateway()

    @chat_model
    def analyst(self) -> ResourceDescriptor:
        return analyst()


def built() -> Agent:
    return (
        Agent(name="Shop")
        .add_action("read", InputEvent, read)
        .add_resource("look", "tool", look)
        .add_resource("gateway", "chat_model_connection", gateway())
        .add_resource("analyst", "chat_model", analyst())
    )


def resources(agent: Agent) -> dict[str, Any]:
    plan_resources = compile_agent(agent).resources
    return {
        resource.name: (resource.descriptor, resource.references)
        for resource in plan_resources
        if resource.descriptor is not None
    }


def test_all_ways_give_one_plan(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(YAML)
    declared = Shop(name="Shop").add_action("read", InputEvent, read).add_resource("look", "tool", look)
    wanted = resources(built())
    assert resources(declared) == wanted
    assert resources(load_yaml(path)["Shop"]) == wanted
    assert [reference.name for reference in wanted["analyst"][1]] == ["gateway", "look"]


SECRET = "sk-this-is-a-secret"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ChatModel("gpt-5-mini"), "'provider:name'"),
        (lambda: ChatModel("openai:gpt", temprature=1), "temprature"),  # type: ignore[call-arg]
        (lambda: ChatModel("openai:gpt", api_key=SECRET), "refer to a secret by {'env': VARIABLE}"),  # type: ignore[arg-type]
        (lambda: ChatModel("openai:gpt", api_key={"env": "A", "file": "b"}), "either env or file"),
        (lambda: ChatModel("openai:gpt", limits={"requests": 0}), "limits.requests"),
        (lambda: ChatModel(router={"models": {"a": ""}}), "either rules, a function or a judge"),
        (lambda: ChatModelConnection(headers={"x": {"file": ""}}), "headers"),
    ],
)
def test_wrong_descriptions(make: Any, text: str) -> None:
    with pytest.raises(AgentDefinitionError) as caught:
        make()
    assert text in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.where and "test_models_definition" in caught.value.where


@pytest.mark.parametrize(
    ("descriptor", "text"),
    [
        (ResourceDescriptor(), "neither a model"),
        (ResourceDescriptor(model="openai:gpt", api_key=SECRET), 'api_key = {"env"'),
        (ResourceDescriptor(model="openai:gpt", tolls=["look"]), "tolls"),
    ],
)
def test_wrong_descriptors(descriptor: ResourceDescriptor, text: str) -> None:
    agent = Agent(name="A").add_action("read", InputEvent, read)
    with pytest.raises(AgentDefinitionError) as caught:
        compile_agent(agent.add_resource("m", "chat_model", descriptor))
    assert text in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "anthropic" else there(name))
    agent = Agent(name="A").add_action("read", InputEvent, read)
    agent.add_resource("m", "chat_model", ChatModel("anthropic:claude-haiku-4-5"))
    with pytest.raises(MissingExtraError) as caught:
        compile_agent(agent)
    assert install_command("anthropic") in str(caught.value)


def test_each_extra_is_one_of_the_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    for extra, _ in extras._NEEDED.values():  # pyright: ignore[reportPrivateUsage]
        assert f"\n{extra} = [" in text


# -- options --------------------------------------------------------------------------


def test_options_go_before_the_agent() -> None:
    declared_spec = ChatModelSpec(model="openai:a", limits=UsageLimits(requests=3, tool_calls=2))
    config = Configuration(
        {
            "chat-models.analyst.model": "groq:b",
            "chat-models.analyst.limits.requests": 9,
            "chat-models.analyst.max-concurrency": "4",
            "chat-models.other.model": "groq:c",
        }
    )
    spec = override_spec("analyst", declared_spec, config)
    assert (spec.model, spec.max_concurrency) == ("groq:b", 4)
    assert spec.limits == UsageLimits(requests=9, tool_calls=2)
    assert override_spec("nobody", declared_spec, config) is declared_spec


def test_options_of_the_environment() -> None:
    config = Configuration.from_environment(
        {
            "FLINK_AGENTS_CHAT_MODELS_THE_ANALYST_MODEL": "groq:b",
            "FLINK_AGENTS_CHAT_MODELS_THE_ANALYST_LIMITS_TOOL_CALLS": "7",
            "FLINK_AGENTS_CHAT_MODELS_THE_ANALYST_BASE_URL": "http://there",
        }
    )
    spec = override_spec("the-analyst", ChatModelSpec(model="openai:a"), config)
    assert (spec.model, spec.base_url, spec.limits.tool_calls) == ("groq:b", "http://there", 7)


@pytest.mark.parametrize(("key", "value"), [("modle", "groq:b"), ("limits.requests", "many"), ("model", "b")])
def test_wrong_options(key: str, value: str) -> None:
    config = Configuration({f"chat-models.analyst.{key}": value})
    with pytest.raises(OptionError, match="below chat-models.analyst are invalid"):
        override_spec("analyst", ChatModelSpec(), config)


# -- secrets --------------------------------------------------------------------------


def test_secrets_are_read_where_they_are_and_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "key-of-variable")
    (tmp_path / "key").write_text("key-of-file\n")
    secrets = Secrets("a test")
    assert secrets.read_secret(Secret(env="THE_KEY")) == "key-of-variable"
    headers = secrets.headers({"a": "plain", "b": Secret(file=str(tmp_path / "key"))})
    assert headers == {"a": "plain", "b": "key-of-file"}
    assert secrets.hide("key-of-variable, key-of-file, plain") == "***, ***, plain"
