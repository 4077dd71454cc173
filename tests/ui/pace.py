"""How long the console takes for each page: ``python -m tests.ui.pace --runs 100000`` prints JSON.

Each page is requested several times. The figures are the longest and the median CPU time of client and
server.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from starlette.testclient import TestClient

from flink_agents.ui.app import PAGES, make_app, make_index
from flink_agents.ui.outside import Outside
from flink_agents.ui.rendering import link_to
from flink_agents.ui.settings import Access, ConsoleSettings
from tests.ui.consoles import BASE
from tests.ui.samples import many, write

ROUNDS = 7


def pages(run_id: str, key: str) -> list[str]:
    """Return the addresses that are measured."""
    return [
        *PAGES,
        link_to("/run", id=run_id),
        link_to("/keys", raw=key),
        link_to("/runs", q="customer-77"),
        link_to("/runs", q="no such text"),
        link_to("/runs", slow=1),
        link_to("/runs", status="suspended"),
        link_to("/runs", agent="orders", since=3600),
        link_to("/runs", error="OutOfStockError"),
        link_to("/runs", page=1999),
        link_to("/waiting", agent="orders"),
        # All runs are of one job.
        *(link_to(path, job="job") for path in ("/", "/agents", "/runs", "/waiting")),
        link_to("/runs", job="job", slow=1),
    ]


def measure(runs: int) -> dict[str, object]:
    """Return the times for a trace with so many runs."""
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory), many(runs, time.time()))
        settings = ConsoleSettings(trace=Path(directory))
        index = make_index(settings)
        begin = time.perf_counter()
        index.refresh()
        read = time.perf_counter() - begin
        [row] = index.query("SELECT run_id, key FROM runs WHERE status = 'suspended' LIMIT 1")
        with TestClient(make_app(settings, Access(), index, Outside(settings)), base_url=BASE) as client:
            times = {path: _times(client, path) for path in pages(row["run_id"], row["key"])}
    slowest = max(times, key=lambda path: max(times[path]))
    return {
        "runs": runs,
        "index_seconds": round(read, 1),
        "most_ms": round(max(times[slowest]), 1),
        "slowest_page": slowest,
        "pages": {
            path: {"most_ms": round(max(page_times), 1), "median_ms": round(statistics.median(page_times), 1)}
            for path, page_times in times.items()
        },
    }


def _times(client: TestClient, path: str) -> list[float]:
    times_ms: list[float] = []
    for _ in range(ROUNDS):
        # CPU time of all threads: another process on this machine does not make a page slower.
        begin = time.process_time()
        client.get(path)
        times_ms.append(1000 * (time.process_time() - begin))
    return times_ms


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    print(json.dumps(measure(parser.parse_args().runs), indent=2))
