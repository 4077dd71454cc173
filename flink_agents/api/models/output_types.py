"""Types of answers that a library has in a form of its own: each is described by a Python type.

PyFlink has the types of rows, for example. Who asks a model for such an answer finds here what the model is
told, and how the answer becomes an object of the library, without an import of the library.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

DESCRIBED_BY: Mapping[str, str] = {"pyflink": "flink_agents.runtime.flink.row_outputs:described_row"}
"""For each library a function, as ``module:qualname``: it is given a type, and returns its description."""


@dataclass(frozen=True)
class DescribedType:
    """A type of a library.

    Attributes:
        kind: A Python type that pydantic describes, with the same fields.
        make: Makes an object of the library of a value of ``kind``.
    """

    kind: Any
    make: Callable[[Any], Any]


def described(kind: Any) -> DescribedType | None:
    """What describes ``kind``; None where pydantic itself has to.

    Raises:
        AgentConfigurationError: The library has such a type, and no Python type describes it.
    """
    owner = kind if isinstance(kind, type) else type(kind)
    reference = DESCRIBED_BY.get(owner.__module__.partition(".")[0])
    if reference is None:
        return None
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)(kind)
