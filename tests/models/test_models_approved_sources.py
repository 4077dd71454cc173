"""Tools of MCP servers, and scripts of skills, that somebody has to approve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_agents import MODEL, QUICK, Clerk, Counts, Direct, by_stdio, model, script
from pydantic_ai import Agent as ModelAgent

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    MCPServer,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    Skills,
    action,
    chat_model,
    mcp_server,
    skills,
)
from flink_agents.api.errors import AgentDefinitionError, ApprovalDeniedError
from flink_agents.models.engine import FlinkDurability, server_toolset, skills_toolset
from flink_agents.plan import AgentPlan, LoadedAgent, compile_agent
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ToolCall

ORDER = ToolCall("order", {"item": "tea", "number": 20})
PRICE = ToolCall("price_of", {"item": "tea"})
RUNS: list[str] = []


@pytest.fixture
def counts(tmp_path: Path) -> Iterator[Counts]:
    server_counts = Counts(tmp_path)
    yield server_counts
    assert server_counts.alive == []


def effects(counts: Counts) -> list[str]:
    """What the server did, without the keys of the calls."""
    return [" ".join(line.split()[:3]) for line in counts.lines if line.startswith(("order", "price_of"))]


class AskingClerk(Clerk):
    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(
            command="options-say-it", retry=QUICK, timeout=20, needs_approval=["ord*"], approval_timeout=60
        )


class AskingDirect(Direct):
    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(command="options-say-it", retry=QUICK, timeout=20, needs_approval=True)

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        server = ctx.mcp_server("shop")
        try:
            return OutputEvent(output=await server.call_tool("order", item="tea", number=event.input))
        except ApprovalDeniedError as error:
            return OutputEvent(output=str(error.message))


def harness_of(agent: Any, counts: Counts) -> OperatorHarness:
    return OperatorHarness(agent, config=by_stdio(counts), crash=None)


def test_a_model_waits_for_the_approval_of_a_tool_of_a_server(counts: Counts) -> None:
    script(Reply(tool_calls=[PRICE, ORDER]), "done")
    with harness_of(AskingClerk(), counts) as harness:
        assert harness.push("go") == []
        assert effects(counts) == ["price_of tea"]
        [request] = harness.approvals
        assert (request.what, request.arguments) == ("tool order", {"item": "tea", "number": 20})
        harness.restore(harness.snapshot())
        [[answer, contents]] = harness.approve(harness.approvals[0], {"number": 2})
        assert answer == "done" and contents[2:4] == [7.5, {"item": "tea", "number": 2}]
    assert effects(counts) == ["price_of tea", "order tea 2"]


@pytest.mark.parametrize("answered", [True, False], ids=["denied", "expired"])
def test_a_model_reads_why_a_call_of_a_server_was_denied(counts: Counts, answered: bool) -> None:
    script(ORDER, "done")
    with harness_of(AskingClerk(), counts) as harness:
        harness.push("go")
        if answered:
            [[_, contents]] = harness.deny(harness.approvals[0], "too many", by="Ada")
            assert contents[1] == "tool order was not approved, but denied by Ada: too many"
        else:
            [[_, contents]] = harness.advance_time(60_000)
            assert "expired: no answer came within 60 s" in contents[1]
    assert effects(counts) == []


def test_code_of_an_action_waits_too(counts: Counts) -> None:
    with harness_of(AskingDirect(), counts) as harness:
        assert harness.push(20) == []
        assert harness.approve(harness.approvals[0]) == [{"item": "tea", "number": 20}]
        harness.push(30)
        [text] = harness.deny(harness.approvals[0], "too many")
        assert text == "tool order was not approved, but denied: too many"
    assert effects(counts) == ["order tea 20"]


def test_an_agent_of_pydantic_ai_waits_too(counts: Counts) -> None:
    class Whole(AskingClerk):
        @action(InputEvent)
        async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            helper = ModelAgent(
                model(),
                name="helper",
                toolsets=[server_toolset("shop")],
                capabilities=[FlinkDurability(approvals=True)],
            )
            return OutputEvent(output=(await helper.run("go")).output)

    script(ORDER, last_contents)
    with harness_of(Whole(), counts) as harness:
        harness.push("go")
        assert effects(counts) == []
        assert "tea" in harness.approve(harness.approvals[0])[0]
        script(ORDER, last_contents)
        harness.push("again")
        assert harness.deny(harness.approvals[0], "enough") == [
            "tool order of helper was not approved, but denied: enough"
        ]
    assert effects(counts) == ["order tea 20"]


# -- skills -----------------------------------------------------------------------------------


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two skills with a script each, which write down that they run."""
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    for name in ("mail", "look"):
        folder = tmp_path / "office" / name
        folder.joinpath("scripts").mkdir(parents=True)
        folder.joinpath("SKILL.md").write_text(f"---\nname: {name}\ndescription: To {name}.\n---\nDo it.\n")
        code = f"import os\nopen(os.environ['RUNS'], 'a').write('{name}\\n')\nprint('{name} done')\n"
        folder.joinpath("scripts", "go.py").write_text(code)
    return str(tmp_path / "office")


def runs(tmp_path: Path) -> list[str]:
    file = tmp_path / "runs"
    return file.read_text().splitlines() if file.exists() else []


def run(skill: str) -> ToolCall:
    return ToolCall("run_script", {"skill": skill, "script": "scripts/go.py"})


def last_contents(messages: Any) -> str:
    return "; ".join(str(part.content) for part in messages[-1].parts)


class Secretary(Agent):
    """Has skills, of which those for mail need an approval."""

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tools=["office"])

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("clerk", event.input)).output)


def office_of(path: str) -> Skills:
    return Skills(path, inherit=["RUNS"], needs_approval=["mail/*"], approval_timeout=60)


def test_a_script_waits_for_its_approval(office: str, tmp_path: Path) -> None:
    agent = Secretary()
    agent.add_resource("office", "skills", office_of(office))
    script(Reply(tool_calls=[run("look"), run("mail")]), last_contents)
    harness = OperatorHarness(agent, crash=None, forced_serialization=False)
    assert harness.push("go") == []
    assert runs(tmp_path) == ["look"]
    [request] = harness.approvals
    assert request.what == "tool run_script" and request.arguments["skill"] == "mail"
    harness.restore(harness.snapshot())
    [answer] = harness.approve(harness.approvals[0])
    assert "look done" in answer and "mail done" in answer
    assert runs(tmp_path) == ["look", "mail"]


def test_a_script_that_nobody_approves_does_not_run(office: str, tmp_path: Path) -> None:
    class Officer(Secretary):
        @skills
        def office(self) -> Skills:
            return office_of(office)

    script(run("mail"), last_contents)
    harness = OperatorHarness(Officer(), crash=None, forced_serialization=False)
    harness.push("go")
    [answer] = harness.advance_time(60_000)
    assert "expired" in answer
    assert runs(tmp_path) == []


def test_scripts_of_an_agent_of_pydantic_ai(office: str, tmp_path: Path) -> None:
    script(Reply(tool_calls=[run("look"), run("mail")]), last_contents)
    helper = ModelAgent(
        MODEL[0],
        name="helper",
        toolsets=[skills_toolset(office_of(office))],
        capabilities=[FlinkDurability(approvals=True)],
    )

    class Helping(Agent):
        @action(InputEvent)
        async def help(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=(await helper.run(str(event.input))).output)

    harness = OperatorHarness(Helping(), crash=None, forced_serialization=False)
    assert harness.push("go") == []
    assert runs(tmp_path) == ["look"]
    [answer] = harness.deny(harness.approvals[0], "not today")
    assert "look done" in answer and "not today" in answer
    assert runs(tmp_path) == ["look"]


# -- declarations -----------------------------------------------------------------------------


def test_the_plan_says_that_an_agent_asks() -> None:
    plan = compile_agent(AskingClerk())
    [server] = [resource for resource in plan.resources if resource.name == "shop"]
    assert server.needs_approval is True
    assert LoadedAgent(AgentPlan.from_json(plan.to_json())).plan.needs_approvals
    assert not LoadedAgent(compile_agent(Clerk())).plan.needs_approvals


@pytest.mark.parametrize("wrong", ["order", 1, [1], None])
def test_a_mark_that_says_nothing(wrong: Any) -> None:
    with pytest.raises(AgentDefinitionError, match="needs_approval"):
        MCPServer(command="x", needs_approval=wrong)
    with pytest.raises(AgentDefinitionError, match="needs_approval"):
        Skills("x", needs_approval=wrong)
