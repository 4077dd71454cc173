"""Every command with ``--json``: values for programs, and units in the names of numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flink_agents import ApprovalRequest
from flink_agents.cli.kafka import approvals
from flink_agents.cli.main import app
from flink_agents.cli.runs import metrics
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case
from tests.trace.clusters import cluster
from tests.trace.test_trace_records import PLAIN, paying

pytestmark = pytest.mark.own_conditions

FOR_PEOPLE = re.compile(
    r"[\d.,]+ ?(us|ms|s|min|h|d|days?|bytes|[KMGT]i?B|%|USD)"  # 2.8 s
    r"|\d{4}-\d\d-\d\d[ T]\d\d:\d\d.*"  # 2026-11-29 18:05:37.726Z
)
"""Texts of durations, sizes, shares and times."""

TIMED = ("begun", "began", "ended", "since", "expires", "deadline", "took", "queued", "suspended", "wait")
"""Words of names of times and durations, whose numbers need a unit."""

COUNTS = {"in_flight", "queued", "suspended"}
"""The columns of ``top`` that count runs."""

ELSEWHERE = {
    "kafka start",
    "kafka read",
    "kafka topic list",
    "kafka topic describe",
    "cluster start",
    "stop",
    "cancel",
}
"""Commands that need a broker or a cluster, and print names and numbers of things, without times."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the trace and the journal of a job with a run of each kind."""
    directory = tmp_path_factory.mktemp("job")
    options = {"trace.level": "calls", "trace.directory": str(directory / "trace")}
    store = SQLiteStore(directory / "journal.db")
    with OperatorHarness(
        paying(), lambda value: value, config=options, store=lambda: store, **PLAIN
    ) as harness:
        harness.push_all([1, -1, "wait", "letter"])
    return directory


REQUEST = ApprovalRequest("s7|0|pay||0|x", "shop", "pay", "7", "refund", {"order": 7}, 1_000, 61_000)


class Desk:
    foreign = ()

    def pending(self) -> list[ApprovalRequest]:
        return [REQUEST]


def printed(place: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the JSON values that a command prints."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(metrics, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(approvals, "_open_desk", lambda *arguments, **options: Desk())
    answers = {"/jobs/overview": {"jobs": [{"jid": "j", "name": "orders", "state": "RUNNING"}]}}
    answers |= {
        "/jobs/j": {"vertices": [{"id": "v", "name": "agent paying"}]},
        "/jobs/j/vertices/v/subtasks/metrics": [
            {"id": "a.flink_agents.paying.runtime.waits_oldest_ms", "sum": 3_600_000, "max": 3_600_000}
        ],
    }
    with cluster(bytes, answers) as address:
        words = [word.replace("CLUSTER", address) for word in command.split()]
        result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code in (0, 1) and result.stdout, result.output
    try:
        return [json.loads(result.stdout)]
    except ValueError:
        return [json.loads(line) for line in result.stdout.splitlines()]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each plain value with its name."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part, name)
    else:
        yield name, value


STORE = "--store sqlite --path journal.db"
COMMANDS = {
    "runs": "runs --path trace",
    "top": "top --once --interval 0.2 --path trace --cluster CLUSTER",
    "journal list": f"journal list {STORE}",
    "journal show": f"journal show 1 {STORE}",
    "journal prune": f"journal prune nobody --through 0 {STORE}",
    "journal reset": f"journal reset nobody {STORE}",
    "journal copy": f"journal copy --to sqlite --to-option path=copy.db {STORE}",
    "journal stats": f"journal stats {STORE}",
    "approvals list": "approvals list --topic requests",
    "doctor": "doctor",
    "cluster status": "cluster status",
    "kafka status": "kafka status",
    "plan show": "plan show tests.trace.test_trace_records:paying",
}


@each_case("command", [name for name in COMMANDS if name != "plan show"])
def test_numbers_have_units_in_their_names(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in leaves(printed(place, COMMANDS[command], monkeypatch)):
        if isinstance(value, str):
            assert not FOR_PEOPLE.fullmatch(value), (name, value)
        elif isinstance(value, int | float) and any(word in name.split("_") for word in TIMED):
            assert name in COUNTS or name.endswith(("_ms", "_seconds")), name


def with_json() -> set[str]:
    """Return the names of all commands with the option ``--json``."""
    names: set[str] = set()
    ahead: list[tuple[str, Any]] = [("", typer.main.get_command(app))]
    while ahead:
        name, command = ahead.pop()
        if any("--json" in parameter.opts for parameter in command.params):
            names.add(name.strip())
        ahead += [(f"{name} {key}", part) for key, part in getattr(command, "commands", {}).items()]
    return names


def test_no_command_is_missing() -> None:
    assert with_json() == COMMANDS.keys() | ELSEWHERE


def test_a_run_as_an_object(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {run["key"]: run for run in printed(place, COMMANDS["runs"], monkeypatch)}
    wait = runs["wait"]
    failed = runs["-1"]
    assert wait["status"] == "suspended" and wait["suspended_seconds"] > 0 and wait["error"] is None
    [awaited] = wait["waits"]
    assert (awaited["kind"], awaited["name"]) == ("signal", "paid")
    assert isinstance(awaited["deadline_at_ms"], int) and wait["begun_at_ms"] > 1_600_000_000_000
    assert wait["since_at_ms"] >= wait["begun_at_ms"]
    assert failed["error"]["error"] == "ValueError" and failed["error"]["message"] == "a negative amount"
    assert failed["waits"] == [] and failed["since_at_ms"] is None


def test_a_request_as_an_object(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [[request]] = printed(place, COMMANDS["approvals list"], monkeypatch)
    assert (request["began_at_ms"], request["expires_at_ms"]) == (1_000, 61_000)
    assert "began_at" not in request and request["arguments"] == {"order": 7}
