"""Calls that actions have to await: the end of an action finds those that were not awaited.

Python only warns of such a coroutine, in a log, and it counts as true. So an action that forgets the
``await`` before a request for an approval would continue as if it had been approved.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from typing_extensions import override

from flink_agents.api.common.current import called_action_run, current_action_run
from flink_agents.api.errors import MissingAwaitError

_T = TypeVar("_T")


def noted(called: str, made: _T) -> _T:
    """Note that the action whose code runs has to await ``made``, if that is a coroutine; returns it.

    Args:
        called: What the author wrote, such as ``ctx.chat``; Python's own warnings name the coroutine so, too.
        made: What the call returns.
    """
    if inspect.iscoroutine(made):
        made.__qualname__ = called
        run = current_action_run.get() or called_action_run.get()
        if run is not None and run.own_code_of is not None:
            run.has_to_await(made)
    return made


def truth_of(result: object, condition: str) -> bool:
    """Return the result of a condition as a bool.

    Args:
        result: What it returned.
        condition: What it decides, for the error.

    Raises:
        MissingAwaitError: It has to be awaited, and is not. It would count as true.
    """
    if hasattr(type(result), "__await__"):
        if inspect.iscoroutine(result):
            result.close()
        raise MissingAwaitError(
            f"{condition} gives something that was not awaited",
            expected="a truth value",
            found=f"{type(result).__name__} {getattr(result, '__qualname__', '')}".strip(),
            fix="let a def function decide, from the event or the arguments alone",
        )
    return bool(result)


class AwaitedMethods:
    """A base of classes whose public ``async def`` methods actions call: each call is noted.

    Attributes:
        called_as: What an author's code calls an object of the class.
    """

    called_as = "ctx"

    @override
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in list(vars(cls).items()):
            if not name.startswith("_") and inspect.iscoroutinefunction(method):
                setattr(cls, name, _noting(method))


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: AwaitedMethods, *args: Any, **kwargs: Any) -> Any:
        return noted(f"{self.called_as}.{method.__name__}", method(self, *args, **kwargs))

    return call
