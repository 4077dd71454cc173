"""The metrics of a job, as ``docs/metrics.md`` lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

RUNTIME = "runtime"
ACTION = "runtime.action.NAME"
CHAT = "chat.NAME"
LETTERS = "runtime.dead_letters"

ALWAYS = {
    RUNTIME: frozenset(
        "events events_per_second actions actions_per_second runs_in_flight runs_queued runs_spilled "
        "commit_delay_us backpressure_ms runs_stuck loop_blocked loop_lag_ms".split()
    ),
    ACTION: frozenset({"latency_us"}),
}
"""The metrics that each job has from the beginning; others appear with their first event."""


class ListedMetric(NamedTuple):
    """A metric with its type in Flink, its meaning, and its group below the group of the agent."""

    name: str
    kind: str
    meaning: str
    group: str

    @property
    def always(self) -> bool:
        """True if each job has it from the beginning."""
        return self.name in ALWAYS.get(self.group, ())


def listed_metrics() -> list[ListedMetric]:
    """Return all metrics of the page."""
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    metrics: list[ListedMetric] = []
    for section in re.split("^## ", page, flags=re.MULTILINE)[1:]:
        group = section.partition("\n")[0].strip("`")
        for name, kind, meaning in re.findall(r"^- `(.+?)` \((\w+)\): (.+)$", section, re.MULTILINE):
            metrics.append(ListedMetric(name, kind, meaning, group))
    return metrics
