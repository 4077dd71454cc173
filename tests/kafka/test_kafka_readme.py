"""The job that README shows runs: with a model, a person, a source and sinks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import ApprovalResponse
from flink_agents.connectors.kafka import KafkaApprovals
from flink_agents.testing.kafka import KafkaBroker
from flink_agents.testing.models import ModelServer, Reply, ToolCall
from tests.kafka.kafka_clients import read, write

pytestmark = [pytest.mark.minicluster, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
DEADLINE = 300
COMPLAINT = {"id": "o-17", "complaint": "My lamp broke."}
DECISION = Reply(tool_calls=[ToolCall("final_result", {"amount": 75, "reason": "lamp broke"})])


def files_of_the_readme() -> dict[str, str]:
    """The files of README by their names."""
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```py(?:thon)?\n(# (\w+\.py)\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    return {name: block for block, name in blocks}


def awaited(ask: Callable[[], list[Any]], job: subprocess.Popen[bytes]) -> list[Any]:
    """Ask until something comes, as long as the job runs."""
    deadline = time.monotonic() + DEADLINE
    while not (result := ask()):
        assert job.poll() is None and time.monotonic() < deadline, "the job has ended, or takes too long"
        time.sleep(0.2)
    return result


def test_the_job_pays_what_a_person_approves(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    brokers = kafka_broker.client_options
    for name, text in files_of_the_readme().items():
        (tmp_path / name).write_text(text.replace("localhost:9092", brokers["bootstrap_servers"]), "utf-8")
    assert (tmp_path / "job.py").exists()
    desk = KafkaApprovals("answers", "approvals", **brokers)
    desk.create_topics()
    write(brokers, "complaints", json.dumps(COMPLAINT).encode())
    with ModelServer([DECISION]) as server:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OPENAI_API_KEY": "not-a-real-one",
            "FLINK_AGENTS_CHAT_MODELS_ANALYST_MODEL": "openai-chat:gpt-5-mini",
            "FLINK_AGENTS_CHAT_MODELS_ANALYST_BASE_URL": server.base_url,
        }
        with subprocess.Popen([sys.executable, "job.py"], cwd=tmp_path, env=environ) as job:
            try:
                [request] = awaited(lambda: list(desk.pending()), job)
                assert request.arguments["amount"] == 75
                desk.answer(ApprovalResponse(id=request.id, approved=True, by="Ada"))
                [receipt] = awaited(lambda: read(brokers, "receipts"), job)
            finally:
                job.kill()
        assert receipt.decode() == "o-17: refunded 75"
        assert server.count == 1
