"""What is kept of an exception that a durable call raised, and the exception made of it again."""

from __future__ import annotations

from typing import Any

from flink_agents.api.errors import RecordedFailureError, StateError
from flink_agents.runtime.codec import ValueCodec
from flink_agents.runtime.failure import text_of
from flink_agents.runtime.typenames import GROUPS, error_name, find_error

CALL_FAILURES: tuple[type[BaseException], ...] = (Exception, SystemExit, *GROUPS)
"""What an action can get from a durable call. Others become a ``RecordedFailureError``."""

_KEYWORDS: dict[type[BaseException], tuple[str, ...]] = {
    ImportError: ("name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
}

MAX_BYTES = 2 * 1024 * 1024
"""How large arguments, attributes, and members of a group may be; larger ones are not kept."""

MAX_DEPTH = 10
"""How deep groups may stand in groups; the members of deeper ones are not kept."""


def describe(codec: ValueCodec, error: BaseException, depth: int = 0) -> dict[str, Any]:
    """What is recorded of ``error``; its arguments and attributes as far as they can be encoded.

    Args:
        codec: Encodes them.
        error: The exception.
        depth: In how many groups it stands.
    """
    kept: dict[str, Any] = {"type": error_name(type(error)), "message": text_of(error)}
    parts: dict[str, Any] = {
        "args": _arguments(error),
        "state": _encodable(codec, _raw(error, "__dict__", {})),
    }
    members = _encodable(codec, _fields(error))
    if members:
        parts["fields"] = members
    if isinstance(error, GROUPS) and depth < MAX_DEPTH:
        parts["members"] = [describe(codec, one, depth + 1) for one in _members(error)]
    for name, value in parts.items():
        try:
            data = codec.encode(value)
        except (StateError, RecursionError):
            data = None
        kept[name] = data if data is not None and len(data) <= MAX_BYTES else None
    return kept


def _encodable(codec: ValueCodec, content: dict[str, Any]) -> dict[str, Any]:
    """The entries that can be encoded: a client that hangs on an error takes nothing else with it."""
    kept: dict[str, Any] = {}
    for name, value in content.items():
        try:
            codec.encode(value)
        except (StateError, RecursionError):
            continue
        kept[name] = value
    return kept


def _fields(error: BaseException) -> dict[str, Any]:
    """What ``error`` keeps in slots, and what builtin classes take by keyword only."""
    names = [name for base in _KEYWORDS if isinstance(error, base) for name in _KEYWORDS[base]]
    for cls in type(error).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{cls.__name__.lstrip('_')}{name}" if private else name)
    found = {name: _raw(error, name, None) for name in names if name != "__dict__"}
    return {name: value for name, value in found.items() if value is not None}


def _arguments(error: Any) -> list[Any]:
    if isinstance(error, OSError):
        # It keeps the name of its file apart from its arguments.
        return list(OSError.__reduce__(error)[1])
    # The second one of a group are its members.
    return [error.message] if isinstance(error, GROUPS) else list(_raw(error, "args", ()))


def _raw(error: BaseException, name: str, default: Any) -> Any:
    """An attribute, whatever the class of ``error`` makes of the access to it."""
    try:
        return object.__getattribute__(error, name)
    except BaseException:
        # A property of a foreign class runs its own code all the same.
        return default


def _members(group: Any) -> tuple[BaseException, ...]:
    return group.exceptions


def rebuild(
    codec: ValueCodec, kept: dict[str, Any], among: tuple[type[BaseException], ...] = CALL_FAILURES
) -> BaseException:
    """An exception of the same type and message; of a group, with members that are made again as well.

    Where that cannot be made, since its class is gone or needs what was not recorded, it is a
    ``RecordedFailureError`` that names both.

    Args:
        codec: Decodes what was kept.
        kept: What :func:`describe` gave.
        among: What it may be.
    """
    error = _rebuilt(codec, kept)
    if isinstance(error, among):
        return error
    return RecordedFailureError(
        kept["message"],
        error_type=kept["type"],
        expected="a class of exceptions that can be made from its recorded arguments",
        found=kept["type"],
        fix="give it a constructor that passes all of its arguments to super().__init__",
    )


def first_time(made: BaseException, error: BaseException) -> BaseException:
    """What an action gets for ``error`` the first time: what a replay raises, with its traceback.

    An action that looks at the type or the attributes of an error must not do one thing now and another
    after a crash. The error itself is the cause.

    Args:
        made: What :func:`rebuild` made.
        error: What was raised.
    """
    # Not by the class itself, which may have its own idea of attributes.
    BaseException.with_traceback(made, error.__traceback__)
    BaseException.__setattr__(made, "__cause__", error)
    return made


def _rebuilt(codec: ValueCodec, kept: dict[str, Any]) -> BaseException | None:
    try:
        kind: Any = find_error(kept["type"])
        if kind is None or kept.get("args") is None:
            return None
        args, builtin = codec.decode(kept["args"]), _builtin(kind)
        if issubclass(kind, GROUPS):
            args.append([rebuild(codec, one, (BaseException,)) for one in codec.decode(kept["members"])])
            error = builtin.__new__(kind, *args)
        else:
            error = kind.__new__(kind, *args)
        # Some builtin classes keep more than their arguments, which their constructor sets. That of
        # the class itself may take other arguments, and is not called.
        builtin.__init__(error, *args)
        if kept.get("state") is not None:
            _raw(error, "__dict__", {}).update(codec.decode(kept["state"]))
        if kept.get("fields") is not None:
            for name, value in codec.decode(kept["fields"]).items():
                object.__setattr__(error, name, value)
        # A group of class BaseExceptionGroup has become another one where none of its members needs that.
        same = type(error) is kind or not isinstance(error, GROUPS)
        return error if same and text_of(error) == kept["message"] else None
    except BaseException:
        # Foreign classes run their own code here; whatever it raises, the record is what counts.
        return None


def _builtin(kind: type[BaseException]) -> Any:
    """The first class of Python's own that ``kind`` is or inherits from."""
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")
