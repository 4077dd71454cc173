"""What commands and the console say of a job that a slow operator holds up, by recorded answers of Flink."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flink_agents.cli.checks.cluster import job_checks
from flink_agents.cli.main import app
from flink_agents.cli.runs import top
from flink_agents.cli.runs.metrics import AgentMetrics, read_metrics
from flink_agents.runtime.flink.following import backpressure
from flink_agents.runtime.flink.following.backpressure import (
    BUSY as BUSY_FROM,
    MOST_NAMES,
    JobFlow,
    Vertex,
    read_flow,
    running_flows,
    settled_flow,
)
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.testing import OperatorHarness
from flink_agents.ui.settings import ConsoleSettings
from tests.suite.tables import each_case
from tests.trace.clusters import Answers, cluster
from tests.trace.test_trace_records import PLAIN, paying
from tests.ui.consoles import console

pytestmark = pytest.mark.own_conditions

SOURCE = "Source: numbers -> _stream_key_by_map_operator"
END = "Source: end of input of paying"
AGENT = "agent paying"
SINK = "ship parcels, Map -> Sink: Print to Std. Out"

Shares = tuple[float, float, float]
"""Of the time of a subtask: under backpressure, busy, idle."""

IDLE = (0.0, 0.01, 0.99)
BUSY = (0.0, 1.0, 0.0)
BLOCKED = (0.992, 0.008, 0.0)
LINE = {SOURCE: [AGENT], END: [AGENT], AGENT: [SINK]}


def level(share: float) -> str:
    return "ok" if share <= 0.1 else "low" if share <= 0.5 else "high"


def answers(shares: dict[str, Sequence[Shares]], edges: dict[str, list[str]], **more: Any) -> Answers:
    """Return the answers of Flink 2.3 about a job, whose ids are the names without spaces."""
    ids = {name: f"v{number}" for number, name in enumerate(shares)}
    job = {"jid": "j", "name": "orders job", "state": "RUNNING", "start-time": 0, "tasks": {}}
    nodes = [
        {
            "id": ids[name],
            "inputs": [{"id": ids[read], "num": 0} for read, readers in edges.items() if name in readers],
        }
        for name in shares
    ]
    answers_by_path: Answers = {
        "/overview": {"flink-version": "2.3.0", "slots-total": 2, "slots-available": 1},
        "/jobs/overview": {"jobs": [job]},
        "/jobs/j": {
            "now": 20_000,
            "vertices": [{"id": ids[name], "name": name} for name in shares],
            "plan": {"jid": "j", "nodes": nodes},
        },
        "/jobs/j/checkpoints": {"counts": {"completed": 1, "failed": 0}},
        "/jobs/j/exceptions": {"exceptionHistory": {"entries": []}},
    }
    for name, subtasks in shares.items():
        answers_by_path[f"/jobs/j/vertices/{ids[name]}/backpressure"] = {
            "status": "ok",
            "backpressureLevel": level(max((subtask[0] for subtask in subtasks), default=0.0)),
            "end-timestamp": 10_000,
            "subtasks": [
                {
                    "subtask": number,
                    "backpressureLevel": level(ratio),
                    "ratio": ratio,
                    "busyRatio": busy,
                    "idleRatio": idle,
                }
                for number, (ratio, busy, idle) in enumerate(subtasks)
            ],
        }
        answers_by_path[f"/jobs/j/vertices/{ids[name]}/subtasks/metrics"] = []
    return answers_by_path | more


def line(source: Shares, agent: Shares, sink: Shares) -> Answers:
    return answers({SOURCE: [source], END: [BUSY], AGENT: [agent], SINK: [sink]}, LINE)


DOWNSTREAM = line(BLOCKED, (0.976, 0.024, 0.0), (0.0, 0.955, 0.045))
OWN = line(BLOCKED, BUSY, (0.0, 0.02, 0.98))
NO_INPUT = line((0.0, 1.0, 0.0), IDLE, IDLE)
UPSTREAM = answers(
    {SOURCE: [BLOCKED], "parse": [BUSY], AGENT: [IDLE], SINK: [IDLE]},
    {SOURCE: ["parse"], "parse": [AGENT], AGENT: [SINK]},
)
TWO_OUTPUTS = answers({AGENT: [BLOCKED], "letters": [IDLE], SINK: [BUSY]}, {AGENT: ["letters", SINK]})
ANOTHER_AGENT = answers(
    {AGENT: [BLOCKED], "agent checking": [BUSY], SINK: [IDLE]},
    {AGENT: ["agent checking"], "agent checking": [SINK]},
)
CHAIN = answers({AGENT: [BLOCKED], "format": [BLOCKED], SINK: [BUSY]}, {AGENT: ["format"], "format": [SINK]})
ONE_SUBTASK = answers({AGENT: [BLOCKED, IDLE], SINK: [BUSY, IDLE]}, {AGENT: [SINK]})
UNRELATED = answers({AGENT: [BUSY], "Source: other": [BLOCKED], SINK: [BUSY]}, {"Source: other": [SINK]})
NOT_A_NUMBER = answers({AGENT: [BLOCKED], SINK: [(0.0, float("nan"), 0.0)]}, {AGENT: [SINK]})
NO_PLAN = answers({AGENT: [BLOCKED], SINK: [BUSY]}, {})
CYCLE = answers({AGENT: [BLOCKED], SINK: [BLOCKED]}, {AGENT: [SINK], SINK: [AGENT]})


@each_case(
    "told, expected",
    [
        (
            DOWNSTREAM,
            f"{AGENT} and {SOURCE} are under high backpressure, caused downstream by {SINK} (96 % busy). "
            f"Outputs and next inputs of the agent paying wait for {SINK}.",
        ),
        (
            OWN,
            f"{SOURCE} is under high backpressure, caused downstream by {AGENT} (100 % busy). Inputs wait "
            "upstream of the agent paying: its tasks are busy, or have no room for more runs.",
        ),
        (NO_INPUT, ""),
        (
            UPSTREAM,
            f"{SOURCE} is under high backpressure, caused downstream by parse (100 % busy). "
            "Inputs of the agent paying come late.",
        ),
        (TWO_OUTPUTS, f"caused downstream by {SINK} (100 % busy)"),
        (ANOTHER_AGENT, "agent paying wait for agent checking. Inputs wait upstream of the agent checking"),
        (CHAIN, f"format and {AGENT} are under high backpressure, caused downstream by {SINK}"),
        (ONE_SUBTASK, f"{AGENT} is under high backpressure in 1 of 2 subtasks, caused downstream by {SINK}"),
        (UNRELATED, ""),
        (NOT_A_NUMBER, f"caused downstream by {SINK}."),
        (NO_PLAN, f"{AGENT} is under high backpressure: downstream operators do not keep up. Outputs"),
        (CYCLE, "downstream operators do not keep up"),
    ],
)
def test_the_slow_operator_is_named(told: Answers, expected: str) -> None:
    flow = read_flow(told.__getitem__, "j")
    text = " ".join(f"{bottleneck} {bottleneck.meaning}" for bottleneck in flow.bottlenecks(["paying"]))
    assert expected in text if expected else not text, text


def test_what_flink_does_not_say_is_not_guessed() -> None:
    partial_answers = {
        name: value for name, value in DOWNSTREAM.items() if not name.endswith("/backpressure")
    }
    assert read_flow(partial_answers.__getitem__, "j").bottlenecks() == []
    unknown = {name: {"status": "deprecated", "subtasks": None} for name in DOWNSTREAM if "pressure" in name}
    flow = read_flow((DOWNSTREAM | unknown).__getitem__, "j")
    assert (flow.bottlenecks(), flow.idle_agents()) == ([], [])


@each_case(
    "told",
    [
        {"now": "x", "vertices": [{"id": "v2", "name": AGENT}], "plan": None},
        {"now": True, "vertices": [], "plan": {"nodes": [None, {"id": "v", "inputs": [{}]}]}},
        {"now": float("nan"), "plan": "none"},
    ],
)
def test_an_unusual_answer_is_no_error(told: Any) -> None:
    odd = {"ratio": float("inf"), "busyRatio": True, "idleRatio": "NaN"}
    pressure = {"backpressureLevel": "high", "end-timestamp": "x", "subtasks": [odd]}
    flow = read_flow({"/jobs/j": told, "/jobs/j/vertices/v2/backpressure": pressure}.__getitem__, "j")
    assert flow.blocked_share("paying") is None and not flow.is_old and flow.asked_at is None
    assert [bottleneck.agents for bottleneck in flow.bottlenecks()] == [["paying"]] * len(flow.vertices)


def test_a_job_that_ends_meanwhile_hides_no_other() -> None:
    """Several jobs can have one name: PyFlink gives all the same."""
    jobs = [{"jid": name, "name": "job", "state": "RUNNING"} for name in ("gone", "j", "odd")]
    job_answers = DOWNSTREAM | {"/jobs/overview": {"jobs": jobs}, "/jobs/odd": []}
    assert [flow.job for _, flow in running_flows(job_answers.__getitem__)] == ["j"]


def test_a_graph_of_any_size_has_a_short_message() -> None:
    """The time grows with the size of the graph, not with its square."""
    size = 20_000
    blocked = Vertex("agent paying", "high", 1.0)
    slow = Vertex("sink", "ok", 0.0, 1.0)
    chain = {f"v{index}": blocked for index in range(size)} | {"end": slow}
    edges = {f"v{index}": (f"v{index + 1}",) for index in range(size - 1)} | {f"v{size - 1}": ("end",)}
    (bottleneck,) = JobFlow(chain, edges).bottlenecks()
    assert (len(bottleneck.blocked), bottleneck.slow) == (size, (slow,))
    assert f"and {size - MOST_NAMES} more are under high" in str(bottleneck) and len(bottleneck.meaning) < 500
    wide = {"v": blocked} | {f"s{index}": slow for index in range(size)}
    (bottleneck,) = JobFlow(wide, {"v": tuple(wide)[1:]}).bottlenecks()
    assert len(bottleneck.slow) == MOST_NAMES and len(str(bottleneck)) < 500


def expected_causes(flow: JobFlow, start: str) -> set[str]:
    """Follow backpressure downstream from one vertex: the rule, without any limit."""
    reached = {start}
    ahead = [start]
    while ahead:
        after = {name for name in flow.downstream.get(ahead.pop(), ()) if name not in reached}
        reached |= after
        ahead += [name for name in after if flow.vertices[name].is_blocked]
    ends = [name for name in flow.vertices if name in reached and flow.vertices[name].level == "ok"]
    busy = [name for name in ends if (flow.vertices[name].busy or 0.0) >= BUSY_FROM]
    return set(busy or sorted(ends, key=lambda name: -(flow.vertices[name].busy or 0.0))[:1])


def test_random_graphs_have_the_causes_that_the_rule_gives() -> None:
    chance = random.Random(7)
    for _ in range(500):
        names = [f"v{index}" for index in range(chance.randint(1, 8))]
        vertices = {
            name: Vertex(
                name, chance.choice(["ok", "ok", "high", "low", ""]), busy=chance.choice([0.1, 0.4, 0.9])
            )
            for name in names
        }
        edges = {name: tuple(chance.sample(names, chance.randint(0, len(names)))) for name in names}
        flow = JobFlow(vertices, edges)
        causes = {
            id(blocked_vertex): {id(slow) for slow in bottleneck.slow}
            for bottleneck in flow.bottlenecks()
            for blocked_vertex in bottleneck.blocked
        }
        for name, vertex in vertices.items():
            if vertex.is_blocked:
                assert causes[id(vertex)] == {id(vertices[cause]) for cause in expected_causes(flow, name)}


def test_top_prints_valid_json_whatever_flink_measures() -> None:
    def reading(jid: str, value: Any, moment: float) -> AgentMetrics:
        names = (
            "runtime.events",
            "runtime.runs_in_flight",
            "runtime.waits_oldest_ms",
            "chat.x.cost_micro_usd",
        )
        values = [{"id": f"a.flink_agents.paying.{name}", "sum": value, "max": value} for name in names]
        path = f"/jobs/{jid}/vertices/v/subtasks/metrics"
        answers_by_path = {
            "/jobs/overview": {"jobs": [{"jid": jid, "name": "job", "state": "RUNNING"}]},
            f"/jobs/{jid}": {"vertices": [{"id": "v", "name": AGENT}]},
            path: values,
        }

        class Rest:
            def get(self, asked: str) -> Any:
                return answers_by_path[asked.partition("?")[0]]

        (metrics,) = read_metrics(cast(ClusterRest, Rest()))
        return replace(metrics, time=moment)

    for odd in (float("inf"), float("-inf"), float("nan"), None, "NaN", "x", [], 1e308):
        now = reading("j", odd, 2.0)
        previous_metrics = reading("j", 1, 1.0)
        # A value that is no number would spoil rates and sums.
        assert all(map(math.isfinite, now.sums.values()))
        machine = top.as_object([now], [previous_metrics], (), ())
        json.dumps(machine, allow_nan=False)
        Console(width=250, file=StringIO()).print(top.render_screen([now], [previous_metrics], (), ()))
    # A job with the same name is another one.
    slow = JobFlow({"v": Vertex(AGENT, "high", 0.9)}, {}, job="k")
    now = [reading("j", 5, 2.0), reading("k", 50, 2.0)]
    agents = top.as_object(now, [reading("j", 1, 1.0), reading("k", 10, 1.0)], (), [("job", slow)])["agents"]
    assert [agent["events_per_second"] for agent in agents] == [4.0, 40.0]
    assert [agent["downstream_share"] for agent in agents] == [None, 0.9]


def test_old_metrics_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looked at the cluster for hours: its first answer starts a fetch, and is from before."""
    monkeypatch.setattr(backpressure, "SETTLE_SECONDS", 0.001)
    times, requested_paths = {"/jobs/j": {**DOWNSTREAM["/jobs/j"], "now": 10_000}}, list[str]()

    def ask(path: str) -> Any:
        requested_paths.append(path)
        return (NO_INPUT if requested_paths.count("/jobs/j") == 1 else DOWNSTREAM | times)[path] | {
            "now": 10_000
        }

    assert [bottleneck.agents for bottleneck in settled_flow(ask, "j").bottlenecks()] == [["paying"]]
    requested_paths.clear()
    settled_flow(lambda path: requested_paths.append(path) or DOWNSTREAM[path], "j")
    assert requested_paths.count("/jobs/j") == 1, "metrics of some seconds ago are new enough"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of an agent: key 1 is at rest, and the key wait has a run that is suspended."""
    directory = tmp_path_factory.mktemp("trace")
    options = {"trace.level": "calls", "trace.directory": str(directory)}
    with OperatorHarness(paying(), lambda value: value, config=options, **PLAIN) as harness:
        harness.push_all([1, "wait"])
    return directory


def run_command(*arguments: str) -> str:
    return CliRunner().invoke(app, list(arguments)).output


@each_case(
    "told, key, said, unsaid",
    [
        (
            DOWNSTREAM,
            "1",
            f"The key is not stuck. Outputs and next inputs of the agent paying wait for {SINK}.",
            "idle",
        ),
        (DOWNSTREAM, "wait", f"\nOutputs and next inputs of the agent paying wait for {SINK}", "not stuck"),
        (DOWNSTREAM, "nobody", "Perhaps the key is not stuck. Outputs", "The key is not"),
        (OWN, "1", "Inputs wait upstream of the agent paying", "not stuck"),
        (UPSTREAM, "1", "Inputs of the agent paying come late", "not stuck"),
        (NO_INPUT, "1", "No input arrives at the agent paying", "backpressure"),
        (NO_INPUT, "nobody", "No input arrives at the agent paying", "backpressure"),
        (NO_INPUT, "wait", "'paid'", "No input arrives"),
        (ANOTHER_AGENT, "1", "The key is not stuck. Outputs", "idle"),
    ],
)
def test_why_tells_a_stuck_key_from_a_slow_job(
    told: Answers, key: str, said: str, unsaid: str, place: Path
) -> None:
    with cluster(bytes, told) as address:
        output = run_command("why", key, "--cluster", address, "--path", str(place))
    assert said in output and unsaid not in output, output


def test_top_and_the_console_name_the_slow_operator(place: Path) -> None:
    metric = {"id": "agent_pay.flink_agents.paying.runtime.events", "sum": 5, "max": 5}
    changed_answers = DOWNSTREAM | {"/jobs/j/vertices/v2/subtasks/metrics": [metric]}
    with cluster(bytes, changed_answers) as address:
        now = list(read_metrics(ClusterRest(address)))
        flows = list(running_flows(ClusterRest(address).get))
        settings = ConsoleSettings(trace=place, cluster=address)
        with console(settings) as (browser, _, outside):
            jobs = outside.jobs()
            while jobs is None or jobs.is_loading:
                jobs = outside.jobs()
            page = browser.page("/")
    printed = Console(width=250, record=True, file=StringIO())
    printed.print(top.render_screen(now, (), (), flows))
    machine = top.as_object(now, (), (), flows)
    table = printed.export_text()
    cause = f"caused downstream by {SINK}"
    assert machine["agents"][0]["downstream_share"] == 0.976
    assert cause in machine["backpressure"][0] and cause in table and "98 %" in table
    assert cause.replace(">", "&gt;") in page


@each_case(
    "told, fix",
    [
        (DOWNSTREAM, f"make {SINK} faster"),
        (OWN, "raise the parallelism of the agent"),
        (ANOTHER_AGENT, "raise the parallelism of the agent"),
        (UPSTREAM, "make parse faster"),
        (NO_INPUT, ""),
    ],
)
def test_doctor_advises_about_the_slow_operator(told: Answers, fix: str) -> None:
    checks = job_checks(lambda path: told[path.partition("?")[0]], {})
    (pressure_check,) = [check for check in checks if check.name.endswith("backpressure")] or [None]
    assert (
        pressure_check is None
        if not fix
        else pressure_check is not None and fix in (pressure_check.fix or "")
    ), pressure_check
