"""Exceptions of the stores of durable execution and of the broker for development; see ``errors``."""

from __future__ import annotations

from flink_agents.api.errors.base import AgentsError


class StoreError(AgentsError):
    """The store of durable execution failed; nothing was recorded."""

    code = "FA6000"


class FencedOwnerError(StoreError):
    """Another attempt took over; this one can no longer record anything."""

    code = "FA6001"


class JobIdentifierInUseError(StoreError):
    """Another running job has the same job identifier."""

    code = "FA6002"


class RecordTooLargeError(StoreError):
    """A record exceeds the size limit of the store."""

    code = "FA6003"


class RecordsPrunedError(StoreError):
    """Records of a pruned run were requested or appended."""

    code = "FA6004"


class StoreClosedError(StoreError):
    """The store is not open, or it stopped after an error."""

    code = "FA6005"


class AppendOutcomeUnknownError(StoreError):
    """It is unknown if records were stored. The attempt must end; the next one reads them if they exist."""

    code = "FA6006"


class StoreUnavailableError(StoreError):
    """The store cannot be reached or written now: missing, locked, full, or read-only."""

    code = "FA6007"
    is_missing = False
    """True if the store does not exist yet."""


class StoreFormatError(StoreError):
    """The store's content is corrupt, has another format, or is from a newer version."""

    code = "FA6008"


class StoreMismatchError(StoreError):
    """State belongs to another store than the one that is configured."""

    code = "FA6009"


class RunNotReplayableError(StoreError):
    """A run cannot be replayed for debugging: the journal lacks its input."""

    code = "FA6010"


class JobIdentifierMismatchError(StoreError):
    """State was written by another job, and no option decides if this job continues its journals."""

    code = "FA6011"


class BrokerError(AgentsError):
    """The Kafka broker for development does not run, or was never started."""

    code = "FA7000"


class BrokerDownloadError(BrokerError):
    """Apache Kafka cannot be downloaded from Maven Central."""

    code = "FA7001"


class BrokerStartError(BrokerError):
    """The broker ended during its start, did not answer in time, or cannot use its directory."""

    code = "FA7002"


class BrokerPortInUseError(BrokerError):
    """Another program uses a port of the broker."""

    code = "FA7003"


class BrokerMismatchError(BrokerError):
    """The broker is already running, with other settings than requested."""

    code = "FA7004"
