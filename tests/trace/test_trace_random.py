"""Random runs have the same records as one line, as many, and if the writer looks at them meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from flink_agents.api.settings.tracing import TraceLevel
from flink_agents.trace.recording import recorder as recorders, runs
from flink_agents.trace.recording.recorder import TracedSubtask, TraceRecorder
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.writer import TraceWriter
from tests.trace.hour import Nth, Outcome, Phase, Run, ended, turn
from tests.trace.test_trace_lasting import Keeping, facts

pytestmark = pytest.mark.own_conditions

ACTIONS = ["read", "pay", "mail"]
FUNCTIONS = ["charge", "mail", "chat:m", "vector_store:s.query"]
ANSWER = {"kind": "response", "model_name": "m", "usage": {"input_tokens": 3}}
ERROR = ValueError("no")

CALLS = TraceLevel.CALLS
RUNS = TraceLevel.RUNS
OFF = TraceLevel.OFF
LEVELS: list[tuple[TraceLevel, dict[str, TraceLevel]]] = [
    *[(CALLS, {})] * 4,
    *[(CALLS, {"pay": RUNS}), (CALLS, {"read": OFF}), (RUNS, {"pay": CALLS}), (CALLS, {"pay": CALLS})],
]

Step = tuple[Any, ...]


def program(rng: random.Random, on_loop: bool) -> list[Step]:
    """What a run does. Calls of several actions are open at a time."""
    steps: list[Step] = []
    opened: list[tuple[str, str, Nth]] = []
    call_counts = Counter[str]()
    # Else, hardly a run stays one line.
    smooth = rng.random() < 0.5
    for number in range(rng.randint(1, rng.choice([6, 20, 80]))):
        action = rng.choice(ACTIONS)
        function = rng.choice(FUNCTIONS)
        sent = tuple(rng.choices("AB", k=rng.randint(0, 2)))
        kind = rng.choices(
            ["begun", "recorded", "action", "failed", "retried", "raised", "memory", "wait", "replayed"],
            [35, 35, 15, 0, 0, 0, 2, 2, 0] if smooth else [35, 30, 20, 2, 1, 3, 2, 2, 1],
        )[0]
        if not on_loop or kind == "action":
            steps.append(("action", action, sent, not on_loop or rng.random() < 0.3))
            if all(call[0] != action for call in opened):
                del call_counts[action]
        elif kind in ("recorded", "failed", "retried"):
            if opened:
                what = opened[0] if kind == "retried" else opened.pop(rng.randrange(len(opened)))
                steps.append((kind, *what, number))
        elif kind == "memory":
            names = rng.sample(["x", 'y"', "\ud800"], rng.randint(1, 3))
            steps.append((kind, {name: rng.randint(0, 9) for name in names}))
        else:
            steps.append((kind, action, function, Nth(call_counts[action], rng.choice(["", "", "1.0"]))))
            if kind in ("begun", "replayed"):
                call_counts[action] += 1
            if kind == "begun":
                opened.append(steps[-1][1:])
    return steps


def record_step(recorder: TraceRecorder, run: Run, step: Step) -> None:
    kind, what, *more = step
    untyped_recorder: Any = recorder
    call: Any = run, what, *more[:2]
    if kind == "begun":
        untyped_recorder.call_begun(*call, False)
    elif kind == "recorded":
        value: Any = ANSWER if more[0] == "chat:m" else [1]
        untyped_recorder.call_content(*call, "result", value)
        untyped_recorder.call_recorded(*call)
    elif kind == "failed":
        untyped_recorder.call_failed(*call, ERROR, more[2])
    elif kind == "retried":
        untyped_recorder.call_attempt_failed(*call, more[2], ERROR)
        untyped_recorder.call_retried(*call, more[2] + 1)
    elif kind == "raised":
        recorder.action_failed(run, what, ERROR)
    elif kind == "replayed":
        untyped_recorder.call_replayed(*call, Outcome())
    elif kind == "memory":
        recorder.memory_written(run, what)
    elif kind == "wait":
        turn(recorder, run, Phase.CALL, Phase.RUNNING)
        turn(recorder, run, Phase.RUNNING, Phase.CALL)
    else:
        sent, inline = more
        ended(recorder, run, what, sent, inline, 0.0005)


def recorded(
    steps: list[Step],
    on_loop: bool,
    levels: tuple[TraceLevel, Mapping[str, TraceLevel]],
    looks: Collection[int],
    key: str,
) -> list[TraceRecord]:
    sink = Keeping()
    at = [1000.0]
    writer = TraceWriter({"kept": sink}, 10**6)
    recorder = TraceRecorder(TracedSubtask("job", "a", 0), levels[0], writer, levels[1], now=lambda: at[0])
    run = Run(1)
    run.key_text = key
    if on_loop:
        turn(recorder, run, Phase.QUEUED, None)
    turn(recorder, run, Phase.RUNNING, Phase.QUEUED if on_loop else None)
    for number, step in enumerate(steps):
        at[0] += 0.001
        record_step(recorder, run, step)
        if number in looks:
            at[0] += 2
            recorder.record_lasting_runs()
    turn(recorder, run, Phase.COMMITTED, Phase.RUNNING)
    recorder.closed()
    assert not recorder.unfinished_count
    return sink.records


def test_random_runs_have_the_same_records_in_each_form(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(120):
        rng = random.Random(seed)
        on_loop = rng.random() < 0.8
        steps = program(rng, on_loop)
        what = steps, on_loop, rng.choice(LEVELS)
        key = rng.choice(['s"q\n', "sé", "s\ud800"])
        looks = {rng.randrange(len(steps) + 1) for _ in range(rng.randint(1, 3))}
        folded_records = recorded(*what, (), key)
        looked = recorded(*what, looks, key)
        with monkeypatch.context() as patch:
            for module in (runs, recorders):
                patch.setattr(module, "MOST_STEPS", -1)
            many = recorded(*what, (), key)
        assert facts(folded_records) == facts(many), seed
        assert facts(folded_records) == facts(looked), seed
        assert set(Counter(record.id for record in folded_records if record.is_end).values()) == {1}, seed
