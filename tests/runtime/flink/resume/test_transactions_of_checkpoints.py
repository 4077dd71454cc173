"""Settings of checkpoints against the time that brokers keep transactions."""

from __future__ import annotations

import pytest

from flink_agents.api.errors import KafkaTransactionError
from flink_agents.runtime.flink.resume.transactions import (
    CheckpointTimes,
    longest_checkpoint,
    tolerable_failures,
)
from tests.suite.tables import each_case

SECOND = 1000
MINUTE = 60 * SECOND


@each_case(
    ("interval", "pause", "timeout", "transaction", "chosen"),
    [
        # The brokers' default, with intervals of the author; of Flink's 10 min, what is left.
        (5 * SECOND, 0, 10 * MINUTE, 15 * MINUTE, 447_500),
        (MINUTE, 0, 10 * MINUTE, 15 * MINUTE, 7 * MINUTE),
        (14 * MINUTE, 0, 10 * MINUTE, 15 * MINUTE, 30 * SECOND),
        (MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 5 * MINUTE),
        (5 * SECOND, 0, 10 * MINUTE, 1440 * MINUTE, 10 * MINUTE),
    ],
)
def test_the_timeout_of_checkpoints_leaves_time_for_late_ones(
    interval: int, pause: int, timeout: int, transaction: int, chosen: int
) -> None:
    times = CheckpointTimes(interval, pause, timeout)
    assert longest_checkpoint(times, transaction, is_set=False) == chosen
    assert times.spacing_ms + chosen < transaction


@each_case(
    ("interval", "pause", "timeout", "transaction", "is_set"),
    [
        (15 * MINUTE, 0, 10 * MINUTE, 15 * MINUTE, False),
        (60 * MINUTE, 0, 10 * MINUTE, 15 * MINUTE, False),
        (MINUTE, 15 * MINUTE, 10 * MINUTE, 15 * MINUTE, False),
        (5 * MINUTE, 0, 10 * MINUTE, 15 * MINUTE, True),
        (MINUTE, 0, 60 * MINUTE, 15 * MINUTE, True),
        (MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, True),
    ],
)
def test_settings_that_lose_outputs_are_refused(
    interval: int, pause: int, timeout: int, transaction: int, is_set: bool
) -> None:
    with pytest.raises(KafkaTransactionError) as refused:
        longest_checkpoint(CheckpointTimes(interval, pause, timeout), transaction, is_set=is_set)
    text = str(refused.value)
    assert "within 15 min" in text and "execution.checkpointing.interval" in text
    assert ("execution.checkpointing.timeout" in text) == is_set
    assert ("a pause of" in text) == (pause > interval)


def test_a_timeout_of_the_author_stays_if_it_fits() -> None:
    times = CheckpointTimes(MINUTE, 0, 13 * MINUTE)
    assert longest_checkpoint(times, 15 * MINUTE, is_set=True) == 13 * MINUTE


@each_case("interval", [1, SECOND, MINUTE, 7 * MINUTE, 14 * MINUTE])
def test_failures_in_a_row_end_before_the_transaction(interval: int) -> None:
    times = CheckpointTimes(interval, 0, 10 * MINUTE)
    timeout = longest_checkpoint(times, 15 * MINUTE, is_set=False)
    failures = tolerable_failures(times, timeout, 15 * MINUTE)
    # The one after them restarts the job.
    assert (failures + 1) * interval + timeout <= 15 * MINUTE or failures == 0
