"""The headers that this package writes; their names are part of the format of messages.

All values are text in UTF-8. A message that an agent put out says which run of which key that was, and which
message was the input of the run, so that the way of an event can be followed over any number of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flink_agents.api.lineage import OutputLineage

if TYPE_CHECKING:
    from flink_agents.connectors.kafka.records import KafkaDeadLetter

PREFIX = "flink-agents-"

ID = f"{PREFIX}id"
RUN = f"{PREFIX}run"
AGENT = f"{PREFIX}agent"
KEY = f"{PREFIX}key"
SEQUENCE = f"{PREFIX}sequence"
PARENT = f"{PREFIX}parent"

ERROR = f"{PREFIX}error"
ERROR_TYPE = f"{PREFIX}error-type"
ORIGIN = f"{PREFIX}origin"


def lineage_headers(lineage: OutputLineage) -> dict[str, bytes]:
    """Return what a message says of the run that put it out."""
    texts = {
        ID: lineage.id,
        RUN: lineage.run_id,
        AGENT: lineage.agent,
        KEY: lineage.key,
        SEQUENCE: str(lineage.sequence_number),
        PARENT: lineage.parent,
    }
    return _encoded(texts)


def read_lineage(headers: Mapping[str, bytes]) -> OutputLineage | None:
    """Return what a message says of the run that put it out; None where no agent wrote it."""
    texts = {name: content.decode("utf-8", "replace") for name, content in headers.items() if content}
    try:
        number = int(texts[SEQUENCE])
        return OutputLineage(texts[ID], texts[RUN], texts[AGENT], texts[KEY], number, texts.get(PARENT))
    except (KeyError, ValueError):
        return None


def letter_headers(letter: KafkaDeadLetter) -> dict[str, bytes]:
    """Return what a message in a topic of dead letters says beside its own headers."""
    return _encoded({ERROR: letter.error, ERROR_TYPE: letter.error_type, ORIGIN: letter.record.place})


def _encoded(texts: Mapping[str, str | None]) -> dict[str, bytes]:
    return {name: text.encode("utf-8", "replace") for name, text in texts.items() if text is not None}
