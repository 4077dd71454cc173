"""``runs``, ``trace`` and ``why`` from a cluster's logs, and what is erased of trace files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flink_agents.api.errors import ClusterUnavailableError
from flink_agents.api.events.key_requests import REPLY_MARK, WATCH_MARK
from flink_agents.cli.main import app
from flink_agents.cli.runs import metrics as metrics_module, top as top_module
from flink_agents.cli.runs.metrics import AgentMetrics, read_metrics
from flink_agents.cli.runs.requests import NO_ANSWER, report_answers
from flink_agents.cli.runs.top import COLUMNS
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.testing import OperatorHarness
from flink_agents.trace.answers import describe_answer, describe_watched
from flink_agents.trace.erasing import erase_files
from flink_agents.trace.log_lines import read_marked
from flink_agents.trace.reading import read_files
from flink_agents.trace.sinks.log import MARK
from flink_agents.ui.key_requests import last_answers, log_reader
from tests.suite.tables import each_case
from tests.trace.clusters import cluster
from tests.trace.test_trace_records import PLAIN, paying

pytestmark = pytest.mark.own_conditions


def run_command(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a job with a run of each kind; the key of each run is its input."""
    directory = tmp_path_factory.mktemp("trace")
    options = {"trace.level": "calls", "trace.directory": str(directory)}
    with OperatorHarness(paying(), lambda value: value, config=options, **PLAIN) as harness:
        harness.push_all([1, -1, "wait", "letter"])
    return directory


def log_of(place: Path) -> bytes:
    """The same records as a TaskManager logs them, among other lines."""
    lines = [f"2026-01-01 10:00:00 INFO records {MARK}{record.to_json()}" for record in read_files(place)]
    return "\n".join(["starting", f"{MARK}{{cut", *lines, f"{MARK}7", "end"]).encode()


def test_runs_and_trace_read_the_logs_of_a_cluster(place: Path) -> None:
    with cluster(lambda: log_of(place)) as address:
        listed = run_command("runs", "--json", "--cluster", address)
        assert {json.loads(line)["key"] for line in listed.stdout.splitlines()} == {
            "1",
            "-1",
            "wait",
            "letter",
        }
        tree = run_command("trace", "--key", "1", "--cluster", address)
        assert "action pay  ok" in tree.output
        assert run_command("why", "letter", "--cluster", address).exit_code == 0
    assert run_command("runs", "--cluster", "localhost:1").exit_code == 2


WATCHED = {
    "agent": "a",
    "key": "sslow",
    "sequence": 4,
    "seconds": 61.0,
    "time": 1.0,
    "for": "the durable call charge",
    "action": "pay",
    "where": "jobs.py:7",
}


@each_case(
    "line, words",
    [
        (
            WATCHED,
            ["had run for 1.0 min", "in action pay at jobs.py:7", "waited for the durable call charge"],
        ),
        ({**WATCHED, "ended": True}, ["ended after 1.0 min"]),
        ({"key": "sslow"}, ["an unknown time"]),
    ],
)
def test_why_reads_the_watchdog_if_there_is_no_trace(line: dict[str, Any], words: list[str]) -> None:
    log = f"WARN {WATCH_MARK}{json.dumps(line)}\n".encode()
    job = {"jid": "j", "name": "orders", "state": "RUNNING"}
    answers = {
        "/jobs/overview": {"jobs": [job, {**job, "state": "FINISHED"}]},
        "/jobs/j": {"vertices": [{"id": "v", "name": "agent a"}]},
        "/jobs/j/checkpoints": {"counts": {"failed": 2}},
        "/jobs/j/exceptions": {},
        "/jobs/j/vertices/v/backpressure": {"backpressureLevel": "high"},
    }
    with cluster(lambda: log, answers) as address:
        result = run_command("why", "slow", "--cluster", address)
        assert result.exit_code == 0
        assert [
            word for word in [*words, "2 checkpoint(s)", "high backpressure"] if word not in result.output
        ] == []
        other_result = run_command("why", "nobody", "--cluster", address)
        assert other_result.exit_code == 1 and "That proves nothing" in other_result.output
        # A checkpoint that failed long ago explains nothing.
        answers["/jobs/j/checkpoints"]["latest"] = {"failed": {"id": 3}, "completed": {"id": 4}}
        assert "checkpoint" not in run_command("why", "slow", "--cluster", address).output
        answers["/jobs/j/checkpoints"]["latest"] = {"failed": {"id": 5}, "completed": {"id": 4}}
        assert "the last one among them" in run_command("why", "slow", "--cluster", address).output
    assert all(word in describe_watched(line) for word in words)


RUN = {"sequence": 3, "run": "r3", "phase": "call", "for": "the durable call charge", "seconds": 9.0}
OWN = {**RUN, "for": "", "phase": "running", "action": "a", "where": "x.py:1"}
PAID = {"name": "paid", "deadline": 1000, "id": "w"}
HELD = {"run": "r1", "sequence": 1, "begun": 0, "waits": [PAID]}
IDLE = {"run": "r1", "sequence": 1, "waits": [{"kind": "idle", **PAID, "name": None}]}
ASLEEP = {"run": "r1", "sequence": 1, "waits": [{**PAID, "name": None}]}


@each_case(
    "answer, words",
    [
        ({"known": False, "agent": "a"}, ["nothing of this key"]),
        ({"run": RUN, "inputs": 3}, ["Run r3 (sequence 3) waits for the durable call charge", "2 input(s)"]),
        (
            {"run": {**RUN, "for": "", "phase": "running", "action": "a", "where": "x.py:1"}},
            ["is running", "x.py:1"],
        ),
        ({"run": {**RUN, "attempt": 3, "error": "TimeoutError"}}, ["attempt 3", "TimeoutError"]),
        (
            {"suspended": [{**HELD, "blocks": True}], "inputs": 5},
            ["'paid'", "4 input"],
        ),
        (
            {"suspended": [ASLEEP]},
            ["the timer at 1970"],
        ),
        ({"suspended": [HELD], "inputs": 5}, ["r1", "'paid'", "5 input"]),
        ({"suspended": [IDLE]}, ["the idle, at most until 1970"]),
        ({"replays": "recorded runs"}, ["replayed after a restart: recorded runs"]),
        ({"without_input": [4, 5]}, ["inputs have not come again: sequence 4, 5"]),
        ({"signals": {"go": 2}, "delayed": {"events": 1, "due": 0}}, ["'go' (2)", "1 delayed event"]),
        (
            {"sequence": 4, "memory": {"seen": 9}},
            ["Nothing of the key is unfinished. 4", "seen (9 bytes)"],
        ),
        ({"memory": "40, left out", "suspended": "9, left out"}, []),
    ],
)
def test_an_answer_is_told_in_words(answer: dict[str, Any], words: list[str]) -> None:
    text = "\n".join(describe_answer(answer))
    assert [word for word in words if word not in text] == []


@each_case("is_open", [False, True])
def test_an_erased_key_is_in_no_trace_file(is_open: bool, place: Path, tmp_path: Path) -> None:
    copy = tmp_path / str(is_open)
    copy.mkdir()
    for file in place.iterdir():
        shutil.copy(file, copy)
    keys = {record.key for record in read_files(copy)}
    key = next(trace_key for trace_key in keys if "letter" in trace_key)
    (file,) = copy.iterdir()
    with file.open("ab") as writer:
        done = erase_files(copy, {key}, 1.0 if is_open else 0.0)
        assert done.records > 0 and done.held == is_open
        if is_open:
            # The job that has it open goes on where it was.
            writer.write(next(read_files(place)).to_json().encode() + b"\n")
    assert {record.key for record in read_files(copy)} == keys - {key}
    assert json.dumps(key).encode() not in file.read_bytes()
    assert os.stat(file).st_mode & 0o077 == 0 or is_open
    assert erase_files(copy, {key}).records == 0


def test_lines_of_a_log_are_found_wherever_they_stand() -> None:
    log = b'x mark {"a":1}\nmark {"b":2} mark {"c":3}\nmark [1]\nmark {"d":'
    assert list(read_marked(log, "mark ")) == [{"a": 1}]


def check_json(found: dict[str, Any]) -> None:
    (agent,) = found["agents"]
    expected = {
        "agent": "paying",
        "job": "orders",
        "state": "RUNNING",
        "in_flight": 3.0,
        "suspended": 2.0,
        "oldest_wait_seconds": 3600.0,
        "action_p50_seconds": 0.0015,
        "action_p99_seconds": 0.25,
        "commit_p99_seconds": None,
        "journal_seconds": 0.0009,
        "events_per_second": 0.0,
        "blocked_share": 0.0,
        "stuck": 1.0,
        "dead_letters": None,
    }
    assert agent | expected == agent and found["problem"] is None
    # A field for each column; the job has three, and a column with two figures two.
    assert len(agent) == len(COLUMNS) + 3 and agent["job_id"] == "j"
    assert {run["status"] for run in found["runs"]} <= {"running", "waiting", "suspended", "failed"}
    assert any("paid" in run["for"] for run in found["runs"])


def test_top_shows_agents_and_unfinished_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "IDLE_SECONDS", 0.5)
    prefix = "agent_pay.flink_agents.paying"
    metrics = {
        "runtime.events": 500,
        "runtime.runs_in_flight": 3,
        "runtime.waits_suspended": 2,
        "runtime.waits_oldest_ms": 3_600_000,
        "runtime.action.pay.latency_us_p50": 1500,
        "runtime.action.pay.latency_us_p99": 250_000,
        "runtime.store_append_micros": 900,
        "runtime.backpressure_ms": 10,
        "chat.claude.input_tokens": 10,
        "chat.claude.cost_micro_usd": 10,
        "runtime.runs_stuck": 1,
    }
    listed = [{"id": f"{prefix}.{name}", "sum": value, "max": value} for name, value in metrics.items()]
    job = {"jid": "j", "name": "orders", "state": "RUNNING"}
    answers = {
        "/jobs/overview": {"jobs": [job]},
        "/jobs/j": {"vertices": [{"id": "v", "name": "agent paying"}]},
        "/jobs/j/vertices/v/subtasks/metrics": [*listed, {"id": "numRecordsIn", "sum": 1, "max": 1}],
    }
    with cluster(bytes, answers) as address:
        options = ("--once", "--interval", "0.2", "--cluster", address, "--path", str(place))
        shown = run_command("top", *options)
        machine = run_command("top", "--json", *options)
    assert shown.exit_code == machine.exit_code == 0, shown.output + machine.output
    check_json(json.loads(machine.stdout))
    for word in (
        "paying",
        "orders",
        "1.0 h",
        "1.5 ms / 250.0 ms",
        "0.9 ms",
        "suspended",
        "the signal 'paid'",
    ):
        assert word in shown.output, f"{word} is not in {shown.output}"


def test_top_reads_the_configured_trace_and_waits_for_metrics(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLINK_AGENTS_TRACE_DIRECTORY", str(place))
    monkeypatch.setattr(top_module, "ONCE_SECONDS", 0.05)
    monkeypatch.setattr(metrics_module, "IDLE_SECONDS", 0.3)
    readings: list[list[AgentMetrics]] = [[], []]

    def read(_: object) -> list[AgentMetrics]:
        return readings.pop() if readings else [AgentMetrics("j", "RUNNING", "paying", 1.0, {})]

    monkeypatch.setattr(metrics_module, "read_metrics", read)
    job = {"jid": "j", "name": "orders", "state": "RUNNING"}
    answers = {"/jobs/overview": {"jobs": [job]}, "/jobs/j": {"vertices": []}}
    with cluster(bytes, answers) as address:
        monkeypatch.setattr(top_module, "DEFAULT_CLUSTER", address)
        shown = run_command("top", "--once")
    assert "paying" in shown.output and "unfinished runs" in shown.output


STACK = """org.apache.flink.runtime.JobException: Recovery is suppressed
Caused by: pemja.core.PythonException: <class 'StoreError'>: no space left
StoreError: no space left on the disk
\tat pemja.core.PythonInterpreter
"""


@pytest.mark.parametrize("state", ["RESTARTING", "FAILED"])
def test_a_job_that_does_not_run_is_shown_with_its_last_failure(state: str) -> None:
    answers = {
        "/jobs/overview": {"jobs": [{"jid": "j", "name": "orders", "state": state}]},
        "/jobs/j": {"vertices": [{"id": "v", "name": "agent paying"}]},
        "/jobs/j/vertices/v/subtasks/metrics": [],
        "/jobs/j/checkpoints": {},
        "/jobs/j/exceptions": {"exceptionHistory": {"entries": [{"timestamp": 1000, "stacktrace": STACK}]}},
    }
    with cluster(bytes, answers) as address:
        options = ("--cluster", address)
        results = [
            run_command(*command, *options)
            for command in (("top",), ("top", "--json", "--once"), ("why", "k"))
        ]
    for result in results:
        assert f"The job orders is {state}." in result.stdout, result.output
        assert "Its last failure: StoreError: no space left on the disk" in result.stdout, result.output


def test_rates_begin_anew_after_a_restart() -> None:
    previous_metrics = AgentMetrics(
        "j", "RUNNING", "a", 10.0, {"runtime.events": 500.0, "chat.x.input_tokens": 5.0}
    )
    after = AgentMetrics("j", "RUNNING", "a", 12.0, {"runtime.events": 700.0, "chat.x.input_tokens": 3.0})
    assert after.per_second("runtime.events", previous_metrics) == 100.0
    assert after.total_per_second(".input_tokens", previous_metrics) == 0.0
    assert after.per_second("runtime.events", None) is None
    assert after.total_per_second(".output_tokens", previous_metrics) is None


NOTHING = {"agent": "other", "outcome": "rejected", "known": False, "reason": "nothing"}
OWN_RUN = {"agent": "own", "key": "k"}


@each_case(
    "answers, code, words",
    [
        ([NOTHING, {**OWN_RUN, "outcome": "ended"}], 0, "own, key k: ended"),
        ([{**OWN_RUN, "outcome": "ended"}, NOTHING], 0, "own, key k: ended"),
        ([NOTHING, {**OWN_RUN, "outcome": "accepted"}], NO_ANSWER, "own, key k: accepted"),
        (
            [NOTHING, {**OWN_RUN, "outcome": "rejected", "reason": "it has ended"}],
            1,
            "rejected: it has ended",
        ),
        ([NOTHING], 1, "rejected: nothing"),
        ([], NO_ANSWER, "has not answered within 3 s"),
    ],
)
def test_the_answer_that_counts_is_that_of_the_agent_with_the_run(
    answers: list[dict[str, Any]], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        report_answers(answers, 3.0, ("ended",))
        exit_code = 0
    except typer.Exit as ended:
        exit_code = ended.exit_code
    printed = capsys.readouterr()
    assert exit_code == code and words in printed.out + printed.err


def test_each_agent_has_its_last_answer() -> None:
    lines = [
        {"agent": "a", "request": "r", "outcome": "accepted", "time": 1},
        {"agent": "b", "request": "r", "outcome": "rejected", "time": 2},
        {"agent": "a", "request": "other", "outcome": "rejected", "time": 4},
        {"agent": "a", "request": "r", "outcome": "ended", "time": 3},
    ]
    log = "\n".join(f"INFO {REPLY_MARK}{json.dumps(line)}" for line in lines).encode()
    with cluster(lambda: log) as address:
        answers = last_answers(log_reader(ClusterRest(address))(), "r")
    assert {answer["agent"]: answer["outcome"] for answer in answers} == {"a": "ended", "b": "rejected"}


@pytest.mark.nightly
def test_a_source_that_is_away_keeps_no_other_from_an_answer(place: Path) -> None:
    source_options = ["--cluster", "localhost:1", "--dead-letters", "letters", "--requests", "asked"]
    result = run_command("why", "letter", "--path", str(place), *source_options, "--client", "localhost:1")
    assert result.exit_code == 2 and "dead-lettered" in result.stdout
    # Once each, with what to do.
    assert (
        result.stderr.count("ClusterUnavailableError") == 1 and result.stderr.count("KafkaStreamError") == 1
    )


@pytest.mark.nightly
@each_case(
    "answer",
    [
        *(b"", b"null", b"[]", b"7", b"<html>", b'{"jobs": [{"jid"', b"\xff", b"[" * 100_000),
        *(b"{}", b'{"jobs": 7}', b'{"jobs": [7]}', b'{"jobs": [{}]}', b'{"jobs": {"a": 1}}'),
        b'{"jobs": [{"jid": 1, "name": null, "state": "RUNNING"}]}',
    ],
)
@each_case("command", [["top", "--once"], ["why", "k"], ["cancel", "orders"], ["doctor"]])
def test_an_answer_that_is_not_of_flink_is_an_error(command: list[str], answer: bytes) -> None:
    """It comes from a proxy, a login page, or a service of something else."""
    with cluster(lambda: b"", {"/jobs/overview": answer}) as address:
        result = run_command(*command, "--cluster", address)
    # doctor has found the cluster unable to run jobs before.
    assert result.exit_code == (1 if command == ["doctor"] else 2)
    assert command == ["doctor"] or "ClusterUnavailableError" in result.output


@each_case(
    "metrics, known",
    [
        (b'[{"id": "NAME", "sum": NaN, "max": "Infinity"}]', {}),
        (b'[{"id": "NAME", "sum": 1' + 400 * b"0" + b', "max": -1e999}]', {}),
        (b'[{"id": "NAME"}, {"id": "other", "sum": []}]', {"runtime.events": 0.0}),
        (b'[{"id": "NAME", "sum": "7.5", "max": null}]', {"runtime.events": 7.5}),
        (b"[{}]", None),
        (b'[{"id": 7}]', None),
        (b'{"id": 7}', None),
    ],
)
def test_any_value_of_a_metric_is_a_number_or_unknown(metrics: bytes, known: dict[str, float] | None) -> None:
    name = b"0.flink_agents.paying.runtime.events"
    answers: dict[str, Any] = {
        "/jobs/overview": {"jobs": [{"jid": "1", "name": "orders", "state": "RUNNING"}]},
        "/jobs/1": {"vertices": [{"id": "v", "name": "agent paying"}]},
        "/jobs/1/vertices/v/subtasks/metrics": metrics.replace(b"NAME", name),
    }
    with cluster(lambda: b"", answers) as address:
        if known is None:
            with pytest.raises(ClusterUnavailableError):
                list(read_metrics(ClusterRest(address)))
        else:
            assert [agent.sums for agent in read_metrics(ClusterRest(address))] == [known]


def test_a_job_that_ends_while_it_is_read_hides_no_other() -> None:
    jobs = [{"jid": jid, "name": "orders", "state": "RUNNING"} for jid in ("gone", "1")]
    answers: dict[str, Any] = {
        "/jobs/overview": {"jobs": jobs},
        "/jobs/1": {"vertices": [{"id": "v", "name": "agent paying"}]},
        "/jobs/1/vertices/v/subtasks/metrics": [{"id": "0.flink_agents.paying.runtime.events", "sum": 1}],
    }
    with cluster(lambda: b"", answers) as address:
        assert [agent_metrics.job_id for agent_metrics in read_metrics(ClusterRest(address))] == ["1"]
