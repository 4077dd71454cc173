"""Exceptions of the stores of durable execution and of the broker for development; see ``errors``."""

from __future__ import annotations

from flink_agents.api.errors.base import AgentsError


class StoreError(AgentsError):
    """The store of durable execution failed; nothing was recorded."""

    code = "FA6000"


class FencedOwnerError(StoreError):
    """Another attempt took over; this one may not record anything any more."""

    code = "FA6001"


class JobIdentifierInUseError(StoreError):
    """Another job that is alive has the same job identifier."""

    code = "FA6002"


class RecordTooLargeError(StoreError):
    """A record has more bytes than the store takes."""

    code = "FA6003"


class RecordsPrunedError(StoreError):
    """Records of a run are asked for, or appended, that was pruned."""

    code = "FA6004"


class StoreClosedError(StoreError):
    """The store is not open, or it stopped after an error."""

    code = "FA6005"


class AppendOutcomeUnknownError(StoreError):
    """It is unknown if records are stored. The attempt must end; the next one reads them, or not."""

    code = "FA6006"


class StoreUnavailableError(StoreError):
    """The store cannot be reached or written at present: missing, locked, full, or read-only."""

    code = "FA6007"
    is_missing = False
    """True if it does not exist yet."""


class StoreFormatError(StoreError):
    """The store's content is corrupt, of something else, or of a newer version of this package."""

    code = "FA6008"


class StoreMismatchError(StoreError):
    """State belongs to another store than the one that is configured."""

    code = "FA6009"


class RunNotReplayableError(StoreError):
    """A run cannot be executed once more for debugging: the journal lacks what it began with."""

    code = "FA6010"


class JobIdentifierMismatchError(StoreError):
    """State was written by another job, and no option says if this one continues its journals."""

    code = "FA6011"


class BrokerError(AgentsError):
    """The Kafka broker for development does not run, or was never started."""

    code = "FA7000"


class BrokerDownloadError(BrokerError):
    """Apache Kafka cannot be fetched from Maven Central."""

    code = "FA7001"


class BrokerStartError(BrokerError):
    """The broker ended at its start, did not answer in time, or cannot use its directory."""

    code = "FA7002"


class BrokerPortInUseError(BrokerError):
    """Another program has a port that the broker is to listen on."""

    code = "FA7003"


class BrokerMismatchError(BrokerError):
    """The broker runs already, with other settings than were asked for."""

    code = "FA7004"
