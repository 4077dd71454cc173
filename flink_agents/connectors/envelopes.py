"""Messages between jobs as lines of JSON: a typed value and its origin.

For connectors without a place for lineage next to the value, such as files. ``kafka_sink`` writes
lineage into headers, and needs no envelopes.

::

    prices.to_datastream().map(write_envelope, output_type=Types.STRING()).sink_to(file_sink)
    ...
    lines.map(EnvelopeReader(Price))    # in the next job: a stream of Message
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from flink_agents.api.errors import EnvelopeError
from flink_agents.api.lineage import OutputLineage, TracedOutput
from flink_agents.api.resources.sendable_text import sendable
from flink_agents.connectors.json_values import jsonable, read_json

T = TypeVar("T")

VERSION = 1
"""Version of the format that is written."""

MAX_SHOWN = 500
"""Maximum number of characters of an invalid line in an error."""


@dataclass(frozen=True)  # With slots, Message[int](...) would fail.
class Message(Generic[T]):
    """An output of an agent, as read from a line that :func:`write_envelope` wrote.

    Attributes:
        value: The value that the agent emitted.
        lineage: The run that emitted it; None if the agent was applied without ``lineage=True``.
    """

    value: T
    lineage: OutputLineage | None = None

    @property
    def message_id(self) -> str | None:
        """Id of the message, which outputs of a downstream agent have as parent; None without lineage."""
        return None if self.lineage is None else self.lineage.id

    @property
    def traceparent(self) -> str | None:
        """Trace context of its run, which runs of a downstream agent continue; None without lineage."""
        return None if self.lineage is None else self.lineage.traceparent


def write_envelope(output: Any) -> str:
    """Return an output of an agent as a line of JSON.

    Args:
        output: A ``TracedOutput``, or a value of an agent that was applied without ``lineage=True``.

    Raises:
        EnvelopeError: JSON cannot hold the value.
    """
    traced = isinstance(output, TracedOutput)
    value, lineage = (output.value, output.lineage) if isinstance(output, TracedOutput) else (output, None)
    try:
        json_value = jsonable(value)
        # Fields that are None are omitted: older versions do not know the trace context.
        texts = {} if lineage is None else sendable(asdict(lineage))
        origin = {name: text for name, text in texts.items() if text is not None} or None
        envelope = {"version": VERSION, "lineage": origin}
        return json.dumps({**envelope, "value": json_value}, allow_nan=False, separators=(",", ":"))
    except (PydanticSerializationError, ValueError, TypeError) as error:
        raise EnvelopeError(
            "a value cannot be written into an envelope",
            expected="a pydantic model, a dataclass, or values of JSON",
            found=f"{type(value).__qualname__}: {error}"[:MAX_SHOWN],
            fix="emit a model or a dataclass" + ("" if traced else ", or convert it to a string first"),
        ) from error


class EnvelopeReader(Generic[T]):
    """Parses lines into :class:`Message` objects; pass it to ``map`` of a stream of strings.

    Args:
        kind: Type of the values: any type that pydantic supports.
    """

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvelopeReader, (self.kind,)

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        return TypeAdapter(self.kind)

    def __call__(self, line: str) -> Message[T]:
        """Parse a line.

        Raises:
            EnvelopeError: The line is not an envelope, a newer version wrote it, or its value is of another
                type.
        """
        try:
            envelope = json.loads(line)
            if envelope["version"] != VERSION:
                raise self._envelope_error(line, f"version {envelope['version']!r}")
            lineage = envelope["lineage"]
            # As from JSON: strings become dates and other types that JSON does not have.
            value = read_json(self._adapter, json.dumps(envelope["value"]))
            return Message(value, None if lineage is None else OutputLineage(**lineage))
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise self._envelope_error(line, f"{type(error).__name__}: {error}") from error

    def _envelope_error(self, line: str, found: str) -> EnvelopeError:
        return EnvelopeError(
            "a line is not an envelope with a value of the declared type",
            expected=f"version {VERSION} with a value of {getattr(self.kind, '__qualname__', self.kind)}",
            found=f"{found[:MAX_SHOWN]} in {line[:MAX_SHOWN]!r}",
            fix="write it with write_envelope, or declare the type that was written",
        )
