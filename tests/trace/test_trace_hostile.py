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
from tests.suite.tables import each
from tests.trace.hour import Phase, Run, turn
from tests.trace.test_trace_lasting import Keeping, Traced, hooks
from tests.trace.test_trace_sinks import record, wait_until

pytestmark = pytest.mark.own_conditions

BAD = "bad \ud800"


@each(
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
    assert sum(len(scope.spans) for one in sent for scope in one.scope_spans) == len(spans)
    # An attribute that cannot be encoded would be logged, with the whole trace.
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


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
    assert [json.loads(one)["sequence_number"] for one in sent] == [1, 3]


@each("source", ["look", "collect"])
def test_the_writer_survives_a_look_that_fails(
    source: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flink_agents.trace.writer.LOOK_SECONDS", 0.0)
    kept, failed = Keeping(), threading.Event()
    writer = TraceWriter({"kept": kept})

    def fail() -> None:
        if threading.current_thread().name == "flink-agents-trace" and not failed.is_set():
            failed.set()
            raise RuntimeError("dictionary changed size during iteration")

    setattr(writer, source, fail)
    writer.start()
    assert failed.wait(60)
    writer.put(record)
    wait_until(lambda: len(kept.records) == 1)
    writer.close(60)
    assert writer.dropped == 1
    assert "dictionary changed size" in caplog.text


def test_long_keys_are_not_kept() -> None:
    traced, kept = Traced(), 0
    for number in range(5):
        run = Run(number)
        run.key_text = str(number) * 1_000_000
        for hook in hooks(traced.recorder, run, False):
            hook()
        traced.recorder.collect()
        maker: Any = traced.recorder._lines  # pyright: ignore[reportPrivateUsage]
        assert isinstance(maker, lines.LineMaker)
        kept = sum(len(name) + len(part) for name, part in maker._keys.items())
    assert kept < 10_000
    assert sorted({one.key[:1] for one in traced.close()}) == list("01234")


@pytest.fixture
def no_secrets() -> Iterator[None]:
    yield
    redaction.forget_all()


def test_a_secret_that_becomes_known_in_a_run_is_hidden_in_its_further_records(no_secrets: None) -> None:
    secret, traced, run = "the-pass-of-bob-0815", Traced(), Run(1)
    run.key_text = secret
    turn(traced.recorder, run, Phase.RUNNING, None)
    traced.recorder.action_failed(run, "read", ValueError("no"))
    traced.recorder.action_retried(run, "read", 2)
    assert traced.recorder.writer.flush(60)
    redaction.know(secret)
    traced.recorder.action_failed(run, "read", ValueError("no"))
    turn(traced.recorder, run, Phase.FAILED, Phase.RUNNING)
    assert [one.key for one in traced.close()] == [secret, "***", "***"]


def test_a_run_that_lasts_for_another_reason_has_a_start_at_the_end_of_the_attempt() -> None:
    traced, run = Traced(), Run(1)
    turn(traced.recorder, run, Phase.RUNNING, None)
    traced.recorder.action_failed(run, "read", ValueError("no"))
    found = traced.close()
    assert [(one.kind, one.outcome) for one in found] == [("action", "failed"), ("run", "started")]


@each("most", [50, -1])
@each("on_loop", [True, False])
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
        found = traced.close()
        (run,) = by_run(found).values()
        assert run.status == "completed"
        assert all((one.seconds or 0.0) >= 0 for one in found)
        assert all(one >= 0 for part in found for one in part.attributes.get("phases", {}).values())


@each("key", ["s" + "alice@example.org", 's"al\\ice"@example.org', "sélise@éxample.org"])
@each("is_open", [False, True])
def test_a_line_that_is_cut_anywhere_keeps_no_part_of_an_erased_key(
    key: str, is_open: bool, tmp_path: Path
) -> None:
    other, line = record(1).to_bytes() + b"\n", record(2)
    line.key = key
    folded = json.dumps({"kind": "run", "key": key, "sequence_number": 2}, separators=(",", ":")).encode()
    place = tmp_path / "a.trace.jsonl"
    for whole in (line.to_bytes(), folded):
        begins = whole.index(b'"key"')
        for cut in range(begins, begins + 50):
            place.write_bytes(other + whole[:cut])
            erase_files(tmp_path, {key}, 1.0 if is_open else 0.0)
            left = place.read_bytes().removeprefix(other)
            # Of other keys, the first character can be the same.
            begin = json.dumps(key)[:3].encode()
            assert b'"key"' not in left or begin not in left, cut
            assert [one.sequence_number for one in read_files(tmp_path)] == [1]


NEWER = record(7).to_json().replace('"version":2', '"version":99').encode()
FULL = record(8).to_bytes()


@each(
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
@each("command", [["runs", "--json"], ["trace", "--key", "k1"], ["why", "k1"]])
def test_a_line_that_is_no_record_costs_no_other(
    command: list[str], odd: bytes, left_out: int, tmp_path: Path
) -> None:
    """One torn line is all that a machine leaves that lost its power."""
    first, last = record(1), record(2)
    first.key = last.key = "sk1"
    file = tmp_path / "a.trace.jsonl"
    file.write_bytes(first.to_bytes() + b"\n" + odd + b"\n" + last.to_bytes() + b"\n" + FULL[:50])
    told = CliRunner().invoke(app, [*command, "--path", str(tmp_path)])
    assert told.exit_code == 0 and "Traceback" not in told.output
    assert ("left out 1 part of" in told.stderr and "a.trace.jsonl:2" in told.stderr) == bool(left_out)
    assert "\x1b" not in told.output and len(told.stderr) < 1000
    if command[0] == "runs":
        assert [json.loads(one)["sequence"] for one in told.stdout.splitlines()] == [1, 2]


def test_a_file_that_cannot_be_read_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.trace.jsonl").write_bytes(FULL + b"\n")
    (tmp_path / "b.trace.jsonl").write_bytes(record(1).to_bytes() + b"\n")
    open_ = Path.open

    def opened(path: Path, *arguments: Any) -> Any:
        if path.name.startswith("a"):
            raise PermissionError(13, "Permission denied")
        return open_(path, *arguments)

    monkeypatch.setattr(Path, "open", opened)
    told = CliRunner().invoke(app, ["runs", "--json", "--path", str(tmp_path)])
    assert [json.loads(one)["sequence"] for one in told.stdout.splitlines()] == [1]
    assert "a.trace.jsonl" in told.stderr and "PermissionError" in told.stderr


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


@each("shape", ["deep", "wide", "circle", "own", "repeated"])
def test_a_tree_of_any_shape_shows_each_span_once(shape: str) -> None:
    records, shown = spans(shape)
    (run,) = by_run(records).values()
    assert len(list(islice(rendering.tree(run), 2 + shown))) == 1 + shown
    assert "</html>" in rendering.page([run])


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
    list(rendering.tree(run))
    rendering.page([run])
    assert looked < 100


@each("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_of_any_encoding_shows_a_tree(encoding: str, tmp_path: Path) -> None:
    odd = record(1)
    odd.key = "s\u20ac\ud800"
    write = replace(odd, kind="call", span_id="0" * 16, parent_id=odd.span_id, outcome="ok")
    (tmp_path / "a.trace.jsonl").write_bytes(odd.to_bytes() + b"\n" + write.to_bytes() + b"\n")
    for command in (["trace", odd.run_id], ["runs"], ["runs", "--json"]):
        told = CliRunner(charset=encoding).invoke(app, [*command, "--path", str(tmp_path)])
        assert told.exit_code == 0, told.exception


@each("place", ["none/a.html", "."])
def test_a_page_that_cannot_be_written_is_an_error(place: str, tmp_path: Path) -> None:
    (tmp_path / "a.trace.jsonl").write_bytes(FULL + b"\n")
    page = ["--html", str(tmp_path / place), "--path", str(tmp_path)]
    told = CliRunner().invoke(app, ["trace", record(8).run_id, *page])
    assert told.exit_code == 2 and "--html" in told.output and "cannot be written" in told.output


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
    told = CliRunner().invoke(app, ["runs", "--follow", "--json", "--path", str(tmp_path)])
    assert [json.loads(one)["sequence"] for one in told.stdout.splitlines()] == [9, 2, 4]
    # Once for each outage.
    assert told.stderr.count("there is no trace") == 2 and told.exit_code == 130
