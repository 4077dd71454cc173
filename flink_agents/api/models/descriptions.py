"""Checks the descriptions of resources, whose fields are the options that authors pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from flink_agents.api.common.places import caller_place
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.errors.base import suggest


def two_makers(arguments: Mapping[str, Any], clazz: Any) -> str | None:
    """Return the arguments that describe a chat model twice, as ``model and clazz``; None if none do."""
    maker_names = [name for name in ("model", "router") if arguments.get(name)] + ["clazz"] * bool(clazz)
    return " and ".join(maker_names) if "clazz" in maker_names and len(maker_names) > 1 else None


def written(
    kind: type[BaseModel], options: Mapping[str, Any], what: str, page: str = "docs/models.md"
) -> dict[str, Any]:
    """Return an author's options as JSON values, if they are valid fields of a description.

    Args:
        kind: The class of the description, whose fields are the options.
        options: The options by name; other options are not in the result.
        what: The resource in words, for the error.
        page: The page of the documentation that describes the fields.

    Raises:
        AgentDefinitionError: A field is unknown, or its value is invalid.
    """
    try:
        return kind.model_validate(dict(options)).model_dump(mode="json", exclude_unset=True)
    except ValidationError as error:
        raise AgentDefinitionError(
            f"{what} has an invalid description",
            expected=f"the options that {page} describes",
            found=problem(error),
            fix=_field_fix(kind, error),
            where=caller_place(1),
        ) from None


def _field_fix(kind: type[BaseModel], error: ValidationError) -> str:
    """Return the fix for the first problem: a similar name if an option of ``kind`` is unknown."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] != "extra_forbidden" or len(first["loc"]) != 1:
        return "correct the option"
    otherwise = "remove it"
    if "settings" in kind.model_fields:
        otherwise += "; settings for the provider, such as a temperature, belong in settings={...}"
    return suggest(str(first["loc"][0]), kind.model_fields, otherwise)


def problem(error: ValidationError) -> str:
    """Return the first problem of a validation, ``field: message``, without the value: it may be a secret."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
