"""What commands and the console say of a job that a slow operator holds up, by recorded answers of Flink."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flink_agents.cli.checks.cluster import job_checks
from flink_agents.cli.main import app
from flink_agents.cli.runs import top
from flink_agents.cli.runs.metrics import read_metrics
from flink_agents.runtime.flink.following import backpressure
from flink_agents.runtime.flink.following.backpressure import read_flow, running_flows, settled_flow
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.testing import OperatorHarness
from flink_agents.ui.settings import ConsoleSettings
from tests.suite.tables import each
from tests.trace.clusters import Answers, cluster
from tests.trace.test_trace_records import PLAIN, paying
from tests.ui.consoles import console

pytestmark = pytest.mark.own_conditions

SOURCE, END = "Source: numbers -> _stream_key_by_map_operator", "Source: end of input of paying"
AGENT, SINK = "agent paying", "ship parcels, Map -> Sink: Print to Std. Out"

Shares = tuple[float, float, float]
"""Of the time of a subtask: under backpressure, busy, idle."""

IDLE, BUSY, BLOCKED = (0.0, 0.01, 0.99), (0.0, 1.0, 0.0), (0.992, 0.008, 0.0)
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
    found: Answers = {
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
        found[f"/jobs/j/vertices/{ids[name]}/backpressure"] = {
            "status": "ok",
            "backpressureLevel": level(max((one[0] for one in subtasks), default=0.0)),
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
        found[f"/jobs/j/vertices/{ids[name]}/subtasks/metrics"] = []
    return found | more


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


@each(
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
    text = " ".join(f"{one} {one.meaning}" for one in flow.bottlenecks(["paying"]))
    assert expected in text if expected else not text, text


def test_what_flink_does_not_say_is_not_guessed() -> None:
    told = {name: value for name, value in DOWNSTREAM.items() if not name.endswith("/backpressure")}
    assert read_flow(told.__getitem__, "j").bottlenecks() == []
    unknown = {name: {"status": "deprecated", "subtasks": None} for name in DOWNSTREAM if "pressure" in name}
    flow = read_flow((DOWNSTREAM | unknown).__getitem__, "j")
    assert (flow.bottlenecks(), flow.idle_agents()) == ([], [])


def test_old_metrics_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looked at the cluster for hours: its first answer starts a fetch, and is from before."""
    monkeypatch.setattr(backpressure, "SETTLE_SECONDS", 0.001)
    times, asked = {"/jobs/j": {**DOWNSTREAM["/jobs/j"], "now": 10_000}}, list[str]()

    def ask(path: str) -> Any:
        asked.append(path)
        return (NO_INPUT if asked.count("/jobs/j") == 1 else DOWNSTREAM | times)[path] | {"now": 10_000}

    assert [one.agents for one in settled_flow(ask, "j").bottlenecks()] == [["paying"]]
    asked.clear()
    settled_flow(lambda path: asked.append(path) or DOWNSTREAM[path], "j")
    assert asked.count("/jobs/j") == 1, "metrics of some seconds ago are new enough"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of an agent: key 1 is at rest, and the key wait has a run that is suspended."""
    directory = tmp_path_factory.mktemp("trace")
    options = {"trace.level": "calls", "trace.directory": str(directory)}
    with OperatorHarness(paying(), lambda value: value, config=options, **PLAIN) as harness:
        harness.push_all([1, "wait"])
    return directory


def asked(*arguments: str) -> str:
    return CliRunner().invoke(app, list(arguments)).output


@each(
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
        output = asked("why", key, "--cluster", address, "--path", str(place))
    assert said in output and unsaid not in output, output


def test_top_and_the_console_name_the_slow_operator(place: Path) -> None:
    metric = {"id": "agent_pay.flink_agents.paying.runtime.events", "sum": 5, "max": 5}
    told = DOWNSTREAM | {"/jobs/j/vertices/v2/subtasks/metrics": [metric]}
    with cluster(bytes, told) as address:
        now, flows = list(read_metrics(ClusterRest(address))), list(running_flows(ClusterRest(address).get))
        settings = ConsoleSettings(trace=place, cluster=address)
        with console(settings) as (browser, _, outside):
            jobs = outside.jobs()
            while jobs is None or jobs.loading:
                jobs = outside.jobs()
            page = browser.page("/")
    printed = Console(width=250, record=True, file=StringIO())
    printed.print(top.screen(now, (), (), flows))
    machine, table = top.as_object(now, (), (), flows), printed.export_text()
    cause = f"caused downstream by {SINK}"
    assert machine["agents"][0]["downstream_share"] == 0.976
    assert cause in machine["backpressure"][0] and cause in table and "98 %" in table
    assert cause.replace(">", "&gt;") in page


@each(
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
    found = job_checks(lambda path: told[path.partition("?")[0]], {})
    (one,) = [check for check in found if check.name.endswith("backpressure")] or [None]
    assert one is None if not fix else one is not None and fix in (one.fix or ""), one
