"""Calls that an event asks for: of tools, of skills and of servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mcp_agents import Counts, served
from skill_folders import skill, write

from flink_agents import (
    Agent,
    InputEvent,
    MCPServer,
    OutputEvent,
    RequestedCall,
    RunnerContext,
    Skills,
    ToolRequestEvent,
    ToolResponseEvent,
    action,
)
from flink_agents.testing import OperatorHarness

pytestmark = pytest.mark.own_conditions

Make = Callable[..., OperatorHarness]


class Sources(Agent):
    """Leaves the calls of a tool, of skills and of a server to the built-in action."""

    def __init__(self, skills: str, url: str) -> None:
        self.add_resource("double", "tool", double)
        self.add_resource("manuals", "skills", Skills(skills))
        self.add_resource("shop", "mcp_server", MCPServer(url=url))

    @action(InputEvent)
    def ask(self, event: InputEvent, ctx: RunnerContext) -> ToolRequestEvent:
        calls = [RequestedCall(name=name, arguments=arguments) for name, arguments in event.input]
        return ToolRequestEvent(calls=tuple(calls), tools=("manuals", "shop"))

    @action(ToolResponseEvent)
    def told(self, event: ToolResponseEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=[(result.name, result.kind, result.content) for result in event.results])


def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


def test_tools_of_skills_and_servers(agent_harness: Make, tmp_path: Path) -> None:
    counts = Counts(tmp_path)
    calls = [
        ("double", {"number": 4}),
        ("load_skill", {"skill": "wrap"}),
        ("price_of", {"item": "tea"}),
        ("no_such_tool", {}),
    ]
    write(tmp_path / "skills", skill("wrap"))
    with served(counts, "http") as server:
        harness = agent_harness(Sources(str(tmp_path / "skills"), server.url), crash="everywhere")
        ((first, second, third, fourth),) = harness.push(calls)
    assert first == ("double", "success", 8)
    assert second == ("load_skill", "success", {"instructions": "Do it."})
    assert third == ("price_of", "success", 7.5)
    assert fourth[:2] == ("no_such_tool", "retry") and "'double'" in fourth[2]
    assert counts.done == {"price_of tea": 1}
