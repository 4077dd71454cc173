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
from flink_agents.models.setup.descriptions import configured
from flink_agents.models.tools.skills.library import SkillLibrary
from flink_agents.models.tools.skills.scripts import ScriptRunner
from flink_agents.models.tools.skills.tools import SkillSet

_log = bounded_logger("flink_agents.skills")

Source = tuple[SkillLibrary, ScriptRunner | None]


class SkillsResource:
    """Skills of an agent, in one subtask. Their first use reads them; later changes have no effect.

    Args:
        declared: Its declaration.
    """

    def __init__(self, declared: DeclaredResource) -> None:
        self.name = declared.name
        self._declared = declared
        self._source: Source | None = None

    def source(self, ctx: RunnerContext) -> Source:
        """Return the skills, and the runner of their scripts.

        Raises:
            SkillError: They do not exist, or one of them is invalid.
        """
        if self._source is None:
            spec = configured(SkillsSpec, AgentOptions.SKILLS, self._declared, ctx.config)
            self._source = opened(self.name, spec)
        return self._source


def opened(name: str, spec: SkillsSpec) -> Source:
    """Read skills.

    Args:
        name: Name of the resource, for errors.
        spec: Description of the skills.

    Raises:
        SkillError: They do not exist, or one of them is invalid.
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
    """Replace names of skills by their tools.

    Args:
        ctx: The context of the action.
        tools: The tools of a conversation, including names of skills.
        skills: More names of skills.

    Returns:
        The tools, and the instructions about the skills; None if there are no skills.

    Raises:
        ResourceNotFoundError: A name is neither a tool nor skills of the agent.
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
    """Return True if a name is that of skills. A tool of the agent with the same name takes precedence."""
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
