"""Provides skills. It imports no model library before skills are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from flink_agents.api.resource_providers import DeclaredResource, ResourceProvider
from flink_agents.api.skills import SkillsSpec
from flink_agents.models.setup.descriptions import read_description
from flink_agents.models.setup.extras import check_installed

if TYPE_CHECKING:
    from flink_agents.models.tools.skills.resource import SkillsResource


class SkillsProvider(ResourceProvider):
    """Provides resources of the kind ``skills``."""

    @override
    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        read_description(SkillsSpec, arguments)

    @override
    def load(self) -> None:
        check_installed("", "a resource of skills")
        import flink_agents.models.tools.skills.resource  # noqa: F401

    @override
    def provide(self, declared: DeclaredResource) -> SkillsResource:
        check_installed("", f"the skills {declared.name!r}")
        from flink_agents.models.tools.skills.resource import SkillsResource

        return SkillsResource(declared)
