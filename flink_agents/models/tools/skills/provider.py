"""Provides skills. It imports a model library only when skills are requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from flink_agents.api.models.skills import SkillsSpec
from flink_agents.api.resources.providers import CheckedOptions, DeclaredResource, ResourceProvider
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.models.setup.classes import check_ready
from flink_agents.models.setup.descriptions import checked_options, configure_description, read_description
from flink_agents.models.setup.extras import check_installed

if TYPE_CHECKING:
    from flink_agents.models.tools.skills.resource import SkillsResource


class SkillsProvider(ResourceProvider):
    """Provides resources of the kind ``skills``."""

    @override
    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        read_description(SkillsSpec, arguments)

    @override
    def check_options(self, declared: DeclaredResource, config: Configuration) -> CheckedOptions:
        configure_description(SkillsSpec, AgentOptions.SKILLS, declared, config)
        return checked_options(AgentOptions.SKILLS, declared.name, SkillsSpec.model_fields, config)

    @override
    def load(self) -> None:
        check_installed("", "a resource of skills")
        import flink_agents.models.tools.skills.resource  # noqa: F401

    @override
    def check_worker(self, declared: DeclaredResource, config: Configuration) -> None:
        spec = configure_description(SkillsSpec, AgentOptions.SKILLS, declared, config)
        values = spec.model_dump(mode="json", exclude_unset=True)
        check_ready(f"the skills {declared.name!r}", "", values)

    @override
    def provide(self, declared: DeclaredResource) -> SkillsResource:
        check_installed("", f"the skills {declared.name!r}")
        from flink_agents.models.tools.skills.resource import SkillsResource

        return SkillsResource(declared)
