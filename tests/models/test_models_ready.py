"""What a worker lacks is found before its first input: providers, modules, models, keys, secrets."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any

import pytest

from flink_agents import (
    Agent,
    ChatModel,
    ChatModelConnection,
    InputEvent,
    MCPServer,
    ResourceDescriptor,
    Skills,
)
from flink_agents.api.errors import AgentsError
from flink_agents.api.settings.options import Configuration
from flink_agents.plan import LoadedAgent, compile_agent

GONE = {"env": "A_VARIABLE_THAT_NO_WORKER_HAS"}
THERE = {"env": "A_VARIABLE_THAT_THE_WORKER_HAS"}
NO_FILE = {"file": "/no/such/file"}
OWN = f"{__name__}:model"
EMBEDDING = "openai:text-embedding-3-small"
MODULE = "a_module_that_the_worker_lacks"

Resources = Mapping[str, tuple[str, ResourceDescriptor]]


def _use(event: InputEvent, ctx: Any) -> None:
    """Use nothing: what is missing is found without."""


def described(secret: dict[str, str]) -> Mapping[str, Resources]:
    """Resources whose worker needs a secret, by the place of the secret."""
    chat: Any = {"model": "openai:gpt-5", "api_key": THERE}
    azure = {"azure_endpoint": "https://example.com", "api_version": secret}
    connection = {"link": ("chat_model_connection", ChatModelConnection(api_key=secret))}
    return {
        "api_key": {"it": ("chat_model", ChatModel("openai:gpt-5", api_key=secret))},
        "headers": {"it": ("chat_model", ChatModel(**chat, headers={"x-key": secret}))},
        "options": {"it": ("chat_model", ChatModel("azure:gpt-5", api_key=THERE, options=azure))},
        "arguments": {"it": ("chat_model", ResourceDescriptor(clazz=OWN, token=secret))},
        "connection": connection,
        "a connection's headers": {
            "link": ("chat_model_connection", ChatModelConnection(api_key=THERE, headers={"x-key": secret}))
        },
        "auth": {"it": ("mcp_server", MCPServer(url="http://localhost/mcp", auth=secret))},
        "headers of a server": {
            "it": ("mcp_server", MCPServer(url="http://localhost/mcp", headers={"x-key": secret}))
        },
        "env": {"it": ("mcp_server", MCPServer(command="server", env={"API_KEY": secret}))},
        "args": {"it": ("mcp_server", MCPServer(command="server", args=["--token", secret]))},
        "environment": {"it": ("skills", Skills("skills", environment={"API_KEY": secret}))},
        "embeddings": {"it": ("embedding_model", ResourceDescriptor(model=EMBEDDING, api_key=secret))},
    }


def checked(resources: Resources, **options: Any) -> None:
    """Compile an agent that has resources, while all modules are there, and let a worker look at them."""
    agent = Agent(name="A").add_action("use", InputEvent, _use)
    for name, (kind, descriptor) in resources.items():
        agent.add_resource(name, kind, descriptor)
    config: Any = {key.replace("__", "."): value for key, value in options.items()}
    LoadedAgent(compile_agent(agent)).check_worker(Configuration(config))


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_VARIABLE_THAT_THE_WORKER_HAS", "a secret of the worker")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("environment")
def test_a_secret_that_is_not_there() -> None:
    for secret in (GONE, NO_FILE):
        for place, resources in described(secret).items():
            with pytest.raises(AgentsError) as caught:
                checked(resources)
            assert caught.value.code == "FA4007", place
            assert next(iter(secret.values())) in str(caught.value), place


@pytest.mark.usefixtures("environment")
def test_secrets_that_are_there() -> None:
    for place, resources in described(THERE).items():
        try:
            checked(resources)
        except AgentsError as error:
            pytest.fail(f"{place}: {error}")


MISSING: dict[str, tuple[Resources, dict[str, Any], str]] = {
    "the key that a library looks for": (
        {"it": ("chat_model", ChatModel("openai:gpt-5"))},
        {},
        "OPENAI_API_KEY",
    ),
    "the key of an embedding model": (
        {"it": ("embedding_model", ResourceDescriptor(model=EMBEDDING))},
        {},
        "OPENAI_API_KEY",
    ),
    "the key of the model that the job names": (
        {"it": ("chat_model", ChatModel("test"))},
        {"chat-models.it.model": "openai:gpt-5"},
        "OPENAI_API_KEY",
    ),
    "a provider that nobody knows": ({"it": ("chat_model", ChatModel("opnai:gpt-5"))}, {}, "opnai"),
    "a secret that the job names": (
        {"it": ("mcp_server", MCPServer(url="http://localhost/mcp"))},
        {"mcp-servers.it.auth": GONE},
        GONE["env"],
    ),
    "the module of a chat model": (
        {"it": ("chat_model", ChatModel(clazz=f"{MODULE}:Model"))},
        {},
        MODULE,
    ),
    "the class of a chat model": (
        {"it": ("chat_model", ChatModel(clazz=f"{__name__}:Absent"))},
        {},
        "Absent",
    ),
    "the module of a connection": (
        {"it": ("chat_model_connection", ResourceDescriptor(clazz=f"{MODULE}:Provider"))},
        {},
        MODULE,
    ),
    "the module of an embedding model": (
        {"it": ("embedding_model", ResourceDescriptor(clazz=f"{MODULE}:Embedder", model="own:model"))},
        {},
        MODULE,
    ),
    "the module of a vector store": (
        {"it": ("vector_store", ResourceDescriptor(clazz=f"{MODULE}:Store"))},
        {},
        MODULE,
    ),
}


@pytest.mark.usefixtures("environment")
def test_what_else_a_worker_may_lack() -> None:
    for what, (resources, options, named) in MISSING.items():
        with pytest.raises(AgentsError) as caught:
            checked(resources, **options)
        assert named in str(caught.value), what


def model(**_: Any) -> Any:
    """Make no model: the check imports code, and calls none."""
    raise AssertionError("the check has called the code of a resource")


@pytest.mark.usefixtures("environment")
def test_nothing_is_called_that_the_author_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType(MODULE)
    module.Model = module.Provider = module.Embedder = module.Store = model
    monkeypatch.setitem(sys.modules, MODULE, module)
    for resources, options, named in MISSING.values():
        if named == MODULE:
            checked(resources, **options)
