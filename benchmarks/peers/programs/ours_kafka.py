"""This package with its journal in Kafka: the same agent, and the options of the store."""

from __future__ import annotations

import ours
from workload import FOLDER, wait_for_file

BROKER_SECONDS = 60.0

if __name__ == "__main__":
    wait_for_file("broker", BROKER_SECONDS)
    ours.main(
        {
            "job-identifier": "peers",
            "action-state.store": "kafka",
            "action-state.kafka.bootstrap-servers": (FOLDER / "broker").read_text(),
            "action-state.kafka.topic": "peers-action-state",
        }
    )
