"""Skills as authors declare them: plain data, free of model libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypedDict, Unpack

from pydantic import Field, model_validator

from flink_agents.api.common.policies import RateLimit
from flink_agents.api.models.chat import Public, Secret
from flink_agents.api.models.descriptions import written
from flink_agents.api.resources import ResourceDescriptor
from flink_agents.api.settings import ToolSourceLimits


class SkillsSpec(ToolSourceLimits):
    """The description of skills. ``docs/skills.md`` explains each field."""

    path: str | None = Field(default=None, min_length=1, description="A folder, or a zip file.")
    package: str | None = Field(
        default=None,
        pattern=r"^\w+(\.\w+)*$",
        description="A package that is installed on the workers; path is inside of it.",
    )
    only: tuple[str, ...] = Field(default=(), description="Names of the skills to use. Default: all.")
    scripts: bool = Field(default=True, description="True if scripts may run.")
    timeout: float = Field(default=60.0, gt=0, description="Timeout of a script, in seconds.")
    output_limit: int = Field(
        default=20_000, ge=100, description="Number of bytes that are kept of each of a script's outputs."
    )
    size_limit: int = Field(
        default=16 * 1024 * 1024, ge=1, description="Limit of all files together, in bytes."
    )
    inherit: tuple[str, ...] = Field(
        default=(), description="More variables of the worker that scripts inherit."
    )
    environment: dict[str, str | Secret | Public] = Field(
        default_factory=dict, description="More variables of scripts; secrets by reference."
    )
    max_concurrency: int | None = Field(
        default=4, ge=1, description="Maximum number of scripts at a time in a subtask."
    )

    @model_validator(mode="after")
    def _check_source(self) -> SkillsSpec:
        if self.path is None and self.package is None:
            raise ValueError("skills need a path or a package")
        return self


class SkillsOptions(TypedDict, total=False):
    """Keywords of :class:`Skills`: the fields of :class:`SkillsSpec`."""

    package: str | None
    only: Sequence[str]
    scripts: bool
    timeout: float
    output_limit: int
    size_limit: int
    inherit: Sequence[str]
    environment: Mapping[str, str | Secret | Mapping[str, str]]
    max_concurrency: int | None
    rate_limit: RateLimit | None
    needs_approval: bool | Sequence[str]
    approval_timeout: float | timedelta | None
    idempotent: bool | Sequence[str]


class Skills(ResourceDescriptor):
    """Skills for models, as the result of a ``@skills`` method or an argument of ``add_resource``.

    Args:
        path: A folder of skills, a single skill's folder, or a zip file of such a folder, as a path on the
            workers. With ``package``, a path inside of that package.
        **options: The fields of ``SkillsSpec``.

    Raises:
        AgentDefinitionError: An option is unknown, or its value is invalid.
    """

    def __init__(self, path: str = "", **options: Unpack[SkillsOptions]) -> None:
        all_options = {**options, **({"path": path} if path else {})}
        super().__init__(
            clazz="", **written(SkillsSpec, all_options, "a resource of skills", "docs/skills.md")
        )
