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
"""The two origins: written by the agent's code, or come with input data."""

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
    """Return the origin of an object, :data:`CODE` or :data:`DATA`; None if it carries none."""
    return cast("Mapping[str, Any]", getattr(value, "__dict__", {})).get(ORIGIN)


def set_origin(value: Any, origin: str | None) -> None:
    """Set the origin of an object that was read from a record; None leaves it without one."""
    if origin is not None:
        value.__dict__[ORIGIN] = origin


def like(source: BaseModel, target: T) -> T:
    """Give ``target``, which was created from ``source``, the same origin; return ``target``."""
    set_origin(target, DATA if is_data(source) else CODE)
    return target


def as_data(value: T, copy: Callable[[T], T] | None = None) -> T:
    """Return ``value`` with all its messages and contents marked as data.

    Args:
        value: Any value; messages and contents are found at any depth.
        copy: Copies the value if it has such objects, for values that other code may hold as its own.
            Default: the objects themselves are marked.
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
        types: The types of its parameters. If no value of them can contain messages, ``function`` itself is
            returned.
    """
    if not any(map(_may_contain_messages, types)):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*as_data(args), **as_data(kwargs))

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await function(*as_data(args), **as_data(kwargs))

    return call_async if inspect.iscoroutinefunction(function) else call


def _may_contain_messages(kind: Any, depth: int = 0) -> bool:
    """Return True if values of a type can contain messages or contents.

    Args:
        kind: The type.
        depth: The number of types around it. Below ``_DEEPEST`` levels, the answer is True.
    """
    if depth > _DEEPEST:
        return True
    inner_types = list(get_args(kind))
    if isinstance(kind, type):
        if carries_origin(kind):
            return True
        fields = getattr(kind, "__pydantic_fields__", {})
        inner_types += [field.annotation for field in fields.values() if field.annotation is not kind]
    return any(_may_contain_messages(inner_type, depth + 1) for inner_type in inner_types)


def messages_in(value: Any) -> list[Any]:
    """Return all messages and contents in a value, at any depth."""
    if type(value) in _LEAVES:
        return []
    messages = list[Any]()
    seen_ids = set[int]()
    stack = list[Any]([value])
    while stack:
        node: Any = stack.pop()
        if id(node) in seen_ids:
            continue
        seen_ids.add(id(node))
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
    """Yield the objects that an object refers to: keys, values, members, fields or attributes."""
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
