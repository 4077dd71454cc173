"""Types of outputs as texts in a plan, and back."""

from __future__ import annotations

import builtins
import inspect
from typing import Any

from flink_agents.api.errors import FunctionReferenceError
from flink_agents.plan.model import FunctionRef


def type_text(declared: Any) -> str:
    """``declared`` as text: ``module:qualname`` of a class, a built-in's name, else its repr."""
    if declared is None or declared is type(None):
        return "None"
    if inspect.isclass(declared) and not getattr(declared, "__args__", None):
        if declared.__module__ == "builtins":
            return declared.__qualname__
        return str(FunctionRef.of(declared))
    return repr(declared)


def type_from_text(text: str) -> Any:
    """The type that :func:`type_text` wrote.

    Raises:
        FunctionReferenceError: The class cannot be imported, or the text is no plain class.
    """
    if text == "None":
        return None
    if isinstance(getattr(builtins, text, None), type):
        return getattr(builtins, text)
    if ":" in text:
        return FunctionRef.parse(text).resolve()
    raise FunctionReferenceError(
        f"the type {text!r} cannot be read from a plan",
        expected="a built-in type or module:Class",
        found=text,
        fix="use a class, for example a pydantic model with such a field",
    )
