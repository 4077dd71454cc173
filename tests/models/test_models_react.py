"""``ReActAgent``: by class, builder and YAML, its steps, answers, histories, and how it fails."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai.models.test import TestModel
from pyflink.common import Row, Types

from flink_agents import (
    Agent,
    ChatMessage,
    ChatModel,
    ConversationHistory,
    DeadLetter,
    Event,
    InputEvent,
    OutputEvent,
    Prompt,
    ReActAgent,
    ResourceDescriptor,
    RunnerContext,
    Tool,
    UsageLimits,
    action,
    chat_model,
    prompt,
    tool,
)
from flink_agents.api.errors import ActionFailedError, AgentConfigurationError, AgentDefinitionError
from flink_agents.plan import LoadedAgent, compile_agent, load_yaml
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ModelServer, Reply, ScriptedModel, ServedRequest, ToolCall

Make = Callable[..., OperatorHarness]


class Models:
    """The model of the agents below."""

    main: Any = ScriptedModel([])


MODELS = Models()
CALLED: list[Any] = []


def main_model() -> Any:
    return MODELS.main


class Verdict(BaseModel):
    good: bool
    reason: str = ""


@dataclasses.dataclass
class Order:
    item: str
    count: int


def price_of(item: str) -> int:
    """Say what an item costs."""
    CALLED.append(item)
    return len(item)


def broken(item: str) -> int:
    """Fail."""
    raise ValueError(f"no {item}")


async def hangs(item: str) -> int:
    """Take for ever."""
    await asyncio.sleep(1000)
    return 0


MODEL = ChatModel(clazz=main_model, retry={"initial_interval": 0.001, "max_attempts": 2}, tool_timeout=0.05)


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLED.clear()


def script(*lines: Any) -> ScriptedModel:
    MODELS.main = ScriptedModel(lines)
    return MODELS.main


def texts(messages: list[Any]) -> list[Any]:
    return [getattr(part, "content", None) for message in messages for part in message.parts]


CALL = ToolCall("price_of", {"item": "tea"})
FINAL = ToolCall("final_result", {"good": True, "reason": "cheap"})


def react(**given: Any) -> ReActAgent:
    return ReActAgent(**{"model": MODEL, "tools": [price_of], "output_type": Verdict, **given})


# -- forms ---------------------------------------------------------------------------------


class Judge(ReActAgent):
    """The class form, beside an action of its own that asks as well."""

    def __init__(self, question: str = "Is {item} good?") -> None:
        super().__init__(model="judge", prompt=question, tools=["price_of"], output_type=Verdict, max_steps=4)

    @chat_model
    def judge(self) -> ResourceDescriptor:
        return MODEL

    @tool
    def price_of(self, item: str) -> int:
        """Say what an item costs."""
        return price_of(item)


YAML = """
agents:
  - name: Judge
    class: flink_agents:ReActAgent
    configuration:
      model: judge
      prompt: Is {{item}} good?
      tools: [price_of]
      max_steps: 4
    output_type: "{module}:Verdict"
    chat_models:
      - name: judge
        class: "{module}:main_model"
    tools:
      - name: price_of
        function: "{module}:price_of"
"""


def of_yaml(tmp_path: Path) -> Agent:
    path = tmp_path / "agents.yaml"
    path.write_text(YAML.format(module=__name__).replace("{{item}}", "{item}"))
    return load_yaml(path)["Judge"]


@pytest.mark.own_conditions
@pytest.mark.parametrize("form", ["class", "builder", "yaml"])
def test_each_form_answers_the_same(agent_harness: Make, tmp_path: Path, form: str) -> None:
    agents: dict[str, Callable[[], Any]] = {
        "class": Judge,
        "builder": lambda: react(prompt="Is {item} good?", max_steps=4),
        "yaml": lambda: of_yaml(tmp_path),
    }
    model = script(CALL, FINAL)
    harness = agent_harness(agents[form](), crash="everywhere", forced_serialization=False)
    assert harness.push(Order("tea", 2)) == [Verdict(good=True, reason="cheap")]
    assert texts(model.asked[0]) == ["Is tea good?"]
    assert CALLED == ["tea"]
    model.assert_complete()


@pytest.mark.own_conditions
@pytest.mark.parametrize("form", ["class", "builder", "yaml"])
def test_each_form_is_a_plan(tmp_path: Path, form: str) -> None:
    agent = {
        "class": Judge("Is {item} fine?"),
        "builder": react(fallback=Verdict(good=False)),
        "yaml": of_yaml(tmp_path),
    }[form]
    plan = compile_agent(agent)
    assert [(plan_action.name, plan_action.emits) for plan_action in plan.actions] == [
        ("react", ("_output_event",))
    ]
    # A worker makes the agent of the plan alone.
    bound_agent = LoadedAgent(type(plan).model_validate_json(plan.model_dump_json()))
    assert bound_agent.output_type is Verdict
    assert bound_agent.instance.output_type is Verdict
    assert plan == compile_agent(bound_agent.instance) or form != "class"


class Asked(Event):
    """Somebody asks something."""

    about: Any


class Beside(Judge):
    """Asks for each of several, and by an event."""

    @action(InputEvent)
    async def react(self, event: InputEvent, ctx: RunnerContext) -> list[Asked]:
        return [Asked(about=order) for order in event.input]

    @action(Asked)
    async def ask(self, event: Asked, ctx: RunnerContext) -> OutputEvent:
        verdict = await self.answer(event.about, ctx)
        return OutputEvent(output=(event.about.item, verdict.good))


@pytest.mark.own_conditions
def test_it_works_beside_other_actions(agent_harness: Make) -> None:
    script(FINAL, CALL, FINAL)
    harness = agent_harness(Beside(), crash="everywhere", forced_serialization=False)
    assert harness.push([Order("tea", 1), Order("milk", 2)]) == [("tea", True), ("milk", True)]


class Brief(ReActAgent):
    """Puts out something else than the answer, and has no constructor of its own."""

    output_type = str

    @action(InputEvent)
    async def react(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.answer(event.input, ctx)).reason)


@pytest.mark.parametrize("kind", [Verdict, f"{__name__}:Verdict"])
def test_a_replaced_action_puts_out_what_its_class_declares(agent_harness: Make, kind: Any) -> None:
    script(FINAL)
    agent = Brief(model=MODEL, tools=[price_of], output_type=kind)
    plan = compile_agent(agent)
    bound_agent = LoadedAgent(type(plan).model_validate_json(plan.model_dump_json()))
    assert bound_agent.output_type is str
    assert isinstance(bound_agent.instance, Brief) and bound_agent.instance._answer_type() is Verdict
    assert agent_harness(agent).push(Order("tea", 1)) == ["cheap"]


# -- what the model is told ------------------------------------------------------------------


class Asking(ReActAgent):
    """Has a prompt by name."""

    def __init__(self, prompt: str | None) -> None:
        super().__init__(model="main", prompt=prompt, instructions="Be short.")

    @chat_model
    def main(self) -> ResourceDescriptor:
        return MODEL

    @prompt
    def question(self) -> Prompt:
        system = ChatMessage(role="system", content="You sell {item}.")
        return Prompt.from_messages([system, ChatMessage(role="user", content="{count} of it?")])


ROW = Row("tea", 2)
ROW.set_field_names(["item", "count"])


@pytest.mark.parametrize("value", [Order("tea", 2), {"item": "tea", "count": 2}, ROW])
@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        (None, ['{"item": "tea", "count": 2}']),
        ("question", ["You sell tea.", "2 of it?"]),
        ("How much is {item}? {input}", ['How much is tea? {"item": "tea", "count": 2}']),
        ("Look at this.", ["Look at this.", '{"item": "tea", "count": 2}']),
    ],
)
def test_an_input_becomes_messages(
    agent_harness: Make, value: Any, prompt: str | None, told: list[str]
) -> None:
    model = script("yes")
    assert agent_harness(Asking(prompt), forced_serialization=False).push(value) == ["yes"]
    assert texts(model.asked[0]) == told


def test_a_prompt_that_is_missing_is_refused(agent_harness: Make) -> None:
    with pytest.raises(ActionFailedError, match="no prompt 'questions'"):
        agent_harness(Asking("questions")).push("x")


# -- histories -------------------------------------------------------------------------------


@pytest.mark.own_conditions
@pytest.mark.parametrize("history", [None, ConversationHistory(max_messages=10)])
def test_a_history_is_of_the_key_or_of_the_input(agent_harness: Make, history: Any) -> None:
    model = script("hello", "good-bye")
    agent = ReActAgent(model=MODEL, prompt="{input}!", history=history)
    harness = agent_harness(agent, crash="everywhere", forced_serialization=False)
    harness.push("one")
    harness.push("two")
    previous_texts = [] if history is None else ["one!", "hello"]
    assert texts(model.asked[1]) == [*previous_texts, "two!"]


# -- answers of a type -----------------------------------------------------------------------

ROWS = Types.ROW_NAMED(
    ["id", "copy", "parts"],
    [Types.STRING(), Types.BYTE(), Types.LIST(Types.ROW_NAMED(["size"], [Types.DOUBLE()]))],
)


@pytest.mark.own_conditions
def test_an_answer_is_a_row(agent_harness: Make) -> None:
    wrong = ToolCall("final_result", {"id": "a", "copy": 1000, "parts": []})
    right = ToolCall("final_result", {"id": "a", "copy": 1, "parts": [{"size": 1.5}]})
    model = script(wrong, right)
    harness = agent_harness(react(output_type=ROWS), crash="everywhere", forced_serialization=False)
    (row,) = harness.push("go")
    assert isinstance(row, Row)
    assert row.as_dict(True) == {"id": "a", "copy": 1, "parts": [Row(size=1.5)]} or row["parts"] == [
        Row(size=1.5)
    ]
    assert row["copy"] == 1
    assert "less than 128" in str(texts(model.asked[1])[-1])


@pytest.mark.parametrize(
    "kind",
    [Types.STRING(), Types.ROW([Types.INT()]), Row, Types.ROW_NAMED(["a"], [Types.PICKLED_BYTE_ARRAY()])],
)
def test_a_type_that_no_model_can_be_told_of_is_refused(agent_harness: Make, kind: Any) -> None:
    script("x")
    with pytest.raises(ActionFailedError) as failed:
        agent_harness(react(output_type=kind), forced_serialization=False).push("go")
    assert isinstance(failed.value.__cause__, AgentConfigurationError)


# -- failures --------------------------------------------------------------------------------

FOR_EVER = [ToolCall("price_of", {"item": "tea"})] * 50
FAILURES: dict[str, tuple[list[Any], str]] = {
    "loops for ever": (FOR_EVER, "FA9002"),
    "calls unknown tools": ([ToolCall("nobody", {})] * 9, "FA9101"),
    "answers nonsense": (["what?"] * 9, "FA9003"),
    "a tool raises": ([ToolCall("broken", {"item": "tea"})], "ValueError"),
    "a tool hangs": ([ToolCall("hangs", {"item": "tea"})] * 9, "FA9040"),
    "the service fails": ([ConnectionError("gone")] * 9, "ConnectionError"),
}
TOOLS = [price_of, broken, hangs]


@pytest.mark.parametrize("case", FAILURES)
def test_a_failed_conversation_fails_the_action(agent_harness: Make, case: str) -> None:
    lines, code = FAILURES[case]
    model = script(*lines)
    harness = agent_harness(react(tools=TOOLS, max_steps=5), forced_serialization=False)
    with pytest.raises(ActionFailedError) as failed:
        harness.push("go")
    assert code in repr(failed.value.__cause__) or getattr(failed.value.__cause__, "code", "") == code
    assert model.count <= 5


@pytest.mark.parametrize("case", FAILURES)
def test_a_failed_conversation_is_answered_with_the_fallback(agent_harness: Make, case: str) -> None:
    script(*FAILURES[case][0])
    agent = react(tools=TOOLS, max_steps=5, fallback={"good": False}, history=ConversationHistory())
    harness = agent_harness(agent, forced_serialization=False)
    assert harness.push("go") == [Verdict(good=False)]
    # What came to nothing is not remembered.
    assert harness.memory() == {}


@pytest.mark.own_conditions
def test_a_replay_falls_back_again(agent_harness: Make) -> None:
    script(*FOR_EVER)
    harness = agent_harness(
        react(max_steps=3, fallback={"good": False}), crash="everywhere", forced_serialization=False
    )
    assert harness.push("go") == [Verdict(good=False)]
    assert CALLED == ["tea"] * 3


def test_a_failed_conversation_becomes_a_dead_letter(agent_harness: Make) -> None:
    script(*FOR_EVER, "x")
    harness = agent_harness(react(on_error="dead-letter", max_steps=2), forced_serialization=False)
    assert harness.push("go") == []
    (letter,) = harness.side_output("dead-letter")
    assert isinstance(letter, DeadLetter)
    assert letter.error_type == "UsageLimitExceededError"


def test_a_fallback_does_not_hide_what_is_wrong_with_the_agent(agent_harness: Make) -> None:
    script("x")
    agent = ReActAgent(model="nobody", fallback="sorry")
    with pytest.raises(ActionFailedError, match="no chat_model 'nobody'"):
        agent_harness(agent, forced_serialization=False).push("go")


def test_limits_hold_beside_steps(agent_harness: Make) -> None:
    script(*FOR_EVER)
    limits = UsageLimits(tool_calls=1)
    with pytest.raises(ActionFailedError, match="tool calls"):
        agent_harness(react(limits=limits), forced_serialization=False).push("go")


def test_an_agent_that_may_not_ask_is_refused() -> None:
    with pytest.raises(AgentDefinitionError, match="a limit of less than one request"):
        ReActAgent(max_steps=0)


def test_pydantic_ais_test_model_answers(agent_harness: Make) -> None:
    MODELS.main = TestModel()
    harness = agent_harness(react(tools=[Tool(price_of, name="cost")]), forced_serialization=False)
    assert harness.push("go") == [Verdict(good=False, reason="")] or CALLED == ["a"]


# -- over HTTP ---------------------------------------------------------------------------------


def by_history(request: ServedRequest) -> Reply:
    replies = [Reply(tool_calls=[CALL, ToolCall("price_of", {"item": "milk"})]), Reply(tool_calls=[FINAL])]
    return replies[sum(message["role"] == "assistant" for message in request.body["messages"])]


@pytest.mark.own_conditions
def test_counts_at_the_server_are_exact(
    agent_harness: Make, model_server: Callable[..., ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REACT_KEY", "none")
    server = model_server(by_history)
    model = ChatModel("openai-chat:any", api_key={"env": "REACT_KEY"}, base_url=server.base_url)
    harness = agent_harness(
        react(model=model), lambda record: record, crash="everywhere", forced_serialization=False
    )
    for key in ("ada", "bo"):
        assert harness.push(key) == [Verdict(good=True, reason="cheap")]
    assert server.count == 4
    assert sorted(CALLED) == ["milk", "milk", "tea", "tea"]
