"""Names the object that keeps code from being shipped to workers, in place of cloudpickle's traceback."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import cloudpickle

from flink_agents.api.common.places import authors_place, is_users_code, place_of
from flink_agents.api.errors import UnshippableCodeError

_MOST_STEPS = 50

_FIX = (
    "create it where you use it: an agent declares it with @client, a function opens it itself; or move it "
    "to a separate module, which workers import"
)


class _Part(NamedTuple):
    """A part of a value.

    Attributes:
        value: The part.
        label: Its name in the whole, to display; empty if the user has not named it.
        holder: The function that uses it by that name, or None.
    """

    value: Any
    label: str
    holder: FunctionType | None = None


def check_shippable(what: str, value: Any) -> None:
    """Check that a value can be shipped to workers.

    Args:
        what: The value, for messages.
        value: The value.

    Raises:
        UnshippableCodeError: A part of it cannot be pickled; the message names the part.
    """
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        path = _path_to_culprit(value)
        named = next((part for part in path if part.label and not _is_code(part.value)), None)
        holder = next((part.holder for part in reversed(path) if part.holder is not None), None)
        kind = type(named.value if named is not None else path[-1].value if path else value)
        type_name = f"{kind.__module__}.{kind.__qualname__}"
        label = f"{named.label}, " if named is not None else ""
        raise UnshippableCodeError(
            f"{what} uses an object that cannot be sent to the workers: {label}{type_name}",
            expected="functions and values that can be pickled",
            found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            fix=_FIX,
            where=place_of(holder) if holder is not None else authors_place(),
        ) from error


def _is_code(value: Any) -> bool:
    is_ours = type(value).__module__.partition(".")[0] == __name__.partition(".")[0]
    return is_ours or isinstance(
        value, FunctionType | MethodType | type | functools.partial | dict | list | tuple
    )


def _path_to_culprit(value: Any) -> list[_Part]:
    """Return the parts that cannot be pickled, from the outermost to the innermost."""
    path: list[_Part] = []
    seen = {id(value)}
    while len(path) < _MOST_STEPS:
        for part in _find_parts(value):
            if id(part.value) in seen:
                continue
            seen.add(id(part.value))
            try:
                cloudpickle.dumps(part.value)
            except Exception:
                path.append(part)
                value = part.value
                break
        else:
            return path
    return path


def _find_parts(value: Any) -> Iterator[_Part]:
    if isinstance(value, MethodType):
        yield _Part(value.__func__, "")
        yield _Part(value.__self__, "")
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, type):
        for name, attribute in vars(value).items():
            inner = getattr(attribute, "__func__", getattr(attribute, "fget", attribute))
            yield _Part(inner, f"the class attribute {value.__qualname__}.{name}")
    elif isinstance(value, functools.partial):
        yield _Part(value.func, "")
        yield from (_Part(argument, f"an argument of partial({value.func!r})") for argument in value.args)
        yield from (_Part(argument, f"the argument {name!r}") for name, argument in value.keywords.items())
    elif isinstance(value, dict):
        yield from (_Part(entry, f"the entry {name!r}"[:100]) for name, entry in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (_Part(member, "") for member in value)
    else:
        yield from _parts_of_object(value)


def _parts_of_object(value: Any) -> Iterator[_Part]:
    is_ours = type(value).__module__.partition(".")[0] == __name__.partition(".")[0]
    slots = {name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())}
    for name in (*getattr(value, "__dict__", {}), *slots):
        try:
            part = getattr(value, name)
        except Exception:
            continue
        yield _Part(part, "" if is_ours else f"the attribute {type(value).__qualname__}.{name}")


def _parts_of_function(function: FunctionType) -> Iterator[_Part]:
    """Yield the objects that are pickled with a function: closure, globals, defaults and attributes."""
    holder = function if is_users_code(function.__code__) else None
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield _Part(cell.cell_contents, f"the variable {name!r} around {function.__qualname__}", holder)
        except ValueError:
            continue  # The variable has no value yet.
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield _Part(function.__globals__[name], f"the global {name!r}", holder)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield _Part(default, f"a default of {function.__qualname__}", holder)
    yield from (
        _Part(attribute, f"the attribute {name!r} of a function", holder)
        for name, attribute in vars(function).items()
    )


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
