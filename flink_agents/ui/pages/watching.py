"""Pages of jobs, agents, runs and a single run."""

from __future__ import annotations

import json
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flink_agents.trace.rendering import activity_lines
from flink_agents.ui import graph, queries
from flink_agents.ui.pages.view import View, parse_number
from flink_agents.ui.queries import RunFilter
from flink_agents.ui.timeline import create_timeline

MINUTES = 60
SINCE = ((0, "any time"), (900, "15 minutes"), (3600, "1 hour"), (86400, "1 day"), (604800, "1 week"))


def overview(view: View, request: Request) -> Response:
    """Return the page with jobs, rates, errors, and the longest waits."""
    by_agent = queries.by_agent(view.index)
    totals = {status: sum(row[status] for row in by_agent.values()) for status in queries.STATUSES}
    series = queries.count_per_minute(view.index, MINUTES, time.time())
    return view.render_page(
        request,
        "overview.html",
        jobs=view.outside.jobs(),
        local=view.outside.local_jobs(),
        by_agent=by_agent,
        totals=totals,
        rate=(sum(series["completed"][-5:]) + sum(series["failed"][-5:])) / 5,
        chart=json.dumps(series),
        errors=queries.frequent_errors(view.index),
        oldest=queries.waiting_keys(view.index, most=5),
        answers=view.outside.answer_about,
        pending=_pending_count(view),
        invalid=view.index.invalid,
    )


def _pending_count(view: View) -> int | None:
    """Return the number of pending requests that this console has not answered; None if it is unknown."""
    reading = view.outside.requests()
    if reading is None or reading.value is None:
        return None
    return sum(request.id not in view.outside.sent for request in reading.value)


def agents(view: View, request: Request) -> Response:
    """Return the page with the graph of each agent, and counts of its calls."""
    by_agent = queries.by_agent(view.index)
    plans = {plan.name: plan for plan in view.settings.plans}
    drawn: list[tuple[graph.Drawing, bool]] = []
    for name in sorted({*by_agent, *plans}):
        counts = queries.count_records(view.index, name)
        runs = sum(by_agent.get(name, {}).values())
        if name in plans:
            drawn.append((graph.draw_plan(plans[name], counts, runs), True))
        else:
            drawn.append((graph.draw_flow(name, graph.seen_flow(counts), counts, runs), False))
    calls = {name: _call_counts(view, name) for name in by_agent}
    return view.render_page(
        request, "agents.html", drawn=drawn, by_agent=by_agent, calls=calls, box_width=graph.NODE_WIDTH
    )


def _call_counts(view: View, agent: str) -> list[dict[str, Any]]:
    rows = view.index.query(
        "SELECT kind, name, sum(number) AS number, sum(seconds) / sum(number) AS mean, "
        "sum(CASE WHEN outcome = 'failed' THEN number ELSE 0 END) AS failed FROM counts "
        "WHERE agent = ? AND kind NOT IN ('run', 'event', 'attempt') "
        "GROUP BY kind, name ORDER BY number DESC LIMIT 30",
        [agent],
    )
    return [dict(row) for row in rows]


def runs(view: View, request: Request) -> Response:
    """Return the page that lists runs, by the search and filters of its address."""
    parameters = request.query_params
    run_filter = RunFilter(
        status=parameters.get("status", "") if parameters.get("status") in queries.STATUSES else "",
        agent=parameters.get("agent", ""),
        key=parameters.get("key", ""),
        error=parameters.get("error", ""),
        text=parameters.get("q", "").strip(),
        since=parse_number(parameters.get("since"), most=10**9),
        slow=parameters.get("slow") == "1",
        page=parse_number(parameters.get("page"), most=20_000),
    )
    rows, total = queries.find_runs(view.index, run_filter)
    return view.render_page(
        request,
        "runs.html",
        rows=rows,
        total=total,
        asked=run_filter,
        agents=queries.agent_names(view.index),
        statuses=queries.STATUSES,
        since=SINCE,
        first=run_filter.page * queries.PAGE + 1,
        more=(run_filter.page + 1) * queries.PAGE < total,
    )


def run(view: View, request: Request) -> Response:
    """Return the page of one run: its timeline, waits, answers and records."""
    row_and_trace = queries.find_run(view.index, request.query_params.get("id", ""))
    if row_and_trace is None:
        return view.render_page(
            request, "missing.html", 404, what="run", name=request.query_params.get("id", "")
        )
    row, trace = row_and_trace
    behind = view.index.query(
        "SELECT count(*) FROM runs WHERE key = ? AND agent = ? AND sequence > ? "
        f"AND status IN ({queries.OPEN})",
        [row["key"], row["agent"], row["sequence"]],
    )[0][0]
    return view.render_page(
        request,
        "run.html",
        row=row,
        unfinished=queries.UNFINISHED,
        waits=queries.waits_of(row),
        said=list(activity_lines(trace)) if row["status"] in ("running", "waiting") else [],
        signals=view.settings.signals,
        servers=view.settings.client.get("bootstrap_servers", ""),
        view_can_end=view.settings.signals is not None,
        decisions=[record for record in trace.records if record.kind == "approval"],
        line=create_timeline(trace, time.time()),
        behind=behind,
        answer=view.outside.answer_about(row["key"]),
        requests=view.outside.requests_of(row["key"], row["sequence"]),
        records=len(trace.records),
        attempts=sorted({record.attempt for record in trace.records}),
        has_journal=view.settings.journals is not None,
    )
