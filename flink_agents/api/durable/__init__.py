"""Durable calls: what an action does outside, recorded before the run goes on.

``await ctx.durable_execute_async(charge, order.id, order.total)`` calls ``charge`` once, keeps what
it returned or raised in the store, and gives that back when the run is replayed after a crash.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, StrEnum
from functools import cached_property, lru_cache, partial
from types import FunctionType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from flink_agents.api.common.places import authors_place
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.durable import checks as checks
from flink_agents.api.durable.checks import IDEMPOTENCY_KEY as IDEMPOTENCY_KEY, takes as takes
from flink_agents.api.errors import AgentConfigurationError

_T = TypeVar("_T")


class TerminalError(Exception):
    """A failure that another attempt would meet again: the call is not tried again.

    Subclass it, or raise it as it is, inside a durable call.
    """


class RetryableError(Exception):
    """A failure that another attempt may not meet.

    Args:
        message: What failed.
        retry_after: Seconds to wait before the next attempt, at least; None leaves it to the policy.
    """

    def __init__(self, message: str = "", retry_after: float | timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OnMismatch(StrEnum):
    """Policy for a replay that asks for another call than was recorded.

    Attributes:
        FAIL: The job fails, with both calls in the error.
        RERUN: What the execution recorded is void, and it is executed again.
        DEAD_LETTER: The event becomes a dead letter.
    """

    FAIL = "fail"
    RERUN = "rerun"
    DEAD_LETTER = "dead-letter"


class OnPlanChange(StrEnum):
    """Policy for state that another plan of the agent wrote.

    Attributes:
        FAIL: The job fails, and says what changed.
        CONTINUE_COMPATIBLE: The job continues if unfinished work still fits, and fails if not.
    """

    FAIL = "fail"
    CONTINUE_COMPATIBLE = "continue-compatible"


class OnJobChange(StrEnum):
    """Policy for a key whose state a job with another identity wrote.

    Attributes:
        FAIL: The job fails, with both identities in the error. Where neither job has a
            ``job-identifier``, the later one is the successor of the other: as ``ADOPT``.
        FORK: The job records in journals of its own. It takes over what the other job had recorded for
            inputs that waited in state, and repeats nothing else of it.
        ADOPT: The job continues the journals of the other job, which must have ended.
    """

    FAIL = "fail"
    FORK = "fork"
    ADOPT = "adopt"


class Prune(StrEnum):
    """Policy for the removal of records of committed runs.

    Attributes:
        CHECKPOINTS: When all checkpoints that Flink retains were taken after the commit.
        RESTORE_ONLY: When the job was restored from a checkpoint that was, and Flink retains no other.
        NEVER: Never.
    """

    CHECKPOINTS = "checkpoints"
    RESTORE_ONLY = "restore-only"
    NEVER = "never"


class _NotDone(Enum):
    NOT_DONE = "NOT_DONE"

    def __repr__(self) -> str:
        return "NOT_DONE"


NOT_DONE = _NotDone.NOT_DONE
"""What a reconciler returns where the call it is asked about never took effect."""


@dataclass(frozen=True)
class UnknownOutcome:
    """The result of a durable call if it is unknown if it took effect. For libraries that call for others.

    A failed call is made again when its action is tried again or its job restarts. A call with an unknown
    outcome must not be, so its end is recorded as a result.

    Attributes:
        result: Called with the reason and with the idempotency key, which is None if the function takes none;
            returns the result that is recorded.
        repeats: True if an attempt of the action may make the call again after an earlier attempt was
            cancelled during the call.
    """

    result: Callable[[str, str | None], Any]
    repeats: bool = False


@dataclass(frozen=True)
class DurableCallable:
    """A function together with the settings of its durable calls, to be used like the function.

    Attributes:
        function: What is called: ``def`` in a thread of the pool, ``async def`` on the agent loop.
        name: Identity of the function in records. Default: ``module:qualname``.
        result_type: Type that the result is validated as, the first time and on replay. Default:
            results keep the type they have.
        timeout: Seconds, or a duration, that one attempt may take.
        retry: When a failed attempt is followed by another one. Default: never, except after a
            ``RetryableError``.
        reconciler: Asked, after a crash between the begin of the call and its record, what became of
            it: called with the call's arguments, returns the result, or ``NOT_DONE``.
        redact: Name of a parameter whose value is left out of the recorded request, or several names.
        client: Name of a client of the agent, or several names. Each attempt gets the open client as the
            parameter of that name; it is no argument of the call, and no part of its record.
        unknown: What the call returns if it timed out in its last attempt. Default: it fails with
            ``ActionTimeoutError``.
        shared: True if results are large and the same in many runs: records then hold a digest, and the store
            has each result once.

    Raises:
        AgentConfigurationError: The function is none, or has no parameter for a client or of a name in
            ``redact``; no call of it has arguments that the reconciler takes; or a setting is none.
    """

    function: Callable[..., Any]
    name: str | None = None
    result_type: Any = None
    timeout: float | timedelta | None = None
    retry: RetryPolicy | None = None
    reconciler: Callable[..., Any] | None = None
    redact: str | Collection[str] = frozenset()
    client: str | tuple[str, ...] = ()
    unknown: UnknownOutcome | None = None
    shared: bool = False

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

    def check_call_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check a call with these arguments: the key arrives, and the reconciler can be asked about it.

        Raises:
            AgentConfigurationError: The reconciler does not take them, or the key has a misspelt parameter.
        """
        if self.misspelt is not None:
            checks.check_key_given(self.function, self.identity, self.misspelt, args, kwargs)
        if self.reconciler is not None:
            checks.check_call_arguments(
                self.function, self.identity, self.reconciler, self.clients, args, kwargs
            )

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients that the function is given."""
        return (self.client,) if isinstance(self.client, str) else self.client

    @cached_property
    def identity(self) -> str:
        """The name that records carry."""
        if self.name is not None:
            return self.name
        function = self.function
        while isinstance(function, partial):
            function = function.func
        kind = function if hasattr(function, "__qualname__") else type(function)
        return f"{kind.__module__}:{kind.__qualname__}"

    @cached_property
    def seconds(self) -> float | None:
        """The longest time of one attempt, in seconds."""
        return self.timeout.total_seconds() if isinstance(self.timeout, timedelta) else self.timeout

    @cached_property
    def is_async(self) -> bool:
        """True if the function is ``async def``."""
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def positional(self) -> tuple[str, ...]:
        """Names of the parameters that take positional arguments, clients among them."""
        return checks.positional_of(self.function)

    @cached_property
    def wants_key(self) -> bool:
        """True if the function asks for its idempotency key."""
        signature = checks.signature_of(self.function)
        parameter = signature.parameters.get(IDEMPOTENCY_KEY) if signature is not None else None
        return parameter is not None and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY

    @cached_property
    def misspelt(self) -> str | None:
        """A parameter with a default that is most likely meant for the idempotency key, or None."""
        return checks.misspelt_default(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, without any record."""
        return self.function(*args, **kwargs)


class _NotGiven(Enum):
    NOT_GIVEN = "NOT_GIVEN"


NOT_GIVEN: Any = _NotGiven.NOT_GIVEN
"""Stands for a setting that is not passed: None may be meant for the function."""


def durable_callable(
    function: Callable[..., Any] | DurableCallable, kwargs: dict[str, Any], **settings: Any
) -> DurableCallable:
    """Return ``function`` with those of the settings that are given, which go before its own.

    A ``DurableCallable`` has its settings already: what its function takes under the name of one is an
    argument of the call, and is moved to ``kwargs``.

    Args:
        function: What is called.
        kwargs: The arguments of the call by name.
        **settings: Settings by name; ``NOT_GIVEN`` where none is.

    Raises:
        AgentConfigurationError: A setting may be meant for the function, is none of a call, or is wrong.
    """
    if "redact" in kwargs or "client" in kwargs:
        _check_untaken(function, kwargs)
    given: dict[str, Any] = {}
    for name, value in settings.items():
        if value is not NOT_GIVEN:
            given[name] = value
    if not given:
        if isinstance(function, DurableCallable):
            return function
        # Functions that are equal are the same one; of other objects, only their class knows.
        return _plain(function) if type(function) is FunctionType else DurableCallable(function)
    what = function if isinstance(function, DurableCallable) else None
    for name in list(given):
        if takes(what.function if what is not None else function, name):
            if what is None:
                raise _ambiguous(function, name)
            kwargs[name] = given.pop(name)
    given = {name: value for name, value in given.items() if value is not None}
    return replace(what, **given) if what is not None else DurableCallable(function, **given)


_OF_CALLABLES = frozenset({"redact", "client"})
"""Settings that only a callable has: functions may take arguments of these names."""


def _check_untaken(function: Callable[..., Any] | DurableCallable, kwargs: Mapping[str, Any]) -> None:
    """Check that a function takes what is the setting of a callable.

    Raises:
        AgentConfigurationError: It does not: the author means the setting, which would be an argument.
    """
    plain = function.function if isinstance(function, DurableCallable) else function
    for name in _OF_CALLABLES & kwargs.keys():
        if callable(plain) and not takes(plain, name) and checks.signature_of(plain) is not None:
            called = getattr(plain, "__qualname__", type(plain).__qualname__)
            raise AgentConfigurationError(
                f"{name!r} is no setting of one durable call, and {called} does not take it",
                expected=f"DurableCallable({called}, {name}=...)",
                found=f"durable_execute({called}, {name}=...)",
                fix="make the DurableCallable beside the function, and call that",
                where=authors_place(),
            )


def _ambiguous(function: Callable[..., Any], name: str) -> AgentConfigurationError:
    called = getattr(function, "__qualname__", type(function).__qualname__)
    return AgentConfigurationError(
        f"a durable call of {called} has the argument {name!r}, which is both a setting of the call and "
        "something that the function takes",
        expected=f"a setting {name!r} of a DurableCallable, or an argument {name!r} of the call of one",
        found=f"durable_execute({called}, {name}=...)",
        fix=f"for the function: durable_execute(DurableCallable({called}), {name}=...). For the call: "
        f"durable_execute(DurableCallable({called}, {name}=...))",
        where=authors_place(),
    )


@lru_cache(maxsize=1024)
def _plain(function: Callable[..., Any]) -> DurableCallable:
    """Return ``function`` without settings; what follows from it is found out once."""
    return DurableCallable(function)


_KNOWN: WeakValueDictionary[int, Any] = WeakValueDictionary()

_KNOWN_TO_WAIT: WeakValueDictionary[int, Any] = WeakValueDictionary()


def calls_durably(made: _T) -> _T:
    """Note that an object of a library makes durable calls for the action that uses it; returns the object.

    The code of an action tells by the names in it whether the action makes durable calls. The code of a
    library is not read: the library notes its objects, or a class in whose name it makes them.

    Args:
        made: The object; weak references to it are possible.
    """
    _KNOWN[id(made)] = made
    return made


def is_known_to_call_durably(value: object) -> bool:
    """Whether a library has said of ``value`` that it makes durable calls."""
    return value is not None and _KNOWN.get(id(value)) is value


def waits_durably(made: _T) -> _T:
    """Note that an object of a library sleeps or waits for signals for the action that uses it; returns it.

    The code of an action tells by the names in it whether its runs may be suspended. The code of a library
    is not read: the library notes its objects, or a function that waits.

    Args:
        made: The object; weak references to it are possible.
    """
    _KNOWN_TO_WAIT[id(made)] = made
    return made


def is_known_to_wait_durably(value: object) -> bool:
    """Whether a library has said of ``value`` that it sleeps or waits for signals."""
    return value is not None and _KNOWN_TO_WAIT.get(id(value)) is value
