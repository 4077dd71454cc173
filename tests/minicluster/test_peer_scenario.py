"""Two chained effects, and a job that fails again and again: ``tests/peer_scenario.py`` in short."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flink_agents import AgentsExecutionEnvironment
from tests.cluster.durable_stores import RunStore
from tests.peer_scenario import Scenario, build, judge, settings

pytestmark = pytest.mark.minicluster


@pytest.mark.nightly
def test_no_recorded_effect_comes_again(
    agents_environment: Callable[..., AgentsExecutionEnvironment], tmp_path: Path
) -> None:
    scenario = Scenario(events=600, keys=20, fail_every=1.0)
    store = RunStore.for_directory("sqlite", tmp_path)
    flink, config = settings(store, tmp_path)
    env = agents_environment(dict(flink), config)
    build(env, scenario, tmp_path)
    env.execute("peer scenario")
    verdict = judge(scenario, tmp_path, store)
    print(json.dumps(verdict))
    assert verdict["clean"], verdict
    assert verdict["events"] == scenario.events
    assert verdict["failures"] > 0
    # Its calls are shorter than the grace of an attempt that fails.
    assert verdict["repeated_in_window_failures"] == 0, verdict
