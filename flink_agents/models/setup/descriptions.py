"""Reads what descriptions say of resources, and what the options of a job say in place of that."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from flink_agents.api.common.option_values import ConfigOption
from flink_agents.api.errors import OptionError
from flink_agents.api.models.chat import problem
from flink_agents.api.settings.options import Configuration

D = TypeVar("D", bound=BaseModel)


def read_description(kind: type[D], arguments: Mapping[str, Any]) -> D:
    """What a description says.

    Raises:
        ValueError: It says something that is not known, or does not fit. No value is shown: it may be secret.
    """
    try:
        return kind.model_validate(dict(arguments))
    except ValidationError as error:
        raise ValueError(f"{problem(error)}; there is {', '.join(kind.model_fields)}") from None


def read_configured(kind: type[D], arguments: Mapping[str, Any], name: str) -> D:
    """The same, where options of the job may be the reason.

    Raises:
        OptionError: An option does not fit.
    """
    try:
        return read_description(kind, arguments)
    except ValueError as error:
        raise OptionError(
            f"an option of the job for the resource {name!r} does not fit",
            found=str(error),
            fix="correct the option",
        ) from None


def overridden(
    option: ConfigOption[dict[str, Any]],
    name: str,
    arguments: Mapping[str, Any],
    fields: Collection[str],
    config: Configuration,
) -> dict[str, Any]:
    """``arguments`` with what the entries of ``option`` for the resource ``name`` say in their place.

    The name of an environment variable has neither case nor dots: ``WORDS_MODEL`` is ``words.model``.

    Args:
        option: The option that has entries for resources of this kind.
        name: Name of the resource.
        arguments: What its description says.
        fields: What can be said about it.
        config: The options of the job.

    Raises:
        OptionError: An entry names something else.
    """
    said = dict(arguments)
    start = re.sub(r"\W", "_", name).lower() + "_"
    for entry, value in config.below(option.key).items():
        if entry.startswith(f"{name}."):
            field = entry[len(name) + 1 :].replace("-", "_")
            if field not in fields:
                raise OptionError(
                    f"the option {option.key}.{entry} names nothing that can be said",
                    expected="one of " + ", ".join(sorted(fields)),
                    found=field,
                    fix="correct its name, or leave it out",
                )
            said[field] = value
        elif "." not in entry and entry.startswith(start) and entry[len(start) :] in fields:
            said[entry[len(start) :]] = value
    return said
