"""Harder conditions for harnesses: what they do, and how ``FLINK_AGENTS_TEST_MODE`` sets them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.errors import OptionError
from flink_agents.api.settings.options import TEST_MODE_VARIABLE, Configuration
from flink_agents.testing import OperatorHarness
from tests.suite.conditions import UNFORCED
from tests.suite.tables import each_case

EXECUTED: list[Any] = []


class Recording(Agent):
    """Puts out how many inputs this instance has seen."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        EXECUTED.append(event.input)
        self.seen.append(event.input)
        ctx.agent_metric_group.get_counter("executed").inc()
        ctx.agent_metric_group.get_gauge("last").set(event.input)
        await asyncio.sleep(0)
        return OutputEvent(output=len(self.seen))


def drive(**options: Any) -> OperatorHarness:
    """Three inputs of one key."""
    EXECUTED.clear()
    with OperatorHarness(Recording, **options) as harness:
        harness.push_all([1, 2, 3])
        harness.run_until_idle()
        assert (harness.sequence_number(), harness.pending()) == (3, 0)
        assert harness.metrics == {"executed": 3, "last": 3}
        return harness


@pytest.mark.parametrize(
    ("words", "executed", "seen"),
    [
        ("", [1, 2, 3], [1, 2, 3]),
        ("restart", [1, 2, 3], [1, 1, 1]),
        ("replay", [1, 1, 2, 2, 3, 3], [1, 1, 1]),
        (" replay, restart,", [1, 1, 2, 2, 3, 3], [1, 1, 1]),
    ],
)
def test_words_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, words: str, executed: list[int], seen: list[int]
) -> None:
    monkeypatch.setenv(TEST_MODE_VARIABLE, words)
    harness = drive()
    assert executed == EXECUTED
    # How many of them one operator has seen, which lives as long as nothing starts it anew.
    assert harness.outputs == (seen if "re" in words else [1, 2, 3])


def test_arguments_go_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEST_MODE_VARIABLE, "replay,restart")
    assert drive(forced_replay=False, forced_restart=False).outputs == [1, 2, 3]
    assert EXECUTED == [1, 2, 3]
    monkeypatch.delenv(TEST_MODE_VARIABLE)
    drive(forced_replay=True)
    assert EXECUTED == [1, 1, 2, 2, 3, 3]


def test_unknown_word_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEST_MODE_VARIABLE, "replay,resart")
    with pytest.raises(OptionError, match="resart"):
        drive()


@pytest.mark.parametrize("words", ["replay", "restart", "replay,restart"])
@pytest.mark.parametrize("end", ["run_until_idle", "end_input", "advance_time"])
def test_what_is_in_flight_ends_all_the_same(monkeypatch: pytest.MonkeyPatch, words: str, end: str) -> None:
    """Without ``auto_run`` each push throws away what runs; each way to the end gets there."""
    monkeypatch.setenv(TEST_MODE_VARIABLE, words)
    EXECUTED.clear()
    with OperatorHarness(Recording, lambda record: record % 5, auto_run=False) as harness:
        harness.push_all(range(20))
        while len(harness.outputs) < 20:
            harness.advance_time(1000) if end == "advance_time" else getattr(harness, end)()
        assert [harness.sequence_number(key) for key in range(5)] == [4] * 5
    assert len(EXECUTED) >= 20


@pytest.mark.parametrize(("words", "outcome"), [("", {"passed": 1}), ("restart", {"skipped": 1})])
def test_tests_that_look_at_executions_are_skipped(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, words: str, outcome: dict[str, int]
) -> None:
    monkeypatch.setenv(TEST_MODE_VARIABLE, words)
    pytester.makepyfile("import pytest\n\n@pytest.mark.executes_once\ndef test_counts():\n    pass\n")
    result = pytester.runpytest_subprocess("--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(**outcome)
    result.stdout.fnmatch_lines(["flink-agents harness: restart"] if words else ["*1 passed*"])


def test_unknown_word_ends_a_test_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEST_MODE_VARIABLE, "replya")
    pytester.makepyfile("def test_nothing():\n    pass\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret != 0
    assert "replya" in result.stdout.str() + result.stderr.str()


class Counted(Agent):
    @action(InputEvent)
    async def count(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(doubled, event.input))


def doubled(number: int) -> int:
    return 2 * number


@pytest.mark.own_conditions
@each_case(
    ("name", "value"),
    [
        ("FLINK_AGENTS_TRACE_LEVEL", "content"),
        ("FLINK_AGENTS_TRACE_SINKS", "kafka"),
        ("FLINK_AGENTS_RUN_MAX_EVENTS", "0"),
        ("FLINK_AGENTS_ACTION_STATE_STORE", "sqlite"),
        ("FLINK_AGENTS_ACTION_STATE_KAFKA_TOPIC", "journal"),
        ("FLINK_AGENTS_JOB_IDENTIFIER", "shop"),
        ("FLINK_AGENTS_ACTIONS_ON_ERROR", "dead-letter"),
        ("FLINK_AGENTS_CHAT_MODELS_ANALYST_MODEL", "openai:gpt"),
        ("FLINK_AGENTS_CONFIG", "options.yaml"),
        ("FLINK_AGENTS_MISSPELT", "1"),
    ],
)
def test_variables_of_a_job_change_no_test(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "options.yaml").write_text("trace.level: content\n")
    with monkeypatch.context() as patch:
        patch.setenv(name, value)
        with OperatorHarness(Counted, **UNFORCED) as harness:
            assert harness.push(4) == [8]
            assert harness._config == {}
    assert [path.name for path in tmp_path.iterdir()] == ["options.yaml"]


@pytest.mark.own_conditions
def test_a_test_can_ask_for_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLINK_AGENTS_RUN_MAX_EVENTS", "7")
    with OperatorHarness(Counted, config=Configuration.load({"trace.queue": 9}), **UNFORCED) as harness:
        assert harness._config == {"run.max-events": 7, "trace.queue": 9}
