"""Values as the bytes of a record: strings and bytes as they are, all else as JSON through Pydantic."""

from __future__ import annotations

import types
import typing
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from flink_agents.api.errors import KafkaStreamError, KafkaValueError
from flink_agents.api.resources.sendable_text import sendable
from flink_agents.connectors.json_values import read_json, write_json

MAX_ERROR = 2000
"""Maximum number of characters of an error; a Pydantic error may repeat the whole value."""


class ValueReader:
    """Reads keys or values of one declared type.

    ``bytes`` and ``str`` are used as they are, any other type is parsed from JSON. A type with ``| None``
    accepts records without a value.

    Args:
        kind: The type: ``bytes``, ``str``, or any type that Pydantic supports.
        part: ``value`` or ``key``, the part of a record that it reads, for errors.
    """

    def __init__(self, kind: Any, part: str) -> None:
        self.kind = kind
        self.part = part
        inner = _without_none(kind)
        self._optional = inner is not kind or kind in (Any, None, type(None))
        self._plain = inner if inner in (bytes, str) else None
        is_string = isinstance(inner, type) and issubclass(inner, str)
        self._may_be_text = is_string or typing.get_origin(inner) is typing.Literal

    def __reduce__(self) -> tuple[Any, ...]:
        # The value's class may be in the main script; the worker has loaded it by then.
        return ValueReader, (self.kind, self.part)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.kind)

    def _validate_raw(self, raw: bytes) -> Any:
        try:
            return read_json(self._adapter, raw)
        except ValidationError:
            if not self._may_be_text:
                raise
            # A sink writes strings as they are, whatever their class is.
            return self._adapter.validate_python(raw.decode())

    def check(self) -> None:
        """Check that Pydantic supports the type.

        Raises:
            KafkaStreamError: It does not.
        """
        if self._plain is not None:
            return
        try:
            assert self._adapter
        except Exception as error:
            raise KafkaStreamError(
                f"the {self.part} of a Kafka record cannot be read as {self.kind!r}",
                expected="bytes, str, or a type that pydantic supports: a model, a dataclass, dict, "
                "list[int]",
                found=f"{type(error).__name__}: {error}",
                fix=f"declare another type: {self.part}=...",
            ) from error

    def __call__(self, raw: bytes | None) -> Any:
        """Parse the bytes of a key or value; None stands for a missing one.

        Raises:
            KafkaValueError: They do not have the declared type.
        """
        if raw is None:
            if self._optional:
                return None
            raise self._value_error(
                "it is missing (null)", f"declare {self.part}=... | None to get such records"
            )
        if self._plain is bytes:
            return raw
        try:
            return raw.decode() if self._plain is str else self._validate_raw(raw)
        except UnicodeDecodeError as error:
            raise self._value_error(f"not UTF-8: {error}") from error
        except ValidationError as error:
            raise self._value_error(str(error)) from error

    def _value_error(self, found: str, fix: str | None = None) -> KafkaValueError:
        return KafkaValueError(
            f"the {self.part} of a record does not have the declared type",
            expected=getattr(self.kind, "__qualname__", None) or str(self.kind),
            found=found[:MAX_ERROR],
            fix=fix or f"correct the writer of the topic, or declare another type: {self.part}=...",
        )


def _without_none(kind: Any) -> Any:
    """Return a type without ``| None``; the same object if it is no such union."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    arguments = typing.get_args(kind)
    inner = tuple(argument for argument in arguments if argument is not type(None))
    if len(inner) == len(arguments):
        return kind
    return inner[0] if len(inner) == 1 else typing.Union[inner]  # noqa: UP007 - made of a tuple


def write_value(value: Any, part: str) -> bytes | None:
    """Return a key or value as bytes: None and bytes unchanged, strings in UTF-8, all else as JSON.

    Args:
        value: The key or value.
        part: ``value`` or ``key``, for errors.

    Raises:
        KafkaValueError: The value cannot be written as JSON.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return sendable(value).encode()
    try:
        return write_json(value)
    except (PydanticSerializationError, ValueError) as error:
        raise KafkaValueError(
            f"the {part} of a record cannot be written as JSON",
            expected="None, bytes, str, a pydantic model, a dataclass, or values of JSON",
            found=f"{type(value).__qualname__}: {error}"[:MAX_ERROR],
            fix="emit a model or a dataclass, or encode it to bytes yourself",
        ) from error
