"""The operators of a checkpoint, and the tasks of the job that restores it, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


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
