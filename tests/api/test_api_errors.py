"""The exception tree: codes, texts, and errors that travel between processes."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest

from flink_agents.api import errors
from flink_agents.api.errors import (
    ActionFailedError,
    ActionInterruptedError,
    ActionTimeoutError,
    AgentsError,
    JobFailedError,
    MissingExtraError,
    NotAnEventError,
    RecordedFailureError,
    RecoveryMismatchError,
    RetriesExhaustedError,
)
from flink_agents.api.errors.base import code_line
from tests.suite.tables import each_case

CODES = {
    "AgentsError": "FA0000",
    "AgentDefinitionError": "FA1000",
    "ActionSignatureError": "FA1001",
    "DuplicateNameError": "FA1002",
    "UnknownTriggerError": "FA1003",
    "EventNeverEmittedError": "FA1004",
    "AgentConfigurationError": "FA1005",
    "MissingResourceError": "FA1006",
    "CyclicResourceError": "FA1007",
    "FunctionReferenceError": "FA1008",
    "PlanFormatError": "FA1009",
    "WrongArgumentError": "FA1010",
    "LiteralSecretError": "FA1011",
    "ResultTypeError": "FA1012",
    "OptionError": "FA1100",
    "SetupError": "FA2000",
    "MissingExtraError": "FA2001",
    "JavaNotFoundError": "FA2002",
    "ConflictingPackageError": "FA2003",
    "UnsupportedExecutionError": "FA2004",
    "StaleCodeError": "FA2005",
    "ClusterError": "FA2100",
    "ClusterUnavailableError": "FA2101",
    "ClusterStartError": "FA2102",
    "SubmissionError": "FA2103",
    "UnknownJobError": "FA2104",
    "SavepointFailedError": "FA2105",
    "JobDefinitionError": "FA3000",
    "AgentCycleError": "FA3001",
    "DuplicateAgentError": "FA3002",
    "DeadLettersNotReadError": "FA3003",
    "UnsupportedTableError": "FA3004",
    "NoWatermarksError": "FA3005",
    "UnknownStoreError": "FA3006",
    "StoreNotConfiguredError": "FA3007",
    "TimestampRangeError": "FA3008",
    "ObserverError": "FA3009",
    "ApprovalsNotAnsweredError": "FA3010",
    "MissingMainGuardError": "FA3011",
    "JobFailedError": "FA3100",
    "ModuleNotOnWorkersError": "FA3101",
    "MissingTimestampsError": "FA3102",
    "TaskManagerLostError": "FA3103",
    "UnshippableCodeError": "FA3130",
    "OutputsNotReadyError": "FA3131",
    "UnpicklableOutputError": "FA3132",
    "ResumeError": "FA3200",
    "JobFolderError": "FA3201",
    "JobFolderInUseError": "FA3202",
    "CheckpointsGoneError": "FA3203",
    "CheckpointDamagedError": "FA3204",
    "OutputsExpiredError": "FA3205",
    "JobChangedError": "FA3206",
    "CannotResumeError": "FA3207",
    "OtherScriptError": "FA3208",
    "JobRunMissingError": "FA3209",
    "StateMismatchError": "FA3210",
    "InputChangedError": "FA3220",
    "SourceNotResumableError": "FA3221",
    "RunError": "FA4000",
    "ActionFailedError": "FA4001",
    "NotAnEventError": "FA4002",
    "UnknownEventError": "FA4003",
    "UnhandledEventError": "FA4004",
    "UnknownSideOutputError": "FA4005",
    "ResourceNotFoundError": "FA4006",
    "ResourceUnavailableError": "FA4007",
    "ContextMisuseError": "FA4008",
    "MemoryPathError": "FA4009",
    "EventLimitError": "FA4010",
    "ActionTimeoutError": "FA4011",
    "RetriesExhaustedError": "FA4012",
    "NonDeterminismError": "FA4013",
    "DurableResultError": "FA4014",
    "RecordedFailureError": "FA4015",
    "AgentOutputsError": "FA4024",
    "InvalidDurationError": "FA4025",
    "NoVerdictError": "FA4026",
    "UnsavedChangeError": "FA4027",
    "RunEndedError": "FA4040",
    "ActionInterruptedError": "FA4017",
    "SignalTimeoutError": "FA4018",
    "NoMoreSignalsError": "FA4019",
    "ApprovalDeniedError": "FA4020",
    "RunDeadlineError": "FA4021",
    "MissingAwaitError": "FA4022",
    "OutputTypeError": "FA4023",
    "StateError": "FA5000",
    "KeyEncodingError": "FA5001",
    "UnserializableValueError": "FA5002",
    "UnknownTypeNameError": "FA5003",
    "StateFormatError": "FA5004",
    "PlanChangedError": "FA5005",
    "ValueChangedError": "FA5007",
    "UpgradeFailedError": "FA5008",
    "StoreError": "FA6000",
    "FencedOwnerError": "FA6001",
    "JobIdentifierInUseError": "FA6002",
    "RecordTooLargeError": "FA6003",
    "RecordsPrunedError": "FA6004",
    "StoreClosedError": "FA6005",
    "AppendOutcomeUnknownError": "FA6006",
    "StoreUnavailableError": "FA6007",
    "StoreFormatError": "FA6008",
    "StoreMismatchError": "FA6009",
    "RunNotReplayableError": "FA6010",
    "JobIdentifierMismatchError": "FA6011",
    "JournalMissingError": "FA6012",
    "JournalOutdatedError": "FA6013",
    "TraceError": "FA6100",
    "UnknownTraceSinkError": "FA6101",
    "TraceOptionError": "FA6102",
    "TraceNotFoundError": "FA6103",
    "TraceFormatError": "FA6104",
    "ConsoleError": "FA6120",
    "UnsafeAddressError": "FA6121",
    "RejectedAnswerError": "FA6122",
    "BrokerError": "FA7000",
    "BrokerDownloadError": "FA7001",
    "BrokerStartError": "FA7002",
    "BrokerPortInUseError": "FA7003",
    "BrokerMismatchError": "FA7004",
    "RecoveryMismatchError": "FA8000",
    "HarnessUseError": "FA8100",
    "HarnessHangError": "FA8101",
    "KafkaStreamError": "FA7100",
    "KafkaConnectorError": "FA7101",
    "KafkaValueError": "FA7102",
    "KafkaTransactionError": "FA7110",
    "EnvelopeError": "FA7200",
    "ModelError": "FA9000",
    "ModelRequestError": "FA9001",
    "UsageLimitExceededError": "FA9002",
    "ModelOutputError": "FA9003",
    "HistoryError": "FA9004",
    "AgentNotDurableError": "FA9005",
    "ApprovalUnavailableError": "FA9006",
    "NestedChatsError": "FA9007",
    "MessageOriginError": "FA9030",
    "UrlContentError": "FA9031",
    "ToolOutcomeUnknownError": "FA9040",
    "ModelRefusedError": "FA9041",
    "ToolError": "FA9100",
    "ToolRetriesExceededError": "FA9101",
    "ToolResultError": "FA9102",
    "MCPError": "FA9200",
    "MCPServerUnavailableError": "FA9201",
    "MCPRequestError": "FA9202",
    "MCPOutcomeUnknownError": "FA9203",
    "MCPResultError": "FA9204",
    "RetrievalError": "FA9300",
    "EmbeddingMismatchError": "FA9301",
    "DocumentError": "FA9302",
    "VectorFilterError": "FA9303",
    "VectorStoreUnavailableError": "FA9304",
    "VectorStoreFormatError": "FA9305",
    "VectorStoreInUseError": "FA9306",
    "SkillError": "FA9400",
}
"""Codes are part of the public surface: none may change or be used again."""

CLASSES: list[type[AgentsError]] = [
    member for member in vars(errors).values() if isinstance(member, type) and issubclass(member, AgentsError)
]

FAILED_ACTION: dict[str, Any] = {
    "agent": "Shop",
    "action": "sell",
    "key": ("user", 1),
    "sequence_number": 7,
    "event": "OrderPlaced",
}

EXTRA: dict[type[AgentsError], dict[str, Any]] = {
    ActionFailedError: FAILED_ACTION,
    RetriesExhaustedError: FAILED_ACTION,
    ActionInterruptedError: FAILED_ACTION,
    JobFailedError: {"failure": "the first lines", "java_trace": "at java.base"},
    ActionTimeoutError: {"seconds": 1.5},
    RecordedFailureError: {"error_type": "shop:CardRefused"},
    RecoveryMismatchError: {"key": "a", "crash_point": "before append 0", "difference": "memory"},
}


def make(cls: type[AgentsError]) -> AgentsError:
    return cls(
        "something is wrong",
        expected="this",
        found="that",
        fix="do so",
        where="a.py:1 in f",
        **EXTRA.get(cls, {}),
    )


def test_codes_are_stable() -> None:
    assert {cls.__name__: cls.code for cls in CLASSES} == CODES


def test_each_class_is_drawn_in_the_tree_of_the_module() -> None:
    drawn = dict(re.findall(r"(\w+Error) +(FA\d{4})", errors.__doc__ or ""))
    assert drawn == CODES


def test_a_group_is_the_base_of_its_members() -> None:
    for cls in CLASSES:
        group = next(
            candidate
            for candidate in CLASSES
            if candidate.code == cls.code[:4] + "00" and candidate.code[3] == cls.code[3]
        )
        if cls.code[4:] != "00":
            assert issubclass(cls, group)


def test_classes_are_of_the_builtin_kinds_that_callers_catch() -> None:
    assert issubclass(MissingExtraError, ImportError)
    assert issubclass(NotAnEventError, TypeError)
    assert issubclass(ActionTimeoutError, TimeoutError)


@each_case("cls", CLASSES)
def test_text_says_place_problem_and_remedy_in_this_order(cls: type[AgentsError]) -> None:
    lines = [line for line in str(make(cls)).split("\n") if not line.startswith("  agent ")]
    assert lines == [
        "a.py:1 in f: something is wrong",
        "  expected: this",
        "  found: that",
        "  fix: do so",
        code_line(cls.code),
    ]


def test_text_has_no_empty_parts() -> None:
    assert str(AgentsError("wrong", found="x")) == "wrong\n  found: x\n" + code_line("FA0000")


def test_text_of_a_failed_action_names_the_run() -> None:
    assert str(make(ActionFailedError)).split("\n")[1] == (
        "  agent Shop, action sell, key ('user', 1), sequence 7, event OrderPlaced"
    )


def test_a_message_of_several_lines_stays_together() -> None:
    error = ActionFailedError("one\ntwo", **EXTRA[ActionFailedError], fix="do so", where="a.py:1 in f")
    assert str(error).split("\n")[:4] == [
        "a.py:1 in f: one",
        "two",
        "  agent Shop, action sell, key ('user', 1), sequence 7, event OrderPlaced",
        "  fix: do so",
    ]


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    **{f"pickle {n}": lambda error, n=n: pickle.loads(pickle.dumps(error, n)) for n in range(6)},
}


@each_case("duplicate", COPIES.values(), ids=COPIES.keys())
@each_case("cls", CLASSES)
def test_copy_of_an_error_equals_it(cls: type[AgentsError], duplicate: Any) -> None:
    error = make(cls)
    again = duplicate(error)
    assert type(again) is cls
    assert vars(again) == vars(error)
    assert vars(again).items() >= EXTRA.get(cls, {}).items()
    assert again.args == error.args
    assert str(again) == str(error)


def test_errors_can_be_raised_after_a_round_trip() -> None:
    with pytest.raises(ActionFailedError) as caught:
        raise pickle.loads(pickle.dumps(make(ActionFailedError)))
    assert caught.value.key == ("user", 1)
