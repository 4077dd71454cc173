"""A secret that a whole job uses is in none of its files, topics, logs and checkpoints, and not printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from secret_job import FORMS

from flink_agents.testing.kafka import KafkaBroker
from flink_agents.testing.models import ModelServer, Reply, ToolCall
from tests.cluster.waiting import wait_until
from tests.suite.canary import Canary

pytestmark = pytest.mark.minicluster

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("secret_job.py")


def answering(secret: str) -> Callable[[Any], Reply]:
    """Return a service that repeats its key: as an error, in an answer, or by a call of the tool."""

    def answer(request: Any) -> Reply:
        text = request.text
        if text in FORMS:
            return Reply(f"wrong key: {FORMS[text](secret)}", status=401)
        form = text.removeprefix("show ")
        if form in FORMS:
            name = request.body["tools"][0]["function"]["name"]
            return Reply(tool_calls=[ToolCall(name, {"form": form})])
        return Reply(f"the key is {secret}")

    return answer


@pytest.mark.nightly
@pytest.mark.parametrize("journal", ["sqlite", pytest.param("kafka", marks=pytest.mark.nightly)])
def test_a_local_job_that_fails_shows_its_secret_nowhere(
    canary: Canary,
    model_server: Callable[..., ModelServer],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    journal: str,
) -> None:
    server = model_server(answering(canary.value))
    folder = tmp_path / "job"
    scratch = tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    config: dict[str, Any] = {"local.state-dir": str(folder / "state")}
    broker: KafkaBroker | None = None
    if journal == "kafka":
        broker = cast("KafkaBroker", request.getfixturevalue("kafka_broker"))
        config |= {
            "action-state.store": "kafka",
            "action-state.kafka.bootstrap-servers": broker.bootstrap_servers,
            "action-state.kafka.topic": f"secrets-{time.time_ns()}",
            "trace.sinks": "jsonl,log,kafka",
            "trace.kafka.bootstrap-servers": broker.bootstrap_servers,
        }
    environ = {
        **os.environ,
        "SECRET_JOB": str(folder),
        "SECRET_JOB_URL": server.base_url,
        "SECRET_JOB_CONFIG": json.dumps(config),
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(scratch),
    }
    command = [
        str(Path(sys.executable).with_name("flink-agents")),
        "run",
        "--local",
        "--java-trace",
        str(SCRIPT),
    ]
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=out, stderr=err)
        try:
            let_it_fail(process, folder)
        finally:
            process.kill()
            process.wait()
    printed = (folder / "stdout").read_text() + (folder / "stderr").read_text()
    assert process.returncode not in (0, -9), printed
    # The service was really given the secret, and what repeats it was really printed, logged and recorded.
    assert all(
        served_request.headers["authorization"] == f"Bearer {canary.value}"
        for served_request in server.requests
    )
    assert printed.count("error_type=") >= 4 * len(FORMS), printed
    assert "FA4001" in printed and "***" in printed
    assert any(file.name == "_metadata" for file in folder.rglob("*"))
    assert any("***" in file.read_text() for file in (folder / "trace").rglob("*.jsonl"))
    assert canary.files(tmp_path) == []
    if broker is not None:
        assert canary.files(Path(broker.status().data)) == []


def let_it_fail(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until all but the last input is done and in a checkpoint; then let the job fail."""

    def ended() -> bool:
        return process.poll() is not None

    def done() -> bool:
        text = (folder / "stdout").read_bytes()
        return ended() or text.count(b"error_type=") >= 4 * len(FORMS) + 1

    wait_until("dead letters", done, 300, lambda: (folder / "stdout").read_text()[-3000:])
    previous_files = set(folder.rglob("_metadata"))
    wait_until(
        "a further checkpoint", lambda: ended() or bool(set(folder.rglob("_metadata")) - previous_files), 120
    )
    (folder / "checkpointed").touch()
    wait_until("the end of the job", ended, 120)
