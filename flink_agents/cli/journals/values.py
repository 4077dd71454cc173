"""The content of a journal's records, as plain data for people and for JSON.

All content can be shown, and none of it is executed: a value of a class is shown as the name of the class and
its fields, and unreadable bytes as their number. Objects of classes are created only if you name their
modules.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgpack

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.errors import StateError, StateFormatError
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.journal.records import (
    ActionRecord,
    CallIdentity,
    CallRecord,
    RunHeader,
    WaitRecord,
)
from flink_agents.runtime.serde.codec import VERSION, ValueCodec, _untagged, is_of_class
from flink_agents.runtime.serde.typenames import shorten
from flink_agents.runtime.state.keyed_state import OBJECT


class Unreadable:
    """Stands for a part of a value that cannot be, or must not be, restored; shows a text instead."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return f"<{self._text}>"


class LenientCodec(ValueCodec):
    """Decodes values with placeholders for parts that cannot be, or must not be, restored.

    Nothing is unpickled, and no module is imported.

    Args:
        classes: True to create objects of classes that this process has imported.

    Attributes:
        placeholders: Number of placeholders created so far.
    """

    def __init__(self, classes: bool = False) -> None:
        super().__init__()
        self._classes = classes
        self.placeholders = 0

    def decode(self, data: bytes) -> Any:
        """Decode as much of a value as possible.

        Raises:
            StateFormatError: The bytes are not a value.
        """
        if data[:1] != VERSION:
            return super().decode(data)
        try:
            return msgpack.unpackb(
                data[1:],
                ext_hook=self._decode_part,
                object_hook=self._decode_content,
                strict_map_key=False,
                unicode_errors="surrogatepass",
            )
        except Exception as error:
            raise StateFormatError(
                "state bytes cannot be read", found=f"{type(error).__name__}: {error}"
            ) from error

    def _decode_part(self, code: int, data: bytes) -> Any:
        try:
            return self._extension(code, data)
        except Exception:
            return self._placeholder(f"extension {code}, {len(data)} bytes")

    def _decode_content(self, content: dict[Any, Any]) -> Any:
        if self._classes or not is_of_class(content):
            with suppress(Exception):
                return _untagged(content)
        # For a class, the first part is its name; the parts after it are numbers or its fields.
        name, *parts = next(iter(content.values()))
        fields = next((part for part in parts if isinstance(part, dict | list | str)), parts)
        return self._placeholder(f"{name} {shorten(fields)}")

    def _placeholder(self, text: str) -> Unreadable:
        self.placeholders += 1
        return Unreadable(text)


def describe_run(header: Record | None, classes: bool = False) -> dict[str, Any]:
    """Describe the header of a run for JSON: start, plan, digest of the input, and event.

    Args:
        header: The header's record; None if the journal lacks it: then all values are None.
        classes: True to create objects of classes that this process has imported.
    """
    empty_header: dict[str, Any] = {"begun_at_ms": None, "plan": None, "input": None, "event": None}
    if header is None:
        return empty_header
    codec = LenientCodec(classes)
    try:
        run = RunHeader.unpack(codec, header.data)
    except StateError as error:
        return {**empty_header, "unreadable": error.message}
    event = None if run.input is None else value_text(codec, run.input)
    return {"begun_at_ms": run.started_at, "plan": run.plan, "input": run.digest.hex(), "event": event}


def describe_record(record: Record, classes: bool = False) -> dict[str, Any]:
    """Describe a record other than a header for JSON, with fields that depend on its kind.

    A record that cannot be read has the reason in ``unreadable``.

    Args:
        record: The record.
        classes: True to create objects of classes that this process has imported.
    """
    step, task = task_of(record.step)
    place: dict[str, Any] = {"step": step, "record": record.kind.name.lower(), "index": record.index}
    if task:
        place["task"] = task
    describe = _DESCRIBERS.get(record.kind)
    if describe is None:
        return place
    try:
        return {**place, **describe(LenientCodec(classes), record.data)}
    except Exception as error:
        # A record of a newer version, or a corrupt one: the others are still shown.
        text = error.message if isinstance(error, StateError) else f"{type(error).__name__}: {error}"
        return {**place, "unreadable": text, "bytes": len(record.data)}


def _read_intent(codec: LenientCodec, data: bytes) -> dict[str, Any]:
    return _call_identity(CallIdentity.unpack(codec, data))


def _read_call(codec: LenientCodec, data: bytes) -> dict[str, Any]:
    record = CallRecord.unpack(codec, data)
    outcome: dict[str, Any]
    if record.error is not None:
        outcome = {"raised": record.error.get("type"), "message": record.error.get("message")}
    else:
        value = record.value or b""
        outcome = {"returned": value_text(codec, value), "bytes": len(value)}
    ended = {"attempts": record.attempts, "ended_at_ms": record.ended_at, "order": record.order}
    return {**_call_identity(record.call), **outcome, **ended}


def _read_wait(codec: LenientCodec, data: bytes) -> dict[str, Any]:
    record = WaitRecord.unpack(codec, data)
    return {"awaited": record.what, "ended_at_ms": record.ended_at, "order": record.order}


def _call_identity(call: CallIdentity) -> dict[str, Any]:
    return {"function": call.function, "arguments": call.arguments.hex(), "request": call.request}


def _read_action(codec: LenientCodec, data: bytes) -> dict[str, Any]:
    record = ActionRecord.unpack(codec, data)
    return {
        "calls": record.calls,
        "events": [[str(kind), _value_text(content)] for kind, content, *_ in record.events],
        "side": [[str(tag), _value_text(value)] for tag, value in record.side],
        "short_term": _read_nodes(codec, record.short_term),
        "sensory": _read_nodes(codec, record.sensory),
    }


def _read_nodes(codec: LenientCodec, nodes: dict[str, bytes | None]) -> dict[str, str | None]:
    return {path: None if data is None else _read_node(codec, data) for path, data in nodes.items()}


def _read_node(codec: LenientCodec, data: bytes) -> str:
    return "an object" if data == OBJECT else value_text(codec, data)


_DESCRIBERS: dict[RecordKind, Callable[[LenientCodec, bytes], dict[str, Any]]] = {
    RecordKind.INTENT: _read_intent,
    RecordKind.CALL: _read_call,
    RecordKind.ACTION: _read_action,
    RecordKind.WAIT: _read_wait,
}


def value_text(codec: LenientCodec, data: bytes) -> str:
    """Return an encoded value as text, with its number of bytes if parts of it are not restored."""
    previous_placeholders = codec.placeholders
    try:
        text = _value_text(codec.decode(data))
    except StateError as error:
        return f"<{error.message}, {len(data)} bytes>"
    return text if codec.placeholders == previous_placeholders else f"{text}, {len(data)} bytes"


def _value_text(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return shorten(value)


def time_text(milliseconds: int) -> str:
    """Return milliseconds since the epoch as a time in UTC."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
