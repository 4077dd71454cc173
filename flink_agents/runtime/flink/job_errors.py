"""Turns the failure of a Flink job into an error that starts with the user's own line.

Flink wraps a Python traceback in 200 lines of Java. The operator's error message is in
there, after the class name of the Python exception; this module moves it to the front.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flink_agents.api.errors import (
    JobFailedError,
    MissingTimestampsError,
    ModuleNotOnWorkersError,
    TaskManagerLostError,
    UnpicklableOutputError,
)
from flink_agents.runtime.flink.resume.state_fit import not_restored

_PYTHON_EXCEPTION = re.compile(r"PythonException: <class '(?P<cls>[\w.]+)'>: (?P<text>.*)", re.DOTALL)
_JAVA_FRAME = re.compile(r"\n\s*(?:at |\.\.\. \d+ more|Caused by: |Suppressed: )")
_AFTER_REFERENCE = re.compile(r"(\[FA\d{4}\] .+#fa\d{4})\S+$")
"""The last line of an error of this package, with Flink's bracket around the whole failure."""

_CAUSE = re.compile(r"^Caused by: (?P<cls>[\w.$]+)(?:: (?P<text>.*))?$", re.MULTILINE)

_FIX = "this error's attribute java_trace has the full Java trace; flink-agents run --java-trace prints it"

INTERRUPTED_START = "java.lang.Error: java.lang.InterruptedException"
"""The message of a TaskManager at every task start after its first start of Python was interrupted."""

_EXPLANATIONS = {
    "NoSuchFieldException: loadedLibraryNames": (
        "this TaskManager process has run a Python job already, and PyFlink cannot load its native "
        "library a second time on this Java",
        "copy opt/flink-python-*.jar of PyFlink into Flink's lib and set "
        "classloader.parent-first-patterns.additional: pemja.;py4j. on each machine, then restart it; "
        "`flink-agents doctor --cluster URL` checks it",
    ),
    "ClassNotFoundException: com.github.luben.zstd": (
        "a topic has records that are compressed with zstd, and the library for it is missing",
        "`flink-agents kafka fetch-connector` downloads it with the connector; or copy zstd-jni-*.jar "
        "beside the connector: into the folder of jar= or FLINK_AGENTS_KAFKA_JAR, or into Flink's lib",
    ),
    INTERRUPTED_START: (
        "Flink cancelled a task while this TaskManager process started Python; PyFlink does not start it a "
        "second time, so no further Python task can run in this process",
        "restart the TaskManager; docs/running.md explains how to automate that",
    ),
}
"""Causes that Flink's own message does not explain: a part of the message, its meaning, the fix."""


JAVA_ERROR = "FlinkAgentsJavaError"
"""The class of exceptions whose message Python has rendered as an error of this package."""

_RENDERED = re.compile(JAVA_ERROR + r": (?P<text>.*?\[(?P<code>FA\d{4})\][^\n]*)", re.DOTALL)

_NO_TIMESTAMP = (
    "Record has Java Long.MIN_VALUE timestamp",
    "Record has Long.MIN_VALUE timestamp",
    "Rowtime timestamp is not defined",
)
"""Messages of windows of streams and of tables for a record without a timestamp."""

_NO_MODULE = re.compile(r"No module named '(?P<module>[\w.]+)'")
_IMPORT_ERRORS = ("ModuleNotFoundError", "flink_agents.api.errors.FunctionReferenceError")

_NO_TOPIC = re.compile(r"Failed to get metadata for topics \[(?P<topics>[^\]]+)\]")
"""The message of Flink's Kafka source; its innermost cause names no topic."""


_NO_BROKER = (
    "Timed out waiting for a node assignment",
    "Failed to get metadata for topics",
    "No resolvable bootstrap urls given",
    "Failed to construct kafka consumer",
    "Failed to list subscribed topic partitions",
    "TimeoutException: Topic ",
    "TimeoutException: Timeout expired while fetching topic metadata",
)
"""Messages of Flink's Kafka source and sink if no broker answers."""

_NOT_SENT = re.compile(r"Failed to send data to Kafka (?P<topic>\S+)-\d+@-?\d+ with ")
"""The message of Flink's Kafka sink for a record that a broker or its client rejected."""

_REJECTED = {
    "InvalidTimestampException": "lower max_ahead= or max_behind= of kafka_sink to the limits of the topic "
    "(message.timestamp.after.max.ms, message.timestamp.before.max.ms), or correct the time of the record",
    "RecordTooLargeException": "raise max.message.bytes of the topic, and max.request.size of the sink: "
    "kafka_sink(..., properties={'max.request.size': '...'}); or write smaller values",
    "InvalidRecordException": "give each record of a compacted topic a key: kafka_sink(..., key=...)",
}
"""Errors of a single record, which each restart meets again, and the fix."""

_NO_PICKLE = re.compile(
    r"cannot pickle .*|(?:Can't|Could not|Can not) pickle .*|Can't get local object .*", re.IGNORECASE
)
"""Pickle's messages for a value that it cannot write."""

_LOST = re.compile(
    r"TaskManager with id (?P<first>\S+?)(?:\([^)]*\))? (?:timed out|is no longer reachable)"
    r"|(?:unexpectedly closed by remote task manager|Lost connection to task manager) (?P<second>'[^']+')"
)
"""Flink's messages for a lost TaskManager: from heartbeats, from RPC, and from its readers."""

_WRONG_CLASS = re.compile(r"class (?P<found>\S+) cannot be cast to class (?P<declared>\S+)")
_PYTHON_NAMES = {
    "java.lang.String": "str",
    "java.lang.Long": "int",
    "java.lang.Integer": "int of 32 bits",
    "java.lang.Short": "int of 16 bits",
    "java.lang.Byte": "int of 8 bits",
    "java.lang.Double": "float",
    "java.lang.Float": "float of 32 bits",
    "java.lang.Boolean": "bool",
    "[B": "bytes, or any pickled object",
    "java.math.BigDecimal": "Decimal",
    "org.apache.flink.types.Row": "Row",
}
"""Python types with the Java classes that a stream declares for them."""


def lost_task_manager(java_text: str) -> str | None:
    """Return the id of the TaskManager that a failure reports as lost; None if it reports none."""
    match = _LOST.search(java_text)
    return None if match is None else (match["first"] or match["second"]).strip("'")


def job_failed(
    job_name: str,
    java_text: str,
    untimed: Sequence[str] = (),
    typed: Sequence[str] = (),
    lost: str | None = None,
) -> JobFailedError:
    """Return the error for a job whose failure Flink describes in ``java_text``.

    Args:
        job_name: Name of the job.
        java_text: Flink's message, with the stack traces of all causes.
        untimed: Names of agents of the job whose outputs may have no timestamp.
        typed: The lines where you declare the types of a stream's values.
        lost: Id of the TaskManager that an earlier failure reported as lost, or None.
    """
    cls, text = _failure_text(java_text)
    for error in (
        not_restored(job_name, java_text),
        _explained_error(job_name, java_text),
        _missing_module_error(job_name, java_text, cls, text),
        _missing_timestamps_error(job_name, java_text, untimed),
        _missing_topic_error(job_name, java_text),
        _missing_slots_error(job_name, java_text, lost),
        _wrong_class_error(job_name, java_text, cls, text, typed),
        _unpicklable_error(job_name, java_text, cls, text),
        _rendered_error(job_name, java_text),
        _rejected_record_error(job_name, java_text, cls, text),
        _no_broker_error(job_name, java_text),
    ):
        if error is not None:
            return error
    return _other_error(job_name, java_text, cls, text)


def _other_error(job_name: str, java_text: str, cls: str, text: str) -> JobFailedError:
    """Return the error for a failure that needs no explanation: its message, with the frames of Python."""
    lines = text.split("\n")
    if cls.startswith("flink_agents."):
        message = text
    else:
        message = f"{cls}: {lines[0]}" if cls else lines[0]
        message = "\n".join([message, *lines[1:], *_python_frames(java_text)])
    return JobFailedError(
        f"{message}\n  job {job_name!r} failed",
        failure=text,
        java_trace=java_text,
        fix=_FIX,
    )


def in_one_line(error: JobFailedError) -> str:
    """Return the user's line and the error, without the surrounding text."""
    first, *remaining_lines = error.message.split("\n")
    frames = [line.removeprefix("  at ") for line in remaining_lines if line.startswith("  at ")]
    return f"{frames[-1]}: {first}" if frames else first


def _explained_error(job_name: str, java_text: str) -> JobFailedError | None:
    for mark, (meaning, fix) in _EXPLANATIONS.items():
        if mark in java_text:
            message = f"{meaning}\n  job {job_name!r} failed"
            return JobFailedError(message, failure=mark, java_trace=java_text, fix=fix)
    return None


def _rendered_error(job_name: str, java_text: str) -> JobFailedError | None:
    error = _RENDERED.search(java_text)
    if error is None:
        return None
    text = _AFTER_REFERENCE.sub(r"\1", error["text"])
    message = f"{text}\n  job {job_name!r} failed"
    return JobFailedError(message, failure=text, java_trace=java_text, fix=_FIX)


def _missing_module_error(job_name: str, java_text: str, cls: str, text: str) -> JobFailedError | None:
    match = _NO_MODULE.search(text)
    in_action = ": ModuleNotFoundError: No module named" in text.split("\n", 1)[0]
    if match is None or not (cls in _IMPORT_ERRORS or in_action):
        return None
    module = match["module"]
    return ModuleNotOnWorkersError(
        f"the workers lack the module {module!r}, which the job needs\n  job {job_name!r} failed",
        failure=text,
        java_trace=java_text,
        fix=f"ship it with the job: flink-agents run ... --py-files DIRECTORY, where DIRECTORY has "
        f"{module.partition('.')[0]}; or install it in the environment of the workers "
        "(docs/cluster.md#your-code-on-the-workers)",
    )


def _missing_timestamps_error(job_name: str, java_text: str, untimed: Sequence[str]) -> JobFailedError | None:
    mark = next((mark for mark in _NO_TIMESTAMP if mark in java_text), None)
    if mark is None or not untimed:
        return None
    agents = " or ".join(f"agent {name!r}" for name in untimed)
    return MissingTimestampsError(
        f"a window of event time got outputs of {agents} without timestamp\n  job {job_name!r} failed",
        failure=mark,
        java_trace=java_text,
        expected="outputs with the timestamps of their inputs",
        fix="apply the agent with event_time=EventTime.hold_watermarks() (docs/event-time.md)",
    )


def _missing_topic_error(job_name: str, java_text: str) -> JobFailedError | None:
    match = _NO_TOPIC.search(java_text)
    if match is None or "UnknownTopicOrPartitionException" not in java_text:
        return None
    return JobFailedError(
        f"the brokers do not have a topic that the job reads: {match['topics']}\n  job {job_name!r} failed",
        failure=match[0],
        java_trace=java_text,
        fix="create it before the job starts, or correct its name",
    )


def _missing_slots_error(job_name: str, java_text: str, lost: str | None) -> JobFailedError | None:
    lost_manager = lost_task_manager(java_text)
    no_slots = "NoResourceAvailableException" in java_text
    if lost_manager is None and not no_slots:
        return None
    which = lost_manager or lost
    fix = "start a TaskManager: flink-agents cluster start"
    if which is not None:
        waits = ", and the others have too few slots for the job" if no_slots else ""
        return TaskManagerLostError(
            f"TaskManager {which} is gone{waits}\n  job {job_name!r} failed",
            failure=java_text.split("\n", 1)[0],
            java_trace=java_text,
            expected="a TaskManager that runs as long as the job",
            found="no sign of life: its process has ended, or the network lost it",
            fix=f"check the end of its log; {fix}",
        )
    return JobFailedError(
        f"the cluster has too few free slots for the job\n  job {job_name!r} failed",
        failure=java_text.split("\n", 1)[0],
        java_trace=java_text,
        fix=f"{fix}; or stop another job, or pass --parallelism",
    )


def _wrong_class_error(
    job_name: str, java_text: str, cls: str, text: str, typed: Sequence[str]
) -> JobFailedError | None:
    match = _WRONG_CLASS.search(text) if cls == "java.lang.ClassCastException" else None
    if match is None:
        return None
    there, declared = (
        f"{_PYTHON_NAMES[name]} ({name})" if name in _PYTHON_NAMES else name
        for name in (match["found"].rstrip(";"), match["declared"].rstrip(";"))
    )
    return JobFailedError(
        f"a stream has values of another type than it declares\n  job {job_name!r} failed",
        failure=text,
        java_trace=java_text,
        where=" or ".join(typed) or None,
        expected=declared,
        found=there,
        fix="correct the type that to_datastream(...), map(..., output_type=...) or another transformation "
        "gets, or omit it: then values can be any objects. An output_type of the agent is checked for each "
        "output, at the user's line",
    )


def _no_broker_error(job_name: str, java_text: str) -> JobFailedError | None:
    mark = next((mark for mark in _NO_BROKER if mark in java_text), None)
    if mark is None:
        return None
    servers = noted_brokers()
    return JobFailedError(
        f"no Kafka broker answers the job\n  job {job_name!r} failed",
        failure=mark,
        java_trace=java_text,
        expected="brokers that the job can reach at bootstrap_servers" + (f": {servers}" if servers else ""),
        found=_failure_text(java_text)[1].split("\n", 1)[0] or mark,
        fix="start the brokers, or correct bootstrap_servers of kafka_source and kafka_sink; brokers with "
        "TLS or a login do not answer without it (security_protocol). To check if they answer here: "
        f"flink-agents kafka topic list --bootstrap-servers {servers or 'HOST:PORT'}",
    )


def _rejected_record_error(job_name: str, java_text: str, cls: str, text: str) -> JobFailedError | None:
    not_sent = _NOT_SENT.search(java_text)
    kind = re.split(r"[.$]", cls)[-1]
    if not_sent is None or kind not in _REJECTED:
        return None
    return JobFailedError(
        f"the brokers reject a record of the Kafka sink of topic {not_sent['topic']!r}\n"
        f"  job {job_name!r} failed",
        failure=text,
        java_trace=java_text,
        expected="records that the topic takes",
        found=f"{kind}: {text}".split("\n", 1)[0],
        fix=_REJECTED[kind],
    )


def _unpicklable_error(job_name: str, java_text: str, cls: str, text: str) -> JobFailedError | None:
    match = _NO_PICKLE.search(text.split("\n", 1)[0])
    if match is None or cls.rpartition(".")[2] not in ("TypeError", "PicklingError", "AttributeError"):
        return None
    return UnpicklableOutputError(
        f"the job emitted a value that cannot be pickled, as Flink does between operators"
        f"\n  job {job_name!r} failed",
        failure=text,
        java_trace=java_text,
        expected="outputs, side outputs and records of plain data: JSON values, dataclasses, pydantic models",
        found=match[0],
        fix="emit plain data: a list instead of a generator, a name or URL instead of an open resource; "
        "define classes at the top level of a module",
    )


def _failure_text(java_text: str) -> tuple[str, str]:
    """Return class name and message of the Python exception, or of the innermost Java cause."""
    match = next(_PYTHON_EXCEPTION.finditer(java_text), None)
    if match is not None:
        text = _JAVA_FRAME.split(match["text"], maxsplit=1)[0].rstrip()
        return match["cls"], _AFTER_REFERENCE.sub(r"\1", text)
    causes = list(_CAUSE.finditer(java_text))
    if causes:
        return causes[-1]["cls"], causes[-1]["text"] or ""
    return "", java_text.strip().split("\n", 1)[0]


def _python_frames(java_text: str) -> list[str]:
    """Return the Python frames that Pemja lists below its exception, as ``file:line in name``."""
    match = _PYTHON_EXCEPTION.search(java_text)
    if match is None:
        return []
    frames = re.findall(
        r"^\s*at (?P<where>/\S+)\.(?P<name>\w+|<\w+>)\((?P<file>[\w<>]+\.py):(?P<line>\d+)\)",
        match["text"].split("Caused by:", 1)[0],
        re.MULTILINE,
    )
    return [
        f"  at {where}.py:{line} in {name}"
        for where, name, _, line in frames
        if "/pyflink/" not in where and "/flink_agents/" not in where
    ]


_addresses: dict[str, None] = {}


def note_brokers(addresses: str) -> None:
    """Record the ``bootstrap_servers`` of a source or a sink."""
    _addresses[addresses] = None


def noted_brokers() -> str:
    """Return the noted addresses in a form to display; empty if there are none."""
    return ", ".join(_addresses)
