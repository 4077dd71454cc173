"""Checks of the declaration of a durable step, before it has an effect.

Otherwise an error in a reconciler would only show after a crash, and an error in ``redact`` in a record with
a secret.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from types import FunctionType
from typing import Any, cast

from flink_agents.api.common.identity import IdentityCache
from flink_agents.api.common.places import authors_place, describe
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.errors import AgentConfigurationError
from flink_agents.api.errors.base import suggest

IDEMPOTENCY_KEY = "idempotency_key"
"""Name of the parameter that gets the idempotency key of the call."""

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_SIGNATURES: IdentityCache[inspect.Signature] = IdentityCache()


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of ``function``; None if it has none, as some functions of extension modules."""
    is_plain = type(function) is FunctionType
    signature = _SIGNATURES.get(function) if is_plain else None
    if signature is not None:
        return signature
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    return _SIGNATURES.put(function, signature) if is_plain else signature


def takes_argument(function: Callable[..., Any], name: str) -> bool:
    """Return True if ``function`` accepts an argument of that name, perhaps with ``**kwargs``."""
    signature = signature_of(function)
    if signature is None:
        return False
    parameter = signature.parameters.get(name)
    if parameter is not None and parameter.kind in _BY_NAME:
        return True
    return any(candidate.kind is inspect.Parameter.VAR_KEYWORD for candidate in signature.parameters.values())


def misspelt_key(names: Iterable[str], cutoff: float = 0.85) -> str | None:
    """Return the parameter that is most likely a misspelt ``idempotency_key``, or None.

    Args:
        names: Names of the parameters of a function.
        cutoff: Minimum similarity of a name, from 0 to 1, as in ``difflib.get_close_matches``.
    """
    names = list(names)
    if IDEMPOTENCY_KEY in names:
        return None
    near = difflib.get_close_matches(IDEMPOTENCY_KEY, [name.lower() for name in names], n=1, cutoff=cutoff)
    return next((name for name in names if near and name.lower() == near[0]), None)


def misspelt_default(function: Callable[..., Any]) -> str | None:
    """Return a parameter with a default that is most likely a misspelt idempotency key, or None.

    A call without such a parameter does not fail, so nothing else would show the mistake.
    """
    signature = signature_of(function)
    if signature is None:
        return None
    parameters = signature.parameters
    if not any("idem" in name.lower() or "potency" in name.lower() for name in parameters):
        return None
    # The author's own parameter can have a similar name.
    name = misspelt_key(parameters, cutoff=0.9)
    if name is None or parameters[name].default is inspect.Parameter.empty:
        return None
    return name


def check_key_given(
    function: Callable[..., Any],
    called: str,
    parameter: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Check that a call passes a parameter that is most likely a misspelt ``idempotency_key``.

    Args:
        function: The function of the durable step.
        called: Its name, for the error.
        parameter: Name of the parameter.
        args: Arguments of the call by position.
        kwargs: Arguments of the call by name.

    Raises:
        AgentConfigurationError: The call does not pass it.
    """
    signature = signature_of(function)
    with suppress(TypeError):
        if signature is None or parameter in signature.bind_partial(*args, **kwargs).arguments:
            return
    raise AgentConfigurationError(
        f"{called} has a parameter {parameter!r}, which gets no value",
        expected=f"a parameter {IDEMPOTENCY_KEY}, which the runtime passes",
        found=parameter,
        fix=f"did you mean {IDEMPOTENCY_KEY!r}?",
        where=authors_place(),
    )


def positional_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters of ``function`` that can be passed by position."""
    signature = signature_of(function)
    parameters = signature.parameters.values() if signature is not None else ()
    return tuple(parameter.name for parameter in parameters if parameter.kind in _POSITIONAL)


def check_function(function: object) -> None:
    """Check that the function of a durable step is callable.

    Raises:
        AgentConfigurationError: It is not callable, for example the result of a call.
    """
    if not callable(function):
        raise AgentConfigurationError(
            "a durable step needs a function",
            expected="a function",
            found=repr(function)[:200],
            fix="pass the function itself and its arguments: durable_execute(charge, order_id)",
            where=authors_place(),
        )


def check_clients(function: Callable[..., Any], called: str, clients: Iterable[str]) -> None:
    """Check that the function has a parameter for each client.

    Args:
        function: The function of the durable step.
        called: Its name, for the error.
        clients: Names of the clients that it shall get.

    Raises:
        AgentConfigurationError: A client has no parameter.
    """
    for name in clients:
        if not takes_argument(function, name) and signature_of(function) is not None:
            raise AgentConfigurationError(
                f"{called} has no parameter for the client {name!r}",
                expected=f"a parameter {name!r}, which gets the open client",
                found=f"{called}{signature_of(function)}",
                fix=f"add the parameter {name!r}, or give the client a name that can be a parameter",
                where=authors_place(),
            )


def redacted_names(function: Callable[..., Any], called: str, redact: object) -> frozenset[str]:
    """Return the names of the parameters whose values are omitted from records.

    Args:
        function: The function of the durable step.
        called: Its name, for the error.
        redact: The author's setting: a name, or a collection of names.

    Raises:
        AgentConfigurationError: It is neither, or the function has no parameter of that name.
    """
    names = frozenset[object]([redact]) if isinstance(redact, str) else _collection_members(redact)
    if names is None or not all(isinstance(name, str) for name in names):
        raise AgentConfigurationError(
            f"redact of {called} names no parameters",
            expected="the name of a parameter, or several names",
            found=describe(redact)[:200],
            fix="write redact='token', or redact={'token', 'card'}",
            where=authors_place(),
        )
    parameter_names = cast("frozenset[str]", names)
    signature = signature_of(function) if parameter_names else None
    if signature is None:
        return parameter_names
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        return parameter_names
    for name in sorted(parameter_names - signature.parameters.keys()):
        raise AgentConfigurationError(
            f"{called} has no parameter {name!r} to omit from records",
            expected=f"one of {', '.join(signature.parameters)}" if signature.parameters else "no redact",
            found=f"redact={name!r}",
            fix=suggest(name, signature.parameters, "name a parameter of the function, or remove redact"),
            where=authors_place(),
        )
    return parameter_names


def _collection_members(value: object) -> frozenset[object] | None:
    """Return the members of a collection; None if it is none, or a member cannot be hashed."""
    if not isinstance(value, Collection):
        return None
    try:
        return frozenset(cast("Collection[object]", value))
    except TypeError:
        return None


def check_values(called: str, name: object, timeout: object, retry: object) -> None:
    """Check the settings of a durable step that do not depend on its function.

    Args:
        called: Name of the function, for the error.
        name: Its name in records, a string that is not empty; or None.
        timeout: Timeout of an attempt, finite seconds above 0 or a timedelta; or None.
        retry: A ``RetryPolicy``, or None.

    Raises:
        AgentConfigurationError: A setting has another value.
    """
    if name is not None and not (isinstance(name, str) and name):
        raise _setting_error(called, "name", name, "a string that is not empty", "name='charge'")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is not None and (
        not isinstance(seconds, int | float)
        or isinstance(seconds, bool)
        # This is false for NaN, infinity, and an int that no float can hold.
        or not 0 < seconds <= sys.float_info.max
    ):
        raise _setting_error(
            called, "timeout", timeout, "finite seconds, more than 0, or a timedelta", "timeout=30"
        )
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise _setting_error(called, "retry", retry, "a RetryPolicy", "retry=RetryPolicy(max_attempts=3)")


def _setting_error(
    called: str, setting: str, value: object, expected: str, example: str
) -> AgentConfigurationError:
    return AgentConfigurationError(
        f"a durable step of {called} has an invalid {setting}",
        expected=expected,
        found=describe(value)[:200],
        fix=f"write {example}, or omit it",
        where=authors_place(),
    )


def check_reconciler(
    function: Callable[..., Any], called: str, reconciler: Callable[..., Any], clients: tuple[str, ...]
) -> None:
    """Check that a reconciler can be called with arguments of the function.

    Args:
        function: The function of the durable step.
        called: Its name, for the error.
        reconciler: The author's reconciler.
        clients: Names of the clients that the function gets.

    Raises:
        AgentConfigurationError: It is no function, or accepts the arguments of no call of the function.
    """
    if not callable(reconciler):
        raise AgentConfigurationError(
            f"the reconciler of {called} is not a function",
            expected="a function with the same parameters as the function of the call",
            found=describe(reconciler)[:200],
            fix="pass the function itself: reconciler=look_up",
            where=authors_place(),
        )
    if _fits_calls(function, reconciler, clients) is False:
        raise _unfit_reconciler_error(function, called, reconciler, clients, None)


def check_call_arguments(
    function: Callable[..., Any],
    called: str,
    reconciler: Callable[..., Any],
    clients: tuple[str, ...],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Check that a reconciler accepts the arguments of one call, if it does not accept all calls.

    Args:
        function: The function of the durable step.
        called: Its name, for the error.
        reconciler: Its reconciler.
        clients: Names of the clients that the function gets.
        args: Arguments of the call by position.
        kwargs: Arguments of the call by name.

    Raises:
        AgentConfigurationError: The reconciler does not accept them, but the function does.
    """
    if _fits_calls(function, reconciler, clients) is not None:
        return
    reconciler_signature = _without_clients(signature_of(reconciler), clients)
    function_signature = _without_clients(signature_of(function), clients)
    # If the function itself rejects the arguments, its own error is better.
    if function_signature is not None and not _can_bind(function_signature, args, kwargs):
        return
    if reconciler_signature is not None and not _can_bind(reconciler_signature, args, kwargs):
        # No values: one of them may be redacted.
        argument_text = ", ".join(["..."] * len(args) + [f"{name}=..." for name in kwargs])
        raise _unfit_reconciler_error(function, called, reconciler, clients, argument_text)


def _unfit_reconciler_error(
    function: Callable[..., Any],
    called: str,
    reconciler: Callable[..., Any],
    clients: tuple[str, ...],
    argument_text: str | None,
) -> AgentConfigurationError:
    name = getattr(reconciler, "__qualname__", type(reconciler).__qualname__)
    call = f"a call with ({argument_text})" if argument_text is not None else "its calls"
    return AgentConfigurationError(
        f"the reconciler {name} of {called} cannot be called with the arguments of {call}",
        expected=f"the parameters of the function: {_without_clients(signature_of(function), clients)}",
        found=f"{name}{signature_of(reconciler)}",
        fix=f"let {name} take the same parameters. {IDEMPOTENCY_KEY} and clients are passed to it if it has "
        "parameters with these names",
        where=authors_place(),
    )


def _fits_calls(
    function: Callable[..., Any], reconciler: Callable[..., Any], clients: tuple[str, ...]
) -> bool | None:
    """Return True if a reconciler accepts the arguments of all calls, False if of none, else None."""
    are_plain = type(function) is FunctionType and type(reconciler) is FunctionType
    return (_cached_fit if are_plain else _fits_signature)(function, reconciler, clients)


def _fits_signature(
    function: Callable[..., Any], reconciler: Callable[..., Any], clients: tuple[str, ...]
) -> bool | None:
    function_signature = _without_clients(signature_of(function), (*clients, IDEMPOTENCY_KEY))
    reconciler_signature = _without_clients(signature_of(reconciler), clients)
    if function_signature is None or reconciler_signature is None:
        return True
    parameters = list(function_signature.parameters.values())
    open_kinds = {parameter.kind for parameter in parameters} & {*_MANY}
    # Calls with all arguments, and with the required ones; by position, and by name.
    single = [parameter for parameter in parameters if parameter.kind not in _MANY]
    required = [parameter for parameter in single if parameter.default is parameter.empty]
    accepted = [
        _can_bind(reconciler_signature, *_call_shape(passed, by_name))
        for passed in (single, required)
        for by_name in (False, True)
    ]
    reconciler_kinds = {parameter.kind for parameter in reconciler_signature.parameters.values()}
    if all(accepted) and open_kinds <= reconciler_kinds:
        return True
    return None if any(accepted) or open_kinds else False


_cached_fit = lru_cache(maxsize=1024)(_fits_signature)
"""For plain functions. Equal functions are the same one; for other objects, only their class knows."""


def _call_shape(parameters: list[inspect.Parameter], by_name: bool) -> tuple[list[None], dict[str, None]]:
    """Return the arguments of a call with these parameters, by position and by name; all are None.

    Args:
        parameters: The parameters that the call passes.
        by_name: True to pass all that can be passed by name so; False to pass only those that have to be.
    """
    kinds_by_name = _BY_NAME if by_name else (inspect.Parameter.KEYWORD_ONLY,)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds_by_name]
    return [None] * (len(parameters) - len(names)), dict.fromkeys(names)


def _can_bind(signature: inspect.Signature, args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return True if a call with these arguments, and the idempotency key if it is wanted, is valid."""
    key = signature.parameters.get(IDEMPOTENCY_KEY)
    key_argument = {IDEMPOTENCY_KEY: None} if key is not None and key.kind in _BY_NAME else {}
    try:
        signature.bind(*args, **{**key_argument, **kwargs})
    except TypeError:
        return False
    return True


def _without_clients(
    signature: inspect.Signature | None, clients: tuple[str, ...]
) -> inspect.Signature | None:
    """Return a signature without the parameters named in ``clients``, and without its return type."""
    if signature is None:
        return None
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in clients]
    return signature.replace(parameters=parameters, return_annotation=signature.empty)
