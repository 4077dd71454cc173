"""Checks what the author of an action says of one conversation, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai.settings import ModelSettings

from flink_agents.api.errors import AgentConfigurationError
from flink_agents.api.models.chat import ConversationOptions, OutputMode, UsageLimits, problem
from flink_agents.api.models.history import ChatTranscript, ConversationHistory

_CORRECT = "correct the option of ctx.chat"
_MODES = tuple(mode.value for mode in OutputMode)


def checked(options: Mapping[str, Any]) -> ConversationOptions:
    """The options of a conversation, those left out that are None.

    Raises:
        AgentConfigurationError: An option is unknown or of a wrong kind.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in _FITS:
            raise _unknown(name)
        expected, fits = _FITS[name]
        if not fits(value):
            raise _wrong(name, expected, f"{type(value).__qualname__} {value!r}"[:200])
    if isinstance(limits := given.get("limits"), Mapping):
        try:
            given["limits"] = UsageLimits.model_validate(limits)
        except ValidationError as error:
            raise _wrong("limits", "what UsageLimits takes", problem(error)) from None
    return cast("ConversationOptions", given)


def _unknown(name: str) -> AgentConfigurationError:
    of_model = name in ModelSettings.__annotations__
    fix = f"settings of a model stand in settings={{'{name}': ...}}" if of_model else _CORRECT
    expected = f"one of output_type, {', '.join(_FITS)}"
    return _wrong(name, expected, "an option that there is not", fix)


def _wrong(name: str, expected: str, found: str, fix: str = _CORRECT) -> AgentConfigurationError:
    return AgentConfigurationError(
        f"a conversation is given the option {name!r} wrongly", expected=expected, found=found, fix=fix
    )


def _is_several(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_FITS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "tools": ("a list of names, functions and tools", _is_several),
    "output_mode": (f"one of {', '.join(_MODES)}", lambda value: value in _MODES),
    "limits": ("UsageLimits", lambda value: isinstance(value, UsageLimits | Mapping)),
    "max_requests": ("a whole number from 1 on", _is_number),
    "settings": ("a dict of settings", lambda value: isinstance(value, Mapping)),
    "instructions": ("a text", lambda value: isinstance(value, str)),
    "history": (
        "a list of messages, or a ConversationHistory",
        lambda value: _is_several(value) or isinstance(value, ConversationHistory | ChatTranscript),
    ),
    "variables": ("a dict of values by name", lambda value: isinstance(value, Mapping)),
    "allow_urls": ("True or False", lambda value: isinstance(value, bool)),
    "run_tools": ("True or False", lambda value: isinstance(value, bool)),
}
"""For each option what it is said to be, and whether a value is that."""
