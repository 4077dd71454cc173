"""Checks if a job can restore a checkpoint: Flink's own rules, with errors that name the changed part.

Flink restores no task of which only some operators had finished, and no finished task behind one that had
not. So an operator that is new at an ended input gets a task of its own (``new_operators``).

A start that cannot read the checkpoint gets Flink's message, from which :func:`not_restored` makes the same
error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import JobFailedError, StateMismatchError

AGENT = "flink-agents-"
KEYS = "flink-agents:keys:"
LIST = "flink-agents:list:"
GATE_SOURCE = "flink-agents:end:"
GATE = "flink-agents:gate:"
OUTPUTS = "flink-agents:outputs:"
KAFKA_SINK = "flink-agents-kafka-sink-"
KAFKA_SOURCE = "flink-agents-kafka-source-"

IGNORE = "execution.state-recovery.ignore-unclaimed-state"
START_OVER = "start over: --fresh for a local job, no --savepoint on a cluster"

KEEP_NAMES = (
    "if only its name or its topic has changed, give it the old name: kafka_sink(..., name='...'), "
    "kafka_source(..., name='...'), apply(..., name='...'), or uid('...') of your own operators; if you "
    "removed it, stop the old job with a savepoint, which commits the outputs of its sinks, and set Flink's "
    f"option {IGNORE} to true once; or {START_OVER}"
)
OWN_INPUT = (
    "give the new part a source and an agent of its own, since an input that has ended has no records for "
    "it: another from_list(...), or kafka_source(..., name='...'), and apply(..., name='...'); or undo the "
    f"change until the job run has finished; or {START_OVER}"
)
KEEP_GROUPS = (
    "restore with the max parallelism that the state has: apply(..., max_parallelism=...), or the option "
    "pipeline.max-parallelism; each key belongs to one of its key groups, whose number never changes; "
    f"or {START_OVER}"
)


@dataclass(frozen=True)
class RestoredJob:
    """A checkpoint and the job that restores it.

    Attributes:
        states: The operators of the checkpoint, by id.
        tasks: The tasks of the job, inputs first.
        places: The user's line with ``apply``, for each agent of the job.
    """

    states: Mapping[str, RestoredOperator]
    tasks: Sequence[Task]
    places: Mapping[str, str | None]

    def unclaimed_operators(self) -> list[RestoredOperator]:
        """Return the operators with state that the job does not have."""
        claimed = {operator for task in self.tasks for operator in task.operators}
        return [
            state for identity, state in self.states.items() if state.has_state and identity not in claimed
        ]

    def new_operators(self) -> set[str]:
        """Return the uids of new operators in tasks whose other operators had finished."""
        return {
            task.operators[operator]
            for task in self.tasks
            if len(set(self._operator_ends(task).values())) > 1
            for operator in task.operators
            if operator not in self.states
        }

    def check_restore(self, ignores_unclaimed: bool) -> None:
        """Check that Flink can restore the checkpoint.

        Args:
            ignores_unclaimed: True if Flink's option lets it drop state of operators that the job lacks.

        Raises:
            StateMismatchError: It does not.
        """
        unclaimed = [] if ignores_unclaimed else self.unclaimed_operators()
        if unclaimed:
            raise _unclaimed_state_error(unclaimed, self.tasks)
        for task in self.tasks:
            self._check_ends(task)
            self._check_groups(task)

    def _operator_ends(self, task: Task) -> dict[str, Ended]:
        """Return the subtasks of each operator of a task that had finished, by the operator's id."""
        absent = RestoredOperator()
        return {operator: self.states.get(operator, absent).ended for operator in task.operators}

    def _task_end(self, task: Task) -> Ended:
        """Return the subtasks of a task that had finished."""
        return min(self._operator_ends(task).values())

    def _check_ends(self, task: Task) -> None:
        ends = self._operator_ends(task)
        if len(set(ends.values())) > 1:
            new = [
                describe_part(task.operators[operator]) or task.name
                for operator in ends
                if operator not in self.states
            ]
            raise _mixed_ends_error(task.name, new or [task.name], self._place(task))
        running = next(self._running_inputs(task), None)
        if running is not None:
            title = self._title(task)
            raise _changed_input_error(
                title, self._new_parts() - {title} or {self._title(running)}, self._place(task)
            )

    def _running_inputs(self, task: Task) -> Iterator[Task]:
        """Yield the inputs of a task that had finished less than the task: Flink does not restore that."""
        end = self._task_end(task)
        for task_input in task.inputs if end is not Ended.NONE else ():
            upstream_task = self.tasks[task_input.task]
            least = Ended.ALL if task_input.to_all else end
            if self._task_end(upstream_task) < least:
                yield upstream_task

    def _new_parts(self) -> set[str]:
        """Return the parts of the job that the checkpoint does not have."""
        uids = [item for task in self.tasks for item in task.operators.items()]
        return {describe_part(uid) for operator, uid in uids if operator not in self.states} - {""}

    def _check_groups(self, task: Task) -> None:
        for operator in task.operators:
            state = self.states.get(operator)
            if state is None:
                continue
            differs = task.max_parallelism > 0 and task.max_parallelism != state.max_parallelism
            if differs or task.parallelism > state.max_parallelism:
                raise _key_groups_differ_error(
                    self._title(task), task, state.max_parallelism, self._place(task)
                )

    def _title(self, task: Task) -> str:
        titles = (describe_part(uid) for uid in task.operators.values())
        return next((title for title in titles if title), repr(task.name))

    def _place(self, task: Task) -> str | None:
        """Return the user's line with ``apply`` of an agent in a task; else that of the present call."""
        for agent, place in self.places.items():
            if place is not None and {AGENT + agent, KEYS + agent, LIST + agent} & set(
                task.operators.values()
            ):
                return place
        return authors_place()


def describe_part(uid: str) -> str:
    """Return the part of a job that the operator with ``uid`` belongs to, as users name it.

    The text is empty if the uid is, or if it belongs to an internal operator of this package.
    """
    uid = uid.removeprefix("Sink Committer: ")
    for prefix, text in (
        (KAFKA_SINK, "the Kafka sink {!r}"),
        (KAFKA_SOURCE, "the Kafka source {!r}"),
        (KEYS, "agent {!r}"),
        (LIST, "the list of agent {!r}"),
        (OUTPUTS, "a list of outputs"),
        (GATE_SOURCE, "agent {!r}"),
        (GATE, "agent {!r}"),
        (AGENT, "agent {!r}"),
    ):
        if uid.startswith(prefix):
            return text.format(uid.removeprefix(prefix))
    return "" if not uid or uid.startswith("flink-agents:") else f"the operator with the uid {uid!r}"


def _unclaimed_state_error(states: Sequence[RestoredOperator], tasks: Sequence[Task]) -> StateMismatchError:
    names = {describe_part(state.uid) or repr(state.name) for state in states}
    present = {describe_part(uid) for task in tasks for uid in task.operators.values()}
    return StateMismatchError(
        f"the job was changed: its checkpoint has state of {', '.join(sorted(names))}, which the job lacks",
        expected="the sources, agents and sinks that the checkpoint was taken with",
        found=", ".join(sorted(present - {""})) or "none of them",
        fix=KEEP_NAMES,
        where=authors_place(),
    )


def _mixed_ends_error(task: str, new: Sequence[str], place: str | None) -> StateMismatchError:
    return StateMismatchError(
        f"the job was changed at an input that had ended before its checkpoint: {', '.join(sorted(new))}",
        expected="the operators that had finished, without new ones among them",
        found=f"the task {task!r}, of which only a part had finished",
        fix=OWN_INPUT,
        where=place,
    )


def _changed_input_error(finished: str, new: set[str], place: str | None) -> StateMismatchError:
    return StateMismatchError(
        f"{finished} had finished when the checkpoint was taken, and its input was changed",
        expected="the input that had ended, without additions and without further readers",
        found=f"new in the job: {', '.join(sorted(new))}",
        fix=OWN_INPUT,
        where=place,
    )


def _key_groups_differ_error(title: str, task: Task, groups: int, place: str | None) -> StateMismatchError:
    if task.parallelism > groups:
        parallelism_text = f"parallelism {task.parallelism}"
        fix = f"lower its parallelism to {groups} or less; or {START_OVER}"
    else:
        parallelism_text = f"max parallelism {task.max_parallelism}"
        fix = KEEP_GROUPS
    return StateMismatchError(
        f"the state of {title} has max parallelism {groups}, and the job another one",
        expected=f"max parallelism {groups}, and at most as many subtasks",
        found=parallelism_text,
        fix=fix,
        where=place,
    )


class Ended(IntEnum):
    """Subtasks of an operator that had finished, for example because their input has ended."""

    NONE = 0
    SOME = 1
    ALL = 2


@dataclass(frozen=True)
class RestoredOperator:
    """An operator of a checkpoint.

    Attributes:
        name: Its name in the job; empty if it is unknown.
        uid: The text of its identity; empty if it had none.
        ended: The subtasks that had finished.
        has_state: True if it has state to restore.
        max_parallelism: The number of its key groups.
    """

    name: str = ""
    uid: str = ""
    ended: Ended = Ended.NONE
    has_state: bool = False
    max_parallelism: int = 128


@dataclass(frozen=True)
class TaskInput:
    """An input of a task.

    Attributes:
        task: The index of the task that produces it.
        to_all: True if each of its subtasks sends to all subtasks.
    """

    task: int
    to_all: bool


@dataclass(frozen=True)
class Task:
    """A task of a job: operators that run in one thread.

    Attributes:
        name: Its name in the job.
        operators: Ids of its operators, each with its uid, or with an empty text.
        inputs: Its inputs.
        parallelism: The number of its subtasks.
        max_parallelism: The number of its key groups; -1 if Flink chooses it.
    """

    name: str
    operators: Mapping[str, str]
    inputs: tuple[TaskInput, ...] = ()
    parallelism: int = 1
    max_parallelism: int = -1


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
    for read in (_unclaimed_error, _ended_input_error, _key_groups_error, _subtasks_error):
        error = read(job_name, java_text)
        if error is not None:
            return error
    return None


def _unclaimed_error(job_name: str, java_text: str) -> JobFailedError | None:
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
