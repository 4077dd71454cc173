"""Every exception of the package, in one tree.

::

    AgentsError                          FA0000
    ├── AgentDefinitionError             FA1000  the agent as written cannot work
    │   ├── ActionSignatureError         FA1001
    │   ├── DuplicateNameError           FA1002
    │   ├── UnknownTriggerError          FA1003
    │   ├── EventNeverEmittedError       FA1004
    │   ├── AgentConfigurationError      FA1005
    │   ├── MissingResourceError         FA1006
    │   ├── CyclicResourceError          FA1007
    │   ├── FunctionReferenceError       FA1008
    │   └── PlanFormatError              FA1009
    ├── OptionError                      FA1100  an option is unknown or has a wrong value
    ├── SetupError                       FA2000  this machine or process cannot run the job
    │   ├── MissingExtraError            FA2001  (also an ImportError)
    │   ├── JavaNotFoundError            FA2002
    │   ├── ConflictingPackageError      FA2003
    │   ├── UnsupportedExecutionError    FA2004
    │   └── StaleCodeError               FA2005
    ├── JobDefinitionError               FA3000  the job around the agent cannot work
    │   ├── AgentCycleError              FA3001
    │   ├── DuplicateAgentError          FA3002
    │   ├── DeadLettersNotReadError      FA3003
    │   ├── UnsupportedTableError        FA3004
    │   ├── NoWatermarksError            FA3005
    │   ├── UnknownStoreError            FA3006
    │   ├── StoreNotConfiguredError      FA3007
    │   └── TimestampRangeError          FA3008
    ├── JobFailedError                   FA3100  the job ran and failed
    ├── RunError                         FA4000  something went wrong inside a run
    │   ├── ActionFailedError            FA4001
    │   │   ├── RetriesExhaustedError    FA4012
    │   │   └── ActionInterruptedError   FA4017  (also a KeyboardInterrupt)
    │   ├── NotAnEventError              FA4002
    │   ├── UnknownEventError            FA4003
    │   ├── UnhandledEventError          FA4004
    │   ├── UnknownSideOutputError       FA4005
    │   ├── ResourceNotFoundError        FA4006
    │   ├── ResourceUnavailableError     FA4007
    │   ├── ContextMisuseError           FA4008
    │   ├── MemoryPathError              FA4009
    │   ├── EventLimitError              FA4010
    │   ├── ActionTimeoutError           FA4011  (also a TimeoutError)
    │   ├── DurableCallMismatchError     FA4013
    │   │   └── BranchesRecordedEarlierError FA4016
    │   ├── DurableResultError           FA4014
    │   ├── RecordedFailureError         FA4015
    │   ├── SignalTimeoutError           FA4018  (also a TimeoutError)
    │   └── NoMoreSignalsError           FA4019
    ├── StateError                       FA5000  a value cannot enter or leave Flink's state
    │   ├── KeyEncodingError             FA5001
    │   ├── UnserializableValueError     FA5002
    │   ├── UnknownTypeNameError         FA5003
    │   ├── StateFormatError             FA5004
    │   └── PlanChangedError             FA5005
    ├── StoreError                       FA6000  the store of durable execution cannot do it
    │   ├── StaleOwnerError              FA6001
    │   ├── JobIdentifierInUseError      FA6002
    │   ├── RecordTooLargeError          FA6003
    │   ├── RecordsPrunedError           FA6004
    │   ├── StoreClosedError             FA6005
    │   ├── AppendOutcomeUnknownError    FA6006
    │   ├── StoreUnavailableError        FA6007
    │   ├── StoreFormatError             FA6008
    │   ├── StoreMismatchError           FA6009
    │   ├── RunNotReplayableError        FA6010
    │   └── OtherJobsStateError          FA6011
    ├── BrokerError                      FA7000  a Kafka broker for development cannot run
    │   ├── BrokerDownloadError          FA7001
    │   ├── BrokerStartError             FA7002
    │   ├── BrokerPortInUseError         FA7003
    │   └── BrokerMismatchError          FA7004
    ├── KafkaStreamError                 FA7100  a Kafka source or sink of a job cannot work
    │   ├── KafkaConnectorError          FA7101
    │   └── KafkaValueError              FA7102  (also a ValueError)
    ├── RecoveryDifferenceError          FA8000  found by the test kit  (also an AssertionError)
    ├── ModelError                       FA9000  a chat model did not come to an answer
    │   ├── ModelRequestError            FA9001
    │   ├── UsageLimitExceededError      FA9002
    │   ├── ModelOutputError             FA9003
    │   ├── HistoryError                 FA9004
    │   ├── UnrecordedAgentError         FA9005
    │   └── ApprovalUnavailableError     FA9006
    ├── ToolError                        FA9100  a tool that a model called ended the conversation
    │   ├── ToolRetriesExceededError     FA9101
    │   └── ToolResultError              FA9102
    └── RetrievalError                   FA9300  embedding model, vector store, long-term memory
        ├── EmbeddingMismatchError       FA9301
        ├── DocumentError                FA9302
        ├── VectorFilterError            FA9303
        ├── VectorStoreUnavailableError  FA9304
        ├── VectorStoreFormatError       FA9305
        └── VectorStoreInUseError        FA9306

Each class has a stable ``code``; ``docs/errors.md`` has a section of that name. The
first line of an error's text is the user's own place in the code where one is known,
then what was expected, what was found and what to do. Errors survive pickling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flink_agents.api.error_base import AgentsError, attempt_lines
from flink_agents.api.kafka_errors import (
    KafkaConnectorError as KafkaConnectorError,
    KafkaStreamError as KafkaStreamError,
    KafkaValueError as KafkaValueError,
)
from flink_agents.api.model_errors import (
    ApprovalUnavailableError as ApprovalUnavailableError,
    HistoryError as HistoryError,
    ModelError as ModelError,
    ModelOutputError as ModelOutputError,
    ModelRequestError as ModelRequestError,
    ToolError as ToolError,
    ToolResultError as ToolResultError,
    ToolRetriesExceededError as ToolRetriesExceededError,
    UnrecordedAgentError as UnrecordedAgentError,
    UsageLimitExceededError as UsageLimitExceededError,
)
from flink_agents.api.retrieval_errors import (
    DocumentError as DocumentError,
    EmbeddingMismatchError as EmbeddingMismatchError,
    RetrievalError as RetrievalError,
    VectorFilterError as VectorFilterError,
    VectorStoreFormatError as VectorStoreFormatError,
    VectorStoreInUseError as VectorStoreInUseError,
    VectorStoreUnavailableError as VectorStoreUnavailableError,
)
from flink_agents.api.state_errors import (
    KeyEncodingError as KeyEncodingError,
    PlanChangedError as PlanChangedError,
    StateError as StateError,
    StateFormatError as StateFormatError,
    UnknownTypeNameError as UnknownTypeNameError,
    UnserializableValueError as UnserializableValueError,
)
from flink_agents.api.store_errors import (
    AppendOutcomeUnknownError as AppendOutcomeUnknownError,
    BrokerDownloadError as BrokerDownloadError,
    BrokerError as BrokerError,
    BrokerMismatchError as BrokerMismatchError,
    BrokerPortInUseError as BrokerPortInUseError,
    BrokerStartError as BrokerStartError,
    JobIdentifierInUseError as JobIdentifierInUseError,
    OtherJobsStateError as OtherJobsStateError,
    RecordsPrunedError as RecordsPrunedError,
    RecordTooLargeError as RecordTooLargeError,
    RunNotReplayableError as RunNotReplayableError,
    StaleOwnerError as StaleOwnerError,
    StoreClosedError as StoreClosedError,
    StoreError as StoreError,
    StoreFormatError as StoreFormatError,
    StoreMismatchError as StoreMismatchError,
    StoreUnavailableError as StoreUnavailableError,
)
from flink_agents.api.testing_errors import RecoveryDifferenceError as RecoveryDifferenceError

if TYPE_CHECKING:
    from flink_agents.api.policies import FailedAttempt


class AgentDefinitionError(AgentsError):
    """The agent as written cannot work; found when its plan is compiled."""

    code = "FA1000"


class ActionSignatureError(AgentDefinitionError):
    """An action, tool or resource method has a signature that cannot be called."""

    code = "FA1001"


class DuplicateNameError(AgentDefinitionError):
    """Two actions, two resources of one type, or two event classes share a name."""

    code = "FA1002"


class UnknownTriggerError(AgentDefinitionError):
    """A trigger is neither an event class nor a type string."""

    code = "FA1003"


class EventNeverEmittedError(AgentDefinitionError):
    """An action waits for an event type that nothing can emit."""

    code = "FA1004"


class AgentConfigurationError(AgentDefinitionError):
    """The agent's constructor arguments cannot be written into the plan or read back."""

    code = "FA1005"


class MissingResourceError(AgentDefinitionError):
    """A resource refers to another one that the agent does not have."""

    code = "FA1006"


class CyclicResourceError(AgentDefinitionError):
    """Resources refer to each other in a circle."""

    code = "FA1007"


class FunctionReferenceError(AgentDefinitionError):
    """A function named by the plan cannot be imported."""

    code = "FA1008"


class PlanFormatError(AgentDefinitionError):
    """A plan, agent file or type string does not follow its format."""

    code = "FA1009"


class OptionError(AgentsError):
    """An option is unknown, its value does not fit, or a file of options cannot be read."""

    code = "FA1100"


class SetupError(AgentsError):
    """The job cannot run on this machine or in this process as they are."""

    code = "FA2000"


class MissingExtraError(SetupError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    code = "FA2001"


class JavaNotFoundError(SetupError):
    """No Java runtime that Flink can use was found."""

    code = "FA2002"


class ConflictingPackageError(SetupError):
    """Another distribution with the same import name is installed."""

    code = "FA2003"


class UnsupportedExecutionError(SetupError):
    """The execution settings of the Flink job do not fit agents."""

    code = "FA2004"


class StaleCodeError(SetupError):
    """A worker has another version of the user's module in memory than the job was built with."""

    code = "FA2005"


class JobDefinitionError(AgentsError):
    """The job around the agents cannot work."""

    code = "FA3000"


class AgentCycleError(JobDefinitionError):
    """The output of an agent flows back into the same agent inside one job."""

    code = "FA3001"


class DuplicateAgentError(JobDefinitionError):
    """Two agents of one job share a name, and so would share state."""

    code = "FA3002"


class DeadLettersNotReadError(JobDefinitionError):
    """An action sends failures to the dead letters, and nobody reads them."""

    code = "FA3003"


class UnsupportedTableError(JobDefinitionError):
    """A table cannot become an input of agents, or an output cannot become a table."""

    code = "FA3004"


class NoWatermarksError(JobDefinitionError):
    """An agent that holds watermarks reads a stream with timestamps, but without watermarks."""

    code = "FA3005"


class UnknownStoreError(JobDefinitionError):
    """A job names a store that nobody provides, or whose provider cannot be imported."""

    code = "FA3006"


class StoreNotConfiguredError(JobDefinitionError):
    """A job on a cluster makes durable calls, and ``action-state.store`` names no store."""

    code = "FA3007"


class TimestampRangeError(JobDefinitionError):
    """An agent that holds watermarks reads a record with a timestamp that tables do not know."""

    code = "FA3008"


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


class RunError(AgentsError):
    """Something went wrong while an agent handled an event."""

    code = "FA4000"


class ActionFailedError(RunError):
    """An action raised, and its error policy is to fail the job.

    Attributes:
        agent: Name of the agent.
        action: Name of the action.
        key: The key, as the key selector returned it.
        sequence_number: Number of the run within its key, from 0.
        event: Type of the event that the action handled.
        attempts: Every attempt, oldest first, where the action was tried again.
    """

    code = "FA4001"

    def __init__(
        self,
        message: str,
        *,
        agent: str,
        action: str,
        key: object,
        sequence_number: int,
        event: str,
        attempts: tuple[FailedAttempt, ...] = (),
        **kwargs: Any,
    ) -> None:
        self.attempts = attempts
        self.agent = agent
        self.action = action
        self.key = key
        self.sequence_number = sequence_number
        self.event = event
        super().__init__(message, **kwargs)

    def _details(self) -> list[str]:
        return [
            f"  agent {self.agent}, action {self.action}, key {self.key!r}, "
            f"sequence {self.sequence_number}, event {self.event}",
            *(f"  {line}" for line in attempt_lines(self.attempts)),
        ]


class NotAnEventError(RunError, TypeError):
    """An action returned, yielded or sent something that is no event."""

    code = "FA4002"


class UnknownEventError(RunError):
    """An action emitted an event of a type that no action of the agent takes."""

    code = "FA4003"


class UnhandledEventError(RunError):
    """No action accepted an event, because no condition held."""

    code = "FA4004"


class UnknownSideOutputError(RunError):
    """``emit_to`` names a side output that the agent does not declare."""

    code = "FA4005"


class ResourceNotFoundError(RunError):
    """``get_resource`` asks for a resource that the agent does not have."""

    code = "FA4006"


class ResourceUnavailableError(RunError):
    """A resource is declared, but nothing in this version can provide its kind."""

    code = "FA4007"


class ContextMisuseError(RunError):
    """The context is used where it means nothing: a foreign thread, or after the action."""

    code = "FA4008"


class MemoryPathError(RunError):
    """A memory path is malformed, missing, or goes through a value that is no object."""

    code = "FA4009"


class EventLimitError(RunError):
    """One run emitted more events than ``run.max-events`` allows."""

    code = "FA4010"


class ActionTimeoutError(RunError, TimeoutError):
    """An action took longer than its ``timeout``.

    Attributes:
        seconds: The timeout.
    """

    code = "FA4011"

    def __init__(self, message: str, *, seconds: float = 0.0, **kwargs: Any) -> None:
        self.seconds = seconds
        super().__init__(message, **kwargs)


class RetriesExhaustedError(ActionFailedError):
    """An action raised in every attempt that its retry policy allows, and its error policy is to fail."""

    code = "FA4012"


class ActionInterruptedError(ActionFailedError, KeyboardInterrupt):
    """An action raised a ``KeyboardInterrupt``, which no policy passes by."""

    code = "FA4017"


class DurableCallMismatchError(RunError):
    """A replay asks for another durable call than was recorded."""

    code = "FA4013"


class BranchesRecordedEarlierError(DurableCallMismatchError):
    """A run in flight has branches whose calls an earlier version numbered without them."""

    code = "FA4016"


class DurableResultError(RunError):
    """The result of a durable call cannot be recorded."""

    code = "FA4014"


class SignalTimeoutError(RunError, TimeoutError):
    """No signal came in the time that an action waited for one."""

    code = "FA4018"


class NoMoreSignalsError(RunError):
    """An action waits for a signal, and the input has ended."""

    code = "FA4019"


class RecordedFailureError(RunError):
    """A durable call failed in an earlier attempt, with an exception that cannot be made again.

    Attributes:
        error_type: The class of that exception, ``module:qualname``.
    """

    code = "FA4015"

    def __init__(self, message: str, *, error_type: str = "", **kwargs: Any) -> None:
        self.error_type = error_type
        super().__init__(message, **kwargs)
