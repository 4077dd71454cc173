"""Compares values with declared types, describes the differences, and converts values for Flink.

A stream of numbers, strings or bools uses Flink's own serializer, which takes only exact Python types in the
range of their Java type: an enum member, a scalar of numpy, or an int for a float would fail the job. Both
the test kit and jobs convert what is lossless.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from numbers import Integral, Real
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from flink_agents.runtime.serde.typenames import shorten

MOST_PROBLEMS = 3
"""The largest number of differences in a message."""

Check = Callable[[Any], str | None]
"""Returns the difference between a value and its type as text; None if the value has the type."""


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return the Pydantic adapter for a declared type; created once for each type.

    Raises:
        Exception: Pydantic does not describe such values.
    """
    try:
        return _cached_adapter(kind, order_of(kind))
    except TypeError:
        return TypeAdapter(kind)  # Such a type is not hashable.


def order_of(kind: Any) -> str | None:
    """Return a text that distinguishes unions in another order, which are equal; None for a class.

    The order decides which member of a union a value becomes, so it belongs into keys of caches.
    """
    return None if isinstance(kind, type) else repr(kind)


@lru_cache(maxsize=256)
def _cached_adapter(kind: Any, order: str | None) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_of(kind: Any) -> Check | None:
    """Return a function that compares values with a declared type, without conversions.

    It is None if all values fit.

    All values fit types of PyFlink, and others that Pydantic cannot describe.
    """
    module = (kind if isinstance(kind, type) else type(kind)).__module__
    if kind is None or module.partition(".")[0] == "pyflink":
        return None
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        # Pydantic would accept a dictionary.
        return partial(_instance_problem, kind)
    try:
        validate = strict_adapter(kind).validate_python
    except Exception:  # A foreign type may raise anything when it is described.
        return None

    def check(value: Any) -> str | None:
        if type(value) is kind:
            return None
        try:
            validate(value, strict=True)
        except ValidationError as error:
            return problems_text(error, value)
        except Exception:
            return None  # A protocol without instance checks, for example.
        return None

    return check


def _instance_problem(kind: type, value: Any) -> str | None:
    """Return the text that a value is no instance of a class; None if it is one."""
    if isinstance(value, kind):
        return None
    return f"{type(value).__qualname__} {shorten(value)}: Input should be an instance of {kind.__name__}"


def problems_text(error: ValidationError, value: Any) -> str:
    """Return the text of a validation error: the value, and at most ``MOST_PROBLEMS`` differences."""
    problems = error.errors(include_url=False, include_context=False)
    texts = [
        _problem_text(problem["loc"], problem["msg"], problem["input"])
        for problem in problems[:MOST_PROBLEMS]
    ]
    if len(problems) > MOST_PROBLEMS:
        texts.append(f"and {len(problems) - MOST_PROBLEMS} more")
    return f"{type(value).__qualname__} {shorten(value)}: " + "; ".join(texts)


def _problem_text(location: tuple[int | str, ...], message: str, value: Any) -> str:
    if not location:
        return message
    return f"at {'.'.join(map(str, location))}: {message}, not {shorten(value)}"


def strict_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return a Pydantic adapter for a type; for a class that Pydantic does not know, it checks instances."""
    try:
        return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        return TypeAdapter(kind)  # A type with its own configuration accepts no other.


Carry = Callable[[Any], Any]
"""Returns a value as Flink carries it, or raises ``NotCarriedError``."""

_LARGEST_FLOAT = 3.4028234663852886e38
"""The largest finite float of 32 bits (IEEE 754)."""


class NotCarriedError(Exception):
    """Flink cannot carry a value as its declared type. The text has the value and the problem."""


def not_carried(value: Any, problem: str) -> NotCarriedError:
    """Return the error for a value, with the text of the problem."""
    return NotCarriedError(f"{type(value).__qualname__} {shorten(value)}: {problem}")


def _is_bool(value: Any) -> bool:
    """Return True for a bool of Python or numpy."""
    return isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", None) == "b"


def integers(bits: int) -> Carry:
    """Return the conversion to signed integers of ``bits`` bits."""
    limit = 1 << (bits - 1)

    def carry(value: Any) -> int:
        if type(value) is not int:
            if not isinstance(value, Integral) or _is_bool(value):
                raise not_carried(value, "Input should be a valid integer")
            value = int(value)
        if not -limit <= value < limit:
            raise not_carried(value, f"Input should be an integer of {bits} bits")
        return value

    return carry


def _to_float(value: Any) -> float:
    """Return a number as a float of 64 bits."""
    if type(value) is float:
        return value
    if not isinstance(value, Real) or _is_bool(value):
        raise not_carried(value, "Input should be a valid number")
    try:
        number = float(value)
    except OverflowError:
        number = math.nan
    is_nan = value != value
    if number != value and not is_nan:
        raise not_carried(value, "Input should be a number that a float represents exactly")
    return number


def short_float(value: Any) -> float:
    """Return a value as a float of 32 bits, which Flink rounds."""
    number = _to_float(value)
    if _LARGEST_FLOAT < abs(number) < math.inf:
        raise not_carried(value, "Input should be a float of 32 bits")
    return number


def _to_string(value: Any) -> str:
    """Return a string as an exact ``str`` that UTF-8 can encode."""
    if not isinstance(value, str):
        raise not_carried(value, "Input should be a valid string")
    text = value if type(value) is str else str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            # Half of a surrogate pair, which UTF-8 cannot encode.
            raise not_carried(value, "Input should be text without half of a character") from None
    return text


def _to_bool(value: Any) -> bool:
    """Return a bool of Python or numpy as an exact ``bool``."""
    if type(value) is bool:
        return value
    if not _is_bool(value) or getattr(value, "shape", ()) != ():
        raise not_carried(value, "Input should be a valid boolean")
    return bool(value)


CARRIED: dict[Any, Carry] = {int: integers(64), float: _to_float, str: _to_string, bool: _to_bool}
"""The conversions of the Python types that have a serializer of Flink."""

_OF_FLINK: dict[str, Carry] = {
    "BYTE": integers(8),
    "SHORT": integers(16),
    "INT": integers(32),
    "LONG": CARRIED[int],
    "FLOAT": short_float,
    "DOUBLE": _to_float,
    "STRING": _to_string,
    "BOOLEAN": _to_bool,
}


def carry_of(kind: Any) -> Carry | None:
    """Return the conversion for a declared type; None if its values are not converted.

    Args:
        kind: A Python type, or a basic type of PyFlink, which this package does not import here.
    """
    basic = getattr(kind, "_basic_type", None)
    if basic is not None:
        return _OF_FLINK.get(cast("str", basic.name))
    try:
        return CARRIED.get(kind)
    except TypeError:
        return None  # Such a type is not hashable.
