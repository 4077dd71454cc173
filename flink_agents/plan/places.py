"""Places in the author's files, for error texts."""

from __future__ import annotations

from flink_agents.api.errors import AgentDefinitionError


def at(error: AgentDefinitionError, where: str | None) -> AgentDefinitionError:
    """The same error at another place: where the author wrote what is wrong."""
    return type(error)(
        error.message, expected=error.expected, found=error.found, fix=error.fix, where=where or error.where
    )
