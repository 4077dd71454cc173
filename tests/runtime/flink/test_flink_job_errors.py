"""Failures of Flink's own that its text does not explain."""

from __future__ import annotations

from typing import Any

import pytest

from flink_agents.api.errors import (
    InputChangedError,
    JobDefinitionError,
    MissingTimestampsError,
    ModuleNotOnWorkersError,
    StateMismatchError,
)
from flink_agents.api.errors.base import code_line
from flink_agents.runtime.flink.following.executions import at_users_line
from flink_agents.runtime.flink.inputs.given import check_parallelism
from flink_agents.runtime.flink.job_errors import job_failed
from tests.suite.tables import each_case

INTERRUPTED = """java.lang.Error: java.lang.InterruptedException
\tat pemja.core.PythonInterpreter$MainInterpreter.initialize(PythonInterpreter.java:406)
\tat pemja.core.PythonInterpreter.initialize(PythonInterpreter.java:144)
Caused by: java.lang.InterruptedException
\tat java.base/java.util.concurrent.CountDownLatch.await(Unknown Source)
"""

SECOND_JOB = """java.lang.RuntimeException: java.lang.NoSuchFieldException: loadedLibraryNames
\tat pemja.core.PythonInterpreter$MainInterpreter.initialize(PythonInterpreter.java:370)
"""

NO_ZSTD = """org.apache.kafka.common.KafkaException: Received exception when fetching the next record
Caused by: java.lang.NoClassDefFoundError: com/github/luben/zstd/BufferPool
Caused by: java.lang.ClassNotFoundException: com.github.luben.zstd.BufferPool
"""

OTHERS = """java.util.concurrent.CancellationException
\tat Some.java(1)
Caused by: java.lang.InterruptedException
"""


@pytest.mark.parametrize(
    ("java_text", "meaning", "fix"),
    [
        (
            INTERRUPTED,
            "cancelled a task while this TaskManager process started Python",
            "restart the TaskManager",
        ),
        (NO_ZSTD, "compressed with zstd", "fetch-connector"),
        (SECOND_JOB, "has run a Python job already", "doctor --cluster"),
    ],
)
def test_what_pyflink_does_not_explain(java_text: str, meaning: str, fix: str) -> None:
    error = job_failed("orders", java_text)
    assert meaning in str(error).splitlines()[0]
    assert fix in str(error)
    assert error.java_trace == java_text


def test_other_interruptions_stand_as_they_are() -> None:
    assert "TaskManager" not in str(job_failed("orders", OTHERS)).splitlines()[0]


NO_MODULE = """java.lang.RuntimeException: Failed to open
Caused by: pemja.core.PythonException: <class 'ModuleNotFoundError'>: No module named 'shop'
\tat /usr/lib/python3/importlib/__init__.import_module(__init__.py:126)
"""

NO_TIMESTAMP = """java.lang.RuntimeException
Caused by: pemja.core.PythonException: <class 'Exception'>: Record has Java Long.MIN_VALUE timestamp \
(= no timestamp marker). Is the time characteristic set to 'ProcessingTime', or did you forget to call \
'data_stream.assign_timestamps_and_watermarks(...)'?
\tat /venv/pyflink/datastream/window.assign_windows(window.py:1271)
"""


def test_a_module_that_workers_lack_is_named_with_how_to_ship_it() -> None:
    error = job_failed("orders", NO_MODULE)
    assert isinstance(error, ModuleNotOnWorkersError)
    assert "the workers lack the module 'shop'" in str(error)
    assert "--py-files DIRECTORY, where DIRECTORY has shop;" in str(error)


def test_a_window_without_timestamps_names_the_agent() -> None:
    error = job_failed("orders", NO_TIMESTAMP, ["Judge"])
    assert isinstance(error, MissingTimestampsError)
    assert "outputs of agent 'Judge' without timestamp" in str(error)
    assert "event_time=EventTime.hold_watermarks()" in str(error)


def test_a_window_without_agents_keeps_flinks_own_text() -> None:
    assert "forget to call" in str(job_failed("orders", NO_TIMESTAMP))


NO_TOPIC = """org.apache.flink.util.FlinkException: Global failure triggered by OperatorCoordinator
Caused by: java.lang.RuntimeException: Failed to get metadata for topics [answers].
\tat org.apache.flink.connector.kafka.util.AdminUtils.getTopicMetadata(AdminUtils.java:79)
Caused by: java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.{cause}
Caused by: org.apache.kafka.common.errors.{cause}
"""
MISSING = "UnknownTopicOrPartitionException: This server does not host this topic-partition."


def test_a_topic_that_is_not_there_is_named() -> None:
    error = job_failed("orders", NO_TOPIC.format(cause=MISSING))
    assert str(error).splitlines()[0] == "the brokers do not have a topic that the job reads: answers"
    assert "create it" in str(error)
    assert error.java_trace == NO_TOPIC.format(cause=MISSING)


def test_a_topic_that_cannot_be_asked_for_is_not_called_missing() -> None:
    refused = "TopicAuthorizationException: Not authorized to access topics: [answers]"
    assert "do not have" not in str(job_failed("orders", NO_TOPIC.format(cause=refused)))


WRONG_CLASS = """org.apache.flink.runtime.JobException: Recovery is suppressed
\tat org.apache.flink.Some.java(1)
Caused by: java.lang.ClassCastException: class {found} cannot be cast to class {declared} (both are in \
module java.base of loader 'bootstrap')
\tat org.apache.flink.api.common.typeutils.base.IntSerializer.copy(IntSerializer.java:33)
"""


@pytest.mark.parametrize(
    ("found", "declared", "there", "expected"),
    [
        (
            "java.lang.String",
            "java.lang.Integer",
            "str (java.lang.String)",
            "int of 32 bits (java.lang.Integer)",
        ),
        ("[B", "java.lang.Long", "bytes, or any pickled object ([B)", "int (java.lang.Long)"),
        ("a.Own", "java.lang.String", "a.Own", "str (java.lang.String)"),
    ],
)
def test_a_value_of_another_type_than_its_stream_declares(
    found: str, declared: str, there: str, expected: str
) -> None:
    text = WRONG_CLASS.format(found=found, declared=declared)
    error = job_failed("orders", text, (), ["job.py:12 in main"])
    first = str(error).splitlines()[0]
    assert first == "job.py:12 in main: a stream has values of another type than it declares"
    assert (error.found, error.expected) == (there, expected)
    assert error.fix is not None and "to_datastream(...)" in error.fix
    assert str(job_failed("orders", text)).startswith("a stream has values")
    wrapped = text.replace("Caused by: java.lang.ClassCastException: ", "Caused by: java.io.IOException: ")
    assert "another type" not in str(job_failed("orders", wrapped))


def test_a_module_that_an_action_imports_is_missing_as_well() -> None:
    text = (
        "Caused by: pemja.core.PythonException: <class 'flink_agents.api.errors.runs.ActionFailedError'>: "
        "shop.py:7 in Shop.sell: ModuleNotFoundError: No module named 'pandas'\n  agent Shop"
    )
    error = job_failed("orders", text)
    assert isinstance(error, ModuleNotOnWorkersError) and "'pandas'" in error.message
    quoted = text.replace("ModuleNotFoundError: No", "KeyError: no ModuleNotFoundError, No")
    assert not isinstance(job_failed("orders", quoted), ModuleNotOnWorkersError)


def test_a_bracket_of_flink_is_no_part_of_the_reference() -> None:
    text = "shop.py:7 in Shop.sell: ValueError: no}\n" + code_line("FA4001")
    java = (
        f"Failure {{pemja.core.PythonException: <class 'flink_agents.api.errors.ActionFailedError'>: {text}}}"
    )
    assert job_failed("orders", f"{java}\n\tat Some.java(1)").failure == text


def test_the_traceback_of_a_failed_execute_ends_near_the_users_line() -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise InputChangedError("the list has changed") from ValueError("its digest")

    with pytest.raises(InputChangedError) as raised:
        at_users_line(lambda: deep(9))
    assert [frame.name for frame in raised.traceback][1:] == ["at_users_line"]
    assert isinstance(raised.value.__cause__, ValueError)


NOT_SENT = """java.io.IOException: One or more Kafka Producer send requests have encountered exception
Caused by: org.apache.flink.util.FlinkRuntimeException: Failed to send data to Kafka my-orders-1-0@-1 with \
FlinkKafkaInternalProducer@233225003{transactionalId='null', closed=false}
\tat org.apache.flink.connector.kafka.sink.KafkaWriter$WriterCallback.onCompletion(KafkaWriter.java:338)
Caused by: org.apache.flink.kafka.shaded.org.apache.kafka.common.errors.KIND: TEXT
"""


@each_case(
    ("kind", "text", "fix"),
    [
        ("InvalidTimestampException", "Timestamp 5 of message with offset 0 is out of range.", "max_ahead="),
        (
            "RecordTooLargeException",
            "The request included a message larger than the max",
            "max.message.bytes",
        ),
        ("InvalidRecordException", "One or more records have been rejected", "key="),
    ],
)
def test_a_record_that_the_brokers_reject_names_its_topic(kind: str, text: str, fix: str) -> None:
    error = job_failed("orders", NOT_SENT.replace("KIND", kind).replace("TEXT", text))
    assert "reject a record of the Kafka sink of topic 'my-orders-1'" in str(error).splitlines()[0]
    assert error.found == f"{kind}: {text}"
    assert fix in (error.fix or "")


def test_other_failures_of_a_sink_stand_as_they_are() -> None:
    text = NOT_SENT.replace("KIND", "AuthorizationException").replace("TEXT", "denied")
    assert "AuthorizationException" in str(job_failed("orders", text)).splitlines()[0]


NOT_RESTORED = [
    (
        "java.lang.IllegalStateException: Failed to rollback to checkpoint/savepoint file:/s. Cannot map "
        "checkpoint/savepoint state for operator 8d8f to the new program, because the operator is not "
        "available in the new program.",
        ["state of an operator that the job lacks", "name='...'", "ignore-unclaimed-state"],
    ),
    (
        "org.apache.flink.util.FlinkRuntimeException: Can not restore vertex Source: list -> Map"
        "(bc764cd8ddf7a0cff126f51c16239658) which contain mixed operator finished state: [ALL_RUNNING, "
        "FULLY_FINISHED]",
        ["'Source: list -> Map'", "another from_list(...)"],
    ),
    (
        "org.apache.flink.util.FlinkRuntimeException: Illegal JobGraph modification. Cannot run a program "
        "with fully finished vertices predeceased with the ones not fully finished. Task vertex agent "
        "historian(bc764cd8ddf7a0cff126f51c16239658) has a predecessor not fully finished",
        ["'agent historian'", "kafka_source(..., name='...')"],
    ),
    (
        "java.lang.IllegalStateException: Failed to rollback to checkpoint/savepoint Checkpoint 2. Max "
        "parallelism mismatch between checkpoint/savepoint state and new program. Cannot map operator 8d8f "
        "with max parallelism 128 to new program with max parallelism 64. This indicates that the program "
        "has been changed in a non-compatible way after the checkpoint/savepoint.",
        ["expected: max parallelism 128", "found: max parallelism 64", "max_parallelism="],
    ),
    (
        "java.lang.IllegalStateException: The state for task agent shop can not be restored. The maximum "
        "parallelism (4) of the restored state is lower than the configured parallelism (8). Please reduce "
        "the parallelism of the task to be lower or equal to the maximum parallelism.",
        ["expected: max parallelism 4", "found: parallelism 8", "to 4 or less"],
    ),
]


@each_case(("java_text", "parts"), NOT_RESTORED)
def test_state_that_a_changed_job_cannot_restore(java_text: str, parts: list[str]) -> None:
    error = job_failed("shop", java_text)
    assert isinstance(error, StateMismatchError)
    assert [part for part in parts if part not in str(error)] == []
    assert "job 'shop' failed" in str(error)


def test_more_subtasks_than_key_groups() -> None:
    error = job_failed(
        "shop",
        "java.lang.IllegalArgumentException: Vertex agent shop's parallelism (8) is higher than the max "
        "parallelism (4). Please lower the parallelism or increase the max parallelism.",
    )
    assert "expected: a parallelism of at most 4" in str(error) and "max_parallelism=" in str(error)


@each_case(
    ("parallelism", "max_parallelism"),
    [
        (0, None),
        (-1, None),
        (True, None),
        (2**15 + 1, None),
        (None, 0),
        (None, 2**15 + 1),
        (8, 4),
        ("2", None),
    ],
)
def test_a_parallelism_that_flink_does_not_accept(parallelism: Any, max_parallelism: Any) -> None:
    with pytest.raises(JobDefinitionError, match="parallelism"):
        check_parallelism(parallelism, max_parallelism)


@each_case(
    ("parallelism", "max_parallelism"), [(None, None), (1, None), (4, 4), (None, 2**15), (2**15, None)]
)
def test_a_parallelism_that_flink_accepts(parallelism: int | None, max_parallelism: int | None) -> None:
    check_parallelism(parallelism, max_parallelism)
