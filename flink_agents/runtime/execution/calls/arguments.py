"""The arguments of durable calls: their bytes, their digest, their text, and the copies for each attempt.

Arguments are encoded once, for the digest, and each attempt gets a decoded copy. So a change that a function
makes to its arguments reaches neither the action nor another attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flink_agents import redaction
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import UnserializableValueError
from flink_agents.runtime.execution.calls.former_digests import former_digests
from flink_agents.runtime.journal.records import CallIdentity
from flink_agents.runtime.serde.canonical import digest_with_fields
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.raised_texts import AWAIT_IT

REQUEST_CHARACTERS = 2000
"""The most characters of its request that the record of a call stores."""

_GAP = " ... "


def encode_arguments(
    codec: ValueCodec, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[bytes, CallIdentity]:
    """Return the bytes of the arguments of a call, and its identity: name, digest and text.

    Raises:
        UnserializableValueError: An argument cannot be encoded.
    """
    try:
        data = codec.encode([list(args), dict(kwargs)])
    except UnserializableValueError as error:
        raise _unfit_argument(callable_, error) from error
    digest, fields = digest_with_fields(data)
    return data, CallIdentity(callable_.identity, digest, request_text(callable_, args, kwargs), fields)


def are_former_arguments(
    codec: ValueCodec,
    callable_: DurableCallable,
    args: list[Any],
    kwargs: Mapping[str, Any],
    former: CallIdentity,
) -> bool:
    """Return True if ``former`` has the same values, in the classes and the passing of former code."""
    if former.function != callable_.identity:
        return False
    for passing in _passings(callable_, args, kwargs):
        data = codec.encode(passing)
        digests = [digest_with_fields(data)[0]]
        if former.fields is not None:
            digests = former_digests(codec, data, former.fields)
        if former.arguments in digests:
            return True
    return False


def _passings(callable_: DurableCallable, args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield the ways to pass these arguments by position and by name."""
    names = [name for name in callable_.positional if name not in callable_.clients]
    if len(args) > len(names):
        yield [args, dict(kwargs)]
        return
    values = [*args]
    for name in names[len(args) :]:
        if name not in kwargs:
            break
        values.append(kwargs[name])
    by_name = dict(zip(names, values, strict=False))
    remaining_kwargs = {name: value for name, value in kwargs.items() if name not in by_name}
    for count in range(len(values) + 1):
        yield [values[:count], {**dict(list(by_name.items())[count:]), **remaining_kwargs}]


def _unfit_argument(callable_: DurableCallable, error: UnserializableValueError) -> UnserializableValueError:
    """Return the error of a call with an argument that no record can hold."""
    if error.fix == AWAIT_IT:
        return error
    return UnserializableValueError(
        f"a durable call of {callable_.identity} has an argument that no record can hold: {error.message}",
        expected=error.expected,
        found=error.found,
        fix="pass plain values or a pydantic model. A session or a connection is a client of the agent, "
        "which DurableCallable(function, client='name') gives to the function",
    )


def with_clients(
    names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any], clients: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with its clients among them.

    A client is at the position of its parameter, so the function may take it first.

    Args:
        names: Parameters that take positional arguments.
        args: Arguments by position, without the clients.
        kwargs: Arguments by name, without the clients.
        clients: Open clients by name.
    """
    by_name = dict(clients)
    remaining_args = deque(args)
    positional_args = list[Any]()
    for name in names:
        if not remaining_args:
            break
        positional_args.append(by_name.pop(name) if name in by_name else remaining_args.popleft())
    return [*positional_args, *remaining_args], {**kwargs, **by_name}


def request_text(callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the arguments as text for people."""
    if callable_.request is not None:
        return callable_.request
    names: Sequence[str] = callable_.positional
    if callable_.clients:
        names = [name for name in callable_.positional if name not in callable_.clients]
    if len(names) < len(args):
        names = list(map(str, range(len(args))))
    named = [*zip(names, args, strict=False), *kwargs.items()]
    # An argument without a name may be one to redact.
    hidden = {*callable_.redact, *filter(str.isdecimal, dict(named))} if callable_.redact else ()
    shown: list[str] = []
    for name, value in named:
        shown.append(f"{name}={'...' if name in hidden else _shown(value)}")
    text = ", ".join(shown)
    if redaction.known_secrets.pattern is not None:
        text = redaction.hide_known(text)
    return text if len(text) <= REQUEST_CHARACTERS else _cut(text)


def _cut(text: str) -> str:
    """Return start and end of a long text."""
    tail = REQUEST_CHARACTERS // 3
    return f"{text[: REQUEST_CHARACTERS - tail - len(_GAP)]}{_GAP}{text[-tail:]}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
        if len(text) <= REQUEST_CHARACTERS:
            return text
        # Hide secrets before the cut: a piece of a secret would not be found.
        return _cut(redaction.hide_known(text))
    except Exception as error:
        return f"<{type(value).__qualname__}: repr raised {type(error).__name__}>"
