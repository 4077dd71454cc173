"""What the console says of a local job, and what PyFlink's own ways to run one do."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.api.errors import (
    DeadLettersNotReadError,
    JobFailedError,
    MissingTimestampsError,
    TaskManagerLostError,
)
from flink_agents.api.settings.options import Configuration
from tests.cluster.waiting import wait_until

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

RESTARTS = {"local.restart.attempts": 2, "local.restart.delay": "600 ms"}
JAVA = re.compile(r"^\tat org\.apache\.flink\.", re.MULTILINE)


class FailingAgent(Agent):
    """Fails as often as it is told, counting in a file."""

    output_type = int

    def __init__(self, count: Path, failures: int) -> None:
        self.count = str(count)
        self.failures = failures

    @action(InputEvent)
    def fail(self, event: InputEvent, ctx: Any) -> OutputEvent:
        path = Path(self.count)
        failed = len(path.read_text()) if path.exists() else 0
        if failed < self.failures:
            path.write_text("x" * (failed + 1))
            raise LookupError("no such order")
        return OutputEvent(output=event.input)


LINE = rf"\S*test_local_jobs\.py:{FailingAgent.fail.__code__.co_firstlineno + 6} in FailingAgent\.fail"


def environment(make: MakeEnvironment, **options: Any) -> AgentsExecutionEnvironment:
    env = make(config=RESTARTS | options)
    env.stream_env.enable_checkpointing(200)
    return env


@pytest.mark.nightly
def test_restarts_and_the_log_are_told(
    agents_environment: MakeEnvironment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    env = environment(agents_environment)
    agent = FailingAgent(tmp_path / "count", failures=2)
    outputs = env.from_list(range(5), lambda number: number).apply(agent).to_list()
    env.execute("my orders")
    assert sorted(outputs) == list(range(5))
    stderr = capsys.readouterr().err
    assert not JAVA.search(stderr)
    for number in (1, 2):
        assert re.search(
            rf"^restart {number} of 2: {LINE}: LookupError: no such order$", stderr, re.MULTILINE
        )
    log = re.search(r"^job 'my orders': log in (\S+)$", stderr, re.MULTILINE)
    assert log is not None and log[1].startswith(".flink-agents/logs/my-orders-")
    assert "to RESTARTING" in Path(log[1]).read_text(encoding="utf-8")


def test_the_jvm_does_not_watch_the_configuration_of_a_log(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """Each local job leaves a log context in the JVM. It would miss the file aloud, once it is removed."""
    from flink_agents.runtime.flink import compat as flink_compat
    from flink_agents.runtime.flink.logs import configuration_beside

    agents_environment()
    log = tmp_path / "job.log"
    flink_compat.log_to(str(log), configuration_beside(log, Configuration()))
    context = flink_compat._jvm().org.apache.logging.log4j.core.LoggerContext.getContext(False)
    configuration = context.getConfiguration()
    assert configuration.getConfigurationSource().getLocation() == f"{log}.properties"
    assert configuration.getWatchManager().getConfigurationWatchers().isEmpty()


def by_stream_env(env: AgentsExecutionEnvironment, stream: Any) -> Any:
    stream.to_datastream().print()
    return env.stream_env.execute("job")


def by_collecting(env: AgentsExecutionEnvironment, stream: Any) -> Any:
    return list(stream.to_datastream().execute_and_collect("job"))


def by_collecting_some(env: AgentsExecutionEnvironment, stream: Any) -> Any:
    return stream.to_datastream().execute_and_collect("job", limit=2)


def by_table(env: AgentsExecutionEnvironment, stream: Any) -> Any:
    with stream.to_table({"number": int}).execute().collect() as rows:
        return [row[0] for row in rows]


def by_sql(env: AgentsExecutionEnvironment, stream: Any) -> Any:
    tables = env.table_env
    tables.create_temporary_view("numbers", stream.to_table({"number": int}))
    tables.execute_sql("CREATE TEMPORARY TABLE gone (number BIGINT) WITH ('connector' = 'blackhole')")
    tables.execute_sql("INSERT INTO gone SELECT number FROM numbers").wait()


WAYS = [
    by_stream_env,
    by_sql,
    *(pytest.param(way, marks=pytest.mark.nightly) for way in (by_collecting, by_collecting_some, by_table)),
]


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("run", WAYS)
def test_pyflinks_own_ways_bound_restarts_and_say_what_failed(
    agents_environment: MakeEnvironment, run: Callable[..., Any], tmp_path: Path, capsys: Any
) -> None:
    env = environment(agents_environment, **{"local.java-trace": True})
    agent = FailingAgent(tmp_path / "count", failures=100)
    stream = env.from_list(range(5), lambda number: number).apply(agent)
    with pytest.raises(Exception, match="LookupError: no such order") as raised:
        run(env, stream)
    stderr = ""

    def tells(text: str) -> bool:
        nonlocal stderr
        stderr += capsys.readouterr().err
        return re.search(rf"^{text}: {LINE}: LookupError", stderr, re.MULTILINE) is not None

    assert tells("restart 1 of 2")
    if run in (by_table, by_sql):
        # PyFlink raises in this thread, and another one tells of the job.
        wait_until("the failure on the console", lambda: tells("JobFailedError"), 30, lambda: stderr)
    else:
        assert isinstance(raised.value, JobFailedError)
        assert re.match(LINE, str(raised.value))
        wait_until(
            "Flink's text", lambda: tells("restart 1 of 2") and JAVA.search(stderr), 30, lambda: stderr
        )
    assert JAVA.search(stderr)
    assert stderr.count("Flink's message for job") == 1, stderr


@pytest.mark.parametrize("run", WAYS)
def test_pyflinks_own_ways_check_the_job(
    agents_environment: MakeEnvironment, run: Callable[..., Any], tmp_path: Path
) -> None:
    class Careful(FailingAgent):
        on_error = "dead-letter"

    env = environment(agents_environment)
    stream = env.from_list(range(5), lambda number: number).apply(Careful(tmp_path / "count", 0))
    with pytest.raises(DeadLettersNotReadError):
        run(env, stream)


def test_what_is_collected_is_what_left(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    env = agents_environment()
    agent = FailingAgent(tmp_path / "count", failures=0)
    stream = env.from_list(range(5), lambda number: number).apply(agent)
    assert sorted(by_table(env, stream)) == sorted(by_table(env, stream)) == list(range(5))
    assert sorted(by_collecting(env, stream)) == list(range(5))
    again = env.from_list(range(5), lambda number: number).apply(agent)
    assert len(by_collecting_some(env, again)) == 2


class WaitingAgent(Agent):
    output_type = int

    @action(InputEvent)
    async def wait(self, event: InputEvent, ctx: Any) -> OutputEvent:
        import asyncio

        await asyncio.sleep(0.01)
        return OutputEvent(output=event.input)


def test_a_window_behind_an_agent_without_event_time_names_it(agents_environment: MakeEnvironment) -> None:
    from pyflink.common import Time
    from pyflink.datastream.window import TumblingEventTimeWindows

    env = agents_environment()
    stream = env.from_list(range(5), lambda number: number).apply(WaitingAgent()).to_datastream()
    windows = stream.key_by(lambda number: number % 2).window(TumblingEventTimeWindows.of(Time.seconds(1)))
    windows.reduce(lambda left_number, right_number: left_number + right_number).print()
    with pytest.raises(MissingTimestampsError) as raised:
        env.execute()
    first = str(raised.value).split("\n")[0]
    assert first == "a window of event time got outputs of agent 'WaitingAgent' without timestamp"
    assert "event_time=EventTime.hold_watermarks()" in str(raised.value)


class EndlessAgent(Agent):
    """Says that it runs, and then takes its time."""

    def __init__(self, beat: Path) -> None:
        self.beat = str(beat)

    @action(InputEvent)
    async def run(self, event: InputEvent, ctx: Any) -> OutputEvent:
        import asyncio

        Path(self.beat).touch()
        await asyncio.sleep(3600)
        return OutputEvent(output=event.input)


@pytest.mark.nightly
def test_a_job_whose_taskmanager_is_lost_ends(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    from pyflink.util.java_utils import get_field_value

    from flink_agents.runtime.flink import compat as flink_compat

    env = environment(agents_environment)
    clients: list[Any] = []
    flink_compat.listen_for_jobs(env.stream_env, clients.append)
    beat = tmp_path / "beat"
    env.from_list([1], str).apply(EndlessAgent(beat)).to_list()

    def lose() -> None:
        wait_until("the first input", beat.exists, 120)
        get_field_value(clients[0], "miniCluster").terminateTaskManager(0)

    thread = threading.Thread(target=lose)
    thread.start()
    with pytest.raises(TaskManagerLostError, match=r"log has the reason: .*\.log"):
        env.execute("lost")
    thread.join()
