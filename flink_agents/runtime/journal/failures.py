"""What is kept of an exception that a durable call raised, and the exception made of it again."""

from __future__ import annotations

from typing import Any

from flink_agents.api.errors import RecordedFailureError, StateError
from flink_agents.runtime.codec import ValueCodec
from flink_agents.runtime.typenames import error_name, find_error

MAX_MESSAGE = 10_000


def describe(codec: ValueCodec, error: BaseException) -> dict[str, Any]:
    """What is recorded of ``error``; its arguments and attributes as far as they can be encoded."""
    kept: dict[str, Any] = {"type": error_name(type(error)), "message": _text(error)}
    # An OSError keeps the name of its file apart from its arguments.
    args = OSError.__reduce__(error)[1] if isinstance(error, OSError) else error.args
    for name, value in (("args", list(args)), ("state", dict(vars(error)))):
        try:
            kept[name] = codec.encode(value)
        except (StateError, RecursionError):
            kept[name] = None
    return kept


def rebuild(codec: ValueCodec, kept: dict[str, Any]) -> BaseException:
    """An exception of the same type and message.

    Where that cannot be made, since its class is gone or needs what was not recorded, it is a
    ``RecordedFailureError`` that names both.
    """
    error = _rebuilt(codec, kept)
    if error is not None:
        return error
    return RecordedFailureError(
        kept["message"],
        error_type=kept["type"],
        expected="a class of exceptions that can be made from its recorded arguments",
        found=kept["type"],
        fix="give it a constructor that passes all of its arguments to super().__init__",
    )


def _rebuilt(codec: ValueCodec, kept: dict[str, Any]) -> BaseException | None:
    kind: Any = find_error(kept["type"])
    if kind is None or kept.get("args") is None:
        return None
    try:
        args = codec.decode(kept["args"])
        error = kind.__new__(kind, *args)
        # Some builtin classes keep more than their arguments, which their constructor sets. That of
        # the class itself may take other arguments, and is not called.
        _builtin(kind).__init__(error, *args)
        if kept.get("state") is not None:
            vars(error).update(codec.decode(kept["state"]))
        return error if _text(error) == kept["message"] else None
    except Exception:
        # Foreign classes run their own code here; whatever it raises, the record is what counts.
        return None


def _builtin(kind: type[BaseException]) -> Any:
    """The first class of Python's own that ``kind`` is or inherits from."""
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MAX_MESSAGE]
    except Exception as raised:
        # Foreign classes run their own code here.
        return f"<{type(error).__qualname__}: str raised {type(raised).__name__}>"
