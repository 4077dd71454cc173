"""Folders of skills that tests write, and an agent that has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flink_agents import Agent, ChatModel, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.models.skills import SkillsSpec
from flink_agents.models.tools.skills.resource import SkillSet, open_skills
from flink_agents.testing.models import ScriptedModel

SCRIPT: list[ScriptedModel] = []

REFUND = """---
name: refund
description: Says how much of an order is paid back. Use it for complaints.
license: none
---
# Refunds

Run `scripts/share.py` with the sum. `references/rules.txt` has the rules.
"""

SHARE = """
import os, sys
from pathlib import Path
with open(os.environ["CALLS"], "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
print(float(sys.argv[1]) * float(Path("references/rules.txt").read_text()))
"""


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a folder, and return it."""
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def refund(folder: Path) -> Path:
    """Write the skill ``refund``; returns the folder of the skills."""
    files = {"SKILL.md": REFUND, "scripts/share.py": SHARE, "references/rules.txt": "0.5"}
    write(folder / "refund", files)
    return folder


def skill(name: str, **files: str) -> dict[str, str]:
    """The files of a skill whose scripts are given by name, without their ending."""
    scripts = {f"{name}/scripts/{script}.py": text for script, text in files.items()}
    return {f"{name}/SKILL.md": f"---\nname: {name}\ndescription: Does {name}.\n---\nDo it.", **scripts}


def skill_set(path: Path | str, **said: Any) -> SkillSet:
    """The skills of a path."""
    return SkillSet([open_skills("ours", SkillsSpec(path=str(path), **said))])


def model() -> Any:
    """The model that the test has put there."""
    return SCRIPT[0]


class Clerk(Agent):
    """Gives the skills ``office`` to each conversation, or those that the chat model names itself."""

    agent_name = "Clerk"

    def __init__(self, named: bool = False) -> None:
        self.named = named
        skills = ["office"] if named else []
        self.add_resource("main", "chat_model", ChatModel(clazz="skill_folders:model", skills=skills))

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        tools = [] if self.named else ["office"]
        result = await ctx.chat("main", event.input, tools=tools)
        contents = [
            part.content
            for message in result.messages
            for part in message.parts
            if part.part_kind == "tool-return"
        ]
        return OutputEvent(output=contents)
