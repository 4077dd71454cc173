"""Reads the number and the reasons of dead letters since the job's last start, from Flink's metrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import quote

from flink_agents.api.errors import ClusterError
from flink_agents.runtime.flink.following.rest import ClusterRest

MOST_SHOWN = 3
"""The number of reasons to show for an agent."""

_METRIC = re.compile(r"\.flink_agents\.(?P<agent>.+)\.runtime\.dead_letters\.(?P<reason>\w+@.*)$")


def dead_letters(rest: ClusterRest, job_id: str) -> dict[str, Counter[str]]:
    """Return the number of dead letters for each reason, by agent. Numbers that Flink lacks are left out.

    Args:
        rest: The cluster.
        job_id: The job.
    """
    found: dict[str, Counter[str]] = {}
    with suppress(ClusterError, KeyError, TypeError):
        for vertex in rest.get(f"/jobs/{job_id}")["vertices"]:
            path = f"/jobs/{job_id}/vertices/{vertex['id']}/subtasks/metrics"
            wanted = [one["id"] for one in rest.get(path) if _METRIC.search(one["id"])]
            if not wanted:
                continue
            # Flink would take a name with a comma for two names, so that number is left out.
            names = ",".join(quote(name, safe="") for name in wanted if "," not in name)
            for total in rest.get(f"{path}?get={names}&agg=sum"):
                metric = _METRIC.search(total["id"])
                if metric is not None and total["sum"]:
                    found.setdefault(metric["agent"], Counter())[metric["reason"]] += int(total["sum"])
    return found


def letter_lines(letters: Mapping[str, Counter[str]]) -> list[str]:
    """Return a line for each agent that has sent dead letters."""
    return [f"agent {agent}: {reasons_text(reasons)}" for agent, reasons in sorted(letters.items())]


def reasons_text(reasons: Counter[str]) -> str:
    """Return a number of dead letters with the most frequent reasons, in one line."""
    shown = [f"{count} by {_described(reason)}" for reason, count in reasons.most_common(MOST_SHOWN)]
    others = reasons.total() - sum(count for _, count in reasons.most_common(MOST_SHOWN))
    shown += [f"{others} by others"] if others else []
    return f"{reasons.total()} dead letters: {', '.join(shown)}"


def _described(reason: str) -> str:
    error, _, place = reason.partition("@")
    return f"{error} in {place}" if place else error
