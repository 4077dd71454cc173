"""Jobs with durable calls that begin at what another one left, each with its stated result.

Effects and outputs are files outside of all processes: ``tests/cluster/durable_agent.py`` says what
stands there, ``durable_check.py`` what should.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flink_agents.api.errors import FencedOwnerError, RecordsPrunedError
from flink_agents.testing.kafka import KafkaBroker
from tests.cluster.durable_check import Workload
from tests.cluster.durable_restores import CLUSTER_OPTIONS, SLOWLY, TASKMANAGER_OPTIONS, Restores
from tests.cluster.durable_run import RunFiles
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.settings import SETTINGS

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

WORKLOAD = Workload(events=900, keys=20)
SHORT = Workload(events=200, keys=20)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    with FlinkCluster(tmp_path_factory.mktemp("flink"), CLUSTER_OPTIONS, TASKMANAGER_OPTIONS) as started:
        yield started


@pytest.fixture(params=SETTINGS.restored_from)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RunStore:
    if request.param != "kafka":
        return RunStore.for_directory(request.param, tmp_path)
    broker: KafkaBroker = request.getfixturevalue("kafka_broker")
    return RunStore.in_kafka(broker.bootstrap_servers)


@pytest.fixture
def restores(cluster: FlinkCluster, tmp_path: Path, store: RunStore) -> Restores:
    print(f"\nCHAOS_SEED={SETTINGS.seed}")
    return Restores(cluster, tmp_path, store, WORKLOAD, SETTINGS.seed)


def test_rescaling(restores: Restores) -> None:
    savepoint = None
    for parallelism in (2, 3):
        job = restores.start(parallelism, savepoint, per_second=SLOWLY)
        restores.wait_for_outputs(job, 100)
        savepoint = restores.stop(job)
        assert restores.unfinished(), "nothing was in flight"
    restores.end(restores.start(1, savepoint))
    assert restores.problems() == {}


def test_checkpoints_and_another_job(
    cluster: FlinkCluster, restores: Restores, store: RunStore, tmp_path: Path
) -> None:
    files = restores.files
    job = restores.start(2, identifier="orders", per_second=SLOWLY)
    restores.wait_for_outputs(job, 300)
    checkpoints = restores.cancel(job)
    assert restores.unfinished(), "nothing was in flight"
    assert len(checkpoints) >= 3

    # From the latest checkpoint: as if nothing had happened.
    restores.end(restores.start(2, checkpoints[-1], "orders"))
    assert restores.problems() == {}
    effects = files.effects()
    journals = store.journals()
    assert [journal["runs"] for journal in journals] == [WORKLOAD.events // WORKLOAD.keys] * WORKLOAD.keys

    # Another job uses nothing of that.
    other_files = RunFiles(tmp_path / "other", tmp_path / "effects")
    restores.end(restores.start(2, identifier="others", files=other_files, workload=SHORT))
    new_effects = files.effects()[len(effects) :]
    assert other_files.verdict(SHORT, new_effects).clean
    assert not identities(effects) & identities(new_effects)
    assert [journal for journal in store.journals() if journal in journals] == journals
    assert len(store.journals()) == 2 * len(journals)

    # From an older checkpoint: all is recorded, and nothing is done again; the outputs are the same.
    effects = files.effects()
    journals = store.journals()
    older = checkpoints[len(checkpoints) // 2]
    restores.end(restores.start(2, older, "orders"))
    assert files.effects() == effects
    assert store.journals() == journals
    assert restores.problems(without=new_effects).keys() == {"duplicated"}

    # From the same one, when the records are gone.
    for journal in journals:
        store.prune(journal["job"], journal["key"], journal["last"])
    job = restores.start(2, older, "orders")
    cluster.wait_for("the error", lambda: RecordsPrunedError.code in job.exceptions(), job)
    restores.cancel(job)
    assert files.effects() == effects


def test_a_stale_owner_in_another_process(cluster: FlinkCluster, restores: Restores, store: RunStore) -> None:
    job = restores.start(1, per_second=200)
    restores.wait_for_outputs(job, 100)
    stale = restores.freeze(job)
    previous_records, logged = restores.recorded(), stale.log.stat().st_size
    cluster.wait_for("a record of a new attempt", lambda: restores.recorded() - previous_records, job)
    effects = restores.files.effects()
    stale.thaw()
    last = cluster.wait_for("the end of the old attempt", lambda: last_words(stale.log, logged), job)
    cluster.kill(stale)
    restores.end(job)

    # Calls that it had begun took effect, as those of any dead process.
    new_effects = restores.files.effects()[len(effects) :]
    late = [
        line for line in new_effects if line.startswith("effect ") and line.endswith(f" {stale.popen.pid}")
    ]
    refused = "was refused" if FencedOwnerError.code in last else "had ended before it could record anything"
    print(f"the stale attempt {refused}; {len(late)} of its calls took effect too late")
    assert not {line.split()[4] for line in late} & store.returned()
    assert restores.problems(without=late) == {}


def last_words(log: Path, begin: int) -> str | None:
    """What a TaskManager logged behind byte ``begin`` until its attempt ended; None if it did not."""
    text = log.read_bytes()[begin:].decode(errors="replace")
    end = re.search(r"agent ChainAgent .* switched from \w+ to (FAILED|CANCELED)", text)
    return None if end is None else text[: end.end()]


def identities(effects: list[str]) -> set[str]:
    """Tokens and idempotency keys of effects."""
    lines = [line.split() for line in effects]
    return {word for words in lines if words[0] == "effect" for word in words[4:6]}
