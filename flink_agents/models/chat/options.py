"""Checks the options of one conversation, and applies the options of a job to a chat model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai.settings import ModelSettings

from flink_agents.api.errors import AgentConfigurationError, OptionError
from flink_agents.api.errors.base import suggest
from flink_agents.api.models.chat import ChatModelSpec, ConversationOptions, OutputMode, UsageLimits
from flink_agents.api.models.descriptions import problem
from flink_agents.api.models.history import ChatTranscript, ConversationHistory
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.models.setup.descriptions import configured_fields

_CORRECT_OPTION = "correct the option; docs/models.md lists the options of a chat model"
_CORRECT = "correct the option of ctx.chat"
_MODES = tuple(mode.value for mode in OutputMode)


def check_options(options: Mapping[str, Any]) -> ConversationOptions:
    """Check the options of a conversation, and return them without those that are None.

    Args:
        options: The author's keywords of ``ctx.chat``; ``limits`` may be a mapping.

    Raises:
        AgentConfigurationError: An option is unknown, or its value has the wrong type.
    """
    passed_options = {name: value for name, value in options.items() if value is not None}
    for name, value in passed_options.items():
        if name not in _VALID:
            raise _unknown_option_error(name)
        expected, is_valid = _VALID[name]
        if not is_valid(value):
            raise _option_error(name, expected, f"{type(value).__qualname__} {value!r}"[:200])
    if isinstance(limits := passed_options.get("limits"), Mapping):
        try:
            passed_options["limits"] = UsageLimits.model_validate(limits)
        except ValidationError as error:
            raise _option_error("limits", "arguments of UsageLimits", problem(error)) from None
    return cast("ConversationOptions", passed_options)


def _unknown_option_error(name: str) -> AgentConfigurationError:
    is_model_setting = name in ModelSettings.__annotations__
    fix = f"pass model settings as settings={{'{name}': ...}}" if is_model_setting else _CORRECT
    expected = f"one of output_type, {', '.join(_VALID)}"
    return _option_error(name, expected, "an unknown option", fix)


def _option_error(name: str, expected: str, found: str, fix: str = _CORRECT) -> AgentConfigurationError:
    return AgentConfigurationError(
        f"invalid option {name!r} of ctx.chat", expected=expected, found=found, fix=fix
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_positive_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_VALID: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "tools": ("a list of names, functions and tools", _is_list),
    "output_mode": (f"one of {', '.join(_MODES)}", lambda value: value in _MODES),
    "limits": ("UsageLimits", lambda value: isinstance(value, UsageLimits | Mapping)),
    "max_requests": ("an integer of 1 or more", _is_positive_integer),
    "settings": ("a dict of settings", lambda value: isinstance(value, Mapping)),
    "instructions": ("a string", lambda value: isinstance(value, str)),
    "history": (
        "a list of messages, or a ConversationHistory",
        lambda value: _is_list(value) or isinstance(value, ConversationHistory | ChatTranscript),
    ),
    "variables": ("a dict of values by name", lambda value: isinstance(value, Mapping)),
    "allow_urls": ("True or False", lambda value: isinstance(value, bool)),
    "run_tools": ("True or False", lambda value: isinstance(value, bool)),
}
"""Description and check of the valid values, by option."""


NESTED = ("limits",)
"""Fields of a chat model with nested fields, also in names of environment variables."""


def override_spec(name: str, spec: ChatModelSpec, config: Configuration) -> ChatModelSpec:
    """Return a description of a chat model with the options ``chat-models.NAME.*`` of the job in it.

    Args:
        name: Name of the chat model, ``NAME`` of the options.
        spec: The description of the author.
        config: The options of the job.

    Raises:
        OptionError: An option is unknown, or its value is invalid.
    """
    option = AgentOptions.CHAT_MODELS
    fields = ChatModelSpec.model_fields
    overrides = dict(configured_fields(option, name, fields, config, NESTED))
    if not overrides:
        return spec
    for path in overrides:
        if path.partition(".")[0] not in fields:
            raise _invalid_spec_error(name, f"{path}: unknown", suggest(path, fields, _CORRECT_OPTION))
    values = spec.model_dump(mode="json", exclude_unset=True)
    for path, value in overrides.items():
        *outer_fields, field = path.split(".")
        owner: dict[str, Any] = values
        for outer_field in outer_fields:
            owner = owner.setdefault(outer_field, {})
        owner[field] = value
    try:
        return ChatModelSpec.model_validate(values)
    except ValidationError as error:
        raise _invalid_spec_error(name, problem(error), _CORRECT_OPTION) from None


def _invalid_spec_error(name: str, found: str, fix: str) -> OptionError:
    return OptionError(
        f"the options below {AgentOptions.CHAT_MODELS.key}.{name} are invalid for a chat model",
        expected="options such as model, base_url, max_concurrency or limits.requests",
        found=found,
        fix=fix,
    )
