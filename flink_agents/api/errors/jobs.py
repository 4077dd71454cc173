"""Exceptions of jobs that ran and failed, of Flink clusters and Kafka streams; the tree is in ``errors``."""

from __future__ import annotations

from typing import Any

from flink_agents.api.errors.base import AgentsError


class JobFailedError(AgentsError):
    """The Flink job failed; the text starts with the user's own place in the code.

    Attributes:
        failure: The text that the failing operator reported, without Java frames.
        java_trace: The whole Java text, for those who need it.
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
    """An agent or a key selector uses an object that cannot be brought to workers."""

    code = "FA3130"


class OutputsNotReadyError(JobFailedError):
    """The list of a job's outputs is read before the job is executed."""

    code = "FA3131"


class UnpicklableOutputError(JobFailedError):
    """A job emitted a value that cannot be pickled, as Flink does between operators."""

    code = "FA3132"


class ClusterError(AgentsError):
    """A Flink cluster cannot be started, cannot be asked, or did not do what it was asked for."""

    code = "FA2100"


class ClusterUnavailableError(ClusterError):
    """Flink's REST interface does not answer at the address that was given."""

    code = "FA2101"


class ClusterStartError(ClusterError):
    """A process of a standalone cluster ended as it started, or did not become ready in time."""

    code = "FA2102"


class SubmissionError(ClusterError):
    """The script of a job ended before it had submitted the job."""

    code = "FA2103"


class UnknownJobError(ClusterError):
    """The cluster runs no such job, or several jobs, of which none was named."""

    code = "FA2104"


class SavepointFailedError(ClusterError):
    """Flink did not complete a savepoint; the job was not stopped."""

    code = "FA2105"


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
