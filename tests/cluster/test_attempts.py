"""The end of an attempt inside a JVM that lives on: nothing of it runs beside its successor."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flink_agents import AgentsExecutionEnvironment
from tests.cluster.heartbeats import (
    PatientAgent,
    RestlessAgent,
    StubbornAgent,
    attempts_of,
    late_beats,
    read_beats,
)
from tests.cluster.local_job import LocalJob, start_agent

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

KEYS = 20
NEW_BEATS = 500
WATCHDOG_SECONDS = 20


def environment(make: MakeEnvironment, directory: Path, **flink: str) -> AgentsExecutionEnvironment:
    options = {
        "execution.checkpointing.interval": "200 ms",
        "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
        "restart-strategy.fixed-delay.delay": "100 ms",
    }
    return make(
        parallelism=2, flink=options | flink, config={"run.max-events": 10**6, "run.max-in-flight": 1000}
    )


def wait_for_attempts(job: LocalJob, path: Path, attempts: int) -> None:
    """Wait until so many attempts have begun, and the latest of them have done a lot."""

    def busy() -> bool:
        beats = read_beats(path)
        seen_attempts = attempts_of(beats)
        latest = set(seen_attempts[-2:])
        return len(seen_attempts) >= attempts and sum(beat.attempt in latest for beat in beats) >= NEW_BEATS

    job.wait_for(f"{NEW_BEATS} lines of attempt {attempts}", busy)


def assert_one_after_the_other(path: Path, attempts: int) -> None:
    beats = read_beats(path)
    late = late_beats(beats)
    assert late == [], f"{len(late)} of {len(beats)} lines after the successor had begun"
    assert len(attempts_of(beats)) == attempts
    assert {beat.kind for beat in beats} == {"begin", "wait", "call", "end"}


@pytest.mark.parametrize("where", ["flink", "loop"])
def test_exception(agents_environment: MakeEnvironment, tmp_path: Path, where: str) -> None:
    beats = tmp_path / "beats"
    env = environment(agents_environment, tmp_path)
    with start_agent(env, RestlessAgent(str(beats), where), beats, KEYS) as job:
        wait_for_attempts(job, beats, 4)
    assert (tmp_path / "beats.failed").exists()
    assert_one_after_the_other(beats, 4)


def test_exception_during_long_calls_in_the_pool(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    env = environment(agents_environment, tmp_path)
    agent = RestlessAgent(str(beats), "flink", call_beats=200)
    with start_agent(env, agent, beats, KEYS) as job:
        wait_for_attempts(job, beats, 4)
    assert_one_after_the_other(beats, 4)


def test_exception_with_calls_that_go_on_when_cancelled(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    env = environment(agents_environment, tmp_path)
    with start_agent(env, StubbornAgent(str(beats)), beats, KEYS) as job:
        wait_for_attempts(job, beats, 4)
        written_beats = read_beats(beats)
    assert "refused" in {beat.kind for beat in written_beats}
    assert late_beats(written_beats) == []


def test_cancel_and_a_second_job(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    for attempts in (2, 4):
        env = environment(agents_environment, tmp_path)
        with start_agent(env, RestlessAgent(str(beats)), beats, KEYS) as job:
            wait_for_attempts(job, beats, attempts)
    assert_one_after_the_other(beats, 4)


def test_stop_with_savepoint_and_resume(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    env = environment(agents_environment, tmp_path)
    with start_agent(env, RestlessAgent(str(beats)), beats, KEYS) as job:
        wait_for_attempts(job, beats, 2)
        savepoint = job.stop_with_savepoint(tmp_path / "savepoints")
    settings = {"execution.state-recovery.path": savepoint}
    env = environment(agents_environment, tmp_path, **settings)
    with start_agent(env, RestlessAgent(str(beats)), beats, KEYS) as job:
        wait_for_attempts(job, beats, 4)
    assert_one_after_the_other(beats, 4)


CALLS = 1000


@pytest.mark.parametrize(
    ("records", "ends"),
    [
        pytest.param(CALLS, False, id="idle"),
        pytest.param(CALLS, True, id="drain"),
        pytest.param(10 * CALLS, True, id="backpressure"),
    ],
)
def test_cancel_with_waiting_calls(
    agents_environment: MakeEnvironment,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    records: int,
    ends: bool,
) -> None:
    beats = tmp_path / "beats"

    def kinds(kind: str) -> int:
        return sum(beat.kind == kind for beat in read_beats(beats))

    env = agents_environment(parallelism=2, config={"run.max-in-flight": CALLS})
    with start_agent(env, PatientAgent(str(beats)), beats, records, ends) as job:
        job.wait_for(f"{CALLS} waiting calls", lambda: kinds("begin") >= CALLS)
        ended = job.cancel()
        start_seconds = time.monotonic()
        job.wait_for("the end of all calls", lambda: kinds("end") == kinds("begin"), alive=False)
    seconds = ended + time.monotonic() - start_seconds
    name = request.node.name
    print(f"\n{name}: {kinds('begin')} calls; job ended in {ended:.2f} s, last call in {seconds:.2f} s")
    assert seconds < WATCHDOG_SECONDS
    assert len(attempts_of(read_beats(beats))) == 2
