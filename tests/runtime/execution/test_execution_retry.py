"""Actions that are tried again: which errors, how often, what is taken back, what is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from core_agents import Step

from flink_agents import Agent, Event, InputEvent, OutputEvent, RetryPolicy, action
from flink_agents.api.errors import (
    ActionFailedError,
    RetriesExhaustedError,
)
from flink_agents.testing import OperatorHarness


class Unstable(Exception):
    pass


class Gone(Unstable):
    pass


FAST = RetryPolicy(initial_interval=0.001, max_interval=0.002)


class Script:
    """What the attempts of an action do, in order: an error is raised, anything else put out."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.threads: list[str] = []

    def __call__(self) -> Any:
        self.threads.append(threading.current_thread().name)
        result = self.results.pop(0)
        if isinstance(result, BaseException):
            raise result
        return result


def sync_action(script: Script) -> Any:
    def act(event: InputEvent, ctx: Any) -> Iterator[Event]:
        ctx.short_term_memory.append("log", "tried")
        ctx.sensory_memory.set("tried", True)
        ctx.emit_to("audit", "tried")
        yield OutputEvent(output="tried")
        yield OutputEvent(output=script())

    return act


def async_action(script: Script) -> Any:
    async def act(event: InputEvent, ctx: Any) -> AsyncIterator[Event]:
        ctx.short_term_memory.append("log", "tried")
        ctx.sensory_memory.set("tried", True)
        ctx.emit_to("audit", "tried")
        yield OutputEvent(output="tried")
        await asyncio.sleep(0)
        yield OutputEvent(output=script())

    return act


FORMS = [sync_action, async_action]


def harness_of(act: Any, auto_run: bool = True, **options: Any) -> OperatorHarness:
    agent = Agent(name="retries").add_action("act", [InputEvent], act, **options)
    agent.side_outputs = {"audit": str}  # type: ignore[misc]
    return OperatorHarness(agent, forced_serialization=False, auto_run=auto_run)


@pytest.mark.executes_once
@pytest.mark.parametrize("form", FORMS)
def test_failed_attempt_leaves_no_trace(form: Any) -> None:
    script = Script(Unstable("one"), Unstable("two"), "done")
    with harness_of(form(script), retry=FAST) as harness:
        assert harness.push("x") == ["tried", "done"]
        assert harness.memory() == {"log": ["tried"]}
        assert harness.side_output("audit") == ["tried"]
        assert harness.sequence_number() == 1
        assert harness.run_metrics.items() >= {"action_retries": 2}.items()


@pytest.mark.executes_once
def test_further_attempts_of_a_def_action_leave_flinks_thread() -> None:
    script = Script(Unstable(), "done")
    with harness_of(sync_action(script), retry=FAST) as harness:
        harness.push("x")
    assert script.threads[0] == threading.current_thread().name
    assert script.threads[1].startswith("agent-pool")


@pytest.mark.executes_once
def test_further_attempts_of_an_async_action_stay_on_the_loop() -> None:
    script = Script(Unstable(), "done")
    with harness_of(async_action(script), retry=FAST) as harness:
        harness.push("x")
    assert script.threads == ["agent-loop"] * 2


class Chain(Agent):
    """Four steps, the third of which fails twice."""

    calls: list[str] = []

    @action(InputEvent)
    def first(self, event: InputEvent, ctx: Any) -> Step:
        self.calls.append("first")
        ctx.short_term_memory.append("log", "first")
        return Step(number=1)

    @action(InputEvent)
    def second(self, event: InputEvent, ctx: Any) -> None:
        self.calls.append("second")
        ctx.sensory_memory.set("from second", "seen")

    @action(Step, retry=FAST)
    def third(self, event: Step, ctx: Any) -> Event:
        self.calls.append("third")
        ctx.short_term_memory.append("log", "third")
        if self.calls.count("third") < 3:
            raise Unstable
        return OutputEvent(output=ctx.sensory_memory.get("from second"))

    @action(Step)
    def fourth(self, event: Step, ctx: Any) -> Event:
        self.calls.append("fourth")
        return OutputEvent(output=ctx.short_term_memory.get("log"))


@pytest.mark.executes_once
@pytest.mark.parametrize("inline", [True, False])
def test_steps_before_the_failed_one_are_not_executed_again(inline: bool) -> None:
    Chain.calls.clear()
    with OperatorHarness(Chain, config={"run.inline": inline}) as harness:
        assert harness.push("x") == ["seen", ["first", "third"]]
    assert Chain.calls == ["first", "second", "third", "third", "third", "fourth"]


@pytest.mark.executes_once
def test_chance_is_the_same_in_each_attempt() -> None:
    drawn: list[Any] = []

    def act(event: InputEvent, ctx: Any) -> None:
        drawn.append((ctx.uuid4(), ctx.random().random()))
        if len(drawn) < 3:
            raise Unstable

    with harness_of(act, retry=FAST) as harness:
        harness.push("x")
    assert len(drawn) == 3
    assert len(set(drawn)) == 1


# -- giving up -----------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_exhausted_error_tells_every_attempt(form: Any) -> None:
    script = Script(Unstable("one"), ValueError("two\nlines"), Unstable("three"))
    policy = RetryPolicy(initial_interval=0.001, max_attempts=3, jitter=0)
    with harness_of(form(script), retry=policy) as harness:
        with pytest.raises(RetriesExhaustedError) as caught:
            harness.push("x")
    error = caught.value
    assert error.code == "FA4012"
    assert isinstance(error.__cause__, Unstable)
    assert [
        (attempt.number, attempt.error_type, attempt.error_message, attempt.delay)
        for attempt in error.attempts
    ] == [
        (1, "Unstable", "one", 0.001),
        (2, "ValueError", "two\nlines", 0.002),
        (3, "Unstable", "three", None),
    ]
    lines = str(error).split("\n")
    assert lines[0].startswith("tests/runtime/execution/test_execution_retry.py:")
    assert lines[0].endswith("Unstable: three")
    assert lines[2:5] == [
        "  attempt 1: Unstable: one (next after 0.001 s)",
        "  attempt 2: ValueError: two lines (next after 0.002 s)",
        "  attempt 3: Unstable: three",
    ]


def test_text_of_many_attempts_shows_the_ends() -> None:
    script = Script(*(Unstable(str(number)) for number in range(30)))
    policy = RetryPolicy(initial_interval=0, max_attempts=30)
    with harness_of(sync_action(script), retry=policy) as harness:
        with pytest.raises(RetriesExhaustedError) as caught:
            harness.push("x")
    assert len(caught.value.attempts) == 30
    text = str(caught.value)
    assert "... 20 more attempts ..." in text
    assert text.count("  attempt ") == 10


@pytest.mark.executes_once
@pytest.mark.parametrize("form", FORMS)
def test_when_the_policy_gives_up_the_error_policy_decides(form: Any) -> None:
    policy = RetryPolicy(initial_interval=0.001, max_attempts=2)
    script = Script(Unstable("one"), Gone("two"), Unstable("a"), Unstable("b"))
    act = form(script)
    with harness_of(act, retry=policy, on_error="dead-letter") as harness:
        assert harness.push("x") == []
        assert harness.memory() == {}
        (letter,) = harness.dead_letters
        assert (letter.error_type, letter.error_message) == ("Gone", "two")
        assert [(attempt.number, attempt.error_type) for attempt in letter.attempts] == [
            (1, "Unstable"),
            (2, "Gone"),
        ]
    with harness_of(act, retry=policy, on_error="ignore") as harness:
        assert harness.push("x") == []
        assert harness.run_metrics.items() >= {"action_retries": 1, "events_ignored": 1}.items()


def test_error_that_is_not_tried_again_ends_the_attempts() -> None:
    script = Script(Unstable("one"), KeyError("two"))
    with harness_of(sync_action(script), retry=FAST) as harness:
        with pytest.raises(ActionFailedError) as caught:
            harness.push("x")
    assert type(caught.value) is ActionFailedError
    assert [attempt.error_type for attempt in caught.value.attempts] == ["Unstable", "KeyError"]


@pytest.mark.executes_once
def test_one_attempt_alone_is_not_listed() -> None:
    with harness_of(sync_action(Script(TypeError())), retry=FAST, on_error="dead-letter") as harness:
        harness.push("x")
        assert harness.dead_letters[0].attempts == ()
    with harness_of(sync_action(Script(TypeError())), retry=FAST) as harness:
        with pytest.raises(ActionFailedError) as caught:
            harness.push("x")
    assert type(caught.value) is ActionFailedError
    assert caught.value.attempts == ()


def test_duration_bounds_the_attempts() -> None:
    policy = RetryPolicy(initial_interval=3600, max_interval=3600, max_duration=60, max_attempts=None)
    with harness_of(sync_action(Script(Unstable())), retry=policy) as harness:
        with pytest.raises(ActionFailedError, match="Unstable"):
            harness.push("x")


# -- where the policy comes from -----------------------------------------------------


class Settings(Agent):
    attempts = 0

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        self.attempts += 1
        if self.attempts < 3:
            raise Unstable
        return OutputEvent(output=self.attempts)


def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the default policy fast."""
    monkeypatch.setattr("flink_agents.runtime.execution.failures.RetryPolicy", lambda: FAST)


def test_agents_policy_holds_for_actions_without_one() -> None:
    agent = Settings()
    agent.retry = FAST
    with OperatorHarness(agent) as harness:
        assert harness.push("x") == [3]


def test_actions_own_policy_wins() -> None:
    agent = Agent(name="a").add_action(
        "act", [InputEvent], sync_action(Script(Unstable())), retry=RetryPolicy(max_attempts=1)
    )
    agent.retry = FAST
    with OperatorHarness(agent, forced_serialization=False) as harness:
        with pytest.raises(ActionFailedError):
            harness.push("x")


@pytest.mark.parametrize("where", ["agent", "option"])
def test_retry_is_short_for_the_default_policy(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    agent = Settings()
    agent.on_error = "retry" if where == "agent" else None
    with OperatorHarness(
        agent, config={"actions.on-error": "retry"} if where == "option" else None
    ) as harness:
        assert harness.push("x") == [3]


def test_retry_of_an_action_fails_the_job_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    script = Script(*(Unstable(str(number)) for number in range(9)))
    with harness_of(sync_action(script), on_error="retry") as harness:
        with pytest.raises(RetriesExhaustedError) as caught:
            harness.push("x")
    assert len(caught.value.attempts) == FAST.max_attempts


@pytest.mark.executes_once
def test_condition_that_raises_is_not_tried_again() -> None:
    calls: list[int] = []

    def when(event: Any) -> bool:
        calls.append(1)
        raise Unstable

    agent = Agent(name="a").add_action(
        "act", [InputEvent], lambda event, ctx: None, when=when, retry=FAST, on_error="ignore"
    )
    with OperatorHarness(agent, forced_serialization=False) as harness:
        harness.push("x")
    assert len(calls) == 1


class Renamed(Exception):
    pass


class ByName(Agent):
    attempts = 0

    @action(InputEvent, retry=RetryPolicy(initial_interval=0, retry_on=(Renamed,), non_retryable=(Gone,)))
    def act(self, event: InputEvent, ctx: Any) -> Event:
        self.attempts += 1
        if self.attempts < 3:
            raise Renamed
        if event.input == "bad":
            raise Gone
        return OutputEvent(output=self.attempts)


@pytest.mark.parametrize("serialization", [True, False])
def test_exceptions_of_a_policy_reach_the_worker(serialization: bool) -> None:
    with OperatorHarness(ByName, forced_serialization=serialization) as harness:
        assert harness.push("x") == [3]


def test_exceptions_that_no_name_leads_to_reach_the_worker() -> None:
    class Local(Exception):
        pass

    class Trying(Agent):
        attempts = 0

        @action(InputEvent, retry=RetryPolicy(initial_interval=0, retry_on=(Local,)))
        def act(self, event: InputEvent, ctx: Any) -> Event:
            self.attempts += 1
            if self.attempts < 3:
                raise Local
            return OutputEvent(output=self.attempts)

    with OperatorHarness(Trying) as harness:
        assert harness.push("x") == [3]


# -- nobody else waits ---------------------------------------------------------------


class Patient(Agent):
    """Retries the key "slow" until the key "quick" has been through."""

    retry = RetryPolicy(initial_interval=0.001, max_interval=0.01, max_attempts=None)
    through: list[str] = []

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        if event.input == "slow" and "quick" not in self.through:
            raise Unstable
        self.through.append(event.input)
        return OutputEvent(output=event.input)


class AsyncPatient(Patient):
    async def act(self, event: InputEvent, ctx: Any) -> Event:  # type: ignore[override]
        return super().act(event, ctx)


@pytest.mark.parametrize("agent", [Patient, AsyncPatient])
def test_retrying_key_holds_neither_another_key_nor_a_place(agent: type[Agent]) -> None:
    Patient.through.clear()
    config = {"run.max-in-flight": 1, "run.pool-size": 1}
    with OperatorHarness(agent, lambda record: record, config=config, auto_run=False) as harness:
        harness.push("slow")
        harness.push("slow")
        harness.push("quick")
        harness.run_until_idle()
        assert sorted(harness.outputs) == ["quick", "slow", "slow"]
    assert Patient.through[0] == "quick"


@pytest.mark.executes_once
def test_inputs_of_a_retrying_key_keep_their_order() -> None:
    attempts: list[int] = []

    async def act(event: InputEvent, ctx: Any) -> Event:
        attempts.append(event.input)
        if attempts.count(event.input) < 3:
            raise Unstable
        return OutputEvent(output=event.input)

    agent = Agent(name="a").add_action("act", [InputEvent], act, retry=FAST)
    with OperatorHarness(agent, forced_serialization=False, auto_run=False) as harness:
        harness.push_all([1, 2, 3])
        harness.run_until_idle()
        assert harness.outputs == [1, 2, 3]
    assert attempts == [1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.executes_once
def test_end_of_an_attempt_of_the_job_ends_a_pause() -> None:
    policy = RetryPolicy(initial_interval=3600, max_interval=3600)
    previous_threads = set(threading.enumerate())
    harness = harness_of(sync_action(Script(Unstable())), auto_run=False, retry=policy)
    harness.push("x")
    started = set(threading.enumerate()) - previous_threads
    harness.close()
    assert started and not [thread for thread in started if thread.is_alive()]
