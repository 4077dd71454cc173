"""Calls that actions have to await: the end of an action detects calls that were not awaited.

Python only logs a warning about such a coroutine, and it counts as true. So an action that forgets the
``await`` before a request for an approval would continue as if it had been approved.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import Any, TypeVar

from typing_extensions import override

from flink_agents.api.common.current import called_action_run, current_action_run
from flink_agents.api.errors import MissingAwaitError

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Awaited(Coroutine[Any, Any, _T_co]):
    """Base of awaitables with attributes of their own, which asyncio accepts in place of coroutines.

    ``asyncio.create_task`` and task groups take coroutines only.

    Attributes:
        begun: The coroutine that a task executes; None before it starts.
    """

    begun: Coroutine[Any, Any, _T_co] | None = None

    @abstractmethod
    def _result(self) -> Coroutine[Any, Any, _T_co]:
        """Return a new coroutine that returns the result of the await."""

    @override
    def __await__(self) -> Generator[Any, Any, _T_co]:
        return self._result().__await__()

    @override
    def send(self, value: Any, /) -> Any:
        return self._begin_once().send(value)

    @override
    def throw(self, error: Any, value: Any = None, traceback: Any = None, /) -> Any:
        exception = error if isinstance(error, BaseException) else value or error
        return self._begin_once().throw(exception)

    @override
    def close(self) -> None:
        self._begin_once().close()

    def _begin_once(self) -> Coroutine[Any, Any, _T_co]:
        if self.begun is None:
            self.begun = self._result()
        return self.begun


def note_result(called: str, result: _T) -> _T:
    """Register ``result``, if it is a coroutine, as one that the running action has to await; return it.

    Args:
        called: Name of the call, such as ``ctx.chat``; Python's own warnings use it, too.
        result: The value that the call returned.
    """
    if inspect.iscoroutine(result):
        result.__qualname__ = called
        run = current_action_run.get() or called_action_run.get()
        if run is not None and run.own_code_of is not None:
            run.has_to_await(result)
    return result


def truth_of(result: object, condition: str) -> bool:
    """Return the truth of a value that an author's condition returned.

    Args:
        result: The returned value.
        condition: Name of the condition, for the error.

    Raises:
        MissingAwaitError: The result is an awaitable that was not awaited. It would count as true.
    """
    if hasattr(type(result), "__await__"):
        if inspect.iscoroutine(result):
            result.close()
        raise MissingAwaitError(
            f"{condition} returned an awaitable that was not awaited",
            expected="a bool",
            found=f"{type(result).__name__} {getattr(result, '__qualname__', '')}".strip(),
            fix="let a def function decide, from the event or the arguments alone",
        )
    return bool(result)


class AwaitedMethods:
    """Base of classes whose public ``async def`` methods are called by actions: each call is registered.

    Attributes:
        called_as: Name of such an object in an author's code, for warnings and errors.
    """

    called_as = "ctx"

    @override
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in list(vars(cls).items()):
            if not name.startswith("_") and inspect.iscoroutinefunction(method):
                setattr(cls, name, _note_results(method))


def _note_results(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``method`` with a registration of each coroutine that it returns; see :func:`note_result`."""

    @wraps(method)
    def call(self: AwaitedMethods, *args: Any, **kwargs: Any) -> Any:
        return note_result(f"{self.called_as}.{method.__name__}", method(self, *args, **kwargs))

    return call
