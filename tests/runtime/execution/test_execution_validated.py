"""``ValidatedAgent``: what is accepted, sent back, rejected and sampled, and what people say of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import ActionFailedError, AgentDefinitionError, NoVerdictError
from flink_agents.api.validation import (
    Draft,
    HumanReview,
    HumanReviewEvent,
    RevisionRequest,
    ValidatedAgent,
    Verdict,
    key_or_verdict,
)
from flink_agents.testing import OperatorHarness

DONE: list[Any] = []
"""What durable calls did outside."""


@pytest.fixture(autouse=True)
def nothing_done() -> Iterator[None]:
    """Begin with nothing done."""
    DONE.clear()
    yield
    DONE.clear()


async def write(text: str) -> str:
    DONE.append(text)
    return text


class Written(Event):
    text: str


class Writer(Agent):
    """Writes what it is told, longer each time that it comes back."""

    @action(InputEvent)
    async def begin(self, event: InputEvent, ctx: RunnerContext) -> Written:
        ctx.short_term_memory.set("begun", ctx.short_term_memory.get("begun", 0) + 1)
        return Written(text=await ctx.durable_execute_async(write, event.input["text"]))

    @action(RevisionRequest)
    async def improve(self, event: RevisionRequest, ctx: RunnerContext) -> Written:
        return Written(text=await ctx.durable_execute_async(write, f"{event.output}{len(event.reasons)}"))

    @action(Written)
    def end(self, event: Written, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.text)


class Judge(Agent):
    """Wants three characters, and no ``x``."""

    @action(InputEvent)
    async def judge(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        draft: Draft = event.input
        if any(not verdict.good for verdict in draft.verdicts):
            return OutputEvent(output=Verdict.reject("a person was not content"))
        length = len(await ctx.durable_execute_async(write, f"judge {draft.output}")) - len("judge ")
        if "x" in draft.output:
            return OutputEvent(output=Verdict.reject("an x"))
        wrong = length < 3
        return OutputEvent(output=Verdict.retry(f"only {length}") if wrong else Verdict.accept())


class Texts(ValidatedAgent):
    worker = Writer
    validator = Judge
    attempts = 3


class SampledTexts(Texts):
    sample = 1.0


class Half(Texts):
    sample = 0.5


def by_key(record: Any) -> Any:
    return record["key"]


def texts(*words: str, key: str = "k") -> list[dict[str, str]]:
    return [{"key": key, "text": word} for word in words]


@pytest.mark.parametrize("way", [{}, {"crash": "everywhere"}, {"forced_replay": True}])
def test_attempts_end_with_a_verdict(way: dict[str, Any]) -> None:
    with OperatorHarness(Texts(), by_key, **way) as harness:
        assert harness.push_all(texts("tea", "a", "", "xa")) == ["tea", "a12"]
        short, forbidden = harness.side_output("rejected")
        assert (short.reason, [attempt.output for attempt in short.attempts]) == ("only 2", ["", "1", "12"])
        assert [attempt.verdict.decision for attempt in short.attempts] == ["retry"] * 3
        assert (forbidden.input["text"], forbidden.reason, len(forbidden.attempts)) == ("xa", "an x", 1)
        # What a sample has is left out.
        assert all(not attempt.transcript for attempt in short.attempts)
        assert harness.memory("k") == {"_asked.Writer.begun": 4}


@pytest.mark.executes_once
def test_a_crash_repeats_no_attempt_whose_end_is_recorded() -> None:
    harness = OperatorHarness(Texts(), by_key, crash="everywhere")
    harness.push_all(texts("a"))
    assert len(DONE) == len(set(DONE)) == 6


@pytest.mark.parametrize("way", [{}, {"crash": "everywhere"}])
def test_a_sample_has_the_whole_transcript(way: dict[str, Any]) -> None:
    with OperatorHarness(SampledTexts(), by_key, **way) as harness:
        assert harness.push_all(texts("ab", "x")) == ["ab1"]
        accepted, rejected = harness.side_output("review")
        assert (accepted.agent, accepted.key, accepted.sequence_number) == ("SampledTexts", "k", 0)
        assert (accepted.input["text"], accepted.accepted, len(accepted.run_id)) == ("ab", True, 24)
        transcript = [(event.agent, event.action, event.name) for event in accepted.attempts[0].transcript]
        assert transcript == [
            ("Writer", "begin", "Written"),
            ("Writer", "end", "_output_event"),
            ("Judge", "judge", "_output_event"),
        ]
        assert accepted.attempts[0].transcript[0].content == {"text": "ab"}
        assert [attempt.verdict.decision for attempt in accepted.attempts] == ["retry", "accept"]
        assert (rejected.accepted, rejected.sequence_number) == (False, 1)


@pytest.mark.executes_once
def test_which_runs_are_sampled_follows_from_key_and_sequence() -> None:
    records = [record for key in "abcd" for record in texts(*["long"] * 25, key=key)]

    def sampled(records: list[Any], **options: Any) -> set[Any]:
        with OperatorHarness(Half(), by_key, **options) as harness:
            harness.push_all(records)
            return {(review.key, review.sequence_number) for review in harness.side_output("review")}

    sampled_runs = sampled(records, crash=None)
    assert 30 < len(sampled_runs) < 70
    # Another job, with another order of keys.
    assert sampled(list(reversed(records)), crash=None, job_id="another") == sampled_runs


def test_what_people_say_comes_back_as_an_event_of_the_key() -> None:
    verdict = HumanReview(key="k", sequence_number=0, good=False, comment="too long", reviewer="ada")
    with OperatorHarness(SampledTexts(), key_or_verdict(by_key)) as harness:
        assert harness.push_all([*texts("long"), verdict, *texts("long"), *texts("other", key="o")]) == [
            "long",
            "other",
        ]
        assert harness.memory("k")["verdicts"] == [verdict]
        assert harness.side_output("rejected")[0].reason == "a person was not content"


class Counting(Texts):
    """Counts what people say."""

    def reviewed(self, event: HumanReviewEvent, ctx: RunnerContext) -> OutputEvent:
        good = ctx.short_term_memory.get("good", 0) + event.verdict.good
        ctx.short_term_memory.set("good", good)
        return OutputEvent(output=("good", good))


def test_a_class_decides_what_a_verdict_changes() -> None:
    verdicts = [HumanReview(key="k", sequence_number=0, good=good) for good in (True, False, True)]
    with OperatorHarness(Counting(), key_or_verdict(by_key)) as harness:
        assert harness.push_all(verdicts) == [("good", 1), ("good", 1), ("good", 2)]


def test_few_verdicts_stay() -> None:
    verdicts = [HumanReview(key="k", sequence_number=number, good=True) for number in range(25)]
    with OperatorHarness(Texts(), key_or_verdict(by_key), crash=None) as harness:
        harness.push_all(verdicts)
        assert [verdict.sequence_number for verdict in harness.memory("k")["verdicts"]] == list(range(5, 25))


class Stubborn(Agent):
    """Takes nothing back."""

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input["text"])


class StubbornTexts(Texts):
    worker = Stubborn


def test_a_worker_that_takes_nothing_back_is_named() -> None:
    with pytest.raises(ActionFailedError, match="'Stubborn' is called with 'RevisionRequest'") as caught:
        OperatorHarness(StubbornTexts(), by_key, crash=None).push(texts("a")[0])
    assert "give Stubborn an action for RevisionRequest" in str(caught.value.fix)


@pytest.mark.parametrize("wrong", [{"worker": None}, {"attempts": 0}, {"sample": 1.5}])
def test_what_cannot_validate_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AgentDefinitionError, match="is not a valid ValidatedAgent"):
        type("Wrong", (Texts,), wrong)()


class Loose(Agent):
    """Judges by what its draft says, whatever that is."""

    @action(InputEvent)
    def judge(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=JUDGED[event.input.output])


JUDGED: dict[str, Any] = {
    "text": "accept",
    "bool": True,
    "nothing": None,
    "decision": {"decision": "maybe"},
    "reason": {"decision": "accept", "reason": 7},
    "dict": {"decision": "accept"},
}


class LooselyJudged(Texts):
    validator = Loose


@pytest.mark.parametrize("output", JUDGED)
def test_what_a_validator_puts_out_is_a_verdict_or_is_named(output: str) -> None:
    harness = OperatorHarness(LooselyJudged(), by_key, crash=None)
    if output == "dict":
        assert harness.push(texts(output)[0]) == [output]
        return
    with pytest.raises(
        ActionFailedError, match="the validator 'Loose' emitted a value that is not a Verdict"
    ) as caught:
        harness.push(texts(output)[0])
    assert isinstance(caught.value.__cause__, NoVerdictError)
    assert "Verdict.reject(reason)" in str(caught.value)
    first = str(caught.value).splitlines()[0]
    assert "test_execution_validated.py:" in first and " in Loose: NoVerdictError" in first
