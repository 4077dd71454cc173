"""``flink-agents runs``, ``trace`` and ``why`` on records of a harness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.cli.main import app
from flink_agents.testing import OperatorHarness
from flink_agents.trace.reading import by_run, read_files
from flink_agents.trace.records import TraceRecord
from tests.suite.tables import each_case
from tests.trace.test_trace_records import PLAIN, paying

pytestmark = pytest.mark.own_conditions


@pytest.fixture(scope="module", params=[None, "1 h"], ids=["numbers from 0", "numbers of generations"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a job with a run of each kind; the key of each run is its input."""
    directory = tmp_path_factory.mktemp("trace")
    options = {"trace.level": "calls", "trace.directory": str(directory)}
    if request.param is not None:
        options["state.idle-key-ttl"] = request.param
    with OperatorHarness(paying(), lambda value: value, config=options, **PLAIN) as harness:
        harness.push_all([1, -1, "wait", "letter"])
    return directory


def run_command(place: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "--path", str(place)])


@each_case(
    "arguments, keys",
    [
        ([], {"1", "-1", "wait", "letter"}),
        (["--status", "completed"], {"1"}),
        (["--status", "dead-lettered"], {"-1", "letter"}),
        (["--status", "suspended"], {"wait"}),
        (["--key", "1"], {"1"}),
        (["--key", "wait", "--slow"], {"wait"}),
        (["--agent", "paying", "--since", "1 h", "--status", "suspended"], {"wait"}),
        (["--agent", "others"], set()),
        (["--status", "failed"], set()),
    ],
)
def test_runs_are_selected(arguments: list[str], keys: set[str], place: Path) -> None:
    result = run_command(place, "runs", "--json", *arguments)
    shown = [json.loads(line)["key"] for line in result.stdout.splitlines()]
    assert set(shown) == keys
    assert result.exit_code == (0 if keys else 1)


def test_old_runs_that_have_not_ended_are_listed_whatever_the_limit(place: Path) -> None:
    result = run_command(place, "runs", "--limit", "1")
    # The runs of -1 and 1 have ended before the suspended one began.
    assert [line.split()[2] for line in result.stdout.splitlines()[1:]] == ["wait", "letter"]
    assert "2 more run(s): use --limit 4" in result.stderr


@each_case(
    "arguments, said",
    [
        (
            ["--status", "waiting"],
            "no run is waiting; runs of the trace: 1 suspended, 2 dead-lettered, 1 completed",
        ),
        (["--key", "nobody"], "no run is as asked for; runs of the trace: none"),
    ],
)
def test_an_empty_list_says_so(arguments: list[str], said: str, place: Path) -> None:
    result = run_command(place, "runs", *arguments)
    assert result.exit_code == 1 and result.stdout == "" and said in result.stderr


def test_errors_are_listed_with_the_users_line(place: Path) -> None:
    line = next(
        output_line
        for output_line in run_command(place, "runs").stdout.splitlines()
        if "ValueError" in output_line
    )
    assert "ValueError: a negative amount at " in line and "test_trace_records.py:" in line


def test_a_run_is_a_tree(place: Path) -> None:
    result = run_command(place, "trace", "--key", "1")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "completed" in lines[0] and "action pay  ok" in lines[1] and "charge  ok" in lines[2]
    run = lines[0].split()[1]
    assert run_command(place, "trace", run[:10]).stdout == result.stdout


def test_an_unknown_run_is_an_error(place: Path, tmp_path: Path) -> None:
    result = run_command(place, "trace", "zzz")
    assert result.exit_code == 2 and "flink-agents runs" in result.output
    assert run_command(tmp_path, "runs").exit_code == 2


@each_case(
    "key, words",
    [
        ("1", ["Nothing of the key is unfinished", "completed"]),
        ("-1", ["dead-lettered", "ValueError: a negative amount", "test_trace_records.py"]),
        ("wait", ["suspended since", "the signal 'paid'", "at most until"]),
        ("letter", ["RuntimeError: no such order"]),
        ("nobody", ["no run of the key nobody"]),
    ],
)
def test_why_answers_in_words(key: str, words: list[str], place: Path) -> None:
    output = CliRunner().invoke(app, ["why", "--path", str(place), "--", key]).output
    assert [word for word in words if word not in output] == []


def test_why_names_an_attempt_that_failed_and_what_is_behind_it(tmp_path: Path) -> None:
    def record(number: int, kind: str, outcome: str, **attributes: Any) -> str:
        span = f"{number}{kind}{outcome}"
        run = f"run{number}"
        parent = None if kind == "run" else "p"
        args = ("j", "paying", 0, 2, "k", number, run, span, parent, 10.0 + number, 1.0, False, attributes)
        return TraceRecord(kind, "charge", outcome, *args).to_json()

    lines = [
        record(1, "run", "started"),
        record(1, "call", "failed", error="OSError", message="gone", where="job.py:7"),
        record(2, "run", "started"),
        record(3, "run", "failed", error={"error": "OSError", "message": "gone"}),
    ]
    (tmp_path / "a.trace.jsonl").write_text("\n".join(lines) + '\n{"version":1,"ki')
    output = run_command(tmp_path, "why", "k").output
    for words in (
        "Run run1",
        "has not ended",
        "Durable call charge failed 1 time",
        "OSError: gone at job.py:7",
        "2 further",
    ):
        assert words in output


def run_record(number: int, outcome: str, **attributes: Any) -> TraceRecord:
    args = ("j", "paying", 0, 0, "k", number, f"run{number}", f"span{number}", None, 10.0 + number, 1.0)
    return TraceRecord("run", "paying", outcome, *args, False, attributes)


LONG_ERROR = {"error": "CardError", "message": "no funds\nexpected: 5\n  found: 3", "where": "job.py:7"}


@each_case(
    ("outcomes", "further"),
    [
        (["dead-lettered"], []),
        (["failed"], []),
        (["completed", "dead-lettered"], []),
        (["dead-lettered", "completed"], ["1 of its 2 recorded runs became dead letters"]),
        (["dead-lettered", "dead-lettered"], ["2 of its 2 recorded runs became dead letters."]),
        (["dead-lettered", "suspended"], ["is suspended since", "1 of its 2 recorded runs"]),
    ],
)
def test_why_shows_an_error_once_and_each_of_its_lines(
    outcomes: list[str], further: list[str], tmp_path: Path
) -> None:
    for file in tmp_path.iterdir():
        file.unlink()
    records = [
        run_record(
            number, outcome, **({"error": LONG_ERROR} if outcome in ("failed", "dead-lettered") else {})
        )
        for number, outcome in enumerate(outcomes, 1)
    ]
    text = "".join(f"{record.to_json()}\n" for record in records)
    (tmp_path / "a.trace.jsonl").write_text(text)
    output = run_command(tmp_path, "why", "k").output
    lines = output.splitlines()
    assert output.count("no funds") == 1 and "\\x0a" not in output
    first = lines.index("The error was CardError: no funds at job.py:7.")
    assert lines[first + 1 : first + 3] == ["  expected: 5", "  found: 3"]
    assert [words for words in further if words not in output] == []


def test_the_page_escapes_what_inputs_hold(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\"'&\x1b[31m"
    options = {"trace.level": "content", "trace.directory": str(tmp_path)}
    with OperatorHarness(paying(), lambda value: hostile, config=options, **PLAIN) as harness:
        harness.push_all([1, "letter"])
    page = tmp_path / "page.html"
    assert run_command(tmp_path, "trace", "--key", hostile, "--html", str(page)).exit_code == 0
    text = page.read_text("utf-8")
    assert "<script" not in text and "&lt;script&gt;" in text and "\x1b" not in text
    assert "\x1b" not in run_command(tmp_path, "trace", "--key", hostile).output


def test_repeated_records_count_once(place: Path) -> None:
    records = list(read_files(place))
    twice = by_run([*records, *records])
    assert {name: run.records for name, run in twice.items()} == {
        name: run.records for name, run in by_run(records).items()
    }


@each_case("times", [1, 2])
def test_inputs_behind_a_suspended_run_are_counted(times: int, tmp_path: Path) -> None:
    """Once each, however often the run is suspended; their waits count as time in the queue."""
    place = tmp_path / f"{times}"
    options = {"trace.level": "runs", "trace.directory": str(place)}
    with OperatorHarness(asking(times), lambda value: "k", config=options, **PLAIN) as harness:
        harness.push_all(["wait", "one", "two"])
        for number in range(1, times):
            harness.signal("k", "paid")
            harness.push(f"later {number}")
        observers: list[Any] = harness.observers
        for observer in observers:
            observer.writer.flush()
        behind = 1 + times
        assert f"{behind} input(s) of the key wait behind it." in run_command(place, "why", "k").output
        waiting = [record for record in read_files(place) if record.outcome == "waiting"]
        assert sorted(record.sequence_number for record in waiting) == list(range(1, behind + 1))
        harness.signal("k", "paid")
    runs = list(by_run(read_files(place)).values())
    assert [run.status for run in runs] == ["completed"] * (1 + behind)
    for run in runs[1:]:
        assert run.spent().queued > 0 and run.spent().total == pytest.approx(run.seconds)


def asking(times: int) -> Agent:
    async def pay(event: Any, ctx: Any) -> OutputEvent:
        for _ in range(times if event.input == "wait" else 0):
            await ctx.wait_for_signal("paid")
        return OutputEvent(output=event.input)

    return Agent(name="asking").add_action("pay", [InputEvent], pay)
