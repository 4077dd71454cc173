"""The metrics of the reference page against the code and the alert rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext
from flink_agents.testing import OperatorHarness
from tests.runtime.metrics_page import CHAT, LETTERS, RUNTIME, listed_metrics

ROOT = Path(__file__).parents[3]
METRICS = listed_metrics()
OWN = {metric.name for metric in METRICS}
OF_FLINK = {"flink_jobmanager_job_numberOfFailedCheckpoints"}
PLAIN: dict[str, Any] = {"forced_replay": False, "forced_restart": False, "crash": None}


def test_each_metric_of_the_code_is_on_the_page() -> None:
    pattern = re.compile(r'(?:get_counter|get_gauge|get_histogram|get_meter|\bcount)\(\s*"(\w+)"')
    missing = {
        f"{file.relative_to(ROOT)}: {name}"
        for part in ("runtime", "models", "connectors")
        for file in (ROOT / "flink_agents" / part).rglob("*.py")
        for name in pattern.findall(file.read_text("utf-8"))
        if name not in OWN
    }
    assert missing == set()


def test_names_are_unique_and_meanings_are_sentences() -> None:
    places = [(metric.group, metric.name) for metric in METRICS]
    assert len(places) == len(set(places))
    assert [metric.name for metric in METRICS if not metric.meaning.endswith(".")] == []


async def act(event: Any, ctx: RunnerContext) -> Any:
    if event.input == "sleep":
        await ctx.sleep(60)
    if event.input == "signal":
        await ctx.wait_for_signal("go")
    if event.input == "fail":
        raise ValueError("no")
    return OutputEvent(output=1)


@pytest.mark.own_conditions
def test_what_a_job_reports_is_on_the_page() -> None:
    agent = Agent(name="a").add_action("act", [InputEvent], act, on_error="dead-letter")
    with OperatorHarness(agent, lambda value: value, **PLAIN) as harness:
        harness.push_all(["plain", "fail", "sleep", "signal"])
        harness.signal("nobody", "x", wait="nobody|0|a|b|1")
        metrics = harness.run_metrics
        assert (metrics["waits_suspended"], metrics["waits_timer"], metrics["waits_signal"]) == (2, 1, 1)
        names = {name for name in metrics if "." not in name}
        assert names - OWN == set()
        always = {metric.name for metric in METRICS if metric.always and metric.group == RUNTIME}
        assert always - names == set()
        harness.signal("signal", "go")
        harness.advance_time(61_000)
        metrics = harness.run_metrics
        assert (metrics["waits_suspended"], metrics["waits_timer"], metrics["waits_oldest_ms"]) == (0, 0, 0)


def test_alert_rules_use_metrics_that_exist() -> None:
    rules = yaml.safe_load((ROOT / "docs" / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    assert len(rules) == len({rule["alert"] for rule in rules}) >= 5
    for rule in rules:
        expr = rule["expr"]
        assert rule["annotations"]["summary"]
        patterns = re.findall(r'__name__=~"([^"]+)"', expr)
        for pattern in patterns:
            matches = [
                metric
                for metric in METRICS
                if metric.group != LETTERS and re.fullmatch(pattern, _prometheus(metric.group, metric.name))
            ]
            assert len(matches) == 1, f"{rule['alert']}: {pattern}"
        plain = set(re.findall(r"\bflink_\w+", re.sub(r'"[^"]*"', "", expr)))
        assert plain <= OF_FLINK and (patterns or plain)
    text = str(rules)
    for wanted in ("runs_stuck", "numberOfFailedCheckpoints", "store_append", "dead_lettered", "cost"):
        assert wanted in text


def _prometheus(group: str, name: str) -> str:
    """The name that Flink's reporter gives a metric of the agent ``A``."""
    parts = group.replace("NAME", "claude").split(".")
    if group != CHAT and parts[0] != RUNTIME:
        parts = [group]
    return "_".join(["flink_taskmanager_job_task_operator_flink_agents_A", *parts, name])
