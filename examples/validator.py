"""One agent answers complaints, another one checks the answers, and a person looks at a sample of them.

::

    complaints ─┐                                      ┌─> answers that were accepted
                ├─> Answers (per customer) ────────────┼─> rejected, with the reason
    verdicts ───┘    asks AnswerAgent and AnswerChecker └─> review: all that both did, for a person

``AnswerAgent`` simulates a language model: it promises too much, and improves when an answer is rejected with
a reason. The verdict of the person is an input of the same customer, and reaches ``AnswerChecker``.
Run it with ``python examples/validator.py``.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.validation import (
    Draft,
    HumanReview,
    RevisionRequest,
    ValidatedAgent,
    Verdict,
    key_or_verdict,
)

LIMIT = 50


class Complaint(BaseModel):
    customer: str
    text: str
    paid: int


class Reply(BaseModel):
    """The reply to a customer."""

    text: str
    refund: int


INPUTS: list[Complaint | HumanReview] = [
    Complaint(customer="ada", text="The kettle leaks.", paid=40),
    Complaint(customer="alan", text="The lamp is broken.", paid=90),
    Complaint(customer="grace", text="I want more money!", paid=500),
    HumanReview(key="alan", sequence_number=0, good=False, comment="half is too much", reviewer="eve"),
    Complaint(customer="alan", text="The lamp is broken again.", paid=30),
]
"""Complaints, and what a person said of an earlier answer; a job reads them from two topics."""


async def compose(complaint: Complaint, share: float) -> Reply:
    """Stands for a request to a language model."""
    return Reply(text=f"We are sorry: {complaint.text}", refund=int(complaint.paid * share))


class AnswerAgent(Agent):
    """Answers a complaint: with all of the money at first, with half of it when the answer comes back."""

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(compose, event.input, 1.0))

    @action(RevisionRequest)
    async def answer_again(self, event: RevisionRequest, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(
            output=await ctx.durable_execute_async(compose, event.input, 0.5 ** len(event.reasons))
        )


class AnswerChecker(Agent):
    """Lets an answer pass that gives no more than a limit, and nothing to whom a person was against."""

    @action(InputEvent)
    def check(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        draft: Draft = event.input
        against = [judgement for judgement in draft.verdicts if not judgement.good]
        if against:
            return OutputEvent(output=Verdict.reject(f"{against[-1].reviewer}: {against[-1].comment}"))
        over = draft.output.refund - LIMIT
        verdict = Verdict.retry(f"{over} above the limit") if over > 0 else Verdict.accept()
        return OutputEvent(output=verdict)


class Answers(ValidatedAgent):
    """Answers complaints. All runs are sampled here; of many, one in a hundred does."""

    worker = AnswerAgent
    validator = AnswerChecker
    attempts = 3
    sample = 1.0


def run_job() -> tuple[list[Any], list[Any], list[Any]]:
    """Run the job; returns what was accepted, rejected, and is to be looked at."""
    agents = AgentsExecutionEnvironment.get_execution_environment()
    agents.stream_env.set_parallelism(1)
    inputs = agents.stream_env.from_collection(INPUTS)
    key = key_or_verdict(lambda complaint: complaint.customer)
    answers = agents.from_datastream(inputs, key_selector=key).apply(Answers())
    accepted = answers.to_list()
    rejected = agents.collect(answers.side_output("rejected"))
    samples = agents.collect(answers.side_output("review"))
    agents.execute("answers")
    return accepted, rejected, samples


if __name__ == "__main__":
    accepted, rejected, samples = run_job()
    for reply in sorted(accepted, key=lambda answer: answer.text):
        print(f"accepted: {reply.text} {reply.refund} back")
    for rejection in sorted(rejected, key=lambda rejection: (rejection.input.customer, rejection.reason)):
        customer = rejection.input.customer
        print(f"rejected: {customer}, after {len(rejection.attempts)} attempts: {rejection.reason}")
    for sample in sorted(samples, key=lambda sample: (sample.key, sample.sequence_number)):
        verdicts = ", ".join(attempt.verdict.decision for attempt in sample.attempts)
        steps = sum(len(attempt.transcript) for attempt in sample.attempts)
        print(f"for review: {sample.key} {sample.sequence_number}: {verdicts}; {steps} steps")
