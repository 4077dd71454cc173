"""Types of answers from libraries, such as PyFlink's rows: a Python type describes each.

The Python type defines the schema for a model, and a function converts the answer to an object of the
library. The library is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flink_agents.api.common.providers import LateFunction

DESCRIBED_BY: Mapping[str, LateFunction] = {"pyflink": LateFunction()}
"""Functions by the library's import name: each returns the :class:`DescribedType` of a type."""


@dataclass(frozen=True)
class DescribedType:
    """A type of a library, as a Python type and a conversion.

    Attributes:
        kind: A Python type with the same fields, which pydantic supports.
        make: Converts a value of ``kind`` to an object of the library.
    """

    kind: Any
    make: Callable[[Any], Any]


def described(kind: Any) -> DescribedType | None:
    """Return the description of a type, or of an object that stands for one; None if no library describes it.

    Args:
        kind: The author's type, such as ``RowTypeInfo`` of PyFlink with names.

    Raises:
        AgentConfigurationError: It is a type of the library that no Python type can describe.
    """
    owner = kind if isinstance(kind, type) else type(kind)
    describe = DESCRIBED_BY.get(owner.__module__.partition(".")[0])
    return None if describe is None else describe(kind)
