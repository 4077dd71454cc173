"""``stop`` always takes a savepoint; ``cancel`` says what is lost, and does nothing that nobody confirmed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flink_agents.api.errors import ClusterError
from flink_agents.cli import cluster
from flink_agents.cli.main import app

JOB = "0123456789abcdef0123456789abcdef"
PLACE = "file:/data/checkpoints/chk-7"


class Rest:
    """A cluster with one job, as its REST interface tells of it."""

    address = "http://localhost:8081"

    def __init__(self, checkpoints: Any = None, delete: bool = False, savepoint: Any = None) -> None:
        self.checkpoints = checkpoints
        self.delete = delete
        self.savepoint = savepoint
        self.last: Any = None
        """A checkpoint that the job takes while somebody thinks about its cancellation."""
        self.done: list[str] = []

    def get(self, path: str) -> Any:
        if path == "/jobs/overview":
            return {"jobs": [{"jid": JOB, "name": "orders", "state": "RUNNING", "start-time": 1}]}
        if path.endswith("/status"):
            return {"status": "CANCELED"}
        if "/savepoints/" in path:
            return {"status": {"id": "COMPLETED"}, "operation": self.savepoint}
        if self.checkpoints is None:
            raise ClusterError("Flink refused GET", found="404: Checkpointing is not enabled.")
        if path.endswith("/checkpoints/config"):
            return {"externalization": {"enabled": True, "delete_on_cancellation": self.delete}}
        return {"latest": {"completed": self.checkpoints}}

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        self.done.append(f"POST {path.rpartition('/')[2]} {json.dumps(dict(body))}")
        return {"request-id": "r"}

    def patch(self, path: str) -> None:
        self.done.append(f"PATCH {path.rpartition('?')[2]}")
        if self.checkpoints is not None and self.last is not None:
            self.checkpoints = self.last


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def command(rest: Rest, *arguments: str, says: str | None = None, terminal: bool = False) -> Result:
        monkeypatch.setattr(cluster, "_rest_client", lambda *_: rest)
        monkeypatch.setattr(cluster, "is_terminal", lambda: terminal)
        return CliRunner().invoke(app, list(arguments), input=says)

    yield command


CHECKPOINT = {"external_path": PLACE, "latest_ack_timestamp": 1_700_000_000_000}


@pytest.mark.parametrize("flags", [(), ("--savepoint",), ("orders",)])
def test_stop_takes_a_savepoint_and_says_how_to_resume(run: Any, flags: tuple[str, ...]) -> None:
    rest_client = Rest(savepoint={"location": "file:/data/save points/savepoint-1"})
    done = run(rest_client, "stop", *flags)
    assert (done.exit_code, done.stdout) == (0, "file:/data/save points/savepoint-1\n")
    assert (
        "resume it by: flink-agents run SCRIPT --savepoint 'file:/data/save points/savepoint-1'"
        in done.stderr
    )
    assert rest_client.done == ['POST stop {"drain": false}']


def test_stop_without_a_savepoint_ends_nothing(run: Any) -> None:
    rest_client = Rest(savepoint={"failure-cause": {"stack-trace": "java.io.IOException: no directory"}})
    done = run(rest_client, "stop")
    assert done.exit_code == 2
    assert "no directory" in done.stderr
    assert "flink-agents cancel" in done.stderr
    assert [request for request in rest_client.done if request.startswith("PATCH")] == []


LOST = [
    (Rest(), "all of its state"),
    (
        Rest({"external_path": "<checkpoint-not-externally-addressable>", "latest_ack_timestamp": 1}),
        "all of its",
    ),
    (Rest(CHECKPOINT, delete=True), "all of its state"),
    (Rest(CHECKPOINT), "what came after the checkpoint of 2023-11-14 22:13:20+00:00"),
]


def test_cancel_says_what_is_lost(run: Any) -> None:
    for rest_client, text in LOST:
        done = run(rest_client, "cancel", "--yes")
        assert (done.exit_code, text in done.stderr) == (0, True), done.stderr
        assert (f"flink-agents run SCRIPT --savepoint {PLACE}" in done.stderr) == ("after" in text)
        assert "'flink-agents stop' takes one" in done.stderr
        assert rest_client.done == ["PATCH mode=cancel"]


def test_cancel_does_nothing_that_nobody_confirmed(run: Any) -> None:
    rest_client = Rest()
    for says, terminal in ((None, False), ("y\n", False), ("n\n", True), ("\n", True), ("", True)):
        done = run(rest_client, "cancel", says=says, terminal=terminal)
        assert done.exit_code == 1, done.output
        assert rest_client.done == []
    done = run(rest_client, "cancel", says="y\n", terminal=True)
    assert (done.exit_code, rest_client.done) == (0, ["PATCH mode=cancel"])


def test_cancel_names_the_checkpoint_that_is_the_last_one_in_the_end(run: Any) -> None:
    for extra in ((), ("--json",)):
        rest_client = Rest(CHECKPOINT)
        rest_client.last = CHECKPOINT | {"external_path": PLACE.replace("7", "8")}
        done = run(rest_client, "cancel", "--yes", *extra)
        output = done.stdout if extra else done.stderr
        assert "chk-8" in output and "chk-7" not in done.output


def test_cancel_as_json_names_what_is_kept(run: Any) -> None:
    done = run(Rest(CHECKPOINT), "cancel", "--yes", "--json")
    assert json.loads(done.stdout) == {"id": JOB, "name": "orders", "checkpoint": PLACE}
