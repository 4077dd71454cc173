"""A TaskManager dies by SIGKILL while agents talk with a model: nothing that was recorded is asked again.

The model is a local server that counts, the store is Kafka, and scripts of a skill run as processes of the
TaskManager.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from flink_agents.api.action_state import ActionStateStore, JournalKey, RecordKind
from flink_agents.cli.journals.operations import Place, list_journals
from flink_agents.runtime.journal.records import CallRecord
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.testing.kafka import KafkaBroker
from flink_agents.testing.models import ModelServer
from tests.cluster import chat_job
from tests.cluster.chat_agent import SCRIPT, SKILL, TURNS, answer, expected, turn_of
from tests.cluster.counting_check import CommittedOutput
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

ORDERS = 24
KEY = "sk-never-to-be-seen-0123456789"


# kafka-python does not close the sockets of connections that were refused.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_no_answer_that_was_recorded_is_asked_for_again(
    flink_cluster: FlinkCluster,
    kafka_broker: KafkaBroker,
    model_server: Callable[..., ModelServer],
    tmp_path: Path,
) -> None:
    server, store = model_server(answer), RunStore.in_kafka(kafka_broker.bootstrap_servers)
    output = CommittedOutput(tmp_path / "out")
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "skills/share/scripts").mkdir(parents=True)
    (tmp_path / "skills/share/SKILL.md").write_text(SKILL)
    (tmp_path / "skills/share/scripts/half.py").write_text(SCRIPT)
    flink_cluster.fresh_taskmanagers(count=1, slots=1)
    job = flink_cluster.submit(
        Path(chat_job.__file__),
        *("--url", server.base_url, "--key", str(tmp_path / "key"), "--skills", str(tmp_path / "skills")),
        *("--output", str(tmp_path / "out"), "--orders", str(ORDERS)),
        parallelism=1,
        # No checkpoint covers a run before the kill, so that all that is known of it is in the store.
        options={**store.flink_options, "execution.checkpointing.interval": "20 s"},
    )
    flink_cluster.wait_for("requests", lambda: server.count >= ORDERS, job)
    flink_cluster.kill(flink_cluster.taskmanagers[0])
    previous_turns = Counter(map(turn_of, server.requests))
    recorded, content = look_into(store)
    flink_cluster.start_taskmanager(slots=1)
    flink_cluster.wait_for("the end of the job", lambda: job.state() == "FINISHED", job)
    gc.collect()  # now, and not in a test that does not know of the sockets

    assert sorted(output.lines()) == sorted(map(expected, range(ORDERS)))
    assert set(previous_turns.values()) == {1}
    assert 0 < sum(recorded.values()) < ORDERS * TURNS
    unrecorded = Counter({(order, turn): 1 for order, turn in previous_turns if turn >= recorded[order]})
    # Six may be under way, and the records of others.
    assert len(unrecorded) <= 12
    once = Counter({(order, turn): 1 for order in range(ORDERS) for turn in range(TURNS)})
    assert Counter(map(turn_of, server.requests)) == once + unrecorded
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}
    assert KEY.encode() not in content
    assert KEY not in flink_cluster.report(job)
    assert all(KEY.encode() not in file.read_bytes() for file in flink_cluster.directory.rglob("*.out"))


def look_into(store: RunStore) -> tuple[Counter[int], bytes]:
    """How many answers of the model are recorded of each order, and the bytes of all records."""
    codec = ValueCodec(allow_pickle=False)

    async def find(opened: ActionStateStore) -> tuple[Counter[int], bytes]:
        answer_counts = Counter[int]()
        content = b""
        for journal in await list_journals(opened, None, sys.maxsize):
            for record in await opened.scan(JournalKey(journal["job"], journal["raw"])):
                content += record.data
                if record.kind is RecordKind.CALL:
                    call = CallRecord.unpack(codec, record.data)
                    answer_counts[int(journal["key"])] += call.call.function == "chat:clerk"
        return answer_counts, content

    return Place(store.name, store.options).run_query(find)
