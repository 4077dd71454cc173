"""Sinks that fail, and files that rotate."""

from __future__ import annotations

import errno
import gc
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Configuration
from flink_agents.api.errors import TraceOptionError, UnknownTraceSinkError
from flink_agents.api.settings.tracing import TRACE_SINKS
from flink_agents.testing import OperatorHarness
from flink_agents.trace.reading import read_files
from flink_agents.trace.recording.assembly import check_trace_options
from flink_agents.trace.recording.recorder import TraceRecorder
from flink_agents.trace.records import TraceRecord, span_id
from flink_agents.trace.sinks.jsonl import JsonlSink
from flink_agents.trace.sinks.kafka import KafkaSink
from flink_agents.trace.sinks.log import MARK, LogSink
from flink_agents.trace.writer import TraceWriter
from tests.suite.tables import each_case
from tests.trace.hour import an_hour
from tests.trace.test_trace_records import PLAIN, paying

pytestmark = pytest.mark.own_conditions


def record(number: int = 1, outcome: str = "completed", **more: Any) -> TraceRecord:
    run = f"{number:024x}"
    return TraceRecord(
        "run",
        "paying",
        outcome,
        "job",
        "paying",
        0,
        0,
        "sk",
        number,
        run,
        span_id(run),
        None,
        100.0,
        2.0,
        **more,
    )


class Failing:
    def write(self, records: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        raise OSError("again")


class Keeping:
    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def write(self, records: Any) -> None:
        self.records += records

    def close(self) -> None:
        pass


def test_a_sink_that_fails_keeps_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    sink = Keeping()
    dropped = list[int]()
    writer = TraceWriter({"full": Failing(), "kept": sink}, 100, dropped.append)
    for number in range(5):
        writer.queue_record(lambda number=number: record(number))
        assert writer.flush(30)
    writer.close(30)
    assert [part.sequence_number for part in sink.records] == list(range(5))
    assert (sum(dropped), writer.dropped) == (5, 5)
    assert (
        len([log_record for log_record in caplog.records if "are dropped (full)" in log_record.getMessage()])
        == 1
    )


def test_a_sink_that_hangs_blocks_nobody() -> None:
    started, go_on = threading.Event(), threading.Event()

    class Hanging(Keeping):
        def write(self, records: Any) -> None:
            started.set()
            assert go_on.wait(60)
            super().write(records)

    sink = Hanging()
    writer = TraceWriter({"slow": sink}, most=3)
    writer.queue_record(record)
    assert started.wait(60)
    for _ in range(10):
        writer.queue_record(record)
    assert writer.dropped == 7
    go_on.set()
    writer.close(60)
    assert len(sink.records) == 4


def test_a_sink_that_hangs_keeps_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """As a Kafka broker that is down: each write takes seconds before it fails."""
    go_on = threading.Event()

    class Down(Keeping):
        def write(self, records: Any) -> None:
            assert go_on.wait(60)
            raise TimeoutError("no broker")

    sink = Keeping()
    writer = TraceWriter({"kafka": Down(), "jsonl": sink}, most=50)
    for number in range(200):
        writer.queue_record(lambda number=number: record(number))
        if number % 10 == 9:
            writer.flush(0)
            wait_until(lambda number=number: len(sink.records) == number + 1)
    assert [part.sequence_number for part in sink.records] == list(range(200))
    assert 100 <= writer.dropped < 200
    go_on.set()
    writer.close(60)
    assert writer.dropped == 200
    messages = [
        log_record.getMessage()
        for log_record in caplog.records
        if "are dropped (kafka)" in log_record.getMessage()
    ]
    assert len(messages) == 1


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for a condition."""
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.01)
    raise TimeoutError("the condition does not hold")


def test_a_disk_that_is_full_costs_records_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel itself refuses to write to /dev/full, until there is room again."""
    full = [True]
    opened = os.open
    monkeypatch.setattr(
        "flink_agents.trace.sinks.jsonl.os.open",
        lambda path, *arguments: opened("/dev/full", os.O_WRONLY) if full[0] else opened(path, *arguments),
    )
    options = {"trace.level": "runs", "trace.directory": str(tmp_path)}
    with OperatorHarness(paying(), config=options, **PLAIN) as harness:
        assert len(harness.push_all([1, 2])) == 2
        (recorder,) = harness.observers
        assert isinstance(recorder, TraceRecorder) and recorder.writer.flush(60)
        dropped_count = recorder.writer.dropped
        full[0] = False
        assert len(harness.push_all([3])) == 1
        assert recorder.writer.flush(60) and recorder.writer.dropped == dropped_count == 2
    assert [part.sequence_number for part in read_files(tmp_path)] == [2]
    assert (
        len([log_record for log_record in caplog.records if "No space left" in log_record.getMessage()]) == 1
    )


def test_a_job_goes_on_if_its_disk_is_full(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    options = {"trace.level": "calls", "trace.directory": str(blocked)}
    with OperatorHarness(paying(), config=options, **PLAIN) as harness:
        assert len(harness.push_all([1, 2])) == 2
    assert blocked.read_text() == "no directory"


def test_files_rotate_and_are_bounded(tmp_path: Path) -> None:
    time = [1000.0]
    sink = JsonlSink(
        tmp_path, "a-0-", file_bytes=2000, file_seconds=60, total_bytes=6000, now=lambda: time[0]
    )
    other_file = tmp_path / "a-0-b-0000000000001-00000000.trace.jsonl"
    other_file.write_text("")
    for number in range(100):
        time[0] += 1
        sink.write([record(number)])
        files = [path for path in tmp_path.iterdir() if path != other_file]
        assert sum(path.stat().st_size for path in files) <= 6000
        assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    time[0] += 100
    file_count = len(list(tmp_path.iterdir()))
    sink.write([record(100)])
    sink.close()
    assert other_file.exists() and file_count > 2
    assert [part.sequence_number for part in read_files(tmp_path)][-1] == 100
    newest = max(path for path in tmp_path.iterdir() if path != other_file)
    assert len(newest.read_text().splitlines()) == 1


def test_the_log_has_records(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flink_agents.trace.records"):
        LogSink().write([record(1), record(2, attributes={"result": "x" * 100_000})])
    lines = [log_record.getMessage().removeprefix(MARK) for log_record in caplog.records]
    assert [TraceRecord.from_json(line).sequence_number for line in lines] == [1, 2]


def write_without_a_broker() -> str:
    """Return the error of a sink whose broker is down."""
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", 0))
        sink = KafkaSink(f"127.0.0.1:{bound_socket.getsockname()[1]}", "trace", seconds=1.5)
        try:
            sink.write([record()])
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            sink.close()
    return ""


# A client of kafka-python that finds no broker leaves its sockets to the collector, which comes here.
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_broker_that_is_down_is_an_error_in_bounded_time() -> None:
    assert re.search("(?i)kafka|timed? ?out|broker|metadata", write_without_a_broker())
    gc.collect()


def test_an_unknown_sink_is_an_error() -> None:
    with pytest.raises(UnknownTraceSinkError, match="unknown trace sink 'nowhere'"):
        TRACE_SINKS.find("nowhere")


@each_case(
    "options, error",
    [
        ({"trace.levels.a": "all"}, TraceOptionError),
        ({"trace.levels.a.pay": 3}, TraceOptionError),
        ({"trace.level": "runs", "trace.sinks": "jsonl, nowhere"}, UnknownTraceSinkError),
        ({"trace.sinks": "nowhere"}, None),
        ({"trace.levels.a": False, "trace.level": "runs"}, None),
    ],
)
def test_options_without_a_meaning_are_rejected(options: dict[str, Any], error: Any) -> None:
    config = Configuration.load(options)
    if error is None:
        check_trace_options(config)
    else:
        with pytest.raises(error):
            check_trace_options(config)


def test_a_minute_of_trace_stays_within_its_bounds(tmp_path: Path) -> None:
    """``scripts/nightly trace`` does the same with an hour."""
    result = an_hour(tmp_path, seconds=4, rate=500)
    # 2 MB of records are no measure of memory.
    assert [problem for problem in result.broken() if "grows" not in problem] == []
    assert result.runs == 2000 and result.written + result.burst_dropped == result.given
