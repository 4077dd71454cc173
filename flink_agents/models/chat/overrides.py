"""Options of a job that override the description of a chat model."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from flink_agents.api.errors import OptionError
from flink_agents.api.models.chat import ChatModelSpec, problem
from flink_agents.api.settings.options import AgentOptions, Configuration


def overridden(name: str, spec: ChatModelSpec, config: Configuration) -> ChatModelSpec:
    """Return ``spec``, overridden by the options ``chat-models.NAME.*``.

    Raises:
        OptionError: An option is unknown, or its value is invalid.
    """
    key = AgentOptions.CHAT_MODELS.key
    said = spec.model_dump(mode="json", exclude_unset=True)
    changed = False
    for entry, value in config.below(key).items():
        field = _field_of(entry, name)
        if field is None:
            continue
        *outer, last = field.split(".")
        within: dict[str, Any] = said
        for part in outer:
            within = within.setdefault(part, {})
        within[last] = value
        changed = True
    if not changed:
        return spec
    try:
        return ChatModelSpec.model_validate(said)
    except ValidationError as error:
        raise OptionError(
            f"the options below {key}.{name} are invalid for a chat model",
            expected="options such as model, base_url, max_concurrency or limits.requests",
            found=problem(error),
            fix="correct the option; docs/models.md lists the options of a chat model",
        ) from None


def _field_of(entry: str, name: str) -> str | None:
    """Return the field that an entry sets for the chat model ``name``; None if it is for another model.

    Environment variables have upper-case names without dots: ``ANALYST_MODEL`` is ``analyst.model``.
    """
    if entry.startswith(f"{name}."):
        return entry[len(name) + 1 :].replace("-", "_")
    start = re.sub(r"\W", "_", name).lower() + "_"
    if "." in entry or not entry.startswith(start):
        return None
    rest = entry[len(start) :]
    if rest.startswith("limits_"):
        return rest.replace("_", ".", 1)
    return rest if rest in ChatModelSpec.model_fields else None
