"""The settings of agents, actions and tools.

A setting of an action is a field of :class:`PlainSettings`, if its value fits into JSON, and a key of
:class:`ActionOptions`. Decorator, builder, YAML, plan, ``plan show``, schemas and the running action
(``action.settings``) derive from them. In the same way, a setting of an agent is a field of
:class:`PlainAgentSettings` and an attribute of :class:`AgentAttributes`; the running agent has it in
``agent.settings``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, TypedDict, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    StrictBool,
    ValidationError,
    WithJsonSchema,
)

from flink_agents.api.common.durations import duration_text, plain_seconds
from flink_agents.api.common.places import call_problem
from flink_agents.api.common.policies import OnError, OnSuspend, OnUnhandled, RateLimit, RetryPolicy
from flink_agents.api.errors import ActionSignatureError, AgentDefinitionError
from flink_agents.api.errors.base import suggest

NEAR = 0.85
"""Similarity of two names, from 0 to 1, from which one counts as a misspelling of the other."""

S = TypeVar("S", bound=BaseModel)
Condition = Callable[[Any], bool]


@dataclass(frozen=True)
class Setting:
    """The form of a setting in code, YAML and plans, and its text for people.

    Attributes:
        expected: The valid values in words, for errors.
        example: An example in code, for errors.
        shown: Template of its text in ``plan show``, with ``{}`` for the value; empty if it is not shown.
        text_of: Converts its value for the template.
    """

    expected: str
    example: str
    shown: str = ""
    text_of: Callable[[Any], object] = lambda value: value


_FUNCTION = re.compile(r"[^:\s]+:[^:\s]+")
"""Reference to a function in a file: ``module:qualname``."""


def _enum_setting(kind: type[StrEnum], name: str, example: StrEnum, shown: str = "") -> Setting:
    """Return the form of the setting ``name``, whose values are the members of an enum."""
    return Setting("one of " + ", ".join(repr(str(member)) for member in kind), f"{name}='{example}'", shown)


def _read_approval(value: object) -> object:
    """Return a value of ``needs_approval`` if it is a bool, a function, or a function's name in a file."""
    if isinstance(value, bool) or callable(value) or (isinstance(value, str) and _FUNCTION.fullmatch(value)):
        return value
    raise ValueError("neither a bool nor a function")


class Limits(BaseModel):
    """Limits of a call, for all keys of a subtask together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_concurrency: Annotated[
        int | None,
        Setting("an integer of 1 or more", "max_concurrency=4", "at most {} at a time"),
    ] = Field(default=None, ge=1, description="Maximum number that run at a time in a subtask.")
    rate_limit: Annotated[
        RateLimit | None,
        Setting("a RateLimit", "rate_limit=RateLimit(10, per=1)", "at most {0.calls} per {0.per:g} s"),
    ] = Field(default=None, description="Maximum rate of starts in a subtask.")

    def texts(self) -> list[str]:
        """Return a short text for each setting that differs from its default, for ``plan show``."""
        kind = type(self)
        changed_values = {name: value for name, value in self if value != kind.model_fields[name].default}
        return [
            setting.shown.format(setting.text_of(changed_values[name]))
            for name, setting in settings_of(kind).items()
            if setting.shown and name in changed_values
        ]


class ApprovedLimits(Limits):
    """Limits, and the need for an approval."""

    needs_approval: Annotated[
        Any,
        BeforeValidator(_read_approval),
        WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "^[^:]+:[^:]+$"}]}),
        Setting(
            "True, False, or a function of the event or of the arguments",
            "needs_approval=True",
            "needs approval",
        ),
    ] = Field(default=False, description="True if it needs approval, or a function that decides.")
    approval_timeout: Annotated[
        float | None,
        BeforeValidator(plain_seconds),
        Setting("seconds, more than 0", "approval_timeout=3600", "approval within {}", duration_text),
    ] = Field(
        default=None, gt=0, allow_inf_nan=False, description="Seconds after which a request counts as denied."
    )


class ToolLimits(ApprovedLimits):
    """Limits of a tool, and if a call of it may be repeated."""

    idempotent: Annotated[
        bool | None,
        Setting("True, False or None", "idempotent=True", "idempotent: {}"),
    ] = Field(
        default=None,
        description="True if a call with an unknown outcome may be repeated. Default: if the function has "
        "a parameter idempotency_key.",
    )

    def options(self) -> dict[str, Any]:
        """Return these limits as keywords of ``Tool``."""
        return {name: getattr(self, name) for name in ToolLimits.model_fields}


class ToolSourceLimits(Limits):
    """Limits of a source of tools, and the tools that need an approval."""

    needs_approval: StrictBool | tuple[str, ...] = Field(
        default=False,
        description="True if calls need approval, or the tools that do: 'delete_*'.",
    )
    approval_timeout: Annotated[float | None, BeforeValidator(plain_seconds)] = Field(
        default=None, gt=0, allow_inf_nan=False, description="Seconds after which a request counts as denied."
    )
    idempotent: StrictBool | tuple[str, ...] = Field(
        default=False,
        description="True if calls with an unknown outcome may be repeated, or the tools: 'get_*'.",
    )

    def is_idempotent(self, name: str) -> bool:
        """Return True if a call of the tool ``name`` may be repeated if its outcome is unknown."""
        if isinstance(self.idempotent, bool):
            return self.idempotent
        return any(fnmatchcase(name, pattern) for pattern in self.idempotent)

    def is_approved(self, name: str) -> bool:
        """Return True if a call of the tool ``name`` needs no approval."""
        if isinstance(self.needs_approval, bool):
            return not self.needs_approval
        return not any(fnmatchcase(name, pattern) for pattern in self.needs_approval)


class PlainSettings(ApprovedLimits):
    """The settings of an action that have the same form in code, YAML and plans."""

    on_error: Annotated[
        OnError | None, _enum_setting(OnError, "on_error", OnError.DEAD_LETTER, "on error {}")
    ] = Field(default=None, strict=False, description="Policy if the action raises.")
    timeout: Annotated[
        float | None,
        BeforeValidator(plain_seconds),
        Setting("seconds, more than 0", "timeout=30", "timeout {}", duration_text),
    ] = Field(default=None, gt=0, allow_inf_nan=False, description="Seconds after which an attempt fails.")
    blocking: Annotated[bool, Setting("True or False", "blocking=True", "blocking")] = Field(
        default=False, description="Run the def action in a thread pool, because it blocks."
    )

    def plain(self) -> dict[str, Any]:
        """Return the values of these settings by name, in their form in code."""
        return {name: getattr(self, name) for name in PlainSettings.model_fields}


class ToolSettings(ToolLimits):
    """The settings of a tool."""

    model_config = ConfigDict(strict=True)


class ActionSettings(PlainSettings):
    """All settings of an action."""

    model_config = ConfigDict(strict=True)

    retry: Annotated[RetryPolicy | None, Setting("a RetryPolicy", "retry=RetryPolicy(max_attempts=3)")] = None
    # The check that it accepts the event is part of the action's checks.
    when: SkipValidation[Condition | None] = None


class PlainAgentSettings(BaseModel):
    """The settings of an agent that have the same form in code, YAML and plans."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    on_error: Annotated[OnError | None, _enum_setting(OnError, "on_error", OnError.DEAD_LETTER)] = Field(
        default=None, strict=False, description="Policy for actions without one."
    )
    # An event that no action accepts would not be accepted in a second attempt either.
    on_unhandled: Annotated[
        OnUnhandled | None, _enum_setting(OnUnhandled, "on_unhandled", OnUnhandled.DEAD_LETTER)
    ] = Field(default=None, strict=False, description="Policy for events that no action accepts.")
    on_suspend: Annotated[OnSuspend | None, _enum_setting(OnSuspend, "on_suspend", OnSuspend.INTERLEAVE)] = (
        Field(
            default=None, strict=False, description="Policy for inputs that arrive while a run is suspended."
        )
    )

    def plain(self) -> dict[str, Any]:
        """Return the values of these settings by name, in their form in code."""
        return {name: getattr(self, name) for name in PlainAgentSettings.model_fields}


class AgentSettings(PlainAgentSettings):
    """All settings of an agent: for its actions that do not have their own, and for its keys."""

    model_config = ConfigDict(strict=True)

    retry: Annotated[RetryPolicy | None, Setting("a RetryPolicy", "retry=RetryPolicy(max_attempts=3)")] = None


class AgentAttributes:
    """The class attributes of an agent that are its settings: the fields of :class:`AgentSettings`.

    Attributes:
        on_error: Policy for actions that raise and have none.
        on_unhandled: Policy for events that no action accepts.
        on_suspend: What inputs do while a run of their key is suspended: wait, or interleave with it.
        retry: Retry policy for actions that have none.
    """

    on_error: OnError | str | None = None
    on_unhandled: OnError | str | None = None
    on_suspend: OnSuspend | str | None = None
    retry: RetryPolicy | None = None


class LimitOptions(TypedDict, total=False):
    """Keywords of tools and actions: the fields of :class:`ApprovedLimits`."""

    max_concurrency: int | None
    """Maximum number of executions at a time, for all keys of a subtask."""
    rate_limit: RateLimit | None
    """Maximum rate of starts, for all keys of a subtask."""
    needs_approval: bool | Condition
    """True if each execution needs an approval first, or a function that decides: for an action it gets the
    event, for a tool the arguments by name as one dict.
    """
    approval_timeout: float | timedelta | None
    """Seconds after which an execution without an answer counts as denied. Default: never."""


class ToolOptions(LimitOptions, total=False):
    """Keywords of a tool: the fields of :class:`ToolSettings`."""

    idempotent: bool | None
    """True if a call with an unknown outcome may be repeated, with the same idempotency key.

    False if it must not be repeated, even after a crash. Default: True if the function has a parameter
    ``idempotency_key``; otherwise it is repeated only after a crash.
    """


class ActionOptions(LimitOptions, total=False):
    """Keywords of an action: the fields of :class:`ActionSettings`."""

    when: Condition | None
    """Called with the event; the action runs if it returns True."""
    on_error: OnError | str | None
    """Policy if the action raises. Default: the agent's."""
    retry: RetryPolicy | None
    """Retry policy if the action raises. Default: the agent's."""
    timeout: float | timedelta | None
    """Seconds after which an attempt fails with ``ActionTimeoutError``."""
    blocking: bool
    """True if the ``def`` action blocks, for example on a file or a server: it runs in a pool of threads, so
    that other keys do not wait for it.
    """


def settings_of(kind: type[BaseModel]) -> dict[str, Setting]:
    """Return the form of each field of a class of settings that has one, by name."""
    return {
        name: setting
        for name, field in kind.model_fields.items()
        for setting in field.metadata
        if isinstance(setting, Setting)
    }


def check_settings(
    kind: type[S], what: str, where: str | None, values: Mapping[str, Any], also: Iterable[str] = ()
) -> S:
    """Return an author's settings as an object, if each is valid.

    Args:
        kind: The class of the settings.
        what: The owner of the settings in words, such as ``"@tool"``, for the error.
        where: Its place in the author's code, for the error; None if unknown.
        values: The author's values, by the names of settings.
        also: Other keywords of the owner, which the author could have meant.

    Raises:
        AgentDefinitionError: A setting is invalid or unknown.
        ActionSignatureError: The function in ``needs_approval`` cannot be called.
    """
    try:
        settings = kind(**values)
        _check_approval(what, where, values.get("needs_approval"))
        return settings
    except ValidationError as error:
        name = str(error.errors(include_url=False)[0]["loc"][0])
    value = values[name]
    if name not in kind.model_fields:
        names = [*also, *kind.model_fields]
        raise AgentDefinitionError(
            f"{what} has no option {name!r}",
            expected=f"one of {', '.join(names)}",
            found=f"{name}={value!r}"[:300],
            fix=suggest(name, names, "remove it"),
            where=where,
        )
    setting = settings_of(kind)[name]
    raise AgentDefinitionError(
        f"{what} has an invalid {name}",
        expected=setting.expected,
        found=repr(value),
        fix=_value_fix(name, value, setting),
        where=where,
    )


def _value_fix(name: str, value: object, setting: Setting) -> str:
    """Return the fix for an invalid value: the most similar valid string, or else an example."""
    valid_strings = re.findall(r"'([^']+)'", setting.expected)
    near = difflib.get_close_matches(value, valid_strings, 1, 0.7) if isinstance(value, str) else []
    return f"write {name}={near[0]!r}" if near else f"write {setting.example}, or omit it"


def _check_approval(what: str, where: str | None, needed: object) -> None:
    """Check that a value of ``needs_approval`` that is a function can be called with one argument.

    Raises:
        ActionSignatureError: It cannot, or is a coroutine function.
    """
    problem = call_problem(needed, 1) if callable(needed) else None
    if problem is not None:
        raise ActionSignatureError(
            f"{what} has a needs_approval that cannot be called with one argument",
            expected="a function that takes the event of an action, or the arguments of a tool as one "
            "dict, and returns a bool",
            found=problem,
            fix="write needs_approval=lambda asked: ...",
            where=where,
        )


def check_near(
    what: str, where: str | None, used_names: Iterable[str], names: Iterable[str], fix: str = "rename it"
) -> None:
    """Check that none of an author's names is most likely a misspelt setting.

    Args:
        what: The owner of the names in words, for the error.
        where: Its place in the author's code, for the error; None if unknown.
        used_names: The author's names.
        names: The names of the settings.
        fix: The fix if the name is not a misspelling, after "If not,".

    Raises:
        AgentDefinitionError: A name is similar to a setting.
    """
    setting_names = list(names)
    for name in used_names:
        near = difflib.get_close_matches(name, setting_names, 1, NEAR)
        if near and name not in setting_names:
            raise AgentDefinitionError(
                f"{what} has {name!r}, which is not a setting",
                expected=f"{near[0]!r}, or a less similar name",
                found=repr(name),
                fix=f"did you mean {near[0]!r}? If not, {fix}",
                where=where,
            )


def check_asks(what: str, where: str | None, values: Mapping[str, Any]) -> None:
    """Check that settings with an ``approval_timeout`` also have ``needs_approval``.

    Args:
        what: The owner of the settings in words, such as ``"@tool"``, for the error.
        where: Its place in the author's code, for the error; None if unknown.
        values: The author's values, by the names of settings.

    Raises:
        AgentDefinitionError: They do not: the author expects an approval that is not requested.
    """
    if values.get("approval_timeout") is not None and "needs_approval" not in values:
        raise AgentDefinitionError(
            f"{what} has an approval_timeout, but no needs_approval",
            expected="both",
            found=f"approval_timeout={values['approval_timeout']!r}",
            fix="write needs_approval=True, or a function that decides; or remove approval_timeout",
            where=where,
        )
