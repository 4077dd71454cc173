"""Changes of what an agent thinks with while a chat is unfinished: each one that docs/models.md lists.

The former agent crashes behind its last recorded call; the changed one goes on with what is recorded.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as ModelAgent, Tool as ModelTool
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    Prompt,
    RetryableError,
    RunnerContext,
    Tool,
    UsageLimits,
)
from flink_agents.api.action_state import RecordKind
from flink_agents.api.durable import calls_durably
from flink_agents.api.errors import (
    AgentsError,
    ModelRequestError,
    NonDeterminismError,
    UsageLimitExceededError,
)
from flink_agents.models.chat.messages.converting import Transcript, messages_of
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.runtime.durable_tools import calls_of, journal
from tests.suite.written_tables import listed_edits

pytestmark = pytest.mark.executes_once

DONE: list[str] = []
"""Which requests were sent and which tools were called, in order; nothing takes it back."""

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


class Verdict(BaseModel):
    good: bool
    score: int = 0


class Judgement(BaseModel):
    """A verdict with a field that it did not have."""

    good: bool
    score: int = 0
    words: str = "none"


class Sentence(BaseModel):
    """What no recorded answer is."""

    years: int


def model() -> Model:
    """Calls the first tool that it has, once, and then answers: with the output that it is asked for."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        DONE.append("request")
        has_tool_return = any(
            isinstance(part, ToolReturnPart) for message in messages for part in message.parts
        )
        if info.function_tools and not has_tool_return:
            return ModelResponse([ToolCallPart(info.function_tools[0].name, {"item": "tea"}, "one")])
        if info.output_tools:
            sentence = "years" in info.output_tools[0].parameters_json_schema["properties"]
            arguments = {"years": 3} if sentence else {"good": True, "score": 7}
            return ModelResponse([ToolCallPart("final_result", arguments, "two")])
        return ModelResponse([TextPart("good")])

    return FunctionModel(answer)


def other_model() -> Model:
    """A model that nobody asks."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        DONE.append("request to another model")
        return ModelResponse([TextPart("bad")])

    return FunctionModel(answer)


def busy_model() -> Model:
    """A model that never answers."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise RetryableError("busy")

    return FunctionModel(answer)


def price_of(item: str) -> float:
    """Say what an item costs."""
    DONE.append(f"price of {item}")
    return 7.5


def price(item: str, currency: str = "EUR") -> str:
    """Say what an item costs, in a currency."""
    DONE.append(f"price of {item} in {currency}")
    return "8.0"


def price_of_many(items: list[str]) -> float:
    """Say what several items cost."""
    DONE.append(f"price of {items}")
    return 7.5


def stock_of(item: str) -> int:
    """Say how many there are."""
    DONE.append(f"stock of {item}")
    return 3


def shop(
    chat_model: str = "analyst",
    said: Any = "tea?",
    output_type: Any = None,
    tools: dict[str, Any] | None = None,
    prompt: str = "You judge {what}.",
    made_by: str = "model",
    options: dict[str, Any] | None = None,
    **chat: Any,
) -> Agent:
    """An agent that asks about its inputs."""

    async def ask(event: Any, ctx: RunnerContext) -> OutputEvent:
        variables = {"what": "orders"}
        result = await ctx.chat(chat_model, said, output_type=output_type, variables=variables, **chat)
        return OutputEvent(output=result.output)

    tools = {"price_of": price_of} if tools is None else tools
    agent = Agent(name="Shop").add_action("ask", [InputEvent], ask)
    more: dict[str, Any] = options or {}
    spec = ChatModel(clazz=f"{__name__}:{made_by}", tools=[*tools], prompt="role", **more)
    agent.add_resource(chat_model, "chat_model", spec)
    agent.add_resource("role", "prompt", Prompt.from_text(prompt))
    agent.add_resource("spare", "chat_model", ChatModel(clazz=f"{__name__}:model", prompt="role"))
    for name, function in tools.items():
        agent.add_resource(name, "tool", Tool(function, name=name))
    return agent


def go_on(former: Agent, changed: Agent, policy: str = "fail") -> OperatorHarness:
    """What the changed agent makes of an input that the former one was at when it crashed."""
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    with OperatorHarness(former, store=faults.store) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(AgentsError):
            harness.push("i1")
    DONE.clear()
    harness = OperatorHarness(changed, store=faults.store, config={"action-state.on-mismatch": policy})
    harness.restore(snapshot)
    harness.push("i1")
    return harness


SAFE: dict[str, tuple[Agent, Agent, list[Any], list[str]]] = {
    "change the `model`, `settings`, `instructions`, `retry` or `timeout` of a chat model": (
        shop(),
        shop(
            made_by="other_model",
            options={"settings": {"max_tokens": 5}, "instructions": "Be brief.", "timeout": 9},
            settings={"temperature": 1.0},
        ),
        ["good"],
        [],
    ),
    "change the code, the description or the result of a tool": (
        shop(),
        shop(tools={"price_of": price}),
        ["good"],
        [],
    ),
    "add a tool": (shop(), shop(tools={"stock_of": stock_of, "price_of": price_of}), ["good"], []),
    "ask for an `output_type` that a recorded answer fits": (
        shop(output_type=Verdict),
        shop(output_type=Judgement),
        [Judgement(good=True, score=7)],
        [],
    ),
    "ask for an `output_type` that no recorded answer fits": (
        shop(output_type=Verdict),
        shop(output_type=Sentence),
        [Sentence(years=3)],
        ["request"],
    ),
    "raise a limit": (shop(), shop(limits=UsageLimits(requests=99)), ["good"], []),
}


@pytest.mark.parametrize("change", SAFE)
def test_safe_change(change: str) -> None:
    former, changed, outputs, done = SAFE[change]
    with go_on(former, changed) as harness:
        assert harness.outputs == outputs
    assert DONE == done


FALLBACK: dict[str, Any] = {"fallback": ["spare"], "retry": {"max_attempts": 1}}
MISMATCH: dict[str, tuple[Agent, Agent]] = {
    "change the text of a message or of a `prompt`": (shop(), shop(said="rice?")),
    "rename a chat model that was asked": (shop(), shop(chat_model="judge")),
    "rename or remove a tool that was called": (shop(), shop(tools={"price": price_of})),
    "change the parameters of a tool so that a recorded call does not fit": (
        shop(),
        shop(tools={"price_of": price_of_many}),
    ),
}
ALSO = {
    "another prompt": (shop(), shop(prompt="You judge {what} strictly.")),
    "a tool less": (shop(), shop(tools={})),
    "a message more": (shop(), shop(said=["tea?", "rice?"])),
    "a message between": (shop(said=["tea?", "rice?"]), shop(said=["tea?", "salt?", "rice?"])),
    "an earlier message": (shop(said=["tea?", "rice?"]), shop(said=["salt?", "rice?"])),
}
"""Changes that the table has no row of their own for."""


@pytest.mark.parametrize("change", [*MISMATCH, *ALSO])
def test_change_that_does_not_fit(change: str) -> None:
    former, changed = (MISMATCH | ALSO)[change]
    with pytest.raises(AgentsError) as caught:
        go_on(former, changed)
    assert isinstance(caught.value.__cause__, NonDeterminismError)
    assert DONE == [], "something recorded was done again"


@pytest.mark.parametrize("change", [*MISMATCH, *ALSO])
def test_change_that_does_not_fit_with_rerun(change: str) -> None:
    former, changed = (MISMATCH | ALSO)[change]

    def outcome(act: Any) -> Any:
        try:
            return act()
        except AgentsError as error:
            return type(error.__cause__)

    again = outcome(lambda: go_on(former, changed, "rerun").outputs)
    done = list(DONE)
    DONE[:] = []
    with OperatorHarness(changed) as fresh:
        assert outcome(lambda: fresh.push("i1")) == again
    assert done == DONE


@pytest.mark.parametrize("change", [*MISMATCH, *ALSO])
def test_change_that_does_not_fit_with_dead_letter(change: str) -> None:
    former, changed = (MISMATCH | ALSO)[change]
    with go_on(former, changed, "dead-letter") as harness:
        assert harness.outputs == []
        (letter,) = harness.dead_letters
    assert letter.error_type == "NonDeterminismError" and letter.event.input == "i1"
    assert DONE == []


ENDS: dict[str, tuple[Agent, Agent, type[AgentsError]]] = {
    "lower a limit below what recorded answers used": (
        shop(),
        shop(limits=UsageLimits(requests=1)),
        UsageLimitExceededError,
    ),
    "remove a `fallback` that answered": (
        shop(made_by="busy_model", options=FALLBACK),
        shop(made_by="busy_model", options={"retry": {"max_attempts": 1}}),
        ModelRequestError,
    ),
}


@pytest.mark.parametrize("policy", ["fail", "rerun", "dead-letter"])
@pytest.mark.parametrize("change", ENDS)
def test_change_by_which_the_chat_fails(change: str, policy: str) -> None:
    """The action fails as any other, and its own policy for errors holds."""
    former, changed, kind = ENDS[change]
    with pytest.raises(AgentsError) as caught:
        go_on(former, changed, policy)
    assert isinstance(caught.value.__cause__, kind)
    assert DONE == []


# -- whole agents --------------------------------------------------------------------------


JUDGES: list[ModelAgent[None, str]] = []
"""Agents of pydantic-ai, which stand in a module, as they cannot be sent to workers."""


async def judged(number: int) -> str:
    """What one of them says."""
    return (await JUDGES[number].run("tea?")).output


def whole(tool: Any = price_of, **options: Any) -> Agent:
    """An agent that lets one of pydantic-ai answer."""
    judge: ModelAgent[None, str] = ModelAgent(
        model(),
        name="judge",
        tools=[ModelTool(tool, name="price_of", description="Say what an item costs.")],
        capabilities=[FlinkDurability()],
        **options,
    )

    JUDGES.append(judge)
    number = len(JUDGES) - 1

    async def ask(event: Any, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await judged(number))

    return Agent(name="Shop").add_action("ask", [InputEvent], calls_durably(ask))


def cheap(item: str) -> float:
    """Say what an item costs."""
    DONE.append(f"cheap {item}")
    return 0.5


def test_a_whole_agent_may_have_other_code_in_its_tools() -> None:
    with go_on(whole(), whole(cheap)) as harness:
        assert harness.outputs == ["good"]
    assert DONE == []


@pytest.mark.parametrize(
    "changed",
    [
        whole(price_of_many),
        whole(instructions="Be brief."),
        whole(system_prompt="You judge."),
        whole(model_settings={"max_tokens": 5}),
    ],
    ids=["schema", "instructions", "prompt", "settings"],
)
def test_requests_of_a_whole_agent_are_compared_as_a_whole(changed: Agent) -> None:
    with pytest.raises(AgentsError) as caught:
        go_on(whole(), changed)
    assert isinstance(caught.value.__cause__, NonDeterminismError)
    assert DONE == []


# -- what says when and where, and not what ------------------------------------------------


def conversation_of(text: str, **ids: Any) -> list[ModelMessage]:
    """A conversation that was held somewhere else."""
    return [
        ModelRequest([UserPromptPart("hello")], run_id=ids.get("run_id")),
        ModelResponse([TextPart("hello")], run_id=ids.get("run_id"), conversation_id=ids.get("conversation")),
        ModelRequest([UserPromptPart(text)], conversation_id=ids.get("conversation")),
    ]


def test_times_and_ids_of_messages_are_no_part_of_what_is_said() -> None:
    """Messages that a service or another agent gave have other ones at each attempt."""
    former = shop(said=conversation_of("tea?", run_id="a", conversation="b"))
    changed = shop(said=conversation_of("tea?", run_id="c", conversation="d"))
    with go_on(former, changed) as harness:
        assert harness.outputs == ["good"]
    assert DONE == []


def test_names_in_records() -> None:
    """Journals have them, so that they can never change."""
    faults = Faults()
    with OperatorHarness(shop(), store=faults.store) as harness:
        harness.push("i1")
    names = [record.call.function for record in calls_of(journal(faults))]
    assert names == ["chat:analyst", "tool:price_of", "chat:analyst"]


def test_digests_stay_those_of_records_that_exist() -> None:
    """Runs that an older version began go on: their records have these digests."""
    transcript = Transcript()
    transcript.add(messages_of("tea?", datetime(2026, 1, 1, tzinfo=UTC)))
    assert transcript.digest == "d65f0b9f17db9ae20189c56bcae89c36"
    call = ToolCallPart("price_of", {"item": "tea"}, "one")
    transcript.add([ModelResponse([TextPart("let me see"), call])])
    transcript.add([ModelRequest([ToolReturnPart("price_of", 7.5, "one")])])
    assert transcript.digest == "d126ae7392956b2b583e0f0fd4866f1e"


# -- the page ------------------------------------------------------------------------------


def test_the_page_has_these_rows_and_no_others() -> None:
    ends = {change: kind.code for change, (_, _, kind) in ENDS.items()}
    assert listed_edits(PAGE) == dict.fromkeys(SAFE, "Safe") | dict.fromkeys(MISMATCH, "FA4013") | ends
