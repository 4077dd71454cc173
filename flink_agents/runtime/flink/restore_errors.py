"""Flink's messages for a checkpoint or savepoint that a changed job cannot restore.

A start that can read the checkpoint raises the same error before (``resume/state_fit.py``).
"""

from __future__ import annotations

import re

from flink_agents.api.errors import JobFailedError, StateMismatchError
from flink_agents.runtime.flink.resume.state_fit import KEEP_GROUPS, KEEP_NAMES, OWN_INPUT, START_OVER

_STATE_LEFT = re.compile(
    r"Cannot map checkpoint/savepoint state for operator \w+|There is no operator for the state \w+"
)
_MIXED = re.compile(
    r"Can not restore vertex (?P<task>.+?)\s?\(\w{32}\) which contain mixed operator finished state"
)
_CHANGED_INPUT = re.compile(
    r"Illegal JobGraph modification\. Cannot run a program with (?:fully|partially) finished.*? Task vertex "
    r"(?P<task>.+?)\s?\(\w{32}\)"
)
_OTHER_GROUPS = re.compile(
    r"Max parallelism mismatch between checkpoint/savepoint state and new program\. Cannot map operator \w+ "
    r"with max parallelism (?P<state>\d+) to new program with max parallelism (?P<job>\d+)"
)
_TOO_FEW_GROUPS = re.compile(
    r"The state for task (?P<task>.+?) can not be restored\. The maximum parallelism \((?P<state>\d+)\) of "
    r"the restored state is lower than the configured parallelism \((?P<job>\d+)\)"
)
_TOO_MANY_SUBTASKS = re.compile(
    r"Vertex (?P<task>.+?)'s parallelism \((?P<job>\d+)\) is higher than the max parallelism "
    r"\((?P<groups>\d+)\)"
)


def not_restored(job_name: str, java_text: str) -> JobFailedError | None:
    """Return the error for a job that cannot restore its checkpoint; None if it failed otherwise."""
    for read in (_state_left, _ended_input_error, _key_groups_error, _subtasks_error):
        error = read(job_name, java_text)
        if error is not None:
            return error
    return None


def _state_left(job_name: str, java_text: str) -> JobFailedError | None:
    match = _STATE_LEFT.search(java_text)
    if match is None:
        return None
    return StateMismatchError(
        "the job was changed: its checkpoint has state of an operator that the job lacks\n  "
        + _job(job_name),
        failure=match[0],
        java_trace=java_text,
        expected="the sources, agents and sinks that the checkpoint was taken with",
        fix=KEEP_NAMES,
    )


def _ended_input_error(job_name: str, java_text: str) -> JobFailedError | None:
    match = _MIXED.search(java_text) or _CHANGED_INPUT.search(java_text)
    if match is None:
        return None
    return StateMismatchError(
        "the job was changed at an input that had ended when its checkpoint was taken\n  " + _job(job_name),
        failure=match[0],
        java_trace=java_text,
        expected="the operators that had finished, without additions among them or before them",
        found=f"the task {match['task']!r}",
        fix=OWN_INPUT,
    )


def _key_groups_error(job_name: str, java_text: str) -> JobFailedError | None:
    other_groups = _OTHER_GROUPS.search(java_text)
    few = _TOO_FEW_GROUPS.search(java_text)
    match = other_groups or few
    if match is None:
        return None
    return StateMismatchError(
        f"the state of the job has max parallelism {match['state']}\n  {_job(job_name)}",
        failure=match[0],
        java_trace=java_text,
        expected=f"max parallelism {match['state']}, and at most as many subtasks",
        found=f"{'max parallelism' if other_groups else 'parallelism'} {match['job']}",
        fix=KEEP_GROUPS
        if other_groups
        else f"lower the parallelism to {match['state']} or less; or {START_OVER}",
    )


def _subtasks_error(job_name: str, java_text: str) -> JobFailedError | None:
    match = _TOO_MANY_SUBTASKS.search(java_text)
    if match is None:
        return None
    return JobFailedError(
        f"{match['task']!r} has more subtasks than its max parallelism allows\n  {_job(job_name)}",
        failure=match[0],
        java_trace=java_text,
        expected=f"a parallelism of at most {match['groups']}",
        found=f"parallelism {match['job']}",
        fix="lower the parallelism, or raise the max parallelism: apply(..., max_parallelism=...), or the "
        "option pipeline.max-parallelism. State restores only with the max parallelism of its checkpoint",
    )


def _job(job_name: str) -> str:
    return f"job {job_name!r} failed"
