"""Calls of tools: what the model is told, what ends the conversation, what a crash repeats."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

import cloudpickle
import pytest
from pydantic_ai.exceptions import ModelRetry, ToolFailed
from pydantic_ai.messages import ToolReturnPart

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    MemoryObject,
    MemoryScope,
    OutputEvent,
    ResourceDescriptor,
    RetryableError,
    RunnerContext,
    TerminalError,
    Tool,
    action,
    chat_model,
    tool,
)
from flink_agents.api.errors import (
    ActionFailedError,
    ToolOutcomeUnknownError,
    ToolResultError,
    ToolRetriesExceededError,
)
from flink_agents.models.retrieval.tool import retrieval_tool
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ScriptedModel, ToolCall

Make = Callable[..., OperatorHarness]
SCRIPT: list[ScriptedModel] = []
CALLED: list[str] = []
HANGING: set[threading.Event] = set()
"""What calls wait for that take too long."""


def model() -> Any:
    return SCRIPT[0]


class Refused(TerminalError):
    pass


def fetch(page: str) -> str:
    CALLED.append(f"fetch {page}")
    return page.upper()


def hang() -> None:
    event = threading.Event()
    HANGING.add(event)
    event.wait(5)


class Releasing(logging.Handler):
    """Ends calls that hang once their time is over, since each attempt waits for its threads."""

    def emit(self, record: logging.LogRecord) -> None:
        if "keeps running after its timeout" in record.getMessage():
            let_go()


def let_go() -> None:
    while HANGING:
        HANGING.pop().set()


class Worker(Agent):
    @chat_model
    def main(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tools=["act", "later", "inside", "limited"], tool_timeout=60)

    @chat_model
    def hasty(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tools=["act", "later", "inside"], tool_timeout=0.2)

    @chat_model
    def lenient(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tools=["act"], on_tool_error="tell-model", tool_result_limit=100)

    @tool
    def act(self, what: str) -> Any:
        """Do something.

        Args:
            what: What it is,
                in a word.
        """
        CALLED.append(what)
        outcomes: dict[str, Callable[[], Any]] = {
            "dict": lambda: {"a": [1, None]},
            "retry": lambda: raising(ModelRetry("say it otherwise")),
            "fail": lambda: raising(ToolFailed("cannot be done")),
            "raise": lambda: raising(OSError("broken")),
            "terminal": lambda: raising(Refused("never")),
            "once": lambda: raising(RetryableError("busy", 0.001)) if CALLED.count("once") < 2 else "now",
            "object": object,
            "nan": lambda: float("nan"),
            "long": lambda: "x" * 10_000_000,
            "hang": hang,
        }
        return outcomes[what]()

    @tool
    async def later(self, seconds: float) -> str:
        """Wait."""
        CALLED.append(f"later {seconds}")
        await asyncio.sleep(seconds)
        return f"after {seconds}"

    @tool
    async def inside(
        self,
        page: str,
        ctx: RunnerContext,
        memory: MemoryObject,
        notes: Annotated[MemoryObject, MemoryScope.SENSORY],
    ) -> str:
        """Use the context."""
        memory.set("pages", [*memory.get("pages", []), page])
        notes.set("page", page)
        if page == "slow":
            await asyncio.sleep(5)
        return await ctx.durable_execute_async(fetch, page)

    @tool(max_concurrency=1)
    def limited(self, word: str) -> str:
        """One at a time."""
        CALLED.append(f"begin {word}")
        time.sleep(0.01)
        CALLED.append(f"end {word}")
        return word

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat(event.input, "go")
        tool_results = [
            (part.content, part.outcome)
            for message in result.messages
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]
        return OutputEvent(output=(tool_results, ctx.short_term_memory.get("pages", None)))


def raising(error: Exception) -> Any:
    raise error


@pytest.fixture(autouse=True)
def nothing_called() -> Any:
    CALLED.clear()
    releasing = Releasing()
    log = logging.getLogger("flink_agents.loop")
    log.addHandler(releasing)
    yield
    log.removeHandler(releasing)
    let_go()


def results_of(make: Make, *calls: ToolCall, model: str = "main") -> list[Any]:
    """What the model is told of calls at once; a crash at each point changes nothing."""
    SCRIPT[:] = [ScriptedModel([Reply(tool_calls=calls), "done"])]
    harness = make(Worker(), crash="everywhere", forced_serialization=False)
    ((results, _),) = harness.push(model)
    SCRIPT[0].assert_complete()
    return results


def fails(make: Make, error: type[Exception], *calls: ToolCall, model: str = "main") -> str:
    SCRIPT[:] = [ScriptedModel([*calls, "done"])]
    harness = make(Worker(), crash=None, forced_replay=False, forced_serialization=False)
    with pytest.raises(ActionFailedError) as caught:
        harness.push(model)
    assert isinstance(caught.value.__cause__, error)
    return str(caught.value)


def do(what: Any) -> ToolCall:
    return ToolCall("act", {"what": what})


TOLD = [
    (do("dict"), "success", "{'a': [1, None]}"),
    (do("retry"), "retried", "say it otherwise"),
    (do("fail"), "failed", "cannot be done"),
    (do("once"), "success", "now"),
    (do("long"), "retried", "10000002 bytes, of which 100000"),
    (do(3), "retried", "valid string"),
    (ToolCall("act", "{no"), "retried", "no JSON object"),
    (ToolCall("act", "[1]"), "retried", "no JSON object"),
    (ToolCall("act"), "retried", "Field required"),
    (ToolCall("atc"), "retried", "The tools are: 'act', 'later'"),
]


@pytest.mark.own_conditions
@pytest.mark.parametrize(("call", "outcome", "text"), TOLD, ids=lambda value: str(value)[:40])
def test_what_the_model_is_told(agent_harness: Make, call: ToolCall, outcome: str, text: str) -> None:
    ((content, actual_outcome),) = results_of(agent_harness, call)
    assert actual_outcome == outcome
    assert text in str(content)


SLOW = [do("hang"), ToolCall("later", {"seconds": 5}), ToolCall("inside", {"page": "slow"})]


@pytest.mark.parametrize("call", SLOW, ids=lambda call: call.name)
def test_a_call_that_takes_too_long(agent_harness: Make, call: ToolCall) -> None:
    text = fails(agent_harness, ToolOutcomeUnknownError, call, model="hasty")
    assert f"it is unknown whether a call of the tool '{call.name}' took effect" in text
    assert "it took longer than 0.2 seconds" in text


@pytest.mark.parametrize("what", ["object", "nan"])
def test_what_is_no_json_ends_the_conversation(agent_harness: Make, what: str) -> None:
    assert "the tool 'act' returned" in fails(agent_harness, ToolResultError, do(what))


def test_what_a_tool_raises_ends_the_conversation(agent_harness: Make) -> None:
    assert "broken" in fails(agent_harness, OSError, do("raise"))
    assert "never" in fails(agent_harness, Refused, do("terminal"))


@pytest.mark.own_conditions
def test_unless_the_model_shall_be_told(agent_harness: Make) -> None:
    assert results_of(agent_harness, do("raise"), model="lenient") == [("OSError: broken", "failed")]


def test_a_call_that_is_wrong_too_often(agent_harness: Make) -> None:
    text = fails(agent_harness, ToolRetriesExceededError, *[do("retry")] * 3)
    assert "'act' was called wrongly 3 times" in text
    SCRIPT[:] = [ScriptedModel([do("retry"), do("retry"), do("dict"), do("retry"), do("retry"), "done"])]
    assert len(agent_harness(Worker(), crash=None, forced_serialization=False).push("main")[0][0]) == 5


@pytest.mark.own_conditions
def test_calls_at_once_run_side_by_side_and_are_told_in_order(agent_harness: Make) -> None:
    waits = [0.05, 0.01, 0.03]
    calls = [ToolCall("later", {"seconds": seconds}) for seconds in waits]
    assert results_of(agent_harness, *calls) == [(f"after {seconds}", "success") for seconds in waits]
    assert sorted(CALLED) == sorted(f"later {seconds}" for seconds in waits)


@pytest.mark.own_conditions
def test_a_tool_of_the_action_is_executed_again_but_not_its_calls(agent_harness: Make) -> None:
    calls = [ToolCall("inside", {"page": page}) for page in ("a", "b")]
    SCRIPT[:] = [ScriptedModel([Reply(tool_calls=calls), "done"])]
    harness = agent_harness(Worker(), crash="everywhere", forced_serialization=False)
    ((results, pages),) = harness.push("main")
    assert results == [("A", "success"), ("B", "success")]
    assert pages == ["a", "b"]
    assert sorted(CALLED) == ["fetch a", "fetch b"]


@pytest.mark.own_conditions
def test_limits_of_a_tool_hold_for_models(agent_harness: Make) -> None:
    calls = [ToolCall("limited", {"word": word}) for word in "abc"]
    assert [content for content, _ in results_of(agent_harness, *calls)] == ["a", "b", "c"]
    steps = [line.split() for line in CALLED]
    assert all(first == ["begin", word] and end == ["end", word] for (first, end), word in pairs(steps))


def pairs(begun: list[list[str]]) -> list[Any]:
    return [((begun[at], begun[at + 1]), begun[at][1]) for at in range(0, len(begun), 2)]


# -- schemas ------------------------------------------------------------------------


def google(a: int, b: str = "x") -> None:
    """Do.

    Args:
        a: First
            of all.
        b (str): Second: or not.

    Returns:
        c: Nothing.
    """


def numpy(a: int, b: str = "x") -> None:
    """Do.

    Parameters
    ----------
    a : int
        First
        of all.
    b : str
        Second: or not.

    Returns:
    -------
    c
        Nothing.
    """


def sphinx(a: int, b: str = "x") -> None:
    """Do.

    :param a: First of all.
    :param str b: Second: or not.
    :returns: Nothing.
    """


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_parameters_have_the_texts_of_the_docstring(function: Callable[..., Any]) -> None:
    properties = Tool(function).parameters["properties"]
    assert {name: parameter["description"] for name, parameter in properties.items()} == {
        "a": "First of all.",
        "b": "Second: or not.",
    }


def test_what_a_tool_is_given_is_hidden() -> None:
    inside_tool = Tool(Worker.inside.__get__(Worker()))
    assert list(inside_tool.parameters["properties"]) == ["page"]
    assert list(inside_tool.given) == ["ctx", "memory", "notes"]


def test_a_tool_can_be_sent_to_workers() -> None:
    """As a global of a main script, which an action names."""

    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    tool = Tool(double, "twice", max_concurrency=3)
    sent: Tool = cloudpickle.loads(cloudpickle.dumps(tool))
    assert sent(number="4") == 8
    assert (sent.name, sent.description, sent.settings) == (tool.name, tool.description, tool.settings)
    assert sent.parameters == tool.parameters
    search_tool: Tool = cloudpickle.loads(cloudpickle.dumps(retrieval_tool("articles", k=2)))
    assert search_tool.name == "search_articles"
    assert list(search_tool.given) == ["ctx"]
