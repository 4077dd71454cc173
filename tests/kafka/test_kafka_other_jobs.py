"""Jobs that start from the state of another one, with their journals in Kafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from flink_agents.api.errors import JobIdentifierInUseError
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from tests.runtime.other_jobs_tools import FIRST, MADE, SECOND, Job, Make, made_by, open_, prune


@pytest.fixture
def make(settings: KafkaSettings) -> Iterator[Make]:
    MADE.clear()
    yield lambda: KafkaStore(settings)
    open_()


def test_a_fork_and_its_origin_share_nothing_behind_the_savepoint(make: Make) -> None:
    with Job(make, "production") as origin, Job(make, "staging", on_job_change="fork") as fork:
        origin.push("a")
        origin.start("slow b")
        savepoint = origin.harness.snapshot()
        fork.restore(savepoint)
        assert fork.push("c") == [
            ("slow b 1 by production", "slow b 2 by staging", 2),
            ("c 1 by staging", "c 2 by staging", 3),
        ]
        origin.go_on()
        prune(make, "staging", fork.harness.snapshot())
        origin.restore(savepoint)
        assert origin.push("c")[-1] == ("c 1 by production", "c 2 by production", 3)
        prune(make, "production", origin.harness.snapshot())
        checkpoint = fork.harness.snapshot()
        fork.push("d")
        fork.restore(checkpoint)
        assert fork.push("d") == [("d 1 by staging", "d 2 by staging", 4)]
    assert set(made_by("production").values()) == set(made_by("staging").values()) == {1}


def test_a_successor_owns_the_journals_of_the_former_job(make: Make) -> None:
    with Job(make, FIRST) as former:
        former.push("a")
        savepoint = former.harness.snapshot()
        former.push("b")
        with Job(make, SECOND) as early:
            early.restore(savepoint)
            with pytest.raises(JobIdentifierInUseError):
                early.push("b")
        assert former.push("c")[0][0] == f"c 1 by {FIRST}"
    with Job(make, SECOND) as job:
        job.restore(savepoint)
        job.push("b", "c")
        checkpoint = job.harness.snapshot()
        job.push("d")
        prune(make, FIRST, checkpoint)
        job.restore(checkpoint)
        assert job.push("d") == [(f"d 1 by {SECOND}", f"d 2 by {SECOND}", 4)]
    assert set(Counter(text for _, text, _ in MADE).values()) == {1}
