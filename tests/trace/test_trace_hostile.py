"""One unusual record costs at most itself: not its batch, not the writer's thread, no memory, no secret."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import MessageSizeTooLargeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from typer.testing import CliRunner

from flink_agents import redaction
from flink_agents.cli.main import app
from flink_agents.trace import rendering
from flink_agents.trace.erasing import erase_files
from flink_agents.trace.reading import by_run, read_files
from flink_agents.trace.recording import lines, runs
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.sinks.kafka import KafkaSink
from flink_agents.trace.sinks.otel import spans_of
from flink_agents.trace.writer import TraceWriter
from tests.suite.tables import each_case
from tests.trace.hour import Phase, Run, turn
from tests.trace.test_trace_lasting import Keeping, Traced, hooks
from tests.trace.test_trace_sinks import record, wait_until

pytestmark = pytest.mark.own_conditions

BAD = "bad \ud800"


@each_case(
    "changes, exported",
    [
        ({}, True),
        ({"key": BAD}, True),
        ({"name": BAD}, True),
        ({"agent": BAD, "job": BAD}, True),
        ({"attributes": {"x": BAD, BAD: 1, "finish_reason": BAD, "model": BAD}}, True),
        ({"attributes": {"input_tokens": 10**30, "x": -(10**30)}}, True),
        ({"outcome": "failed", "attributes": {"error": {"error": BAD}}}, True),
        ({"outcome": "failed", "attributes": {"error": BAD}}, True),
        ({"kind": "call", "name": f"mcp:{BAD}:call_tool:{BAD}"}, True),
        ({"kind": "call", "name": f"chat:{BAD}"}, True),
        ({"time": -5.0}, True),
        ({"time": 9e14}, True),
        ({"time": 0}, True),
        ({"seconds": 1e12}, True),
        ({"seconds": -5.0}, True),
        ({"span_id": "-f"}, False),
        ({"span_id": "f" * 17}, False),
        ({"span_id": "0x" + "f" * 14}, False),
        ({"parent_id": "-1"}, False),
        ({"trace": "f" * 64}, False),
        ({"trace": "g" * 32}, False),
    ],
)
def test_a_record_that_otlp_cannot_hold_costs_no_other(
    changes: dict[str, Any], exported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    odd = record(2)
    for name, value in changes.items():
        setattr(odd, name, value)
    spans = list(spans_of([record(1), odd, record(3)]))
    assert len(spans) == 2 + exported
    sent = encode_spans(spans).resource_spans
    assert sum(len(scope.spans) for resource in sent for scope in resource.scope_spans) == len(spans)
    # An attribute that cannot be encoded would be logged, with the whole trace.
    assert [log_record for log_record in caplog.records if log_record.levelno >= logging.WARNING] == []


def test_a_record_that_a_broker_rejects_costs_no_other() -> None:
    sent: list[bytes] = []

    class Sent:
        def get(self, seconds: float) -> None:
            pass

    class Producer:
        def send(self, topic: str, key: bytes, value: bytes) -> Sent:
            if len(value) > 10_000:
                raise MessageSizeTooLargeError("too large")
            sent.append(value)
            return Sent()

        def flush(self, seconds: float) -> None:
            pass

    sink = KafkaSink("localhost:1", "trace")
    sink._topic._producer = Producer()  # pyright: ignore[reportPrivateUsage]
    records = [record(1), record(2, attributes={"x": "y" * 20_000}), record(3)]
    with pytest.raises(MessageSizeTooLargeError):
        sink.write(records)
    assert [json.loads(message)["sequence_number"] for message in sent] == [1, 3]


@each_case("source", ["look", "collect"])
def test_the_writer_survives_a_look_that_fails(
    source: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flink_agents.trace.writer.LOOK_SECONDS", 0.0)
    sink, failed = Keeping(), threading.Event()
    writer = TraceWriter({"kept": sink})

    def fail() -> None:
        if threading.current_thread().name == "flink-agents-trace" and not failed.is_set():
            failed.set()
            raise RuntimeError("dictionary changed size during iteration")

    setattr(writer, source, fail)
    writer.start()
    assert failed.wait(60)
    writer.queue_record(record)
    wait_until(lambda: len(sink.records) == 1)
    writer.close(60)
    assert writer.dropped == 1
    assert "dictionary changed size" in caplog.text


def test_long_keys_are_not_kept() -> None:
    traced = Traced()
    total_length = 0
    for number in range(5):
        run = Run(number)
        run.key_text = str(number) * 1_000_000
        for hook in hooks(traced.recorder, run, False):
            hook()
        traced.recorder.queue_lines()
        maker: Any = traced.recorder._lines  # pyright: ignore[reportPrivateUsage]
        assert isinstance(maker, lines.LineMaker)
        total_length = sum(len(name) + len(part) for name, part in maker._keys.items())
    assert total_length < 10_000
    assert sorted({part.key[:1] for part in traced.close()}) == list("01234")


@pytest.fixture
def no_secrets() -> Iterator[None]:
    yield
    redaction.forget_all()


def test_a_secret_that_becomes_known_in_a_run_is_hidden_in_its_further_records(no_secrets: None) -> None:
    secret = "the-pass-of-bob-0815"
    traced = Traced()
    run = Run(1)
    run.key_text = secret
    turn(traced.recorder, run, Phase.RUNNING, None)
    traced.recorder.action_failed(run, "read", ValueError("no"))
    traced.recorder.action_retried(run, "read", 2)
    assert traced.recorder.writer.flush(60)
    redaction.add_secrets(secret)
    traced.recorder.action_failed(run, "read", ValueError("no"))
    turn(traced.recorder, run, Phase.FAILED, Phase.RUNNING)
    assert [part.key for part in traced.close()] == [secret, "***", "***"]


def test_a_run_that_lasts_for_another_reason_has_a_start_at_the_end_of_the_attempt() -> None:
    traced = Traced()
    run = Run(1)
    turn(traced.recorder, run, Phase.RUNNING, None)
    traced.recorder.action_failed(run, "read", ValueError("no"))
    parts = traced.close()
    assert [(part.kind, part.outcome) for part in parts] == [("action", "failed"), ("run", "started")]


@each_case("most", [50, -1])
@each_case("on_loop", [True, False])
def test_no_duration_is_negative_if_the_clock_is_set_back(
    most: int, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST_STEPS", most)
    monkeypatch.setattr("flink_agents.trace.recording.recorder.MOST_STEPS", most)
    for place in range(len(hooks(Traced().recorder, Run(1), on_loop))):
        traced = Traced()
        for number, hook in enumerate(hooks(traced.recorder, Run(1), on_loop)):
            traced.at += 0.001 if number != place else -3600
            hook()
        parts = traced.close()
        (run,) = by_run(parts).values()
        assert run.status == "completed"
        assert all((part.seconds or 0.0) >= 0 for part in parts)
        assert all(
            phase_seconds >= 0
            for part in parts
            for phase_seconds in part.attributes.get("phases", {}).values()
        )


@each_case("key", ["s" + "alice@example.org", 's"al\\ice"@example.org', "sélise@éxample.org"])
@each_case("is_open", [False, True])
def test_a_line_that_is_cut_anywhere_keeps_no_part_of_an_erased_key(
    key: str, is_open: bool, tmp_path: Path
) -> None:
    other_line = record(1).to_bytes() + b"\n"
    line = record(2)
    line.key = key
    folded = json.dumps({"kind": "run", "key": key, "sequence_number": 2}, separators=(",", ":")).encode()
    place = tmp_path / "a.trace.jsonl"
    for whole in (line.to_bytes(), folded):
        begins = whole.index(b'"key"')
        for cut in range(begins, begins + 50):
            place.write_bytes(other_line + whole[:cut])
            erase_files(tmp_path, {key}, 1.0 if is_open else 0.0)
            remaining_bytes = place.read_bytes().removeprefix(other_line)
            # Of other keys, the first character can be the same.
            begin = json.dumps(key)[:3].encode()
            assert b'"key"' not in remaining_bytes or begin not in remaining_bytes, cut
            assert [part.sequence_number for part in read_files(tmp_path)] == [1]


NEWER = record(7).to_json().replace('"version":2', '"version":99').encode()
FULL = record(8).to_bytes()


@each_case(
    "odd, left_out",
    [
        (b"", 0),
        (b"\n\n", 0),
        (FULL[:100], 1),
        (b"\x00" * 5000, 1),
        (b"\xff\xfe" + FULL, 1),
        (FULL.decode().encode("utf-16"), 1),
        (b"[" * 100_000, 1),
        (b"7", 1),
        (b'{"a": "' + b"x" * 3_000_000 + b'"}', 1),
        (NEWER, 1),
        (b"\x1b[31m" + FULL, 1),
        (FULL[:-1] + b', "seconds": NaN}', 1),
    ],
)
@each_case("command", [["runs", "--json"], ["trace", "--key", "k1"], ["why", "k1"]])
def test_a_line_that_is_no_record_costs_no_other(
    command: list[str], odd: bytes, left_out: int, tmp_path: Path
) -> None:
    """One torn line is all that a machine leaves that lost its power."""
    first = record(1)
    last = record(2)
    first.key = last.key = "sk1"
    file = tmp_path / "a.trace.jsonl"
    file.write_bytes(first.to_bytes() + b"\n" + odd + b"\n" + last.to_bytes() + b"\n" + FULL[:50])
    result = CliRunner().invoke(app, [*command, "--path", str(tmp_path)])
    assert result.exit_code == 0 and "Traceback" not in result.output
    assert ("left out 1 part of" in result.stderr and "a.trace.jsonl:2" in result.stderr) == bool(left_out)
    assert "\x1b" not in result.output and len(result.stderr) < 1000
    if command[0] == "runs":
        assert [json.loads(line)["sequence"] for line in result.stdout.splitlines()] == [1, 2]


def test_a_file_that_cannot_be_read_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.trace.jsonl").write_bytes(FULL + b"\n")
    (tmp_path / "b.trace.jsonl").write_bytes(record(1).to_bytes() + b"\n")
    open_ = Path.open

    def opened(path: Path, *arguments: Any) -> Any:
        if path.name.startswith("a"):
            raise PermissionError(13, "Permission denied")
        return open_(path, *arguments)

    monkeypatch.setattr(Path, "open", opened)
    result = CliRunner().invoke(app, ["runs", "--json", "--path", str(tmp_path)])
    assert [json.loads(line)["sequence"] for line in result.stdout.splitlines()] == [1]
    assert "a.trace.jsonl" in result.stderr and "PermissionError" in result.stderr


def spans(shape: str) -> tuple[list[TraceRecord], int]:
    """Return the records of a run, and the number of the lines of its tree, without the first."""
    run = record(1)
    most = 3000
    parents = {
        "deep": [run.span_id, *(f"{number:016x}" for number in range(most - 1))],
        "wide": [run.span_id] * most,
        # Of a circle that no root leads to, nothing is shown.
        "circle": ["2".zfill(16), "0".zfill(16), "1".zfill(16)],
        "own": [f"{number:016x}" for number in range(3)],
        "repeated": [run.span_id] * 3,
    }[shape]
    names = [0] * 3 if shape == "repeated" else range(len(parents))
    steps = [
        replace(run, kind="call", name=str(place), outcome="ok", span_id=f"{name:016x}", parent_id=parent)
        for place, (name, parent) in enumerate(zip(names, parents, strict=True))
    ]
    return [run, *steps], {"deep": most, "wide": most, "circle": 0, "own": 0, "repeated": 1}[shape]


@each_case("shape", ["deep", "wide", "circle", "own", "repeated"])
def test_a_tree_of_any_shape_shows_each_span_once(shape: str) -> None:
    records, shown = spans(shape)
    (run,) = by_run(records).values()
    assert len(list(islice(rendering.tree_lines(run), 2 + shown))) == 1 + shown
    assert "</html>" in rendering.render_page([run])


def test_the_work_for_a_tree_grows_with_its_spans_only() -> None:
    """The last record is looked for once, and not for each span."""
    records, _ = spans("wide")
    (run,) = by_run(records).values()
    looked = 0

    class Counted(list[TraceRecord]):
        def __iter__(self) -> Iterator[TraceRecord]:
            nonlocal looked
            looked += 1
            return super().__iter__()

    run.records = Counted(run.records)
    list(rendering.tree_lines(run))
    rendering.render_page([run])
    assert looked < 100


@each_case("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_of_any_encoding_shows_a_tree(encoding: str, tmp_path: Path) -> None:
    odd = record(1)
    odd.key = "s\u20ac\ud800"
    write = replace(odd, kind="call", span_id="0" * 16, parent_id=odd.span_id, outcome="ok")
    (tmp_path / "a.trace.jsonl").write_bytes(odd.to_bytes() + b"\n" + write.to_bytes() + b"\n")
    for command in (["trace", odd.run_id], ["runs"], ["runs", "--json"]):
        result = CliRunner(charset=encoding).invoke(app, [*command, "--path", str(tmp_path)])
        assert result.exit_code == 0, result.exception


@each_case("place", ["none/a.html", "."])
def test_a_page_that_cannot_be_written_is_an_error(place: str, tmp_path: Path) -> None:
    (tmp_path / "a.trace.jsonl").write_bytes(FULL + b"\n")
    page = ["--html", str(tmp_path / place), "--path", str(tmp_path)]
    result = CliRunner().invoke(app, ["trace", record(8).run_id, *page])
    assert result.exit_code == 2 and "--html" in result.output and "cannot be written" in result.output


def test_runs_are_followed_through_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, rounds = tmp_path / "a.trace.jsonl", iter(range(6))

    def turn(seconds: float) -> None:
        number = next(rounds)
        if number in (0, 1, 3):
            file.unlink(missing_ok=True)
        elif number in (2, 4):
            file.write_bytes(record(number).to_bytes() + b"\n")
        else:
            raise KeyboardInterrupt

    file.write_bytes(record(9).to_bytes() + b"\n")
    monkeypatch.setattr("time.sleep", turn)
    result = CliRunner().invoke(app, ["runs", "--follow", "--json", "--path", str(tmp_path)])
    assert [json.loads(line)["sequence"] for line in result.stdout.splitlines()] == [9, 2, 4]
    # Once for each outage.
    assert result.stderr.count("there is no trace") == 2 and result.exit_code == 130
