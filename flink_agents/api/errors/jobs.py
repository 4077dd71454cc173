"""Exceptions of jobs that ran and failed, of Flink clusters and Kafka streams; the tree is in ``errors``."""

from __future__ import annotations

from typing import Any

from flink_agents.api.errors.base import AgentsError


class JobFailedError(AgentsError):
    """The Flink job failed; the message starts with your own place in the code.

    Attributes:
        failure: The message of the failing operator, without Java frames; empty if it is unknown.
        java_trace: The whole message of the Java exception, with its frames; empty if there is none.
    """

    code = "FA3100"

    def __init__(self, message: str, *, failure: str = "", java_trace: str = "", **kwargs: Any) -> None:
        self.failure = failure
        self.java_trace = java_trace
        super().__init__(message, **kwargs)


class ModuleNotOnWorkersError(JobFailedError):
    """A worker could not import a module that the job needs."""

    code = "FA3101"


class MissingTimestampsError(JobFailedError):
    """A window of event time got outputs of an agent that have no timestamp."""

    code = "FA3102"


class TaskManagerLostError(JobFailedError):
    """A TaskManager of the job is gone: on this machine the only one, on a cluster one of several."""

    code = "FA3103"


class UnshippableCodeError(JobFailedError):
    """An agent or a key selector uses an object that cannot be sent to workers."""

    code = "FA3130"


class OutputsNotReadyError(JobFailedError):
    """The list of a job's outputs is read before the job is executed."""

    code = "FA3131"


class UnpicklableOutputError(JobFailedError):
    """A job emitted a value that cannot be pickled, as Flink does between operators."""

    code = "FA3132"


class ClusterError(AgentsError):
    """A Flink cluster cannot be started or reached, or did not execute a request."""

    code = "FA2100"


class ClusterUnavailableError(ClusterError):
    """Flink's REST interface does not answer at the given address."""

    code = "FA2101"


class ClusterStartError(ClusterError):
    """A process of a standalone cluster ended during its start, or was not ready in time."""

    code = "FA2102"


class SubmissionError(ClusterError):
    """The script of a job ended before it had submitted the job."""

    code = "FA2103"


class UnknownJobError(ClusterError):
    """The cluster runs no such job, or it runs several jobs and you named none."""

    code = "FA2104"


class SavepointFailedError(ClusterError):
    """Flink did not complete a savepoint; the job was not stopped."""

    code = "FA2105"


class KafkaStreamError(AgentsError):
    """A Kafka source or sink cannot be created from its declaration."""

    code = "FA7100"


class KafkaConnectorError(KafkaStreamError):
    """Flink's Kafka connector is missing, cannot be downloaded, or has the wrong version."""

    code = "FA7101"


class KafkaValueError(KafkaStreamError, ValueError):
    """A record of Kafka does not have the declared type, or a value cannot be written as a record."""

    code = "FA7102"


class KafkaTransactionError(KafkaStreamError):
    """The brokers drop outputs of an exactly-once sink before a checkpoint commits them, or would."""

    code = "FA7110"


class EnvelopeError(AgentsError, ValueError):
    """A line is not an envelope of a message between jobs, or a value cannot be written into one."""

    code = "FA7200"
