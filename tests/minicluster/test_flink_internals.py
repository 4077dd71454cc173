"""The way from Flink into the operator, its outputs, and what a restored state wakes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyflink.version import __version__ as pyflink_version

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.api.errors import JobFailedError, UnsupportedExecutionError
from flink_agents.runtime.flink.internals import access, graph, java_objects
from tests.cluster.heartbeats import Heartbeats, read_beats
from tests.cluster.local_job import LAST, LocalJob, start_agent

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]


class ManyAgent(Agent):
    """Some outputs go aside; one is an empty tuple, one None."""

    side_outputs = {"even": str}

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> None:
        ctx.send_event(OutputEvent(output=("one", 1)))
        ctx.send_event(OutputEvent(output=()))
        ctx.send_event(OutputEvent(output=None))
        if event.input % 2 == 0:
            ctx.emit_to("even", f"{ctx.key} {event.input}")


def test_outputs_that_pyflink_would_misread_leave_as_they_are(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    stream = env.from_list(range(20), lambda number: number % 3).apply(ManyAgent)
    outputs = stream.to_list()
    even = env.collect(stream.side_output("even"))
    env.execute()
    assert outputs == [("one", 1), (), None] * 20
    assert sorted(even) == sorted(f"{number % 3} {number}" for number in range(0, 20, 2))


class StrangeVersion(str):
    """The version of an unknown release, until it is compared: other jobs run in the same worker."""

    def startswith(self, *arguments: Any) -> bool:
        java_objects.pyflink_version = pyflink_version
        return False


class StrangerAgent(ManyAgent):
    """For its worker, PyFlink is of a release that is not known."""

    def __init__(self) -> None:
        # It is made once more in the worker, before the operator opens.
        java_objects.pyflink_version = StrangeVersion("2.4.0")


def test_a_job_on_an_unknown_release_fails_at_its_start(
    agents_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's release counts: the job was submitted with a known one."""
    monkeypatch.setattr(java_objects, "pyflink_version", pyflink_version)
    env = agents_environment()
    env.from_list([1, 2, 3], lambda number: number).apply(StrangerAgent).to_list()
    monkeypatch.setattr(java_objects, "pyflink_version", pyflink_version)
    with pytest.raises(JobFailedError, match="FA2004") as failure:
        env.execute()
    assert "PyFlink and Flink 2.3.*" in str(failure.value)


def test_an_unknown_release_is_rejected_before_anything_is_submitted(
    agents_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = agents_environment()
    env.from_list([1], lambda number: number).apply(ManyAgent).to_list()
    monkeypatch.setattr(java_objects, "pyflink_version", "2.4.0")
    with pytest.raises(UnsupportedExecutionError, match=r"PyFlink 2\.4\.0"):
        env.execute()


class LoudAgent(Agent):
    """Its outputs are more than the buffers between two operators take."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await asyncio.sleep(0)
        return OutputEvent(output=(event.input, "x" * 20_000))


@pytest.mark.nightly
def test_a_slow_consumer_in_the_same_process_holds_nothing_up_for_ever(
    agents_environment: MakeEnvironment,
) -> None:
    """It needs the lock of the interpreter while outputs wait for a buffer."""

    def slowly(output: Any) -> int:
        time.sleep(0.0005)
        return output[0]

    env = agents_environment()
    stream = env.from_list(range(3000), lambda number: number % 50).apply(LoudAgent).to_datastream()
    outputs = env.collect(stream.map(slowly))
    env.execute()
    assert sorted(outputs) == list(range(3000))


class TypedAgent(Agent):
    """Its outputs are of a type of Flink: Flink converts them once more."""

    output_type = int

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await asyncio.sleep(0.001 * (event.input % 5))
        return OutputEvent(output=event.input * 2**33)


def test_outputs_of_a_type_of_flink(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    outputs = env.from_list(range(100), lambda number: number % 7).apply(TypedAgent).to_list()
    env.execute()
    assert sorted(outputs) == [number * 2**33 for number in range(100)]


class FailingAgent(Agent):
    def __init__(self, waits: bool) -> None:
        self.waits = waits

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Any:
        if self.waits:
            return self.later()
        raise ValueError("this very line")

    async def later(self) -> None:
        await asyncio.sleep(0.01)
        raise ValueError("this very line")


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("waits", [False, True], ids=["def", "async"])
def test_an_error_names_the_line_of_the_author(agents_environment: MakeEnvironment, waits: bool) -> None:
    env = agents_environment()
    env.from_list([1], lambda number: number).apply(FailingAgent(waits)).to_list()
    with pytest.raises(JobFailedError, match="this very line") as caught:
        env.execute()
    assert "test_flink_internals.py" in str(caught.value)


# -- timestamps -----------------------------------------------------------------------------


class LaterAgent(Agent):
    """Outputs of both kinds of runs: at once, and later, some of them at the end of the input."""

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Any:
        return self.later(event.input) if event.input % 2 else OutputEvent(output=event.input)

    async def later(self, number: int) -> OutputEvent:
        await asyncio.sleep(0.3)
        return OutputEvent(output=number)


def test_outputs_at_the_end_of_the_input_have_no_timestamp(agents_environment: MakeEnvironment) -> None:
    """A broker of Kafka refuses that of the timer which stands for the end."""
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.common.watermark_strategy import TimestampAssigner
    from pyflink.datastream import ProcessFunction

    class Stamps(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return 1000 + value

    class Look(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield value, ctx.timestamp()

    env = agents_environment()
    numbers = env.stream_env.from_collection(list(range(50)), Types.LONG())
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Stamps())
    stamped = numbers.assign_timestamps_and_watermarks(strategy)
    stream = env.from_datastream(stamped, lambda number: number).apply(LaterAgent).to_datastream()
    looked = env.collect(stream.process(Look()))
    env.execute()
    timestamps = dict(looked)
    none = {at for number, at in timestamps.items() if number % 2}
    assert len(none) == 1
    assert {number: at for number, at in timestamps.items() if number % 2 == 0} == {
        number: 1000 + number for number in range(0, 50, 2)
    }
    # What PyFlink gives where there is none.
    assert none == {-(2**63)}


# -- savepoints -----------------------------------------------------------------------------

WAITING = 300


class PatientAgent(Agent):
    """Its calls wait for ever, or end soon.

    Args:
        path: Gets a line for each call that begins.
        ends: Whether they end.
    """

    def __init__(self, path: str, ends: bool) -> None:
        self.ends = ends
        self.beats = Heartbeats(path)

    @action(InputEvent, when=lambda event: event.input != LAST)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        self.beats.write("begin", ctx.key)
        await (asyncio.sleep(0.01) if self.ends else asyncio.Event().wait())
        return OutputEvent(output=(ctx.key, event.input, ctx.sequence_number))

    @action(InputEvent, when=lambda event: event.input == LAST)
    def ignore(self, event: InputEvent, ctx: Any) -> None:
        pass


def savepoint_of(env: AgentsExecutionEnvironment, directory: Path, kind: str = "CANONICAL") -> str:
    """A savepoint in which inputs of 300 keys wait."""
    beats = directory / "beats"
    with start_agent(env, PatientAgent(str(beats), False), beats, WAITING) as job:
        job.wait_for("waiting calls", lambda: len(read_beats(beats)) >= WAITING)
        return job.stop_with_savepoint(directory / "savepoints", kind)


def restored_from(savepoint: str) -> dict[str, str]:
    return {
        "execution.state-recovery.path": savepoint,
        "execution.state-recovery.ignore-unclaimed-state": "true",
    }


CHANGELOG = {
    "state.changelog.enabled": "true",
    "state.changelog.storage": "filesystem",
}


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize(
    ("backend", "changelog"),
    [
        ("hashmap", False),
        ("rocksdb", False),
        ("forst", False),
        ("rocksdb", True),
        pytest.param("hashmap", True, marks=pytest.mark.nightly),
        pytest.param("forst", True, marks=pytest.mark.nightly),
    ],
)
def test_what_waits_in_a_savepoint_goes_on(
    agents_environment: MakeEnvironment, tmp_path: Path, backend: str, changelog: bool
) -> None:
    """Without any input, and before the end of the input: nothing but the restore wakes the keys."""
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    flink = {"state.backend.type": backend}
    if changelog:
        flink |= CHANGELOG | {"dstl.dfs.base-path": (tmp_path / "changes").as_uri()}
    kind = "NATIVE" if backend == "forst" else "CANONICAL"
    savepoint = savepoint_of(agents_environment(flink=flink), tmp_path, kind)

    def nothing(number: int) -> list[int]:
        time.sleep(0.01)
        return []

    env = agents_environment(flink={**flink, **restored_from(savepoint)}, parallelism=2)
    path = str(tmp_path / "beats")
    outputs = tmp_path / "outputs"
    committed = Heartbeats(str(outputs))
    source = NumberSequenceSource(0, 10**12), WatermarkStrategy.no_watermarks(), "idle"
    stream_env: Any = env.stream_env
    idle = stream_env.from_source(*source).set_parallelism(1).flat_map(nothing).set_parallelism(1)
    stream = env.from_datastream(idle, lambda number: number).apply(PatientAgent(path, True))
    stream.to_datastream().map(lambda output: committed.write("output", output[0])).print()
    with LocalJob(env, outputs) as job:
        job.wait_for("all outputs", lambda: len(read_beats(outputs)) >= WAITING)
    assert sorted(int(beat.key) for beat in read_beats(outputs)) == list(range(WAITING))


@pytest.mark.nightly
def test_what_waits_goes_on_at_the_end_of_the_input(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    savepoint = savepoint_of(agents_environment(), tmp_path)
    env = agents_environment(flink=restored_from(savepoint), parallelism=2)
    stream = env.from_list([], lambda number: number)
    outputs = stream.apply(PatientAgent(str(tmp_path / "beats"), True)).to_list()
    env.execute()
    assert sorted(outputs) == [(number, number, 0) for number in range(WAITING)]


class Echo(Agent):
    """Hands its input on: at once, or after a moment."""

    def __init__(self, waits: bool) -> None:
        self.waits = waits

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if self.waits:
            await asyncio.sleep(0)
        return OutputEvent(output=str(event.input))


class TypedEcho(Echo):
    """The same; Flink converts its outputs once more."""

    output_type = str


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("agent", [Echo, TypedEcho])
def test_outputs_leave_without_a_buffer_timeout(
    agents_environment: MakeEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: type[Echo]
) -> None:
    """The next input comes when the output of the last one has arrived, and buffers are never full."""
    for module in (access, graph):
        monkeypatch.setattr(module, "BUFFER_TIMEOUT_MS", -1)
    env = agents_environment()

    def after_the_last(number: int) -> int:
        deadline = time.monotonic() + 30
        while number and not (tmp_path / str(number - 1)).exists():
            assert time.monotonic() < deadline, f"output {number - 1} did not leave"
            time.sleep(0.001)
        return number

    def arrives(text: str) -> str:
        (tmp_path / text).touch()
        return text

    numbers = env.stream_env.from_collection(list(range(20))).map(after_the_last)
    for name, waits in (("direct", False), ("waiting", True)):
        applied = env.from_datastream(numbers, lambda number: number % 3).apply(agent(waits), name=name)
        numbers = applied.to_datastream().map(int)
    numbers.map(str).map(arrives)
    env.execute()
    assert len(list(tmp_path.iterdir())) == 20


def test_operators_in_python_forward_at_once_unless_the_author_says_otherwise(
    agents_environment: MakeEnvironment,
) -> None:
    for own_timeout in (None, 7):
        env = agents_environment()
        if own_timeout is not None:
            env.stream_env.set_buffer_timeout(own_timeout)
        mapped = env.stream_env.from_collection([1]).map(abs).name("mapped")
        slow = mapped.map(abs).name("slow").set_buffer_timeout(50)
        applied = env.from_datastream(slow, lambda number: number).apply(Echo(False))
        agent = applied.to_datastream()
        graph.forward_at_once(env.stream_env, [agent])
        timeouts = {
            str(transformation.getName()): transformation.getBufferTimeout()
            for transformation in agent._j_data_stream.getTransformation().getTransitivePredecessors()
        }
        at_once = 0 if own_timeout is None else -1
        assert timeouts["mapped"] == at_once
        assert timeouts["slow"] == 50
        assert timeouts["agent Echo"] == -1
        assert timeouts["_stream_key_by_map_operator"] == at_once
