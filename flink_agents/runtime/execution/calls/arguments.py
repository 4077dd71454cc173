"""The arguments of durable calls: their bytes, their digest, their text, and the copies for each attempt.

Arguments are encoded once, for the digest, and each attempt gets a decoded copy. So a change that a function
makes to its arguments reaches neither the action nor another attempt.

A record has the digest of the arguments of a call, and the names of the fields that their classes had. If a
class got a field since, an argument whose new field has its default has the value that it had. If a class was
renamed, and its successor is declared with ``@upgrades``, it is the same class. So a replay compares with the
digests that former code would have made.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

from pydantic import BaseModel

from flink_agents import redaction
from flink_agents.api.durable import DurableCallable
from flink_agents.api.durable.upgrades import upgrade_of
from flink_agents.api.errors import StateError, UnserializableValueError
from flink_agents.runtime.journal.records import CallIdentity
from flink_agents.runtime.serde.canonical import Forms, digest_of_form, digest_with_fields, tree_of
from flink_agents.runtime.serde.changed import Stored, aliases_of
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.raised_texts import AWAIT_IT
from flink_agents.runtime.serde.typenames import find_type, stored_name
from flink_agents.runtime.serde.values import own_fields, with_own_form

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
    """Return True if a recorded call has the same arguments, as former code passed them.

    Their classes may have had other names or fewer fields. Each may have been passed by position or by name.

    Args:
        codec: Encodes arguments.
        callable_: The function.
        args: Arguments by position.
        kwargs: Arguments by name.
        former: The recorded call.
    """
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
    """Return the arguments of a call as text for people: ``name=repr``, with hidden and cut parts.

    It has at most ``REQUEST_CHARACTERS`` characters, and no known secret.
    """
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
    """Return the repr of an argument; a long one is cut, without its secrets."""
    try:
        text = repr(value)
        if len(text) <= REQUEST_CHARACTERS:
            return text
        # Hide secrets before the cut: a piece of a secret would not be found.
        return _cut(redaction.hide_known(text))
    except Exception as error:
        return f"<{type(value).__qualname__}: repr raised {type(error).__name__}>"


_MOST_CHOICES = 16
"""The most combinations of former names that are tried, if classes have several."""

_NO_DEFAULT = object()


class _Differs(Exception):
    """An object cannot have been recorded with the former fields."""


def former_digests(codec: ValueCodec, data: bytes, recorded: Mapping[str, Sequence[str]]) -> Iterator[bytes]:
    """Yield the digests that a value may have had when its classes had other names or fewer fields.

    Args:
        codec: Encodes defaults.
        data: The bytes of the value.
        recorded: The names of the fields of each class when the digest was made.
    """
    tree = tree_of(data)
    current = Forms()
    current.form(tree)
    former = {name: _successor_name(name) for name in recorded if name not in current.fields}
    choices = [
        # A class without a former name may be that of a default.
        [name] if name in recorded else [old for old, new in former.items() if new == name] or [""]
        for name in current.fields
    ]
    for names in islice(product(*choices), _MOST_CHOICES):
        forms = _FormerForms(codec, dict(zip(current.fields, names, strict=True)), recorded)
        try:
            yield digest_of_form(forms.form(tree))
        except _Differs:
            continue


class _FormerForms(Forms):
    """Forms of objects with the names and fields that their classes had.

    Args:
        codec: Encodes defaults.
        names: The former names of classes by their present names.
        recorded: The former fields by former name.
    """

    def __init__(
        self, codec: ValueCodec, names: Mapping[str, str], recorded: Mapping[str, Sequence[str]]
    ) -> None:
        super().__init__()
        self._codec = codec
        self._names = names
        self._recorded = recorded

    def object_form(self, stored: Stored) -> bytes:
        """Return the form that an object had.

        Raises:
            _Differs: It has lost a field, or has a new one whose value is not the default.
        """
        name = self._names[stored.name]
        if not name:
            raise _Differs
        former = self._recorded[name]
        cls = find_type(stored.name)
        fields = _under_former_names(cls, stored.fields, former)
        for field in [field for field in fields if field not in former]:
            value = fields.pop(field)
            # What a class keeps to itself is no value that the author passes.
            is_private = field.startswith("_") and isinstance(cls, type) and issubclass(cls, BaseModel)
            if not is_private and field not in stored.unset and not self._is_default(cls, field, value):
                raise _Differs
        if any(field not in fields and not field.startswith("_") for field in former):
            raise _Differs
        return self.form_of_fields(name, fields, stored.extra)

    def _is_default(self, cls: Any, field: str, value: Any) -> bool:
        """Return True if a stored field has the value that its class has by default."""
        default = _default_of(cls, field)
        if default is _NO_DEFAULT:
            return False
        try:
            data = self._codec.encode(with_own_form(own_fields(cls).get(field), default))
        except StateError:
            return False
        return Forms().form(tree_of(data)) == Forms().form(value)


def _successor_name(name: str) -> str | None:
    """Return the present name of a recorded class; None if a function takes its place."""
    upgrade = upgrade_of(name)
    cls = find_type(name) if upgrade is None else upgrade
    if not isinstance(cls, type):
        return None
    try:
        return stored_name(cls)
    except StateError:
        return None


def _under_former_names(cls: Any, fields: Mapping[str, Any], former: Sequence[str]) -> dict[str, Any]:
    """Return the fields of an object; a renamed one with its former name as an alias is under that."""
    declared = getattr(cls, "__pydantic_fields__", {}) if isinstance(cls, type) else {}
    under: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in former and name in declared:
            name = next((alias for alias in aliases_of(declared[name]) if alias in former), name)
        under[name] = value
    return under


def _default_of(cls: Any, field: str) -> Any:
    """Return the default of a field; ``_NO_DEFAULT`` if it has none, or if code of the class raises."""
    try:
        if issubclass(cls, BaseModel):
            info = cls.__pydantic_fields__[field]
            return _NO_DEFAULT if info.is_required() else info.get_default(call_default_factory=True)
        if dataclasses.is_dataclass(cls):
            declared = cls.__dataclass_fields__[field]
            if declared.default_factory is not dataclasses.MISSING:
                return declared.default_factory()
            return _NO_DEFAULT if declared.default is dataclasses.MISSING else declared.default
        return getattr(cls, "_field_defaults", {}).get(field, _NO_DEFAULT)
    except Exception:  # Code of the class, or a factory that needs the other fields.
        return _NO_DEFAULT
