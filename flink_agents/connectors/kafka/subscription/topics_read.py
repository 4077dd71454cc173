"""The topics that a source reads, by name or by pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import KafkaStreamError
from flink_agents.connectors.kafka.subscription.patterns import java_pattern

Topics = str | Sequence[str] | re.Pattern[str]


def reads_topic(topics: Topics, topic: str) -> bool:
    """Return True if a source of ``topics`` reads ``topic``; a pattern has to match the whole name."""
    if isinstance(topics, re.Pattern):
        return topics.fullmatch(topic) is not None
    return topic == topics if isinstance(topics, str) else topic in topics


def topic_options(topics: Topics) -> tuple[list[str], dict[str, str]]:
    """Return the topics as a list, and the connector's options for them.

    The list of a source with a pattern has only the text of the pattern.

    Raises:
        KafkaStreamError: These are no topics, or Java cannot match the pattern.
    """
    common = {"connector": "kafka"}
    if isinstance(topics, re.Pattern):
        # A pattern of bytes is no pattern of names, whatever type checkers say of it.
        names: list[Any] = [topics.pattern]
        common["topic-pattern"] = java_pattern(topics) if isinstance(names[0], str) else ""
    else:
        names = [topics] if isinstance(topics, str) else sorted(set(topics))
        common["topic"] = ";".join(map(str, names))
    if not names or not all(isinstance(name, str) and name for name in names):
        raise KafkaStreamError(
            "a Kafka source needs topics",
            expected="a name, several, or a compiled pattern of a string",
            found=repr(topics),
            fix="name at least one topic",
        )
    return names, common


def check_letters(topics: Topics, dead_letters: str | None) -> None:
    """Check that a source does not read its own dead letters, each of which would become another one.

    Raises:
        KafkaStreamError: The source reads the topic ``dead_letters``.
    """
    if dead_letters is not None and reads_topic(topics, dead_letters):
        raise KafkaStreamError(
            f"a Kafka source reads the topic of its own dead letters, {dead_letters!r}, for ever",
            expected="a topic for dead letters that the source does not read",
            found=f"topics={topics!r}, dead_letters={dead_letters!r}",
            fix="name another topic for them; or a pattern that leaves it out, such as "
            "re.compile('(?!.*-dead)orders-.*')",
            where=authors_place(),
        )
