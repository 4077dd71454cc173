"""Changes that a recorded tool of a Pydantic AI agent makes in its run: usage, and values of ``deps``.

A replay does not call the tool again. Without the record, the next attempt would count less usage than the
first one, so that ``UsageLimits`` do not hold, and ``deps`` would have their old values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence, MutableSet
from contextlib import contextmanager
from copy import copy, deepcopy
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RunUsage

from flink_agents import redaction

_CHANGED = "flink-agents/changed"
"""Key of the record of a call that changed something; the result is beside it."""

_RESULT = "result"
_USAGE: TypeAdapter[RunUsage] = TypeAdapter(RunUsage)

_ATOMS = (type(None), bool, int, float, str, bytes, Decimal, date, time, timedelta)
_MOST_VALUES = 10_000
"""Maximum number of values in one field of ``deps`` that is compared."""

_DEEPEST = 5
"""Maximum number of objects inside of each other that are compared."""

Path = tuple[tuple[str, Any], ...]
"""The way from ``deps`` to a value: names of attributes and keys, each with its kind."""


class Effects:
    """The changes that one call of a tool makes.

    Each call counts on its own copy of the usage: tools of one response run at the same time.

    Args:
        parts: The identity of the call, with the context of its run.
    """

    def __init__(self, parts: Iterable[object]) -> None:
        self._context: Any = next((part for part in parts if isinstance(part, RunContext)), None)
        self._changed: dict[str, Any] | None = None

    @contextmanager
    def watch_changes(self) -> Iterator[None]:
        """Note what the code inside changes; an exception of it discards its usage, as a replay does."""
        if self._context is None:
            yield
            return
        shared: RunUsage = self._context.usage
        values = _values_of(self._context.deps)
        start = _copy_usage(shared)
        self._context.usage = inner_usage = _copy_usage(shared)
        try:
            yield
        finally:
            self._context.usage = shared
        used = inner_usage - start
        self._changed = {}
        if used.has_values():
            self._changed["usage"] = _USAGE.dump_python(used, mode="json", exclude_defaults=True)
        if changes := _changed_values(values, _values_of(self._context.deps)):
            self._changed["deps"] = changes

    def record_of(self, result: object) -> object:
        """Return the record of a result: with the changes, if there are any."""
        return {_CHANGED: self._changed, _RESULT: result} if self._changed else result

    def apply_record(self, record: Any) -> Any:
        """Apply the changes in a record, and return the result."""
        if not (isinstance(record, dict) and record.keys() == {_CHANGED, _RESULT}):
            return record
        changed, result = cast("dict[str, Any]", record).values()
        if "usage" in changed:
            self._context.usage.incr(_USAGE.validate_python(changed["usage"]))
        # The call that was just made changed them already, and others may have changed them since.
        if self._changed is None:
            for path, value in changed.get("deps", ()):
                _set_value(self._context.deps, tuple(map(tuple, path)), value)
        return result


def _copy_usage(usage: RunUsage) -> RunUsage:
    copied_usage = copy(usage)
    copied_usage.details = dict(usage.details)
    return copied_usage


def _values_of(deps: Any) -> dict[Path, Any]:
    """Return copies of the plain values in ``deps``, by their place."""
    return {path: deepcopy(value) for path, value in _walk_leaves(deps, (), 0)}


def _walk_leaves(value: Any, path: Path, depth: int) -> Iterator[tuple[Path, Any]]:
    if _is_plain(value, [_MOST_VALUES]):
        yield path, value
    elif depth < _DEEPEST:
        for kind, name, inner in _data_parts(value, depth == 0):
            yield from _walk_leaves(inner, (*path, (kind, name)), depth + 1)


def _data_parts(value: Any, is_top: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts of an object of data. The state of other objects, such as clients, is their own."""
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        yield from (("key", key, inner) for key, inner in items if isinstance(key, str | int))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        yield from (("name", name, getattr(value, name)) for name in names if hasattr(value, name))
    elif isinstance(value, BaseModel) or (is_top and hasattr(value, "__dict__")):
        yield from (("name", name, inner) for name, inner in vars(value).items())


def _is_plain(value: Any, room: list[int]) -> bool:
    """Return True if a value is plain data of bounded size."""
    room[0] -= 1
    if type(value) in _ATOMS:
        return True
    if type(value) not in (list, dict, set, tuple, frozenset) or len(value) > room[0]:
        return False
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(member, room) for member in inner)


def _changed_values(previous_values: dict[Path, Any], after: dict[Path, Any]) -> list[list[Any]]:
    """Return the values that changed, with their places. A secret is left out: it must not be recorded."""
    return [
        [[list(part) for part in path], value]
        for path, value in after.items()
        if not (path in previous_values and _are_same(previous_values[path], value))
        and redaction.hidden(value, known_only=True) == value
    ]


def _are_same(left_value: Any, right_value: Any) -> bool:
    return type(left_value) is type(right_value) and (
        left_value == right_value or repr(left_value) == repr(right_value)
    )


def _set_value(deps: Any, path: Path, value: Any) -> None:
    """Set a value at its place. A container keeps its identity, since others may hold it."""
    owner = None
    target = deps
    for kind, name in path:
        owner = target
        target = _read_part(owner, kind, name)
    if type(target) is type(value) and isinstance(target, MutableMapping | MutableSet):
        target.clear()
        cast("Any", target).update(value)
    elif type(target) is type(value) and isinstance(target, MutableSequence):
        target[:] = value
    elif path:
        kind, name = path[-1]
        if kind == "key":
            cast("Any", owner)[name] = value
        else:
            setattr(owner, name, value)


def _read_part(owner: Any, kind: str, name: Any) -> Any:
    return owner.get(name) if kind == "key" else getattr(owner, name, None)
