"""Durable steps: calls of an action to the outside, recorded before the run continues.

``await ctx.durable_execute_async(charge, order.id, order.total)`` calls ``charge`` once, records its result
or error in the store, and returns or raises it again when the run is replayed after a crash.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, StrEnum
from functools import cached_property, lru_cache, partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict, Unpack, overload
from weakref import WeakValueDictionary

from typing_extensions import ParamSpec, TypeVar

from flink_agents.api.common.places import authors_place
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.durable import checks as checks
from flink_agents.api.durable.checks import (
    IDEMPOTENCY_KEY as IDEMPOTENCY_KEY,
    takes_argument as takes_argument,
)
from flink_agents.api.errors import AgentConfigurationError

_P = ParamSpec("_P", default=...)
_Q = ParamSpec("_Q")
_R = TypeVar("_R")
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True, default=Any)


class TerminalError(Exception):
    """A permanent failure: the step is not retried.

    Raise it, or a subclass, inside a durable step.
    """


class RetryableError(Exception):
    """A transient failure: another attempt may succeed.

    Args:
        message: Text of the failure.
        retry_after: Minimum number of seconds before the next attempt; None leaves it to the policy.
    """

    def __init__(self, message: str = "", retry_after: float | timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OnMismatch(StrEnum):
    """Policy for a replay that makes another durable step than was recorded.

    Attributes:
        FAIL: The job fails, with both steps in the error.
        RERUN: The records of the action's execution are dropped, and it runs again.
        DEAD_LETTER: The event becomes a dead letter.
    """

    FAIL = "fail"
    RERUN = "rerun"
    DEAD_LETTER = "dead-letter"


class OnPlanChange(StrEnum):
    """Policy for state that another plan of the agent wrote.

    Attributes:
        FAIL: The job fails, and the error lists the changes.
        CONTINUE_COMPATIBLE: The job continues if unfinished work still fits, and fails if not.
    """

    FAIL = "fail"
    CONTINUE_COMPATIBLE = "continue-compatible"


class OnJobChange(StrEnum):
    """Policy for a key whose state a job with another identity wrote.

    Attributes:
        FAIL: The job fails, with both identities in the error. If neither job has a ``job-identifier``, the
            later one continues the other: as ``ADOPT``.
        FORK: The job uses its own journals. It takes over the records of the other job for inputs that waited
            in state, and no others.
        ADOPT: The job continues the journals of the other job, which must have ended.
    """

    FAIL = "fail"
    FORK = "fork"
    ADOPT = "adopt"


class Prune(StrEnum):
    """Policy for the removal of records of committed runs.

    Attributes:
        CHECKPOINTS: Remove them when all checkpoints that Flink retains were taken after the commit.
        RESTORE_ONLY: Remove them when the job was restored from such a checkpoint, and Flink retains no
            other.
        NEVER: Keep them.
    """

    CHECKPOINTS = "checkpoints"
    RESTORE_ONLY = "restore-only"
    NEVER = "never"


class _NotDone(Enum):
    NOT_DONE = "NOT_DONE"

    def __repr__(self) -> str:
        return "NOT_DONE"


NOT_DONE = _NotDone.NOT_DONE
"""Result of a reconciler if the call never took effect."""


@dataclass(frozen=True)
class UnknownOutcome:
    """The result of a durable step if it is unknown whether its call took effect. For authors of libraries.

    A failed step is repeated when its action is retried or its job restarts. A step with an unknown outcome
    must not be repeated, so its end is recorded as a result.

    Attributes:
        result: Called with the reason and with the idempotency key, which is None if the function takes none;
            returns the result that is recorded.
        repeats: True if an attempt of the action may repeat the call after an earlier attempt was cancelled
            during the call.
    """

    result: Callable[[str, str | None], Any]
    repeats: bool = False


class Feature(Enum):
    """A need of the calls of a function, besides the call of an ``async def`` function itself.

    Attributes:
        UNKNOWN: A result if their outcome is unknown.
        CLIENTS: Open clients of the agent.
        RECONCILER: A reconciler.
        KEY: An idempotency key.
        THREAD: A thread: the function is not ``async def``.
        TIMEOUT: A timeout.
        SHARED: A result that the store holds once.
        RESULT_TYPE: A result of a declared type.
    """

    UNKNOWN = "unknown"
    CLIENTS = "clients"
    RECONCILER = "reconciler"
    KEY = "key"
    THREAD = "thread"
    TIMEOUT = "timeout"
    SHARED = "shared"
    RESULT_TYPE = "result_type"


class StepSettings(TypedDict, total=False):
    """Settings of a durable step that change no types."""

    name: str | None
    timeout: float | timedelta | None
    retry: RetryPolicy | None
    reconciler: Callable[..., Any] | None


class _CallableSettings(StepSettings, total=False):
    redact: str | Collection[str]
    unknown: UnknownOutcome | None
    shared: bool


@dataclass(frozen=True)
class DurableCallable(Generic[_P, _T_co]):
    """A function with the settings of its durable steps. Use it like the function.

    Attributes:
        function: The function: ``def`` runs in a thread of the pool, ``async def`` on the agent loop.
        name: Name of the function in records. Default: ``module:qualname``.
        result_type: Type that validates the result, once; a replay restores what it made. Default: results
            keep their type.
        timeout: Timeout of one attempt: seconds, or a duration.
        retry: Retry policy of failed attempts. Default: no retries, except after a ``RetryableError``.
        reconciler: Called after a crash between the start of the call and its record, with the call's
            arguments; returns the call's result, or ``NOT_DONE``.
        redact: Name of a parameter whose value is omitted from the recorded request, or several names.
        client: Name of a client of the agent, or several names. Each attempt gets the open client as the
            parameter of that name; it is not an argument of the call, and not part of its record.
        unknown: Result of the call if its last attempt timed out. Default: it fails with
            ``ActionTimeoutError``.
        shared: True if results are large and the same in many runs: records then hold a digest, and the store
            holds each result once.

    Raises:
        AgentConfigurationError: The function is not callable, or has no parameter for a client or for a name
            in ``redact``; the reconciler accepts the arguments of no call; or a setting is invalid.
    """

    function: Callable[_P, _T_co]
    name: str | None = None
    result_type: Any = None
    timeout: float | timedelta | None = None
    retry: RetryPolicy | None = None
    reconciler: Callable[..., Any] | None = None
    redact: str | Collection[str] = frozenset()
    client: str | tuple[str, ...] = ()
    unknown: UnknownOutcome | None = None
    shared: bool = False
    request: ClassVar[str | None] = None
    """The text of a call whose arguments are only a digest. Requests to models set it."""

    if TYPE_CHECKING:
        # A client is no argument of a call, and a result has the type to which it is validated.
        @overload
        def __init__(
            self: DurableCallable[..., _R],
            function: Callable[..., Any],
            *,
            client: str | tuple[str, ...],
            result_type: type[_R],
            **settings: Unpack[_CallableSettings],
        ) -> None: ...
        @overload
        def __init__(
            self: DurableCallable[..., _R],
            function: Callable[..., _R],
            *,
            client: str | tuple[str, ...],
            result_type: Any = None,
            **settings: Unpack[_CallableSettings],
        ) -> None: ...
        @overload
        def __init__(
            self: DurableCallable[_Q, Awaitable[_R]],
            function: Callable[_Q, Awaitable[Any]],
            *,
            result_type: type[_R],
            **settings: Unpack[_CallableSettings],
        ) -> None: ...
        @overload
        def __init__(
            self: DurableCallable[_Q, _R],
            function: Callable[_Q, Any],
            *,
            result_type: type[_R],
            **settings: Unpack[_CallableSettings],
        ) -> None: ...
        @overload
        def __init__(
            self: DurableCallable[_Q, _R],
            function: Callable[_Q, _R],
            *,
            result_type: Any = None,
            **settings: Unpack[_CallableSettings],
        ) -> None: ...
        def __init__(self, function: Any, **settings: Any) -> None: ...

    def __post_init__(self) -> None:
        checks.check_function(self.function)
        checks.check_values(self.identity, self.name, self.timeout, self.retry)
        if self.client:
            checks.check_clients(self.function, self.identity, self.clients)
        if self.redact:
            names = checks.redacted_names(self.function, self.identity, self.redact)
            object.__setattr__(self, "redact", names)
        if self.reconciler is not None:
            checks.check_reconciler(self.function, self.identity, self.reconciler, self.clients)

    def with_function(self, function: Callable[..., Any]) -> DurableCallable:
        """Return a copy that calls another function with the same parameters; it is not inspected again."""
        for name in _READ_FROM_FUNCTION:
            # The copy has the properties that were read before.
            getattr(self, name)
        copied = object.__new__(DurableCallable)
        vars(copied).update(vars(self), function=function)
        return copied

    def check_call_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check the arguments of a call: the idempotency key is not misspelt, and the reconciler fits.

        Args:
            args: Arguments by position.
            kwargs: Arguments by name.

        Raises:
            AgentConfigurationError: The reconciler does not accept them, or the parameter of the key is
                misspelt.
        """
        if self.misspelt is not None:
            checks.check_key_given(self.function, self.identity, self.misspelt, args, kwargs)
        if self.reconciler is not None:
            checks.check_call_arguments(
                self.function, self.identity, self.reconciler, self.clients, args, kwargs
            )

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients that the function gets."""
        return (self.client,) if isinstance(self.client, str) else self.client

    @cached_property
    def identity(self) -> str:
        """The name of the function in records."""
        if self.name is not None:
            return self.name
        function = self.function
        while isinstance(function, partial):
            function = function.func
        kind = function if hasattr(function, "__qualname__") else type(function)
        return f"{kind.__module__}:{kind.__qualname__}"

    @cached_property
    def features(self) -> frozenset[Feature]:
        """The needs of its calls."""
        present = {
            Feature.UNKNOWN: self.unknown is not None,
            Feature.CLIENTS: bool(self.clients),
            Feature.RECONCILER: self.reconciler is not None,
            Feature.KEY: self.wants_key,
            Feature.THREAD: not self.is_async,
            Feature.TIMEOUT: self.seconds is not None,
            Feature.SHARED: self.shared,
            Feature.RESULT_TYPE: self.result_type is not None,
        }
        return frozenset(feature for feature, is_present in present.items() if is_present)

    @cached_property
    def seconds(self) -> float | None:
        """The timeout of one attempt, in seconds; None for no limit."""
        return self.timeout.total_seconds() if isinstance(self.timeout, timedelta) else self.timeout

    @cached_property
    def is_async(self) -> bool:
        """True if the function is ``async def``."""
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def positional(self) -> tuple[str, ...]:
        """Names of the positional parameters, including those of clients."""
        return checks.positional_of(self.function)

    @cached_property
    def wants_key(self) -> bool:
        """True if the function has a parameter for its idempotency key."""
        signature = checks.signature_of(self.function)
        parameter = signature.parameters.get(IDEMPOTENCY_KEY) if signature is not None else None
        return parameter is not None and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY

    @cached_property
    def misspelt(self) -> str | None:
        """A parameter with a default that is most likely a misspelt idempotency key, or None."""
        return checks.misspelt_default(self.function)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T_co:
        """Call the function itself; nothing is recorded."""
        return self.function(*args, **kwargs)


_READ_FROM_FUNCTION = ("identity", "is_async", "positional", "wants_key", "misspelt")
"""Properties that follow from the function and its parameters."""

_ANY_CALLABLE: Any = DurableCallable
"""The class, for ``isinstance``: type checkers would lose the types of its parameters."""


class _NotGiven(Enum):
    NOT_GIVEN = "NOT_GIVEN"


NOT_GIVEN: Any = _NotGiven.NOT_GIVEN
"""Represents a setting that is not passed: None may be an argument of the function."""


def durable_callable(function: Any, kwargs: dict[str, Any], **settings: Any) -> DurableCallable:
    """Return ``function`` as a ``DurableCallable`` with the passed settings, which override its own.

    A ``DurableCallable`` has its settings already: if its function has a parameter with the name of a
    setting, the value is an argument of the call, and moves to ``kwargs``.

    Args:
        function: The function, or a ``DurableCallable``.
        kwargs: The arguments of the call by name. Arguments that are no settings are added to it.
        **settings: Settings by name; ``NOT_GIVEN`` for those that are not passed.

    Raises:
        AgentConfigurationError: A setting may be meant for the function, is not a setting of a call, or is
            invalid.
    """
    if "redact" in kwargs or "client" in kwargs:
        _check_no_misplaced_setting(function, kwargs)
    call_settings = {name: value for name, value in settings.items() if value is not NOT_GIVEN}
    step = function if isinstance(function, _ANY_CALLABLE) else None
    if not call_settings:
        if step is not None:
            return step
        # Equal functions are the same one; for other objects, only their class knows.
        return plain_callable(function) if type(function) is FunctionType else DurableCallable(function)
    for name in list(call_settings):
        if takes_argument(step.function if step is not None else function, name):
            if step is None:
                raise _ambiguous_argument_error(function, name)
            kwargs[name] = call_settings.pop(name)
    call_settings = {name: value for name, value in call_settings.items() if value is not None}
    return replace(step, **call_settings) if step is not None else DurableCallable(function, **call_settings)


_OF_CALLABLES = frozenset({"redact", "client"})
"""Settings that only a ``DurableCallable`` has: functions may have parameters with these names."""


def _check_no_misplaced_setting(
    function: Callable[..., Any] | DurableCallable, kwargs: Mapping[str, Any]
) -> None:
    """Check that the function accepts each argument that has the name of a setting in ``_OF_CALLABLES``.

    Raises:
        AgentConfigurationError: It does not: the author means the setting, but it would become an argument.
    """
    called_function: Any = function
    if isinstance(function, _ANY_CALLABLE):
        called_function = called_function.function
    if not callable(called_function) or checks.signature_of(called_function) is None:
        return
    for name in _OF_CALLABLES & kwargs.keys():
        if not takes_argument(called_function, name):
            called = getattr(called_function, "__qualname__", type(called_function).__qualname__)
            raise AgentConfigurationError(
                f"{name!r} is not a setting of a single durable step, and {called} has no such parameter",
                expected=f"DurableCallable({called}, {name}=...)",
                found=f"durable_execute({called}, {name}=...)",
                fix="create a DurableCallable next to the function, and call that",
                where=authors_place(),
            )


def _ambiguous_argument_error(function: Callable[..., Any], name: str) -> AgentConfigurationError:
    called = getattr(function, "__qualname__", type(function).__qualname__)
    return AgentConfigurationError(
        f"a durable step of {called} has the argument {name!r}, which is both a setting of the step and a "
        "parameter of the function",
        expected=f"a setting {name!r} of a DurableCallable, or an argument {name!r} of a call of one",
        found=f"durable_execute({called}, {name}=...)",
        fix=f"for the function: durable_execute(DurableCallable({called}), {name}=...). For the call: "
        f"durable_execute(DurableCallable({called}, {name}=...))",
        where=authors_place(),
    )


@lru_cache(maxsize=1024)
def plain_callable(function: Callable[..., Any]) -> DurableCallable:
    """Return the ``DurableCallable`` of a function without settings; its properties are determined once."""
    return DurableCallable(function)


_DECLARED: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The objects that :func:`calls_durably` declared, by their ids."""


def calls_durably(target: _T) -> _T:
    """Declare that an object of a library makes durable steps for the action that uses it; return the object.

    The source of an action shows if the action makes durable steps. The code of a library is not read: the
    library declares its objects, or a class in whose name it makes the steps.

    Args:
        target: The object or class, which must allow weak references.
    """
    _DECLARED[id(target)] = target
    return target


def is_known_to_call_durably(value: object) -> bool:
    """Return True if a library declared with :func:`calls_durably` that ``value`` makes durable steps."""
    return value is not None and _DECLARED.get(id(value)) is value
