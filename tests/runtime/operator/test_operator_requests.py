"""Requests about keys: what there is of one, the end of a run as a dead letter, and an erased key."""

from __future__ import annotations

import asyncio
import linecache
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from flink_agents import (
    Agent,
    Event,
    EventTime,
    InputEvent,
    OnError,
    OutputEvent,
    RetryPolicy,
    RunnerContext,
    RunObserver,
)
from flink_agents.api.events.key_requests import END_RUN, ERASE, INSPECT, REPLY_MARK
from flink_agents.testing import OperatorHarness
from flink_agents.trace.answers import describe_answer
from tests.suite.tables import each_case

WAIT_SECONDS = 30
PLAIN: dict[str, Any] = {"forced_replay": False, "forced_restart": False, "crash": None}
LIVE = PLAIN | {"auto_run": False, "forced_serialization": False}
"""Runs go on while the test looks at them."""

ANSWERS: list[dict[str, Any]] = []
BEGUN = threading.Event()


class Listening(RunObserver):
    """Keeps the answers to requests."""

    def request_answered(self, key_text: str, answer: Mapping[str, Any]) -> None:
        ANSWERS.append(dict(answer))


async def never() -> None:
    BEGUN.set()
    await asyncio.Event().wait()


async def act(event: Any, ctx: RunnerContext) -> Any:
    memory = ctx.short_term_memory
    what = event.input
    memory.set("seen", memory.get("seen", 0) + 1)
    if what == "wait":
        return OutputEvent(output=await ctx.wait_for_signal("paid", timeout=3600))
    if what == "hang":
        await never()
    if what == "call":
        await ctx.durable_execute_async(never)
    if what == "task":
        await asyncio.gather(never(), ctx.wait_for_signal("paid"))
    if what == "stubborn":
        try:
            await never()
        except asyncio.CancelledError:
            return OutputEvent(output="went on")
    if what == "fail":
        BEGUN.set()
        raise RuntimeError("not now")
    return OutputEvent(output=(what, memory.get("seen")))


def acting(on_error: OnError = OnError.DEAD_LETTER, on_suspend: str = "block") -> Agent:
    agent = Agent(name="acting")
    agent.on_suspend = on_suspend  # type: ignore[assignment]
    retry = RetryPolicy(max_attempts=5, initial_interval=3600, max_interval=3600)
    return agent.add_action("act", [InputEvent], act, on_error=on_error, retry=retry)


def key_of(value: Any) -> str:
    return "k"


def harness_of(agent: Agent, **more: Any) -> OperatorHarness:
    ANSWERS.clear()
    BEGUN.clear()
    return OperatorHarness(agent, key_of, observers=[Listening], **more)


def is_at(where: str, line: str) -> bool:
    """Whether a place is in a function, or a line with a text."""
    place, name = where.split(" in ")
    file, number = place.rsplit(":", 1)
    return name == line or line in linecache.getline(file, int(number))


def send_request(harness: OperatorHarness, what: str, value: Any = None, key: str = "k") -> dict[str, Any]:
    """The last answer to a request."""
    answer_count = len(ANSWERS)
    harness.signal(key, what, value, id=f"request {answer_count}")
    harness.run_until_idle()
    return ANSWERS[-1]


def test_a_key_that_never_came_is_unknown() -> None:
    with harness_of(acting()) as harness:
        for what, outcome in ((INSPECT, "answered"), (END_RUN, "rejected"), (ERASE, "erased")):
            answer = send_request(harness, what, {"run": "0" * 24})
            assert (answer["known"], answer["outcome"]) == (False, outcome)
        assert harness.unmatched_signals == []
        assert send_request(harness, "flink-agents/dance")["outcome"] in ("rejected", "erased")


@each_case("on_suspend", ["block", "interleave"])
def test_a_key_says_what_it_waits_for(on_suspend: str) -> None:
    with harness_of(acting(on_suspend=on_suspend)) as harness:
        harness.push("plain")
        harness.push("wait")
        harness.push("behind")
        harness.signal("k", "other", id="1")
        answer = send_request(harness, INSPECT)
        [suspended] = answer["suspended"]
        assert suspended["blocks"] == (on_suspend == "block")
        assert [wait["kind"] for wait in suspended["waits"]] == ["signal"]
        assert [wait["name"] for wait in suspended["waits"]] == ["paid"]
        assert suspended["sequence"] == 1 and len(suspended["run"]) == 24
        assert answer["inputs"] == (2 if on_suspend == "block" else 0)
        assert answer["memory"] and answer["signals"] == {"other": 1}


@each_case(
    "on_suspend, on_error",
    [("block", OnError.DEAD_LETTER), ("block", OnError.FAIL), ("interleave", OnError.FAIL)],
)
def test_a_suspended_run_ends_as_a_dead_letter(on_suspend: str, on_error: OnError) -> None:
    with harness_of(acting(on_error, on_suspend)) as harness:
        harness.push("wait")
        harness.push("behind")
        inspection = send_request(harness, INSPECT)
        run = inspection["suspended"][0]["run"]
        answer = send_request(harness, END_RUN, {"run": run, "reason": "lost order", "by": "ada"})
        assert (answer["outcome"], answer["run"]) == ("ended", run)
        (letter,) = harness.dead_letters
        assert letter.error_type == "RunEndedError" and letter.record == "wait"
        assert "lost order" in letter.error_message and "ada" in letter.error_message
        behind = 1 if on_suspend == "block" else 2
        assert harness.outputs == [("behind", behind)]
        # It has ended: neither a request nor a signal reaches it.
        assert send_request(harness, END_RUN, {"run": run})["outcome"] == "rejected"
        harness.signal("k", "paid", id="late")
        assert harness.push("next") == [("next", behind + 1)]
        assert len(harness.dead_letters) == 1


@each_case(
    "what, line, words",
    [
        ("hang", "never", ["is running in action act at"]),
        ("call", "never", ["waits for durable call", "never"]),
        ("task", "await asyncio.gather(never(), ctx.wait_for_signal", ["the signal 'paid'"]),
        ("stubborn", "never", ["is running in action act at"]),
        ("fail", "async def act(event", ["a pause before attempt 2", "not now"]),
    ],
)
@pytest.mark.own_conditions
def test_a_run_that_is_executed_ends_where_it_is(what: str, line: str, words: list[str]) -> None:
    with harness_of(acting(OnError.FAIL), **LIVE) as harness:
        harness.push_all([what, "behind"])
        assert BEGUN.wait(WAIT_SECONDS)
        while what == "fail" and not harness.retries_waiting:
            time.sleep(0.001)
        harness.signal("k", INSPECT, id="i")
        report = "\n".join(describe_answer(ANSWERS[-1]))
        assert [word for word in [*words, "1 input(s) of the key"] if word not in report] == [], report
        # Your line that waits, not that of the action. At first, the coroutine may not wait yet.
        end = time.monotonic() + WAIT_SECONDS
        while not is_at(ANSWERS[-1]["run"]["where"], line):
            assert time.monotonic() < end, ANSWERS[-1]
            harness.signal("k", INSPECT, id=f"i {time.monotonic()}")
        run = ANSWERS[-1]["run"]["run"]
        harness.signal("k", END_RUN, {"run": run, "reason": "enough"}, id="e")
        assert ANSWERS[-1]["outcome"] == "accepted"
        harness.run_until_idle()
        assert ANSWERS[-1]["outcome"] == "ended"
        (letter,) = harness.dead_letters
        assert (letter.record, letter.error_type) == (what, "RunEndedError")
        assert harness.outputs == [("behind", 1)]
        assert harness.memory("k") == {"seen": 1}


@each_case("when", ["before", "accepted"])
@pytest.mark.own_conditions
def test_a_crash_keeps_the_request_or_the_run(when: str) -> None:
    with harness_of(acting(OnError.FAIL), **LIVE) as harness:
        harness.push("hang")
        assert BEGUN.wait(WAIT_SECONDS)
        harness.signal("k", INSPECT, id="i")
        run = ANSWERS[-1]["run"]["run"]
        previous_snapshot = harness.snapshot()
        harness.signal("k", END_RUN, {"run": run}, id="e")
        snapshot = previous_snapshot if when == "before" else harness.snapshot()
        BEGUN.clear()
        harness.restore(snapshot)
        if when == "before":
            # Flink hands the request over again.
            harness.push("behind")
            assert BEGUN.wait(WAIT_SECONDS)
            harness.signal("k", END_RUN, {"run": run}, id="e")
        else:
            harness.push("behind")
        harness.run_until_idle()
        assert [letter.record for letter in harness.dead_letters] == ["hang"]
        assert harness.outputs == [("behind", 1)]


@pytest.mark.own_conditions
def test_a_run_that_waits_for_its_turn_can_be_ended() -> None:
    with harness_of(acting(OnError.FAIL), **LIVE) as harness:
        harness.push_all(["hang", "second", "third"])
        assert BEGUN.wait(WAIT_SECONDS)
        from flink_agents.runtime.serde.keys import encode_key
        from flink_agents.trace.records import run_id_of

        harness.signal("k", INSPECT, id="i")
        first = ANSWERS[-1]["run"]
        head = harness._read_head("k")  # pyright: ignore[reportPrivateUsage]
        assert head is not None
        second = run_id_of(head.journal_id, encode_key("k"), first["sequence"] + 1)
        harness.signal("k", END_RUN, {"run": second}, id="e")
        harness.signal("k", END_RUN, {"run": first["run"]}, id="f")
        harness.run_until_idle()
        assert [letter.record for letter in harness.dead_letters] == ["hang", "second"]
        assert harness.outputs == [("third", 1)]


def test_an_erased_key_leaves_nothing_but_its_number() -> None:
    with harness_of(acting()) as harness:
        harness.push("plain")
        harness.signal("k", "other", id="1")
        assert harness.memory("k") == {"seen": 1}
        answer = send_request(harness, ERASE)
        # Of its records, those of runs that have ended can go.
        assert (
            answer["values"] > 0
            and answer["through"] == 0
            and answer["journal"].endswith(f"/{answer['agent']}")
        )
        assert harness.memory("k") == {}
        # Again: there is nothing left.
        assert (send_request(harness, ERASE)["values"], ANSWERS[-1]["signals"]) == (0, False)
        assert harness.push("plain") == [("plain", 1)]
        assert harness.sequence_number("k") == 2


class First(Event):
    pass


class Second(Event):
    pass


def first(event: Any, ctx: RunnerContext) -> Event:
    ctx.short_term_memory.set("first", 1)
    ctx.sensory_memory.set("first", 1)
    return First()


def second(event: Any, ctx: RunnerContext) -> Event:
    ctx.short_term_memory.set("second", ctx.sensory_memory.get("first"))
    return Second()


@each_case("timeouts", [(None, None), (60, None), (None, 60), (60, 60)])
@pytest.mark.own_conditions
def test_a_run_that_is_ended_leaves_no_write_of_its_earlier_actions(timeouts: Any) -> None:
    """An action with a timeout writes to copies of the memory."""
    agent = Agent(name="writing")
    for action, trigger, timeout in zip((first, second), (InputEvent, First), timeouts, strict=True):
        agent.add_action(action.__name__, [trigger], action, timeout=timeout)
    agent.add_action("third", [Second], never_ends, timeout=600)
    with harness_of(agent, **LIVE) as harness:
        harness.push_all(["hang"])
        assert BEGUN.wait(WAIT_SECONDS)
        harness.signal("k", INSPECT, id="i")
        harness.signal("k", END_RUN, {"run": ANSWERS[-1]["run"]["run"]}, id="e")
        harness.run_until_idle()
        assert len(harness.dead_letters) == 1 and harness.memory("k") == {}


async def never_ends(event: Any, ctx: RunnerContext) -> None:
    ctx.short_term_memory.set("third", 1)
    await never()


@each_case("config", [{}, {"state.idle-key-ttl": "1 h"}])
def test_runs_that_have_ended_are_counted_in_a_generation_of_the_key(config: dict[str, Any]) -> None:
    with harness_of(acting(), config=config) as harness:
        for _ in range(3):
            harness.push("plain")
        assert (
            describe_answer(send_request(harness, INSPECT))[0]
            == "Nothing of the key is unfinished. 3 runs have ended."
        )


def test_a_key_with_unfinished_runs_is_not_erased() -> None:
    with harness_of(acting()) as harness:
        harness.push("wait")
        assert send_request(harness, ERASE)["outcome"] == "rejected"
        assert harness.signal("k", "paid", "yes") == ["yes"]


def test_the_answer_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "flink_agents.requests")
    with harness_of(acting()) as harness:
        harness.push("plain")
        send_request(harness, INSPECT)
    lines = [record.getMessage() for record in caplog.records if record.name == "flink_agents.requests"]
    assert lines and lines[-1].startswith(REPLY_MARK) and '"what":"inspect"' in lines[-1]


@pytest.mark.own_conditions
def test_a_run_in_a_thread_ends_though_its_thread_goes_on() -> None:
    leave = threading.Event()

    def block(event: Any, ctx: RunnerContext) -> Any:
        ctx.short_term_memory.set("seen", event.input)
        if event.input == "block":
            BEGUN.set()
            assert leave.wait(WAIT_SECONDS)
            ctx.short_term_memory.set("late", True)
        return OutputEvent(output=event.input)

    agent = Agent(name="blocking").add_action("block", [InputEvent], block, blocking=True)
    with harness_of(agent, **LIVE) as harness:
        harness.push_all(["block", "behind"])
        assert BEGUN.wait(WAIT_SECONDS)
        harness.signal("k", INSPECT, id="i")
        harness.signal("k", END_RUN, {"run": ANSWERS[-1]["run"]["run"]}, id="e")
        leave.set()
        harness.run_until_idle()
        assert [letter.record for letter in harness.dead_letters] == ["block"]
        assert harness.outputs == ["behind"] and harness.memory("k") == {"seen": "behind"}


@each_case("late", ["emit", "drop", "side"])
def test_a_run_ends_where_event_time_is_held(late: str) -> None:
    event_time = EventTime.hold_watermarks(late=late)
    with harness_of(acting(OnError.FAIL), event_time=event_time) as harness:
        harness.push("wait", 1000)
        harness.push("behind", 2000)
        harness.watermark(1500)
        run = send_request(harness, INSPECT)["suspended"][0]["run"]
        assert send_request(harness, END_RUN, {"run": run})["outcome"] == "ended"
        harness.watermark(3000)
        assert [letter.record for letter in harness.dead_letters] == ["wait"]
        assert harness.outputs == [("behind", 1)]


def test_a_key_of_an_agent_that_waits_for_nothing_can_be_asked() -> None:
    async def plain(event: Any, ctx: RunnerContext) -> Any:
        ctx.short_term_memory.set("x", 1)
        return OutputEvent(output=event.input)

    agent = Agent(name="plain").add_action("plain", [InputEvent], plain)
    with harness_of(agent) as harness:
        harness.push(1)
        assert (
            send_request(harness, INSPECT)["memory"] and send_request(harness, ERASE)["outcome"] == "erased"
        )
