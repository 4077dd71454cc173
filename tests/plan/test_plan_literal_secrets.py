"""Secrets that are written out in descriptions of resources do not come into a plan; references do."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, ResourceDescriptor
from flink_agents.api.errors import LiteralSecretError
from flink_agents.api.models.chat import ChatModel, ChatModelConnection
from flink_agents.api.models.mcp import MCPServer
from flink_agents.api.models.skills import Skills
from flink_agents.api.settings.options import Configuration
from flink_agents.plan import AgentPlan, LoadedAgent, compile_agent, load_target
from flink_agents.plan.compile.literal_secrets import check_options
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

LOOKING = {
    "openai": "sk-proj-abcdefgh1234567890abcd",
    "stripe": "sk_live_abcdefgh1234567890",
    "github": "ghp_abcdefgh1234567890abcdefgh12345678",
    "slack": "xoxb-1234567890-abcdefghij",
    "aws": "AKIAABCDEFGH12345678",
    "google": "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
    "header": "Bearer abcdefgh12345678",
    "address": "https://user:hunter22@example.com/v1",
    "database": "postgresql://app:hunter22@db:5432/app",
    "token in an address": "https://hunter22token@example.com/v1",
    "query": "https://example.com/v1?api_key=hunter22&x=1",
    "random": "f4Kd92mZqP0xWvT7sLr3bNcY",
    "hexadecimal": "9f86d081884c7d659a2feaa0c55ad015",
}
"""Values that are secrets wherever a service takes anything."""

NAMED = [
    "api_key",
    "apiKey",
    "API-KEY",
    "token",
    "access_token",
    "client_secret",
    "password",
    "Authorization",
]
NAMED += ["aws_secret_access_key", "subscription-key", "cookie", "credentials", "refreshToken", "dbPassword"]
"""Names whose values are secrets, whatever they look like."""

VALUE = "hunter22"


def model(**said: Any) -> tuple[str, ResourceDescriptor]:
    return "chat_model", ChatModel("test", **said)


def server(**said: Any) -> tuple[str, ResourceDescriptor]:
    options: Any = {"command": "server", **said}
    return "mcp_server", MCPServer(**options)


def over_http(**said: Any) -> tuple[str, ResourceDescriptor]:
    options: Any = {"url": "http://example.com/mcp", **said}
    return "mcp_server", MCPServer(**options)


def compiled(kind: str, described: ResourceDescriptor) -> Any:
    agent = Agent(name="A").add_action("use", InputEvent, _use)
    agent.add_resource("it", kind, described)
    return compile_agent(agent)


def _use(event: InputEvent, ctx: Any) -> None:
    return None


CASES: dict[str, tuple[tuple[str, ResourceDescriptor], str]] = {}
for looks, value in LOOKING.items():
    CASES |= {
        f"{looks} in options": (model(options={"a": value}), value),
        f"{looks} in a list of options": (model(options={"a": [{"b": value}]}), value),
        f"{looks} in settings": (model(settings={"extra_body": {"a": value}}), value),
        f"{looks} in headers": (model(headers={"x-a": value}), value),
        f"{looks} in env": (server(env={"A": value}), value),
        f"{looks} in args": (server(args=["--mode", "fast", value]), value),
        f"{looks} of a flag": (server(args=[f"--mode={value}"]), value),
        f"{looks} in environment": (("skills", Skills("x", environment={"A": value})), value),
        f"{looks} in headers of a server": (over_http(headers={"x-a": value}), value),
    }
for name in NAMED:
    CASES |= {
        f"{name} in options": (model(options={name: VALUE}), VALUE),
        f"{name} in inner options": (model(options={"client": {name: VALUE}}), VALUE),
        f"{name} in extra headers": (model(settings={"extra_headers": {name: VALUE}}), VALUE),
        f"{name} in headers": (model(headers={name: VALUE}), VALUE),
        f"{name} in env": (server(env={name.upper().replace("-", "_"): VALUE}), VALUE),
        f"{name} as a flag": (server(args=[f"--{name}", VALUE]), VALUE),
        f"{name} as a flag with a value": (server(args=[f"--{name}={VALUE}"]), VALUE),
        f"{name} as a variable": (server(args=["-e", f"{name.replace('-', '_')}={VALUE}"]), VALUE),
        f"{name} as a header": (server(args=["-H", f"{name}: {VALUE}"]), VALUE),
        f"{name} for a class": (
            ("chat_model", ChatModel(clazz="a:b", arguments={name.replace("-", "_"): VALUE})),
            VALUE,
        ),
    }
for address in ("address", "token in an address", "query"):
    url = LOOKING[address]
    CASES |= {
        f"{address} of a model": (model(base_url=url), url),
        f"{address} of a connection": (("chat_model_connection", ChatModelConnection(base_url=url)), url),
        f"{address} of a server": (("mcp_server", MCPServer(url=url)), url),
        f"{address} of a store": (("vector_store", ResourceDescriptor(store="x", host=url)), url),
    }


@each_case(("name", "case"), CASES.items(), ids=lambda case: case if isinstance(case, str) else "")
def test_a_secret_does_not_come_into_the_plan(
    name: str, case: tuple[tuple[str, ResourceDescriptor], str]
) -> None:
    described, value = case
    with pytest.raises(LiteralSecretError) as caught:
        compiled(*described)
    assert value not in "".join(traceback.format_exception(caught.value))
    assert caught.value.fix is not None
    assert "test_plan_literal_secrets.py" in str(caught.value) or caught.value.where == ""


REFERENCE = {"env": "SOME_VARIABLE"}

ALLOWED: dict[str, tuple[str, ResourceDescriptor]] = {
    "references": model(
        api_key=REFERENCE,
        headers={"Authorization": REFERENCE},
        options={"token": REFERENCE, "clients": [{"password": {"file": "/run/secret"}}]},
        settings={"extra_headers": {"x-api-key": REFERENCE}},
    ),
    "references of a server": server(env={"API_KEY": REFERENCE}, args=["--token", REFERENCE]),
    "what everybody may see": model(
        headers={"x-api-key": {"public": "not-needed"}}, options={"a": {"public": LOOKING["random"]}}
    ),
    "of a server": server(env={"API_KEY": {"public": "none-needed"}}, args=["--token", {"public": "abc"}]),
    "numbers": model(settings={"max_tokens": 100, "extra_body": {"stop_token": "<eos>", "top_k": 3}}),
    "names of models": model(
        options={"deployment": "Meta-Llama-3-1-70B-Instruct-Turbo", "version": "2024-10-21"}
    ),
    "ids": model(headers={"x-tenant": "3f2504e0-4f89-11d3-9a0c-0305e82c3301"}),
    "keys that are none": model(settings={"openai_prompt_cache_key": "orders", "sort_key": "name"}),
    "switches": server(env={"USE_AUTH": "false", "TOKENIZERS_PARALLELISM": "true"}, args=["--no-token"]),
    "paths": server(env={"SSL_KEY": "/etc/keys/key.pem"}, args=["--key", "./key.pem"]),
    "placeholders": server(env={"API_KEY": "${API_KEY}"}),
    "addresses": model(base_url="http://localhost:11434/v1?api-version=1"),
    "texts": model(instructions="Never tell anybody the token: password, secret or api_key."),
    "programs": server(command="npx", args=["-y", "@modelcontextprotocol/server-filesystem", "/tmp"]),
}


@each_case(("name", "described"), ALLOWED.items(), ids=lambda case: case if isinstance(case, str) else "")
def test_what_is_no_secret_comes_into_the_plan(name: str, described: tuple[str, ResourceDescriptor]) -> None:
    assert compiled(*described).resources[0].name == "it"


def test_yaml_holds_no_secrets_either(tmp_path: Any) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text(
        "agents:\n- name: A\n  chat_models:\n  - {name: it, model: test, headers: {x-api-key: hunter22}}\n"
        "  actions:\n  - {name: use, function: 'tests.plan.test_plan_literal_secrets:_use', trigger: input}\n"
    )
    with pytest.raises(Exception) as caught:
        load_target(f"{file}:A")
    assert VALUE not in "".join(traceback.format_exception(caught.value))


# -- options of a job, and plans that are loaded --------------------------------------------

CHAT = "chat-models.it"
SERVERS = "mcp-servers.it"

IN_OPTIONS: dict[str, Any] = {
    "key": {f"{CHAT}.api_key": VALUE},
    "key with a hyphen": {f"{CHAT}.api-key": VALUE},
    "address": {f"{CHAT}.base_url": LOOKING["address"]},
    "address of a server": {f"{SERVERS}.url": LOOKING["query"]},
    "headers": {f"{CHAT}.headers": {"x-api-key": VALUE}},
    "header": {f"{CHAT}.headers.Authorization": VALUE},
    "option": {f"{CHAT}.options.token": VALUE},
    "env": {f"{SERVERS}.env": {"API_KEY": VALUE}},
    "one of env": {f"{SERVERS}.env.API_KEY": VALUE},
    "args": {f"{SERVERS}.args": ["--token", VALUE]},
    "auth": {f"{SERVERS}.auth": VALUE},
    "environment": {"skills.it.environment": {"TOKEN": VALUE}},
    "embeddings": {"embedding-models.it.api_key": VALUE},
    "vectors": {"vector-stores.it.headers": {"Authorization": VALUE}},
    "beside others": {f"{CHAT}.model": "test", f"{CHAT}.headers": {"a": "b", "x-api-key": VALUE}},
}

OPTIONS_WITHOUT: dict[str, Any] = {
    "references": {f"{CHAT}.api_key": REFERENCE, f"{SERVERS}.env": {"API_KEY": REFERENCE}},
    "references in parts": {f"{CHAT}.api_key.env": "SOME_VARIABLE", f"{CHAT}.headers.x-api-key.env": "OTHER"},
    "what everybody may see": {f"{CHAT}.headers": {"x-api-key": {"public": "none"}}},
    "others": {f"{CHAT}.model": "openai:gpt-5", f"{CHAT}.limits.requests": 3, "run.max-events": 7},
    "addresses": {f"{CHAT}.base_url": "http://localhost:11434/v1"},
    "args": {f"{SERVERS}.args": ["server.py", "counts.txt"]},
}


@each_case(("name", "options"), IN_OPTIONS.items(), ids=lambda case: case if isinstance(case, str) else "")
def test_options_hold_no_secrets(name: str, options: Any) -> None:
    with pytest.raises(LiteralSecretError) as caught:
        check_options(Configuration(options))
    shown = "".join(traceback.format_exception(caught.value))
    assert VALUE not in shown and LOOKING["address"] not in shown
    assert ".it" in caught.value.message


@each_case(
    ("name", "options"), OPTIONS_WITHOUT.items(), ids=lambda case: case if isinstance(case, str) else ""
)
def test_options_without_secrets(name: str, options: Any) -> None:
    check_options(Configuration(options))


def test_variables_of_the_environment_hold_no_secrets_either() -> None:
    for name in ("FLINK_AGENTS_CHAT_MODELS_IT_API_KEY", "FLINK_AGENTS_MCP_SERVERS_MY_SHOP_AUTH"):
        with pytest.raises(LiteralSecretError):
            check_options(Configuration.from_environment({name: VALUE}))
    check_options(Configuration.from_environment({"FLINK_AGENTS_CHAT_MODELS_IT_MODEL": "test"}))


def test_a_harness_takes_no_secret_in_options() -> None:
    agent = Agent(name="A").add_action("use", InputEvent, _use)
    with pytest.raises(LiteralSecretError):
        OperatorHarness(agent, config={f"{CHAT}.api_key": VALUE})


def test_a_plan_that_is_loaded_holds_no_secrets(tmp_path: Any) -> None:
    plan = compiled(*model(headers={"x-api-key": REFERENCE}))
    text = plan.to_json()
    assert "SOME_VARIABLE" in text
    file = tmp_path / "plan.json"
    file.write_text(text)
    LoadedAgent(load_target(str(file)))
    loaded = json.loads(text)
    loaded["resources"][0]["descriptor"]["arguments"]["headers"]["x-api-key"] = VALUE
    file.write_text(json.dumps(loaded))
    for load in (lambda: load_target(str(file)), lambda: LoadedAgent(AgentPlan.from_json(file.read_bytes()))):
        with pytest.raises(LiteralSecretError) as caught:
            load()
        assert VALUE not in "".join(traceback.format_exception(caught.value))
