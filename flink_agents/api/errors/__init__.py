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
    │   ├── PlanFormatError              FA1009
    │   ├── WrongArgumentError           FA1010  (also a ValueError)
    │   ├── LiteralSecretError           FA1011
    │   └── ResultTypeError              FA1012
    ├── OptionError                      FA1100  an option is unknown, or its value is invalid
    ├── SetupError                       FA2000  this machine or process cannot run the job
    │   ├── MissingExtraError            FA2001  (also an ImportError)
    │   ├── JavaNotFoundError            FA2002
    │   ├── ConflictingPackageError      FA2003
    │   ├── UnsupportedExecutionError    FA2004
    │   └── StaleCodeError               FA2005
    ├── ClusterError                     FA2100  a Flink cluster did not execute a request
    │   ├── ClusterUnavailableError      FA2101
    │   ├── ClusterStartError            FA2102
    │   ├── SubmissionError              FA2103
    │   ├── UnknownJobError              FA2104
    │   └── SavepointFailedError         FA2105
    ├── JobDefinitionError               FA3000  the job around the agent cannot work
    │   ├── AgentCycleError              FA3001
    │   ├── DuplicateAgentError          FA3002
    │   ├── DeadLettersNotReadError      FA3003
    │   ├── UnsupportedTableError        FA3004
    │   ├── NoWatermarksError            FA3005
    │   ├── UnknownStoreError            FA3006
    │   ├── StoreNotConfiguredError      FA3007
    │   ├── TimestampRangeError          FA3008
    │   ├── ObserverError                FA3009
    │   ├── ApprovalsNotAnsweredError    FA3010
    │   └── MissingMainGuardError            FA3011
    ├── JobFailedError                   FA3100  the job ran and failed
    │   ├── ModuleNotOnWorkersError      FA3101
    │   ├── MissingTimestampsError       FA3102
    │   ├── TaskManagerLostError         FA3103
    │   ├── UnshippableCodeError         FA3130
    │   ├── OutputsNotReadyError         FA3131
    │   └── UnpicklableOutputError       FA3132
    ├── ResumeError                      FA3200  a local job can neither resume nor start over
    │   ├── JobFolderError               FA3201
    │   ├── JobFolderInUseError          FA3202
    │   ├── CheckpointsGoneError         FA3203
    │   ├── CheckpointDamagedError       FA3204
    │   ├── OutputsExpiredError          FA3205
    │   ├── JobChangedError              FA3206
    │   ├── CannotResumeError            FA3207
    │   ├── OtherScriptError             FA3208
    │   ├── JobRunMissingError           FA3209
    │   ├── StateMismatchError           FA3210  (also a JobFailedError)
    │   ├── InputChangedError            FA3220
    │   └── SourceNotResumableError      FA3221
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
    │   ├── NonDeterminismError          FA4013
    │   ├── DurableResultError           FA4014
    │   ├── RecordedFailureError         FA4015
    │   ├── SignalTimeoutError           FA4018  (also a TimeoutError)
    │   ├── NoMoreSignalsError           FA4019
    │   ├── ApprovalDeniedError          FA4020
    │   ├── RunDeadlineError             FA4021  (also a TimeoutError)
    │   ├── MissingAwaitError          FA4022  (also a TypeError)
    │   ├── OutputTypeError              FA4023  (also a TypeError)
    │   ├── AgentOutputsError            FA4024
    │   ├── InvalidDurationError            FA4025  (also a ValueError)
    │   ├── NoVerdictError               FA4026  (also a TypeError)
    │   ├── UnsavedChangeError         FA4027
    │   └── RunEndedError              FA4040
    ├── StateError                       FA5000  a value cannot enter or leave Flink's state
    │   ├── KeyEncodingError             FA5001
    │   ├── UnserializableValueError     FA5002
    │   ├── UnknownTypeNameError         FA5003
    │   ├── StateFormatError             FA5004
    │   │   └── ValueChangedError        FA5007
    │   ├── PlanChangedError             FA5005
    │   └── UpgradeFailedError           FA5008
    ├── StoreError                       FA6000  the store of durable execution cannot do it
    │   ├── FencedOwnerError              FA6001
    │   ├── JobIdentifierInUseError      FA6002
    │   ├── RecordTooLargeError          FA6003
    │   ├── RecordsPrunedError           FA6004
    │   ├── StoreClosedError             FA6005
    │   ├── AppendOutcomeUnknownError    FA6006
    │   ├── StoreUnavailableError        FA6007
    │   ├── StoreFormatError             FA6008
    │   ├── StoreMismatchError           FA6009
    │   ├── RunNotReplayableError        FA6010
    │   ├── JobIdentifierMismatchError          FA6011
    │   ├── JournalMissingError          FA6012
    │   └── JournalOutdatedError         FA6013
    ├── TraceError                       FA6100  the trace cannot be written or read
    │   ├── UnknownTraceSinkError        FA6101
    │   ├── TraceOptionError             FA6102
    │   ├── TraceNotFoundError           FA6103
    │   ├── TraceFormatError             FA6104
    │   └── ConsoleError                 FA6120
    │       ├── UnsafeAddressError       FA6121
    │       └── RejectedAnswerError      FA6122
    ├── BrokerError                      FA7000  a Kafka broker for development cannot run
    │   ├── BrokerDownloadError          FA7001
    │   ├── BrokerStartError             FA7002
    │   ├── BrokerPortInUseError         FA7003
    │   └── BrokerMismatchError          FA7004
    ├── KafkaStreamError                 FA7100  a Kafka source or sink of a job cannot work
    │   ├── KafkaConnectorError          FA7101
    │   ├── KafkaValueError              FA7102  (also a ValueError)
    │   └── KafkaTransactionError        FA7110
    ├── EnvelopeError                    FA7200  a message between jobs (also a ValueError)
    ├── RecoveryMismatchError          FA8000  found by the test kit  (also an AssertionError)
    ├── HarnessUseError                  FA8100  a test uses the test kit in an invalid way
    │   └── HarnessHangError             FA8101  (also a TimeoutError)
    ├── ModelError                       FA9000  a chat model did not answer
    │   ├── ModelRequestError            FA9001
    │   ├── UsageLimitExceededError      FA9002
    │   ├── ModelOutputError             FA9003
    │   ├── HistoryError                 FA9004
    │   ├── AgentNotDurableError         FA9005
    │   ├── ApprovalUnavailableError     FA9006
    │   ├── NestedChatsError             FA9007
    │   ├── MessageOriginError           FA9030
    │   ├── UrlContentError              FA9031
    │   ├── ToolOutcomeUnknownError      FA9040  (also a ToolError)
    │   └── ModelRefusedError            FA9041
    ├── ToolError                        FA9100  a tool that a model called ended the conversation
    │   ├── ToolRetriesExceededError     FA9101
    │   └── ToolResultError              FA9102
    ├── MCPError                         FA9200  an MCP server did not execute a request
    │   ├── MCPServerUnavailableError    FA9201
    │   ├── MCPRequestError              FA9202
    │   ├── MCPOutcomeUnknownError       FA9203  (also a ToolOutcomeUnknownError)
    │   └── MCPResultError               FA9204
    ├── RetrievalError                   FA9300  embedding model, vector store, long-term memory
    │   ├── EmbeddingMismatchError       FA9301
    │   ├── DocumentError                FA9302
    │   ├── VectorFilterError            FA9303
    │   ├── VectorStoreUnavailableError  FA9304
    │   ├── VectorStoreFormatError       FA9305
    │   └── VectorStoreInUseError        FA9306
    └── SkillError                       FA9400  folders of skills, their files

Each class has a stable ``code``; ``flink-agents explain CODE`` prints its entry. The
first line of an error's text is the user's own place in the code where one is known,
then what was expected, what was found and what to do. Errors survive pickling.
"""

# ruff: noqa: F403 - these modules define errors of the tree, and little else.

from __future__ import annotations

from flink_agents.api.errors.base import AgentsError
from flink_agents.api.errors.console import *
from flink_agents.api.errors.jobs import *
from flink_agents.api.errors.models import *
from flink_agents.api.errors.resume import *
from flink_agents.api.errors.runs import *
from flink_agents.api.errors.state import *
from flink_agents.api.errors.stores import *
from flink_agents.api.errors.testing import *
from flink_agents.api.errors.trace import *


class AgentDefinitionError(AgentsError):
    """The agent as written cannot work; found when its plan is compiled."""

    code = "FA1000"


class ActionSignatureError(AgentDefinitionError):
    """An action, tool or resource method has a signature that cannot be called."""

    code = "FA1001"


class DuplicateNameError(AgentDefinitionError):
    """Two actions, two resources of one type, or two event classes have the same name."""

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
    """A resource or an action names a resource that the agent does not have."""

    code = "FA1006"


class CyclicResourceError(AgentDefinitionError):
    """Resources refer to each other in a cycle."""

    code = "FA1007"


class FunctionReferenceError(AgentDefinitionError):
    """A function named by the plan cannot be imported."""

    code = "FA1008"


class PlanFormatError(AgentDefinitionError):
    """A plan, agent file or type string does not follow its format."""

    code = "FA1009"


class WrongArgumentError(AgentDefinitionError, ValueError):
    """A policy, a limit or another description has an invalid argument."""

    code = "FA1010"


class LiteralSecretError(AgentDefinitionError):
    """A description of a resource contains a secret, which the plan would show to its readers."""

    code = "FA1011"


class ResultTypeError(AgentDefinitionError):
    """The ``result_type`` of a durable step has values that no record can hold; the step is not made."""

    code = "FA1012"


class OptionError(AgentsError):
    """An option is unknown, its value is invalid, or a file of options cannot be read."""

    code = "FA1100"


class SetupError(AgentsError):
    """The job cannot run on this machine or in this process in their present state."""

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
    """This release of Flink, or the execution settings of the job, do not work with agents."""

    code = "FA2004"


class StaleCodeError(SetupError):
    """A worker has a version of the user's module in memory that differs from the job's."""

    code = "FA2005"


class JobDefinitionError(AgentsError):
    """The job around the agents cannot work."""

    code = "FA3000"


class AgentCycleError(JobDefinitionError):
    """The output of an agent flows back into the same agent inside one job, or an agent calls itself."""

    code = "FA3001"


class DuplicateAgentError(JobDefinitionError):
    """Two agents of one job have the same name, and so would share state."""

    code = "FA3002"


class DeadLettersNotReadError(JobDefinitionError):
    """An action sends failures to the dead letters, but nothing reads them."""

    code = "FA3003"


class UnsupportedTableError(JobDefinitionError):
    """A table cannot become an input of agents, or an output cannot become a table."""

    code = "FA3004"


class NoWatermarksError(JobDefinitionError):
    """An agent that holds watermarks reads a stream with timestamps, but without watermarks."""

    code = "FA3005"


class UnknownStoreError(JobDefinitionError):
    """A job names a store that no package provides, or whose provider cannot be imported."""

    code = "FA3006"


class StoreNotConfiguredError(JobDefinitionError):
    """A job on a cluster makes durable steps, but ``action-state.store`` names no store."""

    code = "FA3007"


class TimestampRangeError(JobDefinitionError):
    """An agent that holds watermarks reads a record with a timestamp that tables do not support."""

    code = "FA3008"


class ObserverError(JobDefinitionError):
    """An observer of runs is not a ``RunObserver``, or cannot be sent to workers."""

    code = "FA3009"


class ApprovalsNotAnsweredError(JobDefinitionError):
    """An agent needs approvals, but nothing reads its requests or answers them."""

    code = "FA3010"


class MissingMainGuardError(JobDefinitionError):
    """A module starts its job when it is imported for its definitions."""

    code = "FA3011"
