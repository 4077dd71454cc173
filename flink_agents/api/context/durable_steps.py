"""Methods of an action's context for durable steps.

Type checkers check a step as a call of its function. Three kinds of calls need more than a ``ParamSpec``, in
which no parameter can be added or left out:

- With settings, arguments are passed by position. A ``DurableCallable`` does not have this limit.
- The runtime passes ``idempotency_key``: the first three arguments by position are checked.
- With ``result_type``, which gives the result its type, arguments are not checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.durable import (
    NOT_GIVEN,
    DurableCallable,
    StepSettings,
    durable_callable,
    plain_callable,
)
from flink_agents.api.durable.signatures import TakesKey

_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class DurableMethods(ABC):
    """Durable steps: calls to the outside, which a replay does not repeat."""

    @overload
    def durable_execute(
        self,
        function: Callable[_P, Awaitable[_T]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T: ...
    @overload
    def durable_execute(
        self,
        function: Callable[_P, _T],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T: ...
    @overload
    def durable_execute(
        self,
        function: Callable[[*_Ts], Awaitable[_T]],
        /,
        *args: *_Ts,
        **settings: Unpack[StepSettings],
    ) -> _T: ...
    @overload
    def durable_execute(
        self,
        function: Callable[[*_Ts], _T],
        /,
        *args: *_Ts,
        **settings: Unpack[StepSettings],
    ) -> _T: ...
    @overload
    def durable_execute(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        result_type: type[_T],
        **kwargs: Any,
    ) -> _T: ...
    @overload
    def durable_execute(
        self,
        function: TakesKey[Awaitable[_T], _A, _B, _C],
        a: _A = ...,
        b: _B = ...,
        c: _C = ...,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> _T: ...
    @overload
    def durable_execute(
        self,
        function: TakesKey[_T, _A, _B, _C],
        a: _A = ...,
        b: _B = ...,
        c: _C = ...,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> _T: ...
    @overload
    def durable_execute(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        result_type: Any,
        **kwargs: Any,
    ) -> Any: ...
    def durable_execute(
        self,
        function: Callable[..., Any] | DurableCallable,
        /,
        *args: Any,
        name: str | None = NOT_GIVEN,
        result_type: Any = NOT_GIVEN,
        timeout: float | timedelta | None = NOT_GIVEN,
        retry: RetryPolicy | None = NOT_GIVEN,
        reconciler: Callable[..., Any] | None = NOT_GIVEN,
        **kwargs: Any,
    ) -> Any:
        """Call ``function`` and record its result; after a crash, return the recorded result.

        For ``def`` actions. The settings are those of :class:`DurableCallable`. ``function`` gets all other
        arguments, which are part of the step's identity. If it has a parameter ``idempotency_key``, it gets a
        key of 32 hexadecimal digits, equal for all attempts of the step.

        The function gets copies of its arguments, and never the context: using the context inside a durable
        function is an error. If the function has a parameter with the name of a setting, or ``**kwargs``,
        passing that name raises an error; with a ``DurableCallable``, the function gets it.

        Returns:
            The recorded result of ``function``.

        Raises:
            Exception: ``function`` raised it, now or when it was recorded.
            NonDeterminismError: Another step was recorded in its place.
            DurableResultError: The result cannot be recorded.
            UnserializableValueError: An argument cannot be part of the step's identity.
            ContextMisuseError: The action is ``async def``, or the caller is a durable function.
            AgentConfigurationError: A setting may be meant for the function, or is invalid, or the reconciler
                does not accept the arguments.
        """
        step = durable_callable(
            function,
            kwargs,
            name=name,
            result_type=result_type,
            timeout=timeout,
            retry=retry,
            reconciler=reconciler,
        )
        if step.reconciler is not None or step.misspelt is not None:
            step.check_call_arguments(args, kwargs)
        return self._call_durably(step, args, kwargs)

    @overload
    def durable_execute_async(
        self,
        function: Callable[_P, Awaitable[_T]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> Coroutine[Any, Any, _T]: ...
    @overload
    def durable_execute_async(
        self,
        function: Callable[_P, _T],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> Coroutine[Any, Any, _T]: ...
    @overload
    def durable_execute_async(
        self,
        function: Callable[[*_Ts], Awaitable[_T]],
        /,
        *args: *_Ts,
        **settings: Unpack[StepSettings],
    ) -> Coroutine[Any, Any, _T]: ...
    @overload
    def durable_execute_async(
        self,
        function: Callable[[*_Ts], _T],
        /,
        *args: *_Ts,
        **settings: Unpack[StepSettings],
    ) -> Coroutine[Any, Any, _T]: ...
    @overload
    def durable_execute_async(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        result_type: type[_T],
        **kwargs: Any,
    ) -> Coroutine[Any, Any, _T]: ...
    @overload
    def durable_execute_async(
        self,
        function: TakesKey[Awaitable[_T], _A, _B, _C],
        a: _A = ...,
        b: _B = ...,
        c: _C = ...,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, _T]: ...
    @overload
    def durable_execute_async(
        self,
        function: TakesKey[_T, _A, _B, _C],
        a: _A = ...,
        b: _B = ...,
        c: _C = ...,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, _T]: ...
    @overload
    def durable_execute_async(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        result_type: Any,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]: ...
    def durable_execute_async(
        self,
        function: Callable[..., Any] | DurableCallable,
        /,
        *args: Any,
        name: str | None = NOT_GIVEN,
        result_type: Any = NOT_GIVEN,
        timeout: float | timedelta | None = NOT_GIVEN,
        retry: RetryPolicy | None = NOT_GIVEN,
        reconciler: Callable[..., Any] | None = NOT_GIVEN,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Return an awaitable of the result of :meth:`durable_execute`, for ``async def`` actions.

        The call of this method fixes the place in the order of steps, so that steps may run concurrently:
        ``await ctx.gather(ctx.durable_execute_async(...), ...)``. Arguments and errors are the same; the
        errors of ``function`` and of its record are raised when it is awaited.
        """
        has_settings = not (name is result_type is timeout is retry is reconciler is NOT_GIVEN)
        if type(function) is FunctionType and not (has_settings or kwargs):
            # Most calls: nothing has to be combined.
            step = plain_callable(function)
        else:
            step = durable_callable(
                function,
                kwargs,
                name=name,
                result_type=result_type,
                timeout=timeout,
                retry=retry,
                reconciler=reconciler,
            )
        if step.reconciler is not None or step.misspelt is not None:
            step.check_call_arguments(args, kwargs)
        return self._call_durably_async(step, args, kwargs)

    @abstractmethod
    def _call_durably(
        self, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any: ...

    @abstractmethod
    def _call_durably_async(
        self, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]: ...
