"""Failures of Flink's own that its text does not explain."""

from __future__ import annotations

import pytest

from flink_agents.runtime.flink.job_errors import job_failed

INTERRUPTED = """java.lang.Error: java.lang.InterruptedException
\tat pemja.core.PythonInterpreter$MainInterpreter.initialize(PythonInterpreter.java:406)
\tat pemja.core.PythonInterpreter.initialize(PythonInterpreter.java:144)
Caused by: java.lang.InterruptedException
\tat java.base/java.util.concurrent.CountDownLatch.await(Unknown Source)
"""

SECOND_JOB = """java.lang.RuntimeException: java.lang.NoSuchFieldException: loadedLibraryNames
\tat pemja.core.PythonInterpreter$MainInterpreter.initialize(PythonInterpreter.java:370)
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
