"""A Kafka broker that flushes each append to disk, as the other peers flush their journals."""

from __future__ import annotations

import time

from workload import FOLDER

from flink_agents.testing.kafka import KafkaBroker

if __name__ == "__main__":
    with KafkaBroker(FOLDER / "kafka", options={"log.flush.interval.messages": "1"}) as broker:
        (FOLDER / "part").write_text(broker.bootstrap_servers)
        (FOLDER / "part").rename(FOLDER / "broker")
        while True:
            time.sleep(60)
