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
from flink_agents.runtime.flink.following.brokers import noted_brokers

_PYTHON_EXCEPTION = re.compile(r"PythonException: <class '(?P<cls>[\w.]+)'>: (?P<text>.*)", re.DOTALL)
_JAVA_FRAME = re.compile(r"\n\s*(?:at |\.\.\. \d+ more|Caused by: |Suppressed: )")
_AFTER_REFERENCE = re.compile(r"(\[FA\d{4}\] \S+#fa\d{4})\S+$")
"""The last line of an error of this package, with Flink's bracket around the whole failure."""

_CAUSE = re.compile(r"^Caused by: (?P<cls>[\w.$]+)(?:: (?P<text>.*))?$", re.MULTILINE)

_FIX = "this error's attribute java_trace has the full Java trace; flink-agents run --java-trace prints it"

INTERRUPTED_START = "java.lang.Error: java.lang.InterruptedException"
"""The message of a TaskManager at every task start after its first start of Python was interrupted."""

_KNOWN = {
    "NoSuchFieldException: loadedLibraryNames": (
        "this TaskManager process has run a Python job already, and PyFlink cannot load its native "
        "library a second time on this Java",
        "copy opt/flink-python-*.jar of PyFlink into Flink's lib and set "
        "classloader.parent-first-patterns.additional: pemja.;py4j. on each machine, then restart it; "
        "`flink-agents doctor --cluster URL` checks it",
    ),
    INTERRUPTED_START: (
        "Flink cancelled a task while this TaskManager process started Python; PyFlink does not start it a "
        "second time, so no further Python task can run in this process",
        "restart the TaskManager; docs/running.md explains how to automate that",
    ),
}
"""Causes that Flink's own message does not explain: a part of the message, its meaning, the fix."""


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

_NO_PICKLE = re.compile(
    r"cannot pickle .*|(?:Can't|Could not|Can not) pickle .*|Can't get local object .*", re.IGNORECASE
)
"""Pickle's messages for a value that it cannot write."""

_LOST = re.compile(
    r"TaskManager with id (?P<first>\S+?)(?:\([^)]*\))? (?:timed out|is no longer reachable)"
    r"|(?:unexpectedly closed by remote task manager|Lost connection to task manager) (?P<second>'[^']+')"
)
"""Flink's messages for a lost TaskManager: from heartbeats, from RPC, and from its readers."""

_STATE_LEFT = re.compile(r"Cannot map checkpoint/savepoint state for operator \w+")
"""Flink's message for a checkpoint with state of an operator that the job does not have."""

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
    found = _LOST.search(java_text)
    return None if found is None else (found["first"] or found["second"]).strip("'")


def job_failed(
    job_name: str,
    java_text: str,
    untimed: Sequence[str] = (),
    typed: Sequence[str] = (),
    lost: str | None = None,
) -> JobFailedError:
    """Return the error for a job whose failure Flink describes in ``java_text``.

    Args:
        job_name: The job.
        java_text: Flink's message, with all causes.
        untimed: Agents of the job whose outputs may have no timestamp.
        typed: The lines where you declare the types of a stream's values.
        lost: Id of the TaskManager that an earlier failure reported as lost, or None.
    """
    cls, text = _failure(java_text)
    for error in (
        _state_left(job_name, java_text),
        _known(job_name, java_text),
        _missing_module(job_name, java_text, cls, text),
        _missing_timestamps(job_name, java_text, untimed),
        _missing_topic(job_name, java_text),
        _missing_slots(job_name, java_text, lost),
        _wrong_class(job_name, java_text, cls, text, typed),
        _unpicklable(job_name, java_text, cls, text),
        _no_broker(job_name, java_text),
    ):
        if error is not None:
            return error
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
    first, *others = error.message.split("\n")
    frames = [line.removeprefix("  at ") for line in others if line.startswith("  at ")]
    return f"{frames[-1]}: {first}" if frames else first


def _known(job_name: str, java_text: str) -> JobFailedError | None:
    for mark, (meaning, fix) in _KNOWN.items():
        if mark in java_text:
            message = f"{meaning}\n  job {job_name!r} failed"
            return JobFailedError(message, failure=mark, java_trace=java_text, fix=fix)
    return None


def _state_left(job_name: str, java_text: str) -> JobFailedError | None:
    found = _STATE_LEFT.search(java_text)
    if found is None:
        return None
    return JobFailedError(
        "the job was changed: its checkpoint has state of an operator that the job lacks"
        f"\n  job {job_name!r} failed",
        failure=found[0],
        java_trace=java_text,
        expected="the sources, agents and sinks that the checkpoint was taken with",
        fix="undo the change of the job around the agents, and change it once the job run has finished; or "
        "start over: --fresh for a local job, no --savepoint on a cluster",
    )


def _missing_module(job_name: str, java_text: str, cls: str, text: str) -> JobFailedError | None:
    found = _NO_MODULE.search(text)
    in_action = ": ModuleNotFoundError: No module named" in text.split("\n", 1)[0]
    if found is None or not (cls in _IMPORT_ERRORS or in_action):
        return None
    module = found["module"]
    return ModuleNotOnWorkersError(
        f"the workers lack the module {module!r}, which the job needs\n  job {job_name!r} failed",
        failure=text,
        java_trace=java_text,
        fix=f"ship it with the job: flink-agents run ... --py-files DIRECTORY, where DIRECTORY has "
        f"{module.partition('.')[0]}; or install it in the environment of the workers "
        "(docs/cluster.md#your-code-on-the-workers)",
    )


def _missing_timestamps(job_name: str, java_text: str, untimed: Sequence[str]) -> JobFailedError | None:
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


def _missing_topic(job_name: str, java_text: str) -> JobFailedError | None:
    found = _NO_TOPIC.search(java_text)
    if found is None or "UnknownTopicOrPartitionException" not in java_text:
        return None
    return JobFailedError(
        f"the brokers do not have a topic that the job reads: {found['topics']}\n  job {job_name!r} failed",
        failure=found[0],
        java_trace=java_text,
        fix="create it before the job starts, or correct its name",
    )


def _missing_slots(job_name: str, java_text: str, lost: str | None) -> JobFailedError | None:
    gone, no_slots = lost_task_manager(java_text), "NoResourceAvailableException" in java_text
    if gone is None and not no_slots:
        return None
    which, fix = gone or lost, "start a TaskManager: flink-agents cluster start"
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


def _wrong_class(
    job_name: str, java_text: str, cls: str, text: str, typed: Sequence[str]
) -> JobFailedError | None:
    found = _WRONG_CLASS.search(text) if cls == "java.lang.ClassCastException" else None
    if found is None:
        return None
    there, declared = (
        f"{_PYTHON_NAMES[name]} ({name})" if name in _PYTHON_NAMES else name
        for name in (found["found"].rstrip(";"), found["declared"].rstrip(";"))
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


def _no_broker(job_name: str, java_text: str) -> JobFailedError | None:
    mark = next((mark for mark in _NO_BROKER if mark in java_text), None)
    if mark is None:
        return None
    servers = noted_brokers()
    return JobFailedError(
        f"no Kafka broker answers the job\n  job {job_name!r} failed",
        failure=mark,
        java_trace=java_text,
        expected="brokers that the job can reach at bootstrap_servers" + (f": {servers}" if servers else ""),
        found=_failure(java_text)[1].split("\n", 1)[0] or mark,
        fix="start the brokers, or correct bootstrap_servers of kafka_source and kafka_sink; brokers with "
        "TLS or a login do not answer without it (security_protocol). To check if they answer here: "
        f"flink-agents kafka topic list --bootstrap-servers {servers or 'HOST:PORT'}",
    )


def _unpicklable(job_name: str, java_text: str, cls: str, text: str) -> JobFailedError | None:
    found = _NO_PICKLE.search(text.split("\n", 1)[0])
    if found is None or cls.rpartition(".")[2] not in ("TypeError", "PicklingError", "AttributeError"):
        return None
    return UnpicklableOutputError(
        f"the job emitted a value that cannot be pickled, as Flink does between operators"
        f"\n  job {job_name!r} failed",
        failure=text,
        java_trace=java_text,
        expected="outputs, side outputs and records of plain data: JSON values, dataclasses, pydantic models",
        found=found[0],
        fix="emit plain data: a list instead of a generator, a name or URL instead of an open resource; "
        "define classes at the top level of a module",
    )


def _failure(java_text: str) -> tuple[str, str]:
    """Return class name and message of the Python exception, or of the innermost Java cause."""
    found = next(_PYTHON_EXCEPTION.finditer(java_text), None)
    if found is not None:
        text = _JAVA_FRAME.split(found["text"], maxsplit=1)[0].rstrip()
        return found["cls"], _AFTER_REFERENCE.sub(r"\1", text)
    causes = list(_CAUSE.finditer(java_text))
    if causes:
        return causes[-1]["cls"], causes[-1]["text"] or ""
    return "", java_text.strip().split("\n", 1)[0]


def _python_frames(java_text: str) -> list[str]:
    """Return the Python frames that Pemja lists below its exception, as ``file:line in name``."""
    found = _PYTHON_EXCEPTION.search(java_text)
    if found is None:
        return []
    frames = re.findall(
        r"^\s*at (?P<where>/\S+)\.(?P<name>\w+|<\w+>)\((?P<file>[\w<>]+\.py):(?P<line>\d+)\)",
        found["text"].split("Caused by:", 1)[0],
        re.MULTILINE,
    )
    return [
        f"  at {where}.py:{line} in {name}"
        for where, name, _, line in frames
        if "/pyflink/" not in where and "/flink_agents/" not in where
    ]
