"""Agents that ask models, in Flink itself: what PyFlink does with their types and their code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyflink.common import Row, Types

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    ChatModel,
    InputEvent,
    OutputEvent,
    ReActAgent,
    RunnerContext,
)
from flink_agents.api.errors import JobFailedError
from flink_agents.testing.models import ModelServer, Reply, ServedRequest, ToolCall

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]


def length_of(text: str) -> int:
    """Say how long a text is."""
    return len(text)


def think(request: ServedRequest) -> Reply:
    messages = request.body["messages"]
    text = messages[0]["content"]
    if messages[-1]["role"] == "user":
        return Reply(tool_calls=[ToolCall("length_of", {"text": text})])
    length = int(messages[-1]["content"])
    return Reply(tool_calls=[ToolCall("final_result", {"text": text, "length": length})])


@pytest.mark.nightly
@pytest.mark.parametrize("used_before", [False, True])
def test_rows_that_models_give_are_rows_of_a_stream_and_of_a_table(
    agents_environment: MakeEnvironment,
    model_server: Callable[..., ModelServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    used_before: bool,
) -> None:
    monkeypatch.setenv("MINICLUSTER_KEY", "none")
    server = model_server(think)
    rows = Types.ROW_NAMED(["text", "length"], [Types.STRING(), Types.INT()])
    if used_before:
        rows.get_java_type_info()
    model = ChatModel("openai-chat:any", base_url=server.base_url, api_key={"file": str(tmp_path / "key")})
    (tmp_path / "key").write_text("none")
    agent = ReActAgent("Lengths", model=model, prompt="{input}", tools=[length_of], output_type=rows)
    config = {"action-state.sqlite.path": str(tmp_path / "calls.sqlite")}
    env = agents_environment(config=config, parallelism=2)
    stream = env.from_list(["ada", "charles"], key_selector=len).apply(agent)
    # Flink's own serialisers carry the rows from here on.
    upper = stream.to_datastream().map(
        lambda row: Row(text=row["text"].upper(), length=row["length"]), output_type=rows
    )
    lengths = sorted((row["text"], row["length"]) for row in upper.execute_and_collect())
    assert lengths == [("ADA", 3), ("CHARLES", 7)]
    assert server.count == 4


def test_a_key_that_the_worker_lacks_fails_the_job_before_its_first_input(
    agents_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINICLUSTER_KEY", raising=False)
    agent = Agent(name="idle").add_action("use", [InputEvent], use_nothing, on_error="dead-letter")
    agent.add_resource("model", "chat_model", ChatModel("openai:any", api_key={"env": "MINICLUSTER_KEY"}))
    env = agents_environment()
    applied = env.from_list(["ada"], key_selector=len).apply(agent)
    applied.dead_letters().print()
    outputs = applied.to_list()
    with pytest.raises(JobFailedError, match="FA4007") as failed:
        env.execute("idle")
    assert "MINICLUSTER_KEY" in str(failed.value)
    assert list(outputs) == []


def use_nothing(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
    return OutputEvent(output=event.input)
