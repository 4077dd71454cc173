"""Reads descriptions of resources, and the options of a job that override them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from flink_agents.api.common.option_values import ConfigOption
from flink_agents.api.errors import OptionError
from flink_agents.api.errors.base import suggest
from flink_agents.api.models.descriptions import problem
from flink_agents.api.resources.providers import CheckedOptions, DeclaredResource
from flink_agents.api.settings.options import Configuration

D = TypeVar("D", bound=BaseModel)


def read_description(kind: type[D], arguments: Mapping[str, Any]) -> D:
    """Return a description of class ``kind``, parsed from the arguments of a descriptor.

    Raises:
        ValueError: A field is unknown or invalid. The message has no values: they may be secret.
    """
    try:
        return kind.model_validate(dict(arguments))
    except ValidationError as error:
        raise ValueError(f"{problem(error)}; known are {', '.join(kind.model_fields)}") from None


def read_configured(kind: type[D], arguments: Mapping[str, Any], name: str) -> D:
    """Return a description, parsed from arguments that options of the job may have changed.

    Args:
        kind: The class of the description.
        arguments: JSON values by field.
        name: Name of the resource, for the error.

    Raises:
        OptionError: A field is unknown or invalid.
    """
    try:
        return read_description(kind, arguments)
    except ValueError as error:
        raise OptionError(
            f"an option of the job for the resource {name!r} is invalid",
            found=str(error),
            fix="correct the option",
        ) from None


def configure_description(
    kind: type[D], option: ConfigOption[dict[str, Any]], declared: DeclaredResource, config: Configuration
) -> D:
    """Return the description of a resource, overridden by the options of the job.

    Args:
        kind: The class of the description.
        option: The option of type ``dict`` that has entries for resources of this kind.
        declared: The resource as its author declared it.
        config: The options of the job.

    Raises:
        OptionError: An option is unknown or invalid.
    """
    values = override_arguments(option, declared.name, declared.arguments, kind.model_fields, config)
    return read_configured(kind, values, declared.name)


def override_arguments(
    option: ConfigOption[dict[str, Any]],
    name: str,
    arguments: Mapping[str, Any],
    fields: Collection[str],
    config: Configuration,
) -> dict[str, Any]:
    """Return ``arguments``, overridden by the entries of ``option`` for the resource ``name``.

    Args:
        option: The option of type ``dict`` that has entries for resources of this kind.
        name: Name of the resource.
        arguments: The author's description, as JSON values by field.
        fields: Names of all fields of such a description.
        config: The options of the job.

    Raises:
        OptionError: An entry names an unknown field.
    """
    values = dict(arguments)
    for field, value in configured_fields(option, name, fields, config):
        if field not in fields:
            raise unknown_field(option, name, field, fields)
        values[field] = value
    return values


def unknown_field(
    option: ConfigOption[dict[str, Any]], name: str, field: str, fields: Collection[str]
) -> OptionError:
    """Return the error about an option for a resource that names no field of its description.

    Args:
        option: The option of type ``dict`` that has entries for resources of this kind.
        name: Name of the resource.
        field: The unknown name.
        fields: Names of all fields of such a description.
    """
    return OptionError(
        f"unknown option {option.key}.{name}.{field}",
        expected="one of " + ", ".join(sorted(fields)),
        found=field,
        fix=suggest(field, fields, "correct its name, or remove it"),
    )


def checked_options(
    option: ConfigOption[dict[str, Any]],
    name: str,
    fields: Collection[str],
    config: Configuration,
    nested: Collection[str] = (),
) -> CheckedOptions:
    """Return the keys of the entries for a resource; the arguments are those of :func:`configured_fields`."""
    entries = {entry for entry, _, _ in _entries_of(option, name, fields, config, nested)}
    return CheckedOptions(option, entries, fields)


def configured_fields(
    option: ConfigOption[dict[str, Any]],
    name: str,
    fields: Collection[str],
    config: Configuration,
    nested: Collection[str] = (),
) -> Iterator[tuple[str, Any]]:
    """Yield the fields that options of a job set for the resource ``name``, with their values.

    Environment variables have upper-case names without dots: ``WORDS_MODEL`` is ``words.model``. A variable
    whose rest is no field may belong to another resource, whose name begins in the same way: it is omitted.

    Args:
        option: The option of type ``dict`` that has entries for resources of this kind.
        name: Name of the resource.
        fields: Names of all fields of such a description.
        config: The options of the job.
        nested: Names of fields that have fields themselves, which become ``limits.requests``.
    """
    for _, field, value in _entries_of(option, name, fields, config, nested):
        yield field, value


def _entries_of(
    option: ConfigOption[dict[str, Any]],
    name: str,
    fields: Collection[str],
    config: Configuration,
    nested: Collection[str],
) -> Iterator[tuple[str, str, Any]]:
    """Yield the key of each entry for a resource, below the option's key, with its field and its value."""
    variable_prefix = re.sub(r"\W", "_", name).lower() + "_"
    for entry, value in config.below(option.key).items():
        if entry.startswith(f"{name}."):
            yield entry, entry.removeprefix(f"{name}.").replace("-", "_"), value
        elif "." not in entry and entry.startswith(variable_prefix):
            field = entry.removeprefix(variable_prefix)
            outer_field, _, inner_field = field.partition("_")
            if outer_field in nested:
                yield entry, f"{outer_field}.{inner_field}", value
            elif field in fields:
                yield entry, field, value
