"""Timed jobs with a trace: ``python -m benchmarks.trace LEVEL JOB EVENTS KEYS``.

``static``    the agent of the case ``static``, on Flink's thread
``durable``   an agent that makes one durable call for each event, with records in SQLite

``LEVEL`` is that of the option ``trace.level``. Records go to files in a new directory below that of the
system for temporary files.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import agents, discard, source
from benchmarks.durable import options, run_rate

STORE = "sqlite"


def run_static(config: dict[str, Any], events: int, keys: int) -> None:
    """Two chained actions with a counter in memory."""
    from benchmarks.ours import CounterAgent

    environment = agents(config)
    stream = source(environment.stream_env, events, keys)
    applied = environment.from_datastream(stream, lambda record: record[0]).apply(CounterAgent(events))
    discard(applied.to_datastream())
    environment.execute("static")


def main(level: str, job: str, events: int, keys: int) -> None:
    """Run one job."""
    with tempfile.TemporaryDirectory() as directory:
        config: dict[str, Any] = {"trace.level": level, "trace.directory": str(Path(directory) / "trace")}
        if job == "static":
            run_static(config, events, keys)
        else:
            run_rate(config | options(STORE, directory), STORE, events, keys)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
