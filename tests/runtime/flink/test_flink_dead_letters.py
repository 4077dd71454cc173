"""Counts of dead letters with their reasons: as agents count them, and as Flink tells of them."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import unquote

from flink_agents import Agent, InputEvent
from flink_agents.runtime.flink.clusters.jobs import dead_letters, letter_lines
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.runtime.metrics.run_metrics import MOST_REASONS, OTHER_REASONS, RunMetrics
from flink_agents.testing import OperatorHarness

SCOPE = "agent_orders.flink_agents.orders.of.today.runtime"


class Flink(ClusterRest):
    """Answers as Flink does: names of metrics without ``get``, sums with it."""

    def __init__(self, metrics: dict[str, int]) -> None:
        super().__init__("localhost:1")
        self.metrics = metrics

    def get(self, path: str) -> Any:
        if path == "/jobs/j1":
            return {"vertices": [{"id": "v1"}, {"id": "v2"}]}
        path, _, query = path.partition("?")
        if path == "/jobs/j1/vertices/v2/subtasks/metrics":
            return [{"id": "numRecordsIn"}]
        assert path == "/jobs/j1/vertices/v1/subtasks/metrics"
        if not query:
            return [{"id": name} for name in self.metrics]
        names = [unquote(part) for part in query.removeprefix("get=").partition("&")[0].split(",")]
        return [{"id": name, "sum": float(self.metrics[name])} for name in names]


def test_counts_of_all_agents_come_with_their_reasons() -> None:
    flink = Flink(
        {
            f"{SCOPE}.dead_letters.KeyError@book": 58,
            f"{SCOPE}.dead_letters.TimeoutError@ask": 2,
            f"{SCOPE}.dead_letters.PlanChangedError@": 1,
            f"{SCOPE}.dead_letters.ValueError@book": 0,
            f"{SCOPE}.dead_letters.Others@": 4,
            f"{SCOPE}.events_dead_lettered": 65,
        }
    )
    letters = dead_letters(flink, "j1")
    assert letters == {
        "orders.of.today": Counter(
            {"KeyError@book": 58, "Others@": 4, "TimeoutError@ask": 2, "PlanChangedError@": 1}
        )
    }
    assert letter_lines(letters) == [
        "agent orders.of.today: 65 dead letters: 58 by KeyError in book, 4 by Others, "
        "2 by TimeoutError in ask, 1 by others"
    ]


def test_a_cluster_that_does_not_say_has_none() -> None:
    assert dead_letters(ClusterRest("localhost:1"), "j1") == {}


def test_an_agent_counts_reasons_and_not_texts() -> None:
    def act(event: Any, ctx: Any) -> None:
        raise KeyError(event.input)

    agent = Agent(name="orders").add_action("book", [InputEvent], act, on_error="dead-letter")
    with OperatorHarness(agent) as job:
        for number in range(3):
            job.push(number)
        assert job.run_metrics["dead_letters.KeyError@book"] == 3


def test_reasons_are_bounded() -> None:
    metrics = RunMetrics(())
    for number in range(MOST_REASONS + 7):
        metrics.count_letter("act", type(f"Error{number}", (Exception,), {})())
    letters = metrics.group.get_sub_group("dead_letters")
    assert len(letters.metrics) == MOST_REASONS + 1
    assert letters.get_counter(OTHER_REASONS).get_count() == 7
