"""Prompts: filled in by actions, from files, from an MCP server; and MCP servers in each form of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_agents import Counts, Shop, by_stdio

from flink_agents import Agent, ChatMessage, InputEvent, MCPServer, OutputEvent, Prompt, RunnerContext, action
from flink_agents.api.common.places import short_path
from flink_agents.api.errors import (
    ActionFailedError,
    AgentDefinitionError,
    MissingResourceError,
    OptionError,
    PlanFormatError,
)
from flink_agents.api.settings.options import Configuration
from flink_agents.models.mcp.resource import configure_server
from flink_agents.plan import AgentPlan, compile_agent, load_yaml
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

Make = Callable[..., OperatorHarness]


@pytest.fixture(autouse=True)
def counts(tmp_path: Path) -> Iterator[Counts]:
    """What the servers of a test did. None of them outlives the test, whose harness is closed before."""
    server_counts = Counts(tmp_path)
    yield server_counts
    assert server_counts.alive == []


class Fills(Shop):
    """Fills in the prompt of an input."""

    @action(InputEvent)
    async def fill(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        name, values = event.input
        messages = await ctx.prompt(name, **values)
        return OutputEvent(output=[(message.role, message.content) for message in messages])


GREETING = Prompt.from_messages(
    [ChatMessage(role="system", content="Be {tone}."), ChatMessage(role="user", content="Greet {name}.")]
)
THEIRS = Prompt.from_mcp(
    "shop",
    "greet",
    arguments={"customer": "{title} {name}", "tone": "briefly"},
    before=[ChatMessage(role="system", content="Their name is {name}.")],
)


def agent() -> Agent:
    built_agent = (
        Fills().add_resource("greeting", "prompt", GREETING).add_resource("theirs", "prompt", THEIRS)
    )
    return built_agent.add_resource("plain", "prompt", Prompt.from_mcp("shop", "greet"))


def test_a_prompt_is_filled_in(agent_harness: Make, counts: Counts) -> None:
    harness = agent_harness(agent(), config=by_stdio(counts))
    [messages] = harness.push(("greeting", {"tone": "kind", "name": "Ada"}))
    assert messages == [("system", "Be kind."), ("user", "Greet Ada.")]
    assert counts.starts == 0


def test_a_prompt_of_a_server(agent_harness: Make, counts: Counts) -> None:
    harness = agent_harness(agent(), config=by_stdio(counts))
    [messages, plain] = harness.push_all(
        [("theirs", {"title": "Dr", "name": "Ada"}), ("plain", {"customer": "Bo"})]
    )
    assert messages[:2] == [("system", "Their name is Ada."), ("user", "Greet Dr Ada briefly.")]
    assert plain == [("user", "Greet Bo kindly."), ("assistant", "Of course.")]


WRONG = [
    ("greeting", {"tone": "kind"}, "has variables without a value", "pass name=..."),
    (
        "greeting",
        {"tone": "kind", "name": "Ada", "nmae": "Bo"},
        "has no such variable",
        "did you mean 'name'",
    ),
    ("theirs", {"name": "Ada"}, "has variables without a value", "pass title=..."),
    ("theirs", {"name": "Ada", "title": "Dr", "x": 1}, "has no such variable", "remove x"),
]


@pytest.mark.parametrize(("name", "values", "what", "fix"), WRONG)
def test_a_wrong_value_names_the_prompt_and_the_line(
    agent_harness: Make, name: str, values: dict[str, Any], what: str, fix: str
) -> None:
    with pytest.raises(ActionFailedError) as caught:
        agent_harness(agent()).push((name, values))
    error = caught.value.__cause__
    assert isinstance(error, AgentDefinitionError)
    assert error.message == f"the prompt {name!r} {what}"
    assert fix in (error.fix or "")
    assert "test_models_prompts.py" in (error.where or "")
    assert "in fill" in (error.where or "")


def test_a_value_without_what_a_template_takes_of_it(agent_harness: Make) -> None:
    built_agent = agent().add_resource("of", "prompt", Prompt.from_text("{order.total}"))
    with pytest.raises(ActionFailedError) as caught:
        agent_harness(built_agent).push(("of", {"order": 3}))
    assert "the prompt 'of' cannot be filled in with these values" in str(caught.value.__cause__)


def test_prompts_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Greet\n{name}, {{now}}\n", "utf-8")
    (tmp_path / "b.yaml").write_text("messages:\n  - {role: system, content: 'Be {tone}.'}\n", "utf-8")
    assert Prompt.from_file(tmp_path / "a.md", "system").format_messages(name="Ada") == [
        ChatMessage(role="system", content="# Greet\nAda, {now}")
    ]
    assert Prompt.from_file(tmp_path / "b.yaml").variables == {"tone"}


FILES = [
    ("a.md", None, "FileNotFoundError"),
    ("a.docx", "x", "the ending .docx"),
    ("a.yaml", "messages: [", "expected the node content"),
    ("a.yaml", "text: x", "not a list of messages, but dict"),
    ("a.yaml", "- {role: robot, content: x}", "message 1: {'role': 'robot'"),
]


@pytest.mark.parametrize(("name", "content", "found"), FILES)
def test_a_file_that_is_no_prompt(tmp_path: Path, name: str, content: str | None, found: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(AgentDefinitionError) as caught:
        Prompt.from_file(tmp_path / name)
    assert found in (caught.value.found or "")
    assert "test_models_prompts.py" in (caught.value.where or "")


@each_case(
    ("content", "line"),
    [
        ("- {role: user, content: a}\n- {role: user, content: b, role: system}", 2),
        ("messages:\n  - {role: user, content: a}\nmessages: []", 3),
        ("messages:\n  - role: user\n    content: a\n    content: b", 4),
    ],
)
def test_a_file_with_a_key_twice(tmp_path: Path, content: str, line: int) -> None:
    (tmp_path / "a.yaml").write_text(content, "utf-8")
    with pytest.raises(AgentDefinitionError) as caught:
        Prompt.from_file(tmp_path / "a.yaml")
    assert "appears twice" in (caught.value.found or "")
    assert caught.value.where == f"{short_path(str(tmp_path / 'a.yaml'))}:{line}"


async def look(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
    [message] = await ctx.prompt("report", name=event.input)
    price = await ctx.mcp_server("shop").call_tool("price_of", item=event.input)
    return OutputEvent(output=[message.content, price])


def yaml_of(directory: Path, more: str = "") -> Path:
    file = directory / "agents.yaml"
    file.write_text(
        f"""
agents:
  - name: Looks
    actions: [{{name: look, triggers: [_input_event], function: "{__name__}:look"}}]
    prompts:
      - {{name: report, file: report.md}}
      - {{name: manner, mcp: {{server: shop, prompt: greet}}}}
    mcp_servers:
      - name: shop
        command: options-say-it
        tools: [price_of]
        env: {{SHOP_TOKEN: {{env: SHOP_TOKEN}}}}
{more}"""
    )
    (directory / "report.md").write_text("Report on {name}.")
    return file


def test_servers_and_prompts_of_yaml(
    agent_harness: Make, counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "token-of-the-shop")
    yaml_agent = load_yaml(yaml_of(tmp_path))["Looks"]
    plan = compile_agent(yaml_agent)
    assert AgentPlan.from_json(plan.to_json()) == plan
    assert "token-of-the-shop" not in plan.to_json()
    references = {resource.name: [ref.name for ref in resource.references] for resource in plan.resources}
    assert references == {"report": [], "manner": ["shop"], "shop": []}
    assert agent_harness(yaml_agent, config=by_stdio(counts)).push("tea") == [["Report on tea.", 7.5]]


def test_a_wrong_entry_of_yaml_names_its_line(tmp_path: Path) -> None:
    file = yaml_of(tmp_path, "      - {name: other, url: 'http://x/mcp', comand: y}\n")
    with pytest.raises(PlanFormatError, match=r"agents.yaml:\d+"):
        load_yaml(file)


def test_a_prompt_names_a_server_that_the_agent_has() -> None:
    built_agent = Agent(name="a").add_action("look", InputEvent, look)
    built_agent.add_resource("report", "prompt", Prompt.from_mcp("shop", "greet"))
    with pytest.raises(MissingResourceError, match="'shop'"):
        compile_agent(built_agent)


def test_a_model_names_a_server_among_its_tools() -> None:
    references = {resource.name: resource.references for resource in compile_agent(agent()).resources}
    assert [(ref.type.value, ref.name) for ref in references["clerk"]] == [("mcp_server", "shop")]


ARGUMENTS = dict(MCPServer(command="python", args=["x.py"], env={"A": "b"}).arguments)


def test_options_of_a_job_go_before_the_description() -> None:
    config = Configuration({"mcp-servers.shop.url": "http://example.com/sse", "mcp-servers.shop.timeout": 5})
    spec = configure_server("shop", ARGUMENTS, config)
    assert (spec.way, spec.command, spec.args, spec.timeout) == ("sse", None, (), 5)
    with pytest.raises(OptionError, match="is invalid"):
        configure_server("shop", ARGUMENTS, Configuration({"mcp-servers.shop.timeout": -1}))
    with pytest.raises(OptionError, match="unknown option mcp-servers.shop.tiemout"):
        configure_server("shop", ARGUMENTS, Configuration({"mcp-servers.shop.tiemout": 1}))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "ftp://x"}, "String should match pattern"),
        ({"url": "http://x/mcp", "transport": "stdio"}, "the transport stdio needs a command"),
        ({"url": "http://x/mcp", "auth": "written-out"}, "refer to a secret"),
        ({}, "either a command or a url"),
    ],
)
def test_a_wrong_description(options: dict[str, Any], text: str) -> None:
    with pytest.raises(AgentDefinitionError) as caught:
        MCPServer(**options)
    assert text in (caught.value.found or "")
    assert "written-out" not in str(caught.value)
    assert "test_models_prompts.py" in (caught.value.where or "")
