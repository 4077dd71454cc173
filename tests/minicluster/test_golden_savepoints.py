"""Stored savepoints and journals of Flink jobs go on: nothing lost, repeated, or out of order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import AgentsExecutionEnvironment
from tests.cluster.heartbeats import read_beats
from tests.minicluster.golden_savepoints import (
    DONE,
    EVENT_TIMES,
    HOLD,
    KEYS,
    NUMBERS,
    STEP,
    Orders,
    config_of,
    flink_of,
    key_of,
    stamp,
    timed,
    unpacked,
)

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

MORE = 2 * KEYS
"""How many numbers come behind the savepoint."""

WINDOW_MS = 5 * STEP


def restored(
    agents_environment: MakeEnvironment,
    name: str,
    directory: Path,
    backend: str = "hashmap",
) -> AgentsExecutionEnvironment:
    """The environment of a job that begins with a stored savepoint.

    Its input is another one than that of the savepoint, and so nobody claims the state of the source.
    """
    savepoint, store = unpacked(name, directory)
    flink = {
        **flink_of(backend),
        "execution.state-recovery.path": savepoint,
        "execution.state-recovery.ignore-unclaimed-state": "true",
    }
    return agents_environment(config=config_of(name, store), flink=flink)


def check(outputs: list[Any], path: Path, timed: bool) -> None:
    """All numbers come once, each key's in order, and no call is made again whose record there is."""
    numbers = range(DONE, NUMBERS + MORE)
    assert sorted(output[0] for output in outputs) == list(numbers)
    for key in range(KEYS):
        key_outputs = [output for output in outputs if key_of(output[0]) == key]
        done_count = DONE // KEYS
        expected = [
            (number, done_count + place + 1, done_count + place, stamp(number) if timed else None)
            for place, number in enumerate(number for number in numbers if key_of(number) == key)
        ]
        assert [(number, count, seq, at) for number, count, seq, _, at in key_outputs] == expected
    beats = read_beats(path)
    for kind, called in (("charge", range(DONE + KEYS, NUMBERS + MORE)), ("ship", numbers)):
        assert sorted(int(beat.key) for beat in beats if beat.kind == kind) == list(called)


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_stored_savepoint_and_its_journals_go_on(
    agents_environment: MakeEnvironment, tmp_path: Path, backend: str
) -> None:
    env = restored(agents_environment, "orders", tmp_path, backend)
    beats = tmp_path / "beats"
    more = env.from_list(range(NUMBERS, NUMBERS + MORE), key_of)
    agent = Orders(str(beats), NUMBERS + MORE)
    outputs = more.apply(agent, name="orders", parallelism=2).to_list()
    env.execute()
    check(outputs, beats, timed=False)


@pytest.mark.nightly
def test_a_job_that_held_event_time_goes_on(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    """What waited keeps its timestamp.

    The windows behind it have all of it: the inputs of the savepoint hold the watermark.
    """
    from pyflink.common import Time, WatermarkStrategy
    from pyflink.datastream import ProcessWindowFunction
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource
    from pyflink.datastream.window import TumblingEventTimeWindows

    class Collect(ProcessWindowFunction[Any, Any, Any, Any]):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            yield context.window().start, sorted(output[0] for output in elements)

    env = restored(agents_environment, "held_orders", tmp_path)
    beats = tmp_path / "beats"
    stream: Any = env.stream_env
    # Not from a collection: its source has one key group, and that of the savepoint has 128.
    source = NumberSequenceSource(NUMBERS, NUMBERS + MORE - 1)
    more = timed(stream.from_source(source, WatermarkStrategy.no_watermarks(), "more"))
    agent = Orders(str(beats), NUMBERS + MORE)
    held = env.from_datastream(more, key_of).apply(agent, name="held_orders", event_time=HOLD, parallelism=2)
    behind = held.to_datastream()
    collected_windows = env.collect(
        behind.key_by(lambda output: 0)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
        .process(Collect())
    )
    outputs = env.collect(behind)
    env.execute()
    check(outputs, beats, timed=True)
    expected: dict[int, list[int]] = {}
    for number in range(DONE, NUMBERS + MORE):
        expected.setdefault(stamp(number) // WINDOW_MS * WINDOW_MS, []).append(number)
    assert dict(collected_windows) == expected


def test_the_files_have_what_they_are_to_show() -> None:
    """Each job is there; other tests say by their outputs what is in them."""
    from tests.minicluster.golden_savepoints import MADE

    assert {file.name for file in MADE.iterdir()} == {
        f"{name}{suffix}" for name in EVENT_TIMES for suffix in (".gz", ".sqlite.gz")
    }
    assert sum(file.stat().st_size for file in MADE.iterdir()) < 100_000
