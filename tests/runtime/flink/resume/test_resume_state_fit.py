"""Checkpoints and changed jobs: what Flink restores, what gets tasks of its own, and the errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flink_agents.api.errors import JobFailedError, ResumeError, StateMismatchError
from flink_agents.runtime.flink.resume.state_fit import (
    IGNORE,
    Ended,
    RestoredJob,
    RestoredOperator,
    Task,
    TaskInput,
    describe_part,
)
from tests.suite.tables import each_case

ENDED = RestoredOperator(ended=Ended.ALL)
RUNNING = RestoredOperator(has_state=True)

STATES = {
    "list": ENDED,
    "records": ENDED,
    "keys": ENDED,
    "historian": ENDED,
    "numbers": RUNNING,
    "live": RUNNING,
}

TASKS = (
    Task("list", {"list": "flink-agents:list:historian", "records": "flink-agents:0", "keys": ""}),
    Task("agent historian", {"historian": "flink-agents-historian"}, (TaskInput(0, True),)),
    Task("numbers", {"numbers": "numbers"}),
    Task("agent live", {"live": "flink-agents-live"}, (TaskInput(2, True),)),
)
"""The job of the checkpoint."""

PLACES = {"historian": "job.py:1 in main", "live": "job.py:2 in main"}


def added(*tasks: Task) -> RestoredJob:
    return RestoredJob(STATES, (*TASKS, *tasks), PLACES)


def changed(number: int, task: Task) -> RestoredJob:
    return RestoredJob(STATES, (*TASKS[:number], task, *TASKS[number + 1 :]), PLACES)


@each_case(
    "job",
    {
        "unchanged": added(),
        "an agent": added(Task("agent new", {"new": "flink-agents-new"}, (TaskInput(2, True),))),
        "an agent behind a finished one": added(Task("new", {"new": "new"}, (TaskInput(1, True),))),
        "a reader of an ended input": added(Task("new", {"new": "new"}, (TaskInput(0, False),))),
        "another parallelism": changed(3, replace(TASKS[3], parallelism=128)),
        "the same max parallelism": changed(3, replace(TASKS[3], max_parallelism=128)),
        "a task without an operator that had finished": changed(0, replace(TASKS[0], operators={"list": ""})),
    }.values(),
)
def test_what_flink_restores(job: RestoredJob) -> None:
    assert job.new_operators() == set()
    job.check_restore(ignores_unclaimed=False)


def test_a_new_operator_at_an_ended_input_gets_its_own_task() -> None:
    operators = {**TASKS[0].operators, "sink": "new sink"}
    job = changed(0, replace(TASKS[0], operators=operators))
    assert job.new_operators() == {"new sink"}
    with pytest.raises(StateMismatchError, match="the operator with the uid 'new sink'"):
        job.check_restore(ignores_unclaimed=False)


@each_case(
    ("job", "parts"),
    [
        (
            changed(1, replace(TASKS[1], inputs=(TaskInput(0, True), TaskInput(2, False)))),
            ["job.py:1", "agent 'historian' had finished", "from_list", "kafka_source", "apply", "--fresh"],
        ),
        (
            RestoredJob({**STATES, "sink": RestoredOperator("x: Writer", has_state=True)}, TASKS, PLACES),
            ["'x: Writer'", "name='...'", IGNORE],
        ),
        (
            RestoredJob(
                {**STATES, "sink": RestoredOperator("w", "flink-agents-kafka-sink-paid", has_state=True)},
                TASKS,
                PLACES,
            ),
            ["the Kafka sink 'paid'", "kafka_sink(..., name='...')"],
        ),
        (
            changed(3, replace(TASKS[3], max_parallelism=64)),
            ["job.py:2", "agent 'live'", "max parallelism 128", "max parallelism 64", "max_parallelism="],
        ),
        (
            changed(3, replace(TASKS[3], parallelism=129)),
            ["job.py:2", "agent 'live'", "parallelism 129", "128 or less"],
        ),
    ],
)
def test_errors_name_the_part_and_the_way_out(job: RestoredJob, parts: list[str]) -> None:
    with pytest.raises(StateMismatchError) as caught:
        job.check_restore(ignores_unclaimed=False)
    assert [part for part in parts if part not in str(caught.value)] == []
    assert isinstance(caught.value, ResumeError | JobFailedError)


@each_case(
    ("end", "to_all", "restores"),
    [
        (Ended.NONE, True, False),
        (Ended.NONE, False, False),
        (Ended.SOME, True, False),
        (Ended.SOME, False, True),
        (Ended.ALL, True, True),
    ],
)
def test_a_task_of_which_some_subtasks_had_finished(end: Ended, to_all: bool, restores: bool) -> None:
    states = {"before": RestoredOperator(ended=end), "task": RestoredOperator(ended=Ended.SOME)}
    tasks = (Task("before", {"before": ""}), Task("task", {"task": ""}, (TaskInput(0, to_all),)))
    job = RestoredJob(states, tasks, {})
    if restores:
        job.check_restore(ignores_unclaimed=False)
    else:
        with pytest.raises(StateMismatchError, match="'task' had finished"):
            job.check_restore(ignores_unclaimed=False)


def test_state_that_nobody_claims_may_be_ignored() -> None:
    job = RestoredJob({**STATES, "sink": RestoredOperator(has_state=True)}, TASKS, PLACES)
    assert len(job.unclaimed_operators()) == 1
    job.check_restore(ignores_unclaimed=True)


@each_case(
    ("uid", "part"),
    [
        ("Sink Committer: flink-agents-kafka-sink-paid", "the Kafka sink 'paid'"),
        ("flink-agents-kafka-source-orders", "the Kafka source 'orders'"),
        ("flink-agents:outputs:1a", "a list of outputs"),
        ("flink-agents:list:a", "the list of agent 'a'"),
        ("flink-agents:keys:a", "agent 'a'"),
        ("flink-agents:gate:a", "agent 'a'"),
        ("flink-agents-a", "agent 'a'"),
        ("flink-agents:0f", ""),
        ("mine", "the operator with the uid 'mine'"),
        ("", ""),
    ],
)
def test_identities_have_names(uid: str, part: str) -> None:
    assert describe_part(uid) == part
