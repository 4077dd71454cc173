"""Skills as a resource of an agent, and the tools by which models of its conversations use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic_ai.exceptions import ModelRetry

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import DuplicateNameError, ResourceNotFoundError
from flink_agents.api.models.skills import SkillsSpec
from flink_agents.api.resources import ResourceType, Tool
from flink_agents.api.resources.providers import DeclaredResource
from flink_agents.api.settings.options import AgentOptions
from flink_agents.models.setup.descriptions import configure_description
from flink_agents.models.tools.calls import OutcomeUnknown
from flink_agents.models.tools.skills.library import Skill, SkillLibrary, SkillRefusal
from flink_agents.models.tools.skills.scripts import ScriptRunner

_SHOWN_OUTPUT = 500
"""Number of characters from the end of an output that an error shows."""

_INTRODUCTION = (
    "You have skills: instructions for tasks of a kind. Before you do a task that the description of a skill "
    "fits, load the skill by load_skill, and follow what it says."
)


class SkillSet:
    """The skills of one conversation, of one source or several.

    Args:
        sources: The skills and the script runner of each source; None if its scripts must not run.

    Raises:
        DuplicateNameError: Two sources have a skill with the same name.
    """

    def __init__(self, sources: Sequence[tuple[SkillLibrary, ScriptRunner | None]]) -> None:
        self._skills: dict[str, tuple[Skill, ScriptRunner | None]] = {}
        for library, runner in sources:
            for name, skill in library.items():
                if name in self._skills:
                    raise DuplicateNameError(
                        f"a model got two skills {name!r}",
                        expected="skills of different names",
                        found=f"{self._skills[name][0].tree.place} and {skill.tree.place}",
                        fix="leave one out: Skills(..., only=[...])",
                    )
                self._skills[name] = (skill, runner)

    @property
    def instructions(self) -> str:
        """The instructions for a model about the skills: the name and the purpose of each."""
        lines = [
            f"- {name}: {' '.join(skill.description.split())}" for name, (skill, _) in self._skills.items()
        ]
        return "\n".join([_INTRODUCTION, *lines])

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The functions that a model can call to use the skills. Their results have to be recorded."""
        skills = [skill for skill, _ in self._skills.values()]
        functions: list[Callable[..., Any]] = [self.load_skill]
        if any(skill.files for skill in skills):
            functions.append(self.read_skill_file)
        if any(skill.scripts for skill, runner in self._skills.values() if runner is not None):
            functions.append(self.run_script)
        return functions

    @property
    def tools(self) -> list[Tool]:
        """The functions as tools of a conversation; ``run_script`` may need an approval."""
        limits = [runner.limits for _, runner in self._skills.values() if runner is not None]
        approval_limits = [source_limits for source_limits in limits if source_limits.needs_approval]
        if not approval_limits:
            return [Tool(function) for function in self.functions]
        # It is one tool for all sources, so the shortest timeout applies.
        timeouts = (source_limits.approval_timeout for source_limits in approval_limits)
        shortest = min(filter(None, timeouts), default=None)
        run_script = Tool(self.run_script, needs_approval=self.needs_approval, approval_timeout=shortest)
        return [run_script if function == self.run_script else Tool(function) for function in self.functions]

    def needs_approval(self, arguments: Mapping[str, Any]) -> bool:
        """Return True if a call of :meth:`run_script` with these arguments needs an approval."""
        _, runner = self._skills.get(arguments["skill"], (None, None))
        if runner is None:
            return False
        return not runner.limits.is_approved(f"{arguments['skill']}/{arguments['script']}")

    async def load_skill(self, skill: str) -> dict[str, Any]:
        """Read the instructions of a skill, and which files and scripts it has.

        Args:
            skill: Name of the skill.
        """
        loaded_skill, runner = self._find_skill(skill)
        scripts = [] if runner is None else loaded_skill.scripts
        listed = {"files": loaded_skill.files, "scripts": scripts}
        return {"instructions": loaded_skill.text, **{name: paths for name, paths in listed.items() if paths}}

    async def read_skill_file(self, skill: str, path: str) -> str:
        """Read a file of a skill.

        Args:
            skill: Name of the skill.
            path: The file, as load_skill lists it.
        """
        loaded_skill, _ = self._find_skill(skill)
        try:
            return loaded_skill.find_file(path, [*loaded_skill.files, *loaded_skill.scripts]).decode("utf-8")
        except UnicodeDecodeError:
            raise ModelRetry(
                f"{path!r} of the skill {skill!r} is not text; only scripts can read it."
            ) from None
        except SkillRefusal as refusal:
            raise ModelRetry(str(refusal)) from None

    async def run_script(self, skill: str, script: str, arguments: list[str] | None = None) -> dict[str, Any]:
        """Run a script of a skill in a copy of its folder. Returns its exit code and its outputs.

        Args:
            skill: Name of the skill.
            script: The script, as load_skill lists it.
            arguments: Its arguments, one after the other.
        """
        loaded_skill, runner = self._find_skill(skill)
        if runner is None:
            raise ModelRetry(f"scripts of the skill {skill!r} cannot be run here.")
        try:
            result = await runner.run_script(loaded_skill, script, arguments or [])
        except SkillRefusal as refusal:
            raise ModelRetry(str(refusal)) from None
        if "killed" in result and not runner.limits.is_idempotent(f"{skill}/{script}"):
            ends = {name: result[name][-_SHOWN_OUTPUT:] for name in ("stdout", "stderr") if result[name]}
            output_text = "".join(f"; {name}: {end}" for name, end in ends.items())
            raise OutcomeUnknown(f"the script was killed: {result['killed']}{output_text}")
        return result

    def _find_skill(self, name: str) -> tuple[Skill, ScriptRunner | None]:
        """Return a skill and the runner of its scripts; ModelRetry if there is no skill of that name."""
        if name not in self._skills:
            raise ModelRetry(f"There is no skill {name!r}. There is {', '.join(map(repr, self._skills))}.")
        return self._skills[name]


_log = bounded_logger("flink_agents.skills")

Source = tuple[SkillLibrary, ScriptRunner | None]
"""The skills of one source, and the runner of their scripts; None if scripts must not run."""


class SkillsResource:
    """Skills of an agent, in one subtask. Their first use reads them; later changes have no effect.

    Args:
        declared: The resource as its author declared it.
    """

    def __init__(self, declared: DeclaredResource) -> None:
        self.name = declared.name
        self._declared = declared
        self._source: Source | None = None

    def source(self, ctx: RunnerContext) -> Source:
        """Return the skills and the runner of their scripts; the first call reads them.

        Args:
            ctx: A context of the job, whose options may override the description.

        Raises:
            SkillError: They do not exist, or one of them is invalid.
        """
        if self._source is None:
            spec = configure_description(SkillsSpec, AgentOptions.SKILLS, self._declared, ctx.config)
            self._source = open_skills(self.name, spec)
        return self._source


def open_skills(name: str, spec: SkillsSpec) -> Source:
    """Read skills, log what was read and what was left out, and return them.

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
        tools: The tools of a conversation, among them names of resources of skills.
        skills: More names of resources of skills.

    Returns:
        The tools, and the instructions about the skills; None if there are no skills.

    Raises:
        ResourceNotFoundError: A name is neither a tool nor skills of the agent.
        SkillError: Skills cannot be read.
    """
    resource_names = dict.fromkeys(skills)
    other_tools: list[Any] = []
    for tool in tools:
        if isinstance(tool, str) and _is_skills(ctx, tool):
            resource_names[tool] = None
        else:
            other_tools.append(tool)
    if not resource_names:
        return other_tools, None
    resources = [ctx.get_resource(name, ResourceType.SKILLS) for name in resource_names]
    skill_set = SkillSet([resource.source(ctx) for resource in resources])
    return [*other_tools, *skill_set.tools], skill_set.instructions


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
