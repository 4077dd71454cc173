"""Exceptions of what a job reads from other jobs and writes for them; the tree is in ``errors``."""

from __future__ import annotations

from flink_agents.api.errors.base import AgentsError


class KafkaStreamError(AgentsError):
    """A Kafka source or sink cannot be made as it is declared."""

    code = "FA7100"


class KafkaConnectorError(KafkaStreamError):
    """Flink's Kafka connector is not there, cannot be fetched, or is not the one that is needed."""

    code = "FA7101"


class KafkaValueError(KafkaStreamError, ValueError):
    """A record of Kafka does not have the declared type, or a value cannot be written as a record."""

    code = "FA7102"


class EnvelopeError(AgentsError, ValueError):
    """A line is no envelope of a message between jobs, or a value cannot be written into one."""

    code = "FA7200"
