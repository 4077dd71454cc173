"""The headers that this package writes; their names are part of the format of messages.

All values are strings in UTF-8. A message of an agent names the run and key that emitted it, and the
message that was the run's input, so that you can trace an event through any number of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping

from flink_agents.api.common.policies import DeadLetter
from flink_agents.api.lineage import OutputLineage
from flink_agents.api.resources.sendable_text import sendable
from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
from flink_agents.runtime.serde.keys import encode_key

PREFIX = "flink-agents-"

ID = f"{PREFIX}id"
RUN = f"{PREFIX}run"
AGENT = f"{PREFIX}agent"
KEY = f"{PREFIX}key"
SEQUENCE = f"{PREFIX}sequence"
PARENT = f"{PREFIX}parent"

TIMESTAMP = f"{PREFIX}timestamp"
"""The timestamp of a record whose brokers would reject it."""

TRACEPARENT = "traceparent"
"""The context of W3C Trace Context, which other producers and consumers know, too."""

ERROR = f"{PREFIX}error"
ERROR_TYPE = f"{PREFIX}error-type"
ORIGIN = f"{PREFIX}origin"
FAILED_AGENT = f"{PREFIX}failed-agent"
FAILED_KEY = f"{PREFIX}failed-key"
FAILED_SEQUENCE = f"{PREFIX}failed-sequence"
ACTION = f"{PREFIX}action"
EVENT = f"{PREFIX}event"
WHERE = f"{PREFIX}where"
TRACEBACK = f"{PREFIX}traceback"
ATTEMPTS = f"{PREFIX}attempts"

CUT = f"{PREFIX}cut-size"
"""The size of the whole value in bytes, in a dead letter that has only its start."""

LETTER = frozenset(
    (ERROR, ERROR_TYPE, ORIGIN, FAILED_AGENT, FAILED_KEY, FAILED_SEQUENCE)
    + (ACTION, EVENT, WHERE, TRACEBACK, ATTEMPTS, CUT)
)
"""Headers that only messages in a topic of dead letters have."""

PUT_BACK = f"{PREFIX}redrive"
"""Header with the number of times that a message was redriven from a topic of dead letters."""

MAX_TRACEBACK = 4000
"""Maximum number of characters of a traceback in a header: its end, which has the error."""


def lineage_headers(lineage: OutputLineage) -> dict[str, bytes]:
    """Return the headers of a message that name the run that emitted it."""
    texts = {
        ID: lineage.id,
        RUN: lineage.run_id,
        AGENT: lineage.agent,
        KEY: lineage.key,
        SEQUENCE: str(lineage.sequence_number),
        PARENT: lineage.parent,
        TRACEPARENT: lineage.traceparent,
    }
    return _encode_texts(texts)


def read_lineage(headers: Mapping[str, bytes | None]) -> OutputLineage | None:
    """Return the run that emitted a message, by its headers; None if no agent emitted it."""
    texts = {name: content.decode("utf-8", "replace") for name, content in headers.items() if content}
    try:
        number = int(texts[SEQUENCE])
        more = texts.get(PARENT), texts.get(TRACEPARENT)
        return OutputLineage(texts[ID], texts[RUN], texts[AGENT], texts[KEY], number, *more)
    except (KeyError, ValueError):
        return None


def letter_headers(error: str, error_type: str, origin: str | None) -> dict[str, bytes]:
    """Return the headers that a rejected record gets in the topic of dead letters, besides its own.

    Args:
        error: Message of the error.
        error_type: Class name of the error.
        origin: Place of the record, ``topic/partition/offset``; None if it is not known.
    """
    return _encode_texts({ERROR: error, ERROR_TYPE: error_type, ORIGIN: origin})


def agent_letter_headers(letter: DeadLetter, origin: str | None) -> dict[str, bytes]:
    """Return the headers that the input of a failed run gets in the topic of dead letters, besides its own.

    Args:
        letter: The agent's dead letter.
        origin: Place of the input, ``topic/partition/offset``; None if it is not from Kafka.
    """
    texts = {
        ERROR: letter.error_message,
        ERROR_TYPE: letter.error_type,
        ORIGIN: origin,
        FAILED_AGENT: letter.agent,
        FAILED_KEY: encode_key(letter.key),
        FAILED_SEQUENCE: str(letter.sequence_number),
        ACTION: letter.action,
        EVENT: letter.event_type,
        WHERE: letter.where,
        TRACEBACK: letter.traceback[-MAX_TRACEBACK:],
        ATTEMPTS: str(len(letter.attempts) or 1),
    }
    return _encode_texts(texts)


def without_letter(headers: KafkaHeaders) -> KafkaHeaders:
    """Return the headers of a dead letter without those about its error, and with its redrives counted."""
    redrives = headers.get(PUT_BACK) or b"0"
    number = int(redrives) + 1 if redrives.isdigit() else 1
    return headers.without(LETTER) | {PUT_BACK: str(number).encode()}


def _encode_texts(texts: Mapping[str, str | None]) -> dict[str, bytes]:
    return {name: sendable(text).encode() for name, text in texts.items() if text is not None}
