"""Reads the options of a store of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flink_agents.api.errors import OptionError
from flink_agents.api.options import options_below
from flink_agents.api.store_names import CLIENT_OPTIONS, STORE_PREFIX


def read_options(store: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each option that ``AgentOptions`` has of ``store``, by its name there.

    What goes to Kafka's client as it is, is left out.

    Args:
        store: Name of the store. An option without a default must be given.
        given: What the job sets, without the prefix. Values may be texts, or parsed already.

    Raises:
        OptionError: An option is unknown, missing, or has a value that does not fit.
    """
    known = options_below(STORE_PREFIX + store)
    free = CLIENT_OPTIONS.removeprefix(f"{STORE_PREFIX}{store}.")
    unknown = sorted(name for name in set(given) - set(known) if not name.startswith(free))
    if unknown:
        raise OptionError(
            f"store {store!r} has no option {unknown[0]!r}",
            expected=f"one of {', '.join(sorted(known))}",
            found=", ".join(unknown),
            fix="correct its name, or leave it out",
        )
    values: dict[str, Any] = {}
    for name, option in known.items():
        if name in given:
            values[name] = option.parse(given[name])
        elif option.default is None:
            raise OptionError(f"store {store!r} needs its option {option.key!r}", fix=option.doc)
        else:
            values[name] = option.default
    return values
