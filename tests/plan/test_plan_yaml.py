"""Agents in YAML: what the format allows, and errors that name the line of the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import plan_shop
import pytest
from plan_cases import place
from plan_shop import BigOrderPlaced, Limits, Receipt, ShopAgent, ShopContext, is_large

from flink_agents import Agent, InputEvent, OnError, Prompt, ResourceType, Tool
from flink_agents.api.errors import (
    ActionSignatureError,
    AgentConfigurationError,
    AgentDefinitionError,
    DuplicateNameError,
    EventNeverEmittedError,
    FunctionReferenceError,
    MissingResourceError,
    PlanFormatError,
    UnknownTriggerError,
)
from flink_agents.plan import compile_agent, load_yaml

Write = Callable[[str], Path]

ACTION = """
agents:
  - name: A
    actions:
      - name: read
        triggers: [_input_event]
        function: plan_shop:read_order
"""

WHOLE = """
agents:
  - name: Whole
    class: plan_shop:ShopAgent
    configuration:
      limits: {credit: 7}
      region: us
    context_class: plan_shop:ShopContext
    side_outputs: {big: plan_shop:Receipt, notes: str}
    output_type: plan_shop:Receipt
    on_error: fail
    on_unhandled: dead-letter
    actions:
      - name: added
        triggers: [OrderPlaced, "plan_shop:BigOrderPlaced"]
        function: plan_shop:book_order
        when: plan_shop:is_large
        on_error: ignore
        config: {name: n, triggers: [1], when: null}
        emits: [later, "plan_shop:OrderPaid"]
    tools:
      - name: half
        function: plan_shop:half
        description: By two.
    prompts:
      - name: talk
        messages:
          - {role: system, content: Be kind.}
          - {role: user, content: "{text}"}
    resources:
      - name: docs
        type: vector_store
        class: shop.stores:Store
        arguments: {clazz: x, size: 3}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the text into ``agents.yaml``, which is where we are."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        path = Path("agents.yaml")
        path.write_text(text.lstrip("\n"), encoding="utf-8")
        return path

    return write


def test_all_that_the_format_has(write: Write) -> None:
    agent = load_yaml(write(WHOLE))["Whole"]
    assert isinstance(agent, ShopAgent)
    assert (agent.agent_name, agent.limits, agent.region) == ("Whole", Limits(credit=7), "us")
    assert agent.context_class is ShopContext
    assert agent.side_outputs == {"big": Receipt, "notes": str}
    assert agent.output_type is Receipt
    assert (agent.on_error, agent.on_unhandled) == (OnError.FAIL, OnError.DEAD_LETTER)
    mark, function = agent.__dict__["__actions__"]["added"]
    assert function is plan_shop.book_order
    assert mark.triggers == ("OrderPlaced", BigOrderPlaced)
    assert (mark.settings.when, mark.settings.on_error) == (is_large, "ignore")
    assert mark.config == {"name": "n", "triggers": [1], "when": None}
    assert mark.emits == ("later", plan_shop.OrderPaid)
    resources = agent.__dict__["__resources__"]
    half = resources[ResourceType.TOOL, "half"]
    assert isinstance(half, Tool)
    assert (half.description, half(3)) == ("By two.", 1.5)
    talk = resources[ResourceType.PROMPT, "talk"]
    assert isinstance(talk, Prompt)
    assert [message.role for message in talk.messages] == ["system", "user"]
    docs = resources[ResourceType.VECTOR_STORE, "docs"]
    assert (docs.clazz, docs.arguments) == ("shop.stores:Store", {"clazz": "x", "size": 3})
    compile_agent(agent)


def test_where_the_file_is_silent_the_class_decides(write: Write) -> None:
    text = "agents:\n  - {name: S, class: 'plan_shop:ShopAgent', configuration: {limits: {credit: 1}}}"
    agent = load_yaml(write(text))["S"]
    assert (agent.on_error, agent.on_unhandled) == ("dead-letter", "ignore")
    assert agent.side_outputs.keys() == {"late", "notes"}


def test_several_agents_and_both_ways_to_name_a_trigger(write: Write) -> None:
    agent_yaml = ACTION + "    on_unhandled: ignore\n"
    text = agent_yaml + agent_yaml.replace("agents:\n", "").replace("name: A", "name: B").replace(
        "[_input_event]", '["flink_agents:InputEvent"]'
    )
    agents = load_yaml(write(text))
    assert list(agents) == ["A", "B"]
    assert [type(agent) for agent in agents.values()] == [Agent, Agent]
    assert compile_agent(agents["A"]).actions == compile_agent(agents["B"]).actions
    assert agents["B"].__dict__["__actions__"]["read"][0].triggers == (InputEvent,)


def test_anchors_are_followed(write: Write) -> None:
    text = ACTION + "        config: &c {a: 1}\n" + "      - name: two\n        triggers: [_input_event]\n"
    text += (
        "        function: plan_shop:read_order\n        config: {<<: *c, b: 2}\n    on_unhandled: ignore\n"
    )
    plan = compile_agent(load_yaml(write(text))["A"])
    assert [plan_action.config for plan_action in plan.actions] == [{"a": 1}, {"a": 1, "b": 2}]


def action(**changes: str) -> str:
    """The file of one action with some of its lines changed."""
    lines = {"name": "read", "triggers": "[_input_event]", "function": "plan_shop:read_order", **changes}
    entry = "\n        ".join(f"{key}: {value}" for key, value in lines.items() if value)
    return f"agents:\n  - name: A\n    actions:\n      - {entry}\n"


def more(text: str) -> str:
    return ACTION + text


BAD_FORMAT = [
    ("", None, 1, "the file: Input should be a valid dictionary"),
    ("agents: []", "[]", 1, "agents: List should have at least 1 item"),
    ("agents:\n  - clazz: A", "'A'", 2, "agents.0.clazz: unknown key"),
    ("agents:\n  - on_error: fail", None, 2, "agents.0.name: Field required"),
    (action(triggers="[]"), "[]", 5, "agents.0.actions.0.triggers: List should have at least 1 item"),
    (action(triggers="x"), "'x'", 5, "agents.0.actions.0.triggers: Input should be a valid list"),
    (action(triggers="[a, 1]"), "1", 5, "agents.0.actions.0.triggers.1: Input should be a valid string"),
    (action(function=""), None, 4, "agents.0.actions.0.function: Field required"),
    (action(function="read_order"), "'read_order'", 6, "agents.0.actions.0.function: String should match"),
    (action(on_error="again"), "'again'", 7, "agents.0.actions.0.on_error: Input should be 'fail'"),
    (action(triger="[a]"), "['a']", 7, "agents.0.actions.0.triger: unknown key"),
    (more("    clazz: m:C"), "'m:C'", 7, "agents.0.clazz: unknown key"),
    (more("    prompts: [{name: p}]"), "{'name': 'p'}", 7, "prompts.0: Value error, a prompt has either"),
    (
        more("    prompts: [{name: p, messages: [{role: user, content: x, tone: y}]}]"),
        "'y'",
        7,
        "prompts.0.messages.0.tone: unknown key",
    ),
    (
        more("    resources:\n      - {name: r, type: tool, class: 'm:C'}"),
        "{'name': 'r', 'type': 'tool', 'class': 'm:C'}",
        8,
        "resources.0: Value error, put a tool under tools",
    ),
    (
        more("    resources:\n      - {name: r, type: mcp, class: 'm:C'}"),
        "'mcp'",
        8,
        "resources.0.type: Value error, 'mcp' is not a type of resource",
    ),
    (more("    name: B"), None, 7, "the key 'name' appears twice"),
    (more("    configuration: {a: 1}"), None, 7, "the agent 'A' has a configuration, but no class"),
    (ACTION + ACTION.replace("\nagents:\n", ""), None, 7, "the file has two agents 'A'"),
    ("agents:\n  - name: [A", "expected ',' or ']', but got '<stream end>'", 2, "agents.yaml is not YAML"),
    ("agents:\n\t- name: A", "found character '\\t' that cannot start any token", 2, "is not YAML"),
    ("agents:\n  - name: !!python/object:os.system A", "could not determine a constructor", 2, "is not YAML"),
]


NEAR = [
    ("agent:\n  - name: A", 1, "agents"),
    ("agents:\n  - nme: A", 2, "name"),
    (action(triger="[a]"), 7, "triggers"),
    (more("    on_eror: fail"), 7, "on_error"),
    (more("    clas: 'm:C'"), 7, "class"),
    (action(retry="{max_atempts: 3}"), 7, "max_attempts"),
    (action(rate_limit="{calls: 3, pr: 1}"), 7, "per"),
    (more("    prompts: [{name: p, messages: [{role: user, contents: x}]}]"), 7, "content"),
    (more("    chat_models: [{name: p, modl: x}]"), 7, "model"),
]


@pytest.mark.parametrize(("text", "line", "near"), NEAR)
def test_unknown_key_is_told_with_a_near_one(write: Write, text: str, line: int, near: str) -> None:
    with pytest.raises(PlanFormatError, match="unknown key") as caught:
        load_yaml(write(text))
    assert caught.value.where == f"agents.yaml:{line}"
    assert caught.value.fix == f"did you mean {near!r}?"
    assert near in (caught.value.expected or "")


@pytest.mark.parametrize(("text", "found", "line", "message"), BAD_FORMAT)
def test_format_errors_name_the_line(
    write: Write, text: str, found: str | None, line: int, message: str
) -> None:
    with pytest.raises(PlanFormatError) as caught:
        load_yaml(write(text))
    assert caught.value.where == f"agents.yaml:{line}"
    assert message in caught.value.message
    assert found is None or (caught.value.found and found in caught.value.found)
    assert caught.value.fix


BAD_AGENTS = [
    (action(function="plan_shop:read_ordr"), FunctionReferenceError, 6, "did you mean 'read_order'?"),
    (action(function="no_such:x"), FunctionReferenceError, 6, "PYTHONPATH"),
    (action(when="plan_shop:is_larg"), FunctionReferenceError, 7, "did you mean 'is_large'?"),
    (action(triggers='["plan_shop:NOT_AN_AGENT"]'), UnknownTriggerError, 4, "write @action(InputEvent)"),
    (action(triggers='["plan_shop:Nothing"]'), FunctionReferenceError, 5, "restore the name"),
    (action(emits='["plan_shop:Nothing"]'), FunctionReferenceError, 7, "restore the name"),
    (action(triggers="[_input_event, ordr]"), UnknownTriggerError, 4, "declare it with emits=['ordr']"),
    (action(triggers="[_output_event]"), UnknownTriggerError, 4, "another event in addition"),
    (
        action(triggers='[_input_event, "plan_shop:OrderPaid"]'),
        EventNeverEmittedError,
        4,
        "emits=[OrderPaid]",
    ),
    (action(triggers="[OrderPlaced]"), AgentDefinitionError, 2, "mark the first action"),
    (action(config="{when: 2020-01-01}"), AgentConfigurationError, 4, "write plain JSON values"),
    ("agents:\n  - name: A\n", AgentDefinitionError, 2, "use add_action"),
    ("agents:\n  - name: ' '\n", AgentDefinitionError, 2, "set agent_name"),
    (more("    class: plan_shop:NOT_AN_AGENT"), PlanFormatError, 7, "name the class itself"),
    (more("    class: plan_shop:ShopAgnt"), FunctionReferenceError, 7, "did you mean 'ShopAgent'?"),
    (more("    class: plan_shop:ShopAgent"), AgentConfigurationError, 2, "pass the arguments"),
    (
        more("    class: plan_shop:ShopAgent\n    configuration: {limits: 1}"),
        AgentConfigurationError,
        8,
        "use plain data",
    ),
    (more("    context_class: plan_shop:Limits"), AgentDefinitionError, 2, "derive the class"),
    (more("    context_class: plan_shop:Nope"), FunctionReferenceError, 7, "restore the name"),
    (more("    side_outputs:\n      late: Receipt"), FunctionReferenceError, 8, "use a class"),
    (more("    side_outputs: {dead-letter: str}"), AgentDefinitionError, 2, "dead_letters()"),
    (more("    output_type: text"), FunctionReferenceError, 7, "use a class"),
    (
        more("      - {name: read, triggers: [x], function: 'plan_shop:half'}"),
        DuplicateNameError,
        7,
        "its own name",
    ),
    (
        more("    tools:\n      - {name: t, function: 'plan_shop:half'}\n" * 1)
        + "      - {name: t, function: 'plan_shop:half'}",
        DuplicateNameError,
        9,
        "its own name",
    ),
    (more("    tools: [{name: t, function: 'plan_shop:NOT_AN_AGENT'}]"), ActionSignatureError, 7, "itself"),
    (
        more("    tools: [{name: t, function: 'plan_shop:NOT_AN_AGENT', description: d}]"),
        ActionSignatureError,
        7,
        "pass the function itself",
    ),
    (more("    prompts:\n      - {name: p, text: 'a {b'}"), AgentDefinitionError, 8, "double the braces"),
    (
        more("    resources:\n      - {name: r, type: chat_model, class: C, arguments: {tools: [t]}}"),
        MissingResourceError,
        8,
        "declare it with @tool",
    ),
]


@pytest.mark.parametrize(("text", "kind", "line", "fix"), BAD_AGENTS)
def test_agent_errors_name_the_line(
    write: Write, text: str, kind: type[Exception], line: int, fix: str
) -> None:
    path = write(text)
    with pytest.raises(AgentDefinitionError) as caught:
        for agent in load_yaml(path).values():
            compile_agent(agent)
    assert type(caught.value) is kind
    assert caught.value.where and caught.value.where.split(" in ")[0] == f"agents.yaml:{line}"
    assert caught.value.fix and fix in caught.value.fix


def test_a_bad_signature_is_where_the_function_is(write: Write) -> None:
    with pytest.raises(ActionSignatureError) as caught:
        compile_agent(load_yaml(write(action(function="plan_shop:half")))["A"])
    assert place(caught.value) == ("def half(amount: float) -> float:", "half")


def test_places_name_the_function_of_an_action(write: Write) -> None:
    with pytest.raises(UnknownTriggerError) as caught:
        compile_agent(load_yaml(write(action(triggers="[_input_event, ordr]")))["A"])
    assert caught.value.where == "agents.yaml:4 in plan_shop:read_order"


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"agents: \x00"])
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "agents.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PlanFormatError) as caught:
        load_yaml(path)
    assert "cannot be read" in caught.value.message or "is not YAML" in caught.value.message
