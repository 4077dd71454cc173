"""Distinguishes messages that the agent's code wrote from messages in input data.

A record can have the type of a message, and the answer of a model or server can look like one. Such an object
comes from outside, so it must never speak as the system, the assistant or a tool. Each object carries its
origin, and copies, memory and the journal keep it:

- An object of a class with :class:`WrittenType` is the code's only if a call such as ``ChatMessage(...)``
  created it. Objects that pydantic creates from a mapping are data.
- An object of a model library is data if it arrived with data: :func:`as_data` marks objects that the runtime
  passes to an action.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast, get_args

from pydantic import BaseModel

T = TypeVar("T")

ORIGIN = "__flink_agents_origin__"
"""Entry in an object's ``__dict__`` with its origin."""

CODE = "code"
DATA = "data"

LIBRARY = "pydantic_ai.messages"
"""The module of the messages and contents of pydantic-ai. Before it is loaded, no such object exists."""

_DEEPEST = 10
"""Maximum depth of the inspection of types; deeper types may be anything."""

_LEAVES = frozenset({str, int, float, bool, bytes, type(None)})
_SEVERAL = (list, tuple, set, frozenset, deque)
_OPAQUE = (type, FunctionType, ModuleType)


class WrittenType(type(BaseModel)):
    """Class of models that speak for the code that calls them."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Create an instance, and mark it as the code's."""
        instance = super().__call__(*args, **kwargs)
        instance.__dict__[ORIGIN] = CODE
        return instance


class Delivered:
    """Base of models that are data if they arrived with data, and the code's otherwise."""


def is_data(value: object) -> bool:
    """Return True if a message or content came with input data, and False if the code wrote it."""
    origin = origin_of(value)
    return origin != CODE if isinstance(type(value), WrittenType) else origin == DATA


def origin_of(value: object) -> str | None:
    """Return the origin of an object, if it has one."""
    return cast("Mapping[str, Any]", getattr(value, "__dict__", {})).get(ORIGIN)


def set_origin(value: Any, origin: str | None) -> None:
    """Set the origin of an object that was read from a record."""
    if origin is not None:
        value.__dict__[ORIGIN] = origin


def like(source: BaseModel, target: T) -> T:
    """Copy the origin of ``source`` to ``target``, which was created from it."""
    set_origin(target, DATA if is_data(source) else CODE)
    return target


def as_data(value: T, copy: Callable[[T], T] | None = None) -> T:
    """Return ``value`` with all its messages and contents marked as data.

    Args:
        value: Any value.
        copy: True to copy it if it has such objects, because other code may hold them as its own.
    """
    messages = messages_in(value)
    if messages and copy is not None:
        value = copy(value)
        messages = messages_in(value)
    for message in messages:
        message.__dict__[ORIGIN] = DATA
    return value


def taking_data(function: Callable[..., Any], types: Iterable[Any]) -> Callable[..., Any]:
    """Return ``function`` with its arguments' messages and contents marked as data.

    Args:
        function: A function whose arguments come from a model or an approval.
        types: The types of its parameters.
    """
    if not any(map(_may_carry, types)):
        return function

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def called_async(*args: Any, **kwargs: Any) -> Any:
            return await function(*as_data(args), **as_data(kwargs))

        return called_async

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*as_data(args), **as_data(kwargs))

    return called


def _may_carry(kind: Any, depth: int = 0) -> bool:
    """Return True if values of a type can contain messages or contents."""
    if depth > _DEEPEST:
        return True
    if isinstance(kind, type):
        fields = getattr(kind, "__pydantic_fields__", {})
        inner = [field.annotation for field in fields.values()]
        if carries_origin(kind) or any(
            _may_carry(annotation, depth + 1) for annotation in inner if annotation is not kind
        ):
            return True
    return any(_may_carry(type_argument, depth + 1) for type_argument in get_args(kind))


def messages_in(value: Any) -> list[Any]:
    """Return all messages and contents in a value, at any depth."""
    if type(value) in _LEAVES:
        return []
    messages = list[Any]()
    seen = set[int]()
    stack = list[Any]([value])
    while stack:
        node: Any = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if carries_origin(_class_of(node)):
            messages.append(node)
        stack += [part for part in _node_parts(node) if type(part) not in _LEAVES]
    return messages


def _class_of(node: object) -> type:
    return type(node)


@lru_cache(maxsize=4096)
def carries_origin(kind: type) -> bool:
    """Return True if objects of a class are messages or contents, which have an origin."""
    if isinstance(kind, WrittenType) or issubclass(kind, Delivered):
        return True
    return any(base.__module__ == LIBRARY for base in kind.__mro__)


def _node_parts(node: Any) -> Iterable[Any]:
    """Yield the parts of an object."""
    if isinstance(node, Mapping):
        entries = cast("Mapping[Any, Any]", node)
        yield from entries.keys()
        yield from entries.values()
    elif isinstance(node, _SEVERAL):
        yield from cast("Iterable[Any]", node)
    elif isinstance(node, BaseModel):
        yield from node.__dict__.values()
        yield from (node.__pydantic_extra__ or {}).values()
        yield from (node.__pydantic_private__ or {}).values()
    elif not isinstance(node, _OPAQUE):
        yield from getattr(node, "__dict__", {}).values()
        for kind in cast("type[Any]", type(node)).__mro__:
            for name in vars(kind).get("__slots__", ()):
                yield getattr(node, name, None)
