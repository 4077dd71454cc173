"""Queries of the pages to the index."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from flink_agents.trace.reading import RunTrace, by_run
from flink_agents.trace.records import STATUSES, UNFINISHED
from flink_agents.ui.index import TraceIndex
from flink_agents.ui.merging import storable_text

OPEN = ", ".join(f"'{status}'" for status in UNFINISHED)
"""The statuses of runs that have not ended, for SQL."""

GROWING = ", ".join(f"'{status}'" for status in UNFINISHED if status != "failed")
"""The statuses of runs whose duration grows, for SQL."""

SINCE = "CASE WHEN since > 0 THEN since WHEN decided > 0 THEN decided ELSE begun END"
"""When a run that has not ended began what it does now: its wait, its suspension, its segment."""

PAGE = 50


@dataclass(frozen=True)
class RunFilter:
    """A filter of runs. Empty fields match all runs.

    Attributes:
        status: Status of the runs.
        agent: Name of the agent.
        key: Canonical text of the key.
        error: Class of their last error.
        text: Part of the key or of the error, or the start of the id.
        since: Only runs with a record in the last ``since`` seconds; 0 for all.
        slow: True to list the longest runs first, False for the latest ones.
        page: Number of the page of the result, from 0.
    """

    status: str = ""
    agent: str = ""
    key: str = ""
    error: str = ""
    text: str = ""
    since: float = 0.0
    slow: bool = False
    page: int = 0

    def sql_condition(self) -> tuple[str, list[Any]]:
        """Return an SQL condition with placeholders, and the values for them."""
        parts: list[str] = []
        values: list[Any] = []
        for column, value in (
            ("status", self.status),
            ("agent", self.agent),
            ("key", self.key),
            ("error_class", self.error),
        ):
            if value:
                parts.append(f"{column} = ?")
                values.append(storable_text(value))
        if self.since:
            parts.append("ended >= ?")
            values.append(time.time() - self.since)
        if self.text:
            pattern = storable_text(self.text).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            columns = ("shown_key", "error", "error_class")
            alternatives = [f"{text_column} LIKE ? ESCAPE '\\'" for text_column in columns] + [
                "run_id LIKE ? ESCAPE '\\'"
            ]
            parts.append(f"({' OR '.join(alternatives)})")
            values += [f"%{pattern}%"] * len(columns) + [f"{pattern}%"]
        return " AND ".join(parts) or "1", values


def find_runs(index: TraceIndex, run_filter: RunFilter) -> tuple[list[Any], int]:
    """Return one page of the runs that match a filter, and the number of all of them."""
    where, values = run_filter.sql_condition()
    rows = (_longest_runs if run_filter.slow else _latest_runs)(index, run_filter, where, values)
    if len(rows) < PAGE and (rows or not run_filter.page):
        # The last page: a search reads all rows, and need not do it again to count them.
        return rows, run_filter.page * PAGE + len(rows)
    return rows, index.query(f"SELECT count(*) FROM runs WHERE {where}", values)[0][0]


def _latest_runs(index: TraceIndex, run_filter: RunFilter, where: str, values: list[Any]) -> list[Any]:
    # A search reads the table from its start to its end: by an index, each row would be looked up.
    order_column = "+ended" if run_filter.text else "ended"
    # The subquery passes the rows of earlier pages by an index alone.
    return index.query(
        f"SELECT * FROM runs WHERE run_id IN (SELECT run_id FROM runs WHERE {where} "
        f"ORDER BY {order_column} DESC LIMIT ? OFFSET ?) ORDER BY ended DESC",
        [*values, PAGE, run_filter.page * PAGE],
    )


def _longest_runs(index: TraceIndex, run_filter: RunFilter, where: str, values: list[Any]) -> list[Any]:
    """Return one page of runs by duration. Unfinished runs count until now, as on all pages."""
    now = time.time()
    most = (run_filter.page + 1) * PAGE
    parts = {
        f"status IN ({GROWING})": ("max(ended, ?) - begun", "begun"),
        f"status NOT IN ({GROWING})": ("seconds + 0 * ?", "seconds DESC"),
    }
    # Each part is read by its own index, as far as this page needs it.
    union = " UNION ALL ".join(
        f"SELECT * FROM (SELECT run_id, {total} AS total FROM runs WHERE {which} AND {where} "
        f"ORDER BY {order} LIMIT ?)"
        for which, (total, order) in parts.items()
    )
    return index.query(
        f"SELECT runs.*, total FROM ({union} ORDER BY total DESC LIMIT ? OFFSET ?) "
        "JOIN runs USING (run_id) ORDER BY total DESC",
        [now, *values, most, now, *values, most, PAGE, run_filter.page * PAGE],
    )


def find_run(index: TraceIndex, run_id: str) -> tuple[Any, RunTrace] | None:
    """Return the row of a run and its records; None if there is no run with this id."""
    name = storable_text(run_id)
    rows = index.query("SELECT * FROM runs WHERE run_id = ?", [name])
    if not rows:
        return None
    traces = by_run(index.records([name]))
    return rows[0], next(iter(traces.values()))


def traces_of_key(index: TraceIndex, key: str, most: int = PAGE) -> list[RunTrace]:
    """Return up to ``most`` runs of a key with their records, unfinished ones first, then the latest."""
    ids = [
        row["run_id"]
        for row in index.query(
            f"SELECT run_id FROM runs WHERE key = ? ORDER BY status IN ({OPEN}) DESC, sequence DESC LIMIT ?",
            [storable_text(key), most],
        )
    ]
    return list(by_run(index.records(ids)).values())


def agent_names(index: TraceIndex) -> list[str]:
    """Return the names of all agents with runs, sorted."""
    # Each name is looked up in the index of SQLite: a scan of all runs would take long.
    names: list[str] = []
    last = ""
    while rows := index.query("SELECT agent FROM runs WHERE agent > ? ORDER BY agent LIMIT 1", [last]):
        last = rows[0]["agent"]
        names.append(last)
    return names


def by_agent(index: TraceIndex) -> dict[str, dict[str, int]]:
    """Return the number of runs by agent and status."""
    status_counts: dict[str, dict[str, int]] = {}
    for row in index.query("SELECT agent, status, count(*) AS number FROM runs GROUP BY status, agent"):
        status_counts.setdefault(row["agent"], dict.fromkeys(STATUSES, 0))[row["status"]] = row["number"]
    return dict(sorted(status_counts.items()))


def count_per_minute(index: TraceIndex, minutes: int, now: float) -> dict[str, list[float]]:
    """Count completed and failed runs in each of the last minutes, for a chart.

    Args:
        index: The index.
        minutes: Number of minutes, without the present one.
        now: Seconds since the epoch.

    Returns:
        ``time``, ``completed`` and ``failed``, each a list with a number for each minute.
    """
    # Without the present minute, which looks as if everything had stopped.
    first = int(now // 60) - minutes
    times = [float(60 * (first + number)) for number in range(minutes)]
    ended = [0.0] * minutes
    failed = [0.0] * minutes
    for status in ("completed", "failed", "dead-lettered"):
        # One status at a time: SQLite then reads its index alone.
        rows = index.query(
            "SELECT CAST(ended / 60 AS INTEGER) AS minute, count(*) AS number FROM runs "
            "WHERE status = ? AND ended >= ? GROUP BY 1",
            [status, 60.0 * first],
        )
        for row in rows:
            position = row["minute"] - first
            if 0 <= position < minutes:
                (ended if status == "completed" else failed)[position] += row["number"]
    return {"time": times, "completed": ended, "failed": failed}


def frequent_errors(index: TraceIndex, most: int = 8) -> list[Any]:
    """Return the most frequent error classes of runs, with their number and last message."""
    return index.query(
        "SELECT error_class, count(*) AS number, max(ended) AS last, error, run_id FROM runs "
        "WHERE error_class != '' GROUP BY error_class ORDER BY number DESC LIMIT ?",
        [most],
    )


def waiting_keys(index: TraceIndex, agent: str = "", most: int = 200) -> list[dict[str, Any]]:
    """Return keys with unfinished runs, the longest wait first, with their waits and number of runs."""
    rows = index.query(
        f"SELECT *, {SINCE} AS waits_since, min(sequence), count(*) AS unfinished FROM runs "
        f"WHERE status IN ({OPEN}) AND (? = '' OR agent = ?) "
        "GROUP BY agent, job, key ORDER BY waits_since LIMIT ?",
        [agent, agent, most],
    )
    return [dict(row) | {"waits": waits_of(row)} for row in rows]


def waits_of(row: Any) -> list[dict[str, Any]]:
    """Parse the waits in the row of a run; empty if it does not wait."""
    return [wait for wait in json.loads(row["waits"]) if isinstance(wait, dict)]


def count_records(index: TraceIndex, agent: str) -> dict[tuple[str, str], dict[str, int]]:
    """Return the number of records of an agent, by kind and name, and then by outcome."""
    record_counts: dict[tuple[str, str], dict[str, int]] = {}
    for row in index.query("SELECT * FROM counts WHERE agent = ?", [storable_text(agent)]):
        outcomes = record_counts.setdefault((row["kind"], row["name"]), {})
        outcomes[row["outcome"]] = outcomes.get(row["outcome"], 0) + row["number"]
    return record_counts
