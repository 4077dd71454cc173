"""Context variables: the running action, for code that gets no context as an argument, and those of users.

A library that an action calls, such as a Pydantic AI agent, can record its calls with the action's context
without a parameter for it.

The tenant of a customer, a tracing span and the precision of ``decimal`` are context variables of users.
Threads and tasks of the runtime serve one key after the other, and a replay does not execute recorded code.
So each execution of an action, and each of its steps and tools, has a copy of the context, as in
``asyncio.to_thread``: code sees those of its caller, and what it binds stays inside.
"""

from __future__ import annotations

import decimal
import inspect
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from functools import wraps
from types import coroutine
from typing import Any, Protocol


class CurrentActionRun(Protocol):
    """One execution of one action, as code sees it that gets no context as an argument."""

    @property
    def own_code_of(self) -> str | None:
        """Name of the action if its own code is running, and not one of its durable functions."""
        ...

    def has_to_await(self, action_coroutine: Coroutine[Any, Any, Any]) -> None:
        """Register a coroutine that the action's own code created and has to await."""
        ...

    def context_here(self) -> Any:
        """Return the action's ``RunnerContext``.

        None in a durable function, in another thread, and after the action's end.
        """
        ...


current_action_run: ContextVar[CurrentActionRun | None] = ContextVar("flink_agents_action_run", default=None)
"""The execution of the running ``async def`` action. The runtime sets it, and tasks inherit it."""

called_action_run: ContextVar[CurrentActionRun | None] = ContextVar(
    "flink_agents_called_action_run", default=None
)
"""The execution of the action whose function is being called: code of a ``def`` action runs inside."""

current_delivery: ContextVar[Any] = ContextVar("flink_agents_delivery", default=None)
"""The object that delivers outcomes to the action whose code runs; None in other code."""

OWN_LOCKS: set[str] = set()
"""Libraries whose locks, events and queues join tasks of one action, and nothing outside of it.

A task that waits for such a lock does not prevent its run from being suspended. An integration of a library
adds the library's name.
"""


def unrecorded_action() -> str | None:
    """Return the name of the action whose code runs in a place where no durable step can be awaited.

    This is the code of a ``def`` action, and code that an ``async def`` action runs in another thread. Code
    of a durable function does not count: it is recorded as a whole.

    Returns:
        The name. None in any other code.
    """
    run = called_action_run.get()
    if run is None:
        # Code that may use the context can await a durable step; other threads cannot.
        run = current_action_run.get()
        if run is not None and run.context_here() is not None:
            return None
    return None if run is None else run.own_code_of


# -- variables of users ------------------------------------------------------------------


def _find_decimal_variable() -> ContextVar[decimal.Context]:
    """Return the variable that ``decimal`` sets: the only one of the context, if that was empty before."""
    decimal.getcontext()
    (variable,) = copy_context()
    return variable


DECIMALS: ContextVar[decimal.Context] = Context().run(_find_decimal_variable)
"""The variable of ``decimal``, which has no public name. Its value can be changed in place."""


is_closing: ContextVar[bool] = ContextVar("flink_agents_is_closing", default=False)
"""True in the context of a coroutine that Python closes.

Python also closes it if an awaited task raised GeneratorExit.
"""


_NOT_BEGUN: Any = object()


def isolated() -> Context:
    """Return a copy of the running context. What code binds in it, or sets in ``decimal``, stays there."""
    context = copy_context()
    if DECIMALS in context:
        context.run(DECIMALS.set, context[DECIMALS].copy())
    return context


def contained(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, each call of which gets its own copy of the context; ``async def`` remains so."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return isolated().run(function, *args, **kwargs)

    @wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        context = isolated()
        return await in_context(context, context.run(function, *args, **kwargs))

    return call_async if inspect.iscoroutinefunction(function) else call


@coroutine
def in_context(
    context: Context, inner: Coroutine[Any, Any, Any], *resume: Any, awaited: Any = _NOT_BEGUN
) -> Generator[Any, Any, Any]:
    """Await a coroutine in its own context, without a task.

    The running task takes over the variables of the runtime: callbacks of the task have its context.

    Args:
        context: The context in which the coroutine runs.
        inner: The coroutine. The watchdog finds it by the name of this variable.
        *resume: A function that resumes the coroutine, and its first arguments. Its last two arguments are
            the coroutine's ``send`` or ``throw``, and the value for it. Default: the method is called itself.
        awaited: The object that the coroutine awaits, if it has begun.

    Returns:
        The result of the coroutine.
    """
    run = context.run
    send = inner.send
    try:
        if awaited is _NOT_BEGUN:
            awaited = run(*resume, send, None)
        while True:
            current_delivery.set(context.get(current_delivery))
            current_action_run.set(context.get(current_action_run))
            try:
                value = yield awaited
            except BaseException as error:
                if isinstance(error, GeneratorExit):
                    context.run(is_closing.set, True)
                awaited = run(*resume, inner.throw, error)
            else:
                awaited = run(*resume, send, value)
    except StopIteration as stop:
        return stop.value
    finally:
        current_delivery.set(context.get(current_delivery))
        current_action_run.set(context.get(current_action_run))
