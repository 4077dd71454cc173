"""Skills as a resource of an agent, for its conversations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import ResourceNotFoundError
from flink_agents.api.models.skills import SkillsSpec
from flink_agents.api.resources import ResourceType
from flink_agents.api.resources.providers import DeclaredResource
from flink_agents.api.settings.options import AgentOptions
from flink_agents.models.setup.descriptions import overridden, read_configured
from flink_agents.models.tools.skills.library import SkillLibrary
from flink_agents.models.tools.skills.scripts import ScriptRunner
from flink_agents.models.tools.skills.tools import SkillSet

_log = bounded_logger("flink_agents.skills")

Source = tuple[SkillLibrary, ScriptRunner | None]


class SkillsResource:
    """Skills of an agent, in one subtask. They are read at their first use, and stay as they are then.

    Args:
        declared: What its author declared.
    """

    def __init__(self, declared: DeclaredResource) -> None:
        self.name = declared.name
        self._declared = declared
        self._source: Source | None = None

    def source(self, ctx: RunnerContext) -> Source:
        """The skills, and what runs their scripts.

        Raises:
            SkillError: They are not there, or one of them is no skill.
        """
        if self._source is None:
            arguments = self._declared.arguments
            fields = SkillsSpec.model_fields
            said = overridden(AgentOptions.SKILLS, self.name, arguments, fields, ctx.config)
            self._source = opened(self.name, read_configured(SkillsSpec, said, self.name))
        return self._source


def opened(name: str, spec: SkillsSpec) -> Source:
    """Read skills.

    Args:
        name: Name of the resource, for errors.
        spec: What is said of them.

    Raises:
        SkillError: They are not there, or one of them is no skill.
    """
    library = SkillLibrary(spec)
    _log.info("skills %r: %s, digest %s", name, ", ".join(library), library.digest)
    for skill in library.values():
        for path, reason in skill.tree.refused.items():
            _log.warning("skills %r: %s of %s is left out, %s", name, path, skill.name, reason)
    return library, ScriptRunner(f"the skills {name!r}", spec) if spec.scripts else None


def with_skills(
    ctx: RunnerContext, tools: Iterable[Any], skills: Iterable[str] = ()
) -> tuple[list[Any], str | None]:
    """Put the tools of skills in the place of their names.

    Args:
        ctx: The context of the action.
        tools: What a conversation is given, names of skills among it.
        skills: More names of skills.

    Returns:
        The tools, and what the model is told of the skills; None where there are none.

    Raises:
        ResourceNotFoundError: The agent has neither a tool nor skills of a name.
        SkillError: Skills cannot be read.
    """
    named = list(dict.fromkeys(skills))
    others: list[Any] = []
    for one in tools:
        if isinstance(one, str) and _is_skills(ctx, one):
            named += [one] * (one not in named)
        else:
            others.append(one)
    if not named:
        return others, None
    resources = [ctx.get_resource(name, ResourceType.SKILLS) for name in named]
    given = SkillSet([resource.source(ctx) for resource in resources])
    return [*others, *given.tools], given.instructions


def _is_skills(ctx: RunnerContext, name: str) -> bool:
    """Whether a name is that of skills; the agent may have a tool of the same name, which goes first."""
    try:
        ctx.get_resource(name, ResourceType.TOOL)
    except ResourceNotFoundError:
        pass
    else:
        return False
    try:
        return isinstance(ctx.get_resource(name, ResourceType.SKILLS), SkillsResource)
    except ResourceNotFoundError:
        return False
