"""Places in the author's files, for error texts."""

from __future__ import annotations

import inspect

from flink_agents.api.decorators import short_path
from flink_agents.api.errors import AgentDefinitionError


def place_of_class(target: type) -> str:
    """``file:line in Class``, or the full name where the source is not at hand."""
    name = target.__qualname__
    try:
        _, line = inspect.getsourcelines(target)
        path = inspect.getsourcefile(target) or inspect.getfile(target)
    except (OSError, TypeError):
        return f"{target.__module__}.{name}"
    return f"{short_path(path)}:{line} in {name}"


def at(error: AgentDefinitionError, where: str | None) -> AgentDefinitionError:
    """The same error at another place: where the author wrote what is wrong."""
    return type(error)(
        error.message, expected=error.expected, found=error.found, fix=error.fix, where=where or error.where
    )
