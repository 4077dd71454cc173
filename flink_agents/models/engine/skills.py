"""Skills for Pydantic AI agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from flink_agents.api.models.skills import Skills, SkillsSpec
from flink_agents.models.setup.descriptions import read_configured
from flink_agents.models.tools.skills.resource import opened
from flink_agents.models.tools.skills.tools import SkillSet


def skills_toolset(skills: Skills | Mapping[str, Any], *, id: str = "skills") -> AbstractToolset[Any]:
    """Make a toolset of skills for a Pydantic AI agent.

    ``Agent(..., toolsets=[skills_toolset(Skills("skills"))], capabilities=[FlinkDurability()])`` describes
    the skills to the model and adds their tools. Each of their calls is a durable step. Scripts that need
    approval require ``FlinkDurability(approvals=True)``, whose ``approval_timeout`` applies.

    Args:
        skills: The skills, as for an agent on a stream. They are read at once.
        id: Identity of the toolset within its agent.

    Raises:
        SkillError: They do not exist, or one of them is invalid.
        OptionError: The description is invalid.
    """
    arguments = skills.arguments if isinstance(skills, Skills) else skills
    given = SkillSet([opened(id, read_configured(SkillsSpec, arguments, id))])
    made = FunctionToolset[Any](given.functions, id=id, instructions=given.instructions)
    if not any(tool.settings.needs_approval for tool in given.tools):
        return made
    return made.approval_required(
        lambda ctx, tool, arguments: tool.name == "run_script" and given.needs_approval(arguments)
    )
