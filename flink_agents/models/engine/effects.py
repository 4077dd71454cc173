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
"""Key of the result in such a record."""

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
        parts: The parts of the call's identity, among them the ``RunContext`` of the agent's run.
    """

    def __init__(self, parts: Iterable[object]) -> None:
        self._context: Any = next((part for part in parts if isinstance(part, RunContext)), None)
        self._changed: dict[str, Any] | None = None

    @contextmanager
    def watch_changes(self) -> Iterator[None]:
        """Note the changes that the code in the block makes to the run's usage and ``deps``.

        An exception discards the usage of the block, as a replay does.
        """
        if self._context is None:
            yield
            return
        run_usage: RunUsage = self._context.usage
        previous_values = _values_of(self._context.deps)
        usage_at_start = _copy_usage(run_usage)
        block_usage = _copy_usage(run_usage)
        self._context.usage = block_usage
        try:
            yield
        finally:
            self._context.usage = run_usage
        added_usage = block_usage - usage_at_start
        self._changed = {}
        if added_usage.has_values():
            self._changed["usage"] = _USAGE.dump_python(added_usage, mode="json", exclude_defaults=True)
        if changes := _changed_values(previous_values, _values_of(self._context.deps)):
            self._changed["deps"] = changes

    def record_of(self, result: object) -> object:
        """Return the record of a call: its result, or its result and the noted changes."""
        return {_CHANGED: self._changed, _RESULT: result} if self._changed else result

    def apply_record(self, record: Any) -> Any:
        """Apply the changes in the record of a call to the run, and return the result."""
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
    """Return copies of the plain values in ``deps``, by the paths to them."""
    return {path: deepcopy(value) for path, value in _walk_leaves(deps, (), 0)}


def _walk_leaves(value: Any, path: Path, depth: int) -> Iterator[tuple[Path, Any]]:
    """Yield the plain values in a value with their paths; ``path`` and ``depth`` lead to the value."""
    if _is_plain(value, [_MOST_VALUES]):
        yield path, value
    elif depth < _DEEPEST:
        for kind, name, inner in _data_parts(value, depth == 0):
            yield from _walk_leaves(inner, (*path, (kind, name)), depth + 1)


def _data_parts(value: Any, is_top: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield kind, name and value of each part of a dict, dataclass or pydantic model.

    Other objects, such as clients, have none: their state is their own. Only ``deps`` itself may be of any
    class (``is_top``).
    """
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        yield from (("key", key, inner) for key, inner in items if isinstance(key, str | int))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        yield from (("name", name, getattr(value, name)) for name in names if hasattr(value, name))
    elif isinstance(value, BaseModel) or (is_top and hasattr(value, "__dict__")):
        yield from (("name", name, inner) for name, inner in vars(value).items())


def _is_plain(value: Any, room: list[int]) -> bool:
    """Return True if a value is plain data of bounded size.

    Args:
        value: Any value.
        room: A list with one number, the number of values that may follow, which is counted down.
    """
    room[0] -= 1
    if type(value) in _ATOMS:
        return True
    if type(value) not in (list, dict, set, tuple, frozenset) or len(value) > room[0]:
        return False
    members = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(member, room) for member in members)


def _changed_values(previous_values: dict[Path, Any], values: dict[Path, Any]) -> list[list[Any]]:
    """Return ``[path, value]`` for each value that changed, except secrets: no record may have them."""
    return [
        [[list(part) for part in path], value]
        for path, value in values.items()
        if not (path in previous_values and _are_same(previous_values[path], value))
        and redaction.hidden(value, known_only=True) == value
    ]


def _are_same(value: Any, other: Any) -> bool:
    """Return True if two plain values are equal and of one type; NaN, by its text, is the same as NaN."""
    return type(value) is type(other) and (value == other or repr(value) == repr(other))


def _set_value(deps: Any, path: Path, value: Any) -> None:
    """Set the value at a path. A container keeps its identity, since others may hold it."""
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
    """Return the entry (kind ``key``) or the attribute (kind ``name``) of an object; None if it has none."""
    return owner.get(name) if kind == "key" else getattr(owner, name, None)
