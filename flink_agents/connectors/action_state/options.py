"""Reads the options of a store that declares them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flink_agents.api.common.option_values import ConfigOption
from flink_agents.api.errors import OptionError
from flink_agents.api.settings.stores import STORE_PREFIX, options_of_store


def read_options(store: str, job_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each option of ``store``, by its name without the prefix.

    Args:
        store: Name of the store. An option without a default is required, unless it is a mapping of entries.
        job_options: The options that the job sets, without the prefix. Values are strings or already parsed.

    Raises:
        OptionError: An option is unknown, missing or invalid.
    """
    prefix = f"{STORE_PREFIX}{store}."
    options = {key.removeprefix(prefix): option for key, option in (options_of_store(store) or {}).items()}
    groups = tuple(f"{name}." for name, option in options.items() if option.type is dict)
    unknown = sorted(name for name in set(job_options) - set(options) if not name.startswith(groups))
    if unknown:
        raise OptionError(
            f"store {store!r} has no option {unknown[0]!r}",
            expected=f"one of {', '.join(sorted(options))}",
            found=", ".join(unknown),
            fix="correct its name, or remove it",
        )
    return {name: _value(name, option, store, job_options) for name, option in options.items()}


def _value(name: str, option: ConfigOption[Any], store: str, job_options: Mapping[str, Any]) -> Any:
    if option.type is dict:
        entries = {
            key.removeprefix(f"{name}."): value
            for key, value in job_options.items()
            if key.startswith(f"{name}.")
        }
        return {**option.parse(job_options.get(name, {})), **entries}
    if name in job_options:
        return option.parse(job_options[name])
    if option.default is None:
        raise OptionError(f"store {store!r} needs its option {option.key!r}", fix=option.doc)
    return option.default
