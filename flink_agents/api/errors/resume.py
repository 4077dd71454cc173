"""Exceptions of local jobs that resume; the tree is in ``errors``."""

from __future__ import annotations

from flink_agents.api.errors.base import AgentsError
from flink_agents.api.errors.jobs import JobFailedError
from flink_agents.api.errors.stores import StoreError


class ResumeError(AgentsError):
    """A start of a local job can neither resume the job run nor start a new one."""

    code = "FA3200"


class JobFolderError(ResumeError):
    """The folder of a job cannot be used, or the record of its job run cannot be read."""

    code = "FA3201"


class JobFolderInUseError(ResumeError):
    """Another process runs the job."""

    code = "FA3202"


class CheckpointsGoneError(ResumeError):
    """The job run had checkpoints, and none of them is left."""

    code = "FA3203"


class CheckpointDamagedError(ResumeError):
    """No checkpoint of the job run is complete."""

    code = "FA3204"


class OutputsExpiredError(ResumeError):
    """The job was down longer than brokers keep the transactions of its outputs."""

    code = "FA3205"


class JobChangedError(ResumeError):
    """The job was changed, and no longer fits its checkpoint."""

    code = "FA3206"


class CannotResumeError(ResumeError):
    """The option ``local.resume`` requires that the job resumes, but this job cannot."""

    code = "FA3207"


class OtherScriptError(ResumeError):
    """Another script started the job run of that name, and has not finished it."""

    code = "FA3208"


class JobRunMissingError(ResumeError):
    """The journal has records of the job, but the job's folder knows no job run."""

    code = "FA3209"


class StateMismatchError(ResumeError, JobFailedError):
    """The job was changed, and Flink cannot restore its checkpoint or savepoint.

    The start raises it if it can read the checkpoint; else it is the failure of the job.
    """

    code = "FA3210"


class InputChangedError(ResumeError):
    """A bounded input differs from the one with which the job run started."""

    code = "FA3220"


class SourceNotResumableError(ResumeError):
    """A source of the job stores no position, so it would read all records again."""

    code = "FA3221"


class JournalMissingError(StoreError):
    """The journal of a job run is gone, or another file is in its place."""

    code = "FA6012"


class JournalOutdatedError(StoreError):
    """The journal is an older copy: it lacks records that the job had made."""

    code = "FA6013"
