"""Validation: one agent works, another one judges, and people review a sample.

::

    class Refunds(ValidatedAgent):
        worker = RefundAgent
        validator = RefundChecker
        attempts = 3
        sample = 0.01

The validator accepts the worker's output, rejects it, or sends it back for another attempt. Sampled runs go
to a side output with all steps of both agents; a person's review comes back as an input of the same key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.decorators import action
from flink_agents.api.common.places import place_of_class
from flink_agents.api.context import RunnerContext
from flink_agents.api.context.asking import TranscriptEntry
from flink_agents.api.errors import AgentDefinitionError, NoVerdictError
from flink_agents.api.events import AgentCallEvent, Event, InputEvent, OutputEvent

REJECTED_TAG = "rejected"
"""Name of the side output that carries :class:`Rejected` records."""

REVIEW_TAG = "review"
"""Name of the side output that carries :class:`ReviewSample` records."""

VERDICTS = "verdicts"
"""Path in short-term memory at which :class:`ValidatedAgent` stores reviews."""

MOST_VERDICTS = 20
"""Maximum number of reviews that it stores for a key."""


class _Record(BaseModel):
    """Base of frozen records, whose fields may hold any objects of the author."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)


class Verdict(_Record):
    """A validator's verdict about an output.

    Attributes:
        decision: ``accept``, ``reject``, or ``retry`` for another attempt.
        reason: The reason, for the next attempt and for later readers.
    """

    decision: Literal["accept", "reject", "retry"]
    reason: str = ""

    @classmethod
    def accept(cls, reason: str = "") -> Verdict:
        """Return a verdict that accepts the output, which leaves the agent."""
        return cls(decision="accept", reason=reason)

    @classmethod
    def reject(cls, reason: str) -> Verdict:
        """Return a verdict that rejects the output: another attempt would not help."""
        return cls(decision="reject", reason=reason)

    @classmethod
    def retry(cls, reason: str) -> Verdict:
        """Return a verdict that sends the output back with the reason, if attempts are left."""
        return cls(decision="retry", reason=reason)


class HumanReview(_Record):
    """A person's review of a sample: an input of the sample's key.

    Attributes:
        key: The key of the sample.
        sequence_number: Number of the run within the key, as in the sample.
        good: True if the person agrees with the agent.
        comment: The person's comment; empty if there is none.
        reviewer: Name of the person; empty if unknown.
        output: The output that the person expected; None if they name none.
    """

    key: Any
    sequence_number: int
    good: bool
    comment: str = ""
    reviewer: str = ""
    output: Any = None


class Draft(_Record):
    """The output to judge: the input of a validator's ``InputEvent``.

    Attributes:
        input: The worker's input.
        output: The worker's output.
        attempt: Number of the attempt, from 1.
        reasons: The reasons why earlier attempts were sent back, oldest first.
        verdicts: Earlier reviews of the key, oldest first.
    """

    input: Any
    output: Any
    attempt: int = 1
    reasons: tuple[str, ...] = ()
    verdicts: tuple[HumanReview, ...] = ()


class RevisionRequest(AgentCallEvent):
    """A request for another attempt of a worker.

    Attributes:
        input: The input of the run.
        output: The worker's last output for it.
        reasons: The reason for each attempt that was sent back, oldest first.
    """

    input: Any
    output: Any
    reasons: tuple[str, ...]


class Attempt(_Record):
    """One attempt of a worker, and the validator's verdict.

    Attributes:
        output: The output of the worker.
        verdict: The verdict of the validator.
        transcript: The steps of both, in order; only in a sample.
    """

    output: Any
    verdict: Verdict
    transcript: tuple[TranscriptEntry, ...] = ()


class Rejected(_Record):
    """An input without an accepted output.

    Attributes:
        input: The input of the run.
        reason: The reason why the last attempt was not accepted.
        attempts: All attempts, oldest first, without transcripts.
    """

    input: Any
    reason: str
    attempts: tuple[Attempt, ...]


class ReviewSample(_Record):
    """A run for a person to review.

    Attributes:
        agent: Name of the agent.
        key: Key of the run.
        sequence_number: Number of the run within the key, from 0.
        run_id: Id of the run's input event.
        input: The input of the run.
        accepted: True if its output left the agent.
        attempts: All attempts with their transcripts, oldest first.
    """

    agent: str
    key: Any
    sequence_number: int
    run_id: str
    input: Any
    accepted: bool
    attempts: tuple[Attempt, ...]


class HumanReviewEvent(Event):
    """A person has reviewed a run of the key.

    Attributes:
        verdict: The person's review.
    """

    verdict: HumanReview


class ValidatedAgent(Agent):
    """Emits a worker's output once a validator accepts it.

    Attributes:
        worker: The agent that works: an instance, or a class without required arguments. It emits one value
            for an input. If the validator sends outputs back, it handles ``RevisionRequest``, too.
        validator: The agent that judges: its input is a ``Draft``, and it emits one ``Verdict``.
        attempts: Maximum number of attempts for an input. If the last one is sent back, the input is
            rejected.
        sample: Share of the runs, from 0 to 1, that go to the side output ``review``. The choice depends only
            on the agent's name, key and sequence number.
    """

    worker: ClassVar[Agent | type[Agent] | None] = None
    validator: ClassVar[Agent | type[Agent] | None] = None
    attempts: ClassVar[int] = 3
    sample: ClassVar[float] = 0.0
    side_outputs = {REJECTED_TAG: Rejected, REVIEW_TAG: ReviewSample}

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        if self.worker is None or self.validator is None or self.attempts < 1 or not 0 <= self.sample <= 1:
            raise AgentDefinitionError(
                f"{type(self).__name__} is not a valid ValidatedAgent",
                expected="a worker, a validator, 1 attempt or more, and a sample from 0 to 1",
                found=f"worker={self.worker!r}, validator={self.validator!r}, attempts={self.attempts}, "
                f"sample={self.sample}",
                fix="derive a class, with these as its attributes",
            )

    @action(InputEvent)
    async def validate(self, event: InputEvent, ctx: RunnerContext) -> Any:
        """Let the worker try up to ``attempts`` times. Emit an accepted output, or else a ``Rejected``.

        An input that is a ``HumanReview`` becomes a ``HumanReviewEvent``.
        """
        if isinstance(event.input, HumanReview):
            return HumanReviewEvent(verdict=event.input)
        sampled = self.sample > 0 and is_sampled(ctx, self.sample)
        attempts: list[Attempt] = []
        while len(attempts) < self.attempts:
            attempts.append(await self._run_attempt(event.input, attempts, ctx, sampled))
            if attempts[-1].verdict.decision != "retry":
                break
        last = attempts[-1]
        accepted = last.verdict.decision == "accept"
        if sampled:
            self._emit_sample(event, ctx, accepted, attempts)
        if accepted:
            return OutputEvent(output=last.output)
        without_transcripts = tuple(
            Attempt(output=attempt.output, verdict=attempt.verdict) for attempt in attempts
        )
        rejected = Rejected(input=event.input, reason=last.verdict.reason, attempts=without_transcripts)
        ctx.emit_to(REJECTED_TAG, rejected)
        return None

    @action(HumanReviewEvent)
    def reviewed(self, event: HumanReviewEvent, ctx: RunnerContext) -> Any:
        """Store a person's review in the key's memory, for the validator; override it for another use."""
        verdicts = [*ctx.short_term_memory.get(VERDICTS, []), event.verdict]
        ctx.short_term_memory.set(VERDICTS, verdicts[-MOST_VERDICTS:])

    async def _run_attempt(
        self, record: Any, previous_attempts: list[Attempt], ctx: RunnerContext, sampled: bool
    ) -> Attempt:
        """Let the worker try once, and the validator judge its output.

        Args:
            record: The input of the run.
            previous_attempts: Earlier attempts, which were sent back, the oldest first.
            ctx: The context of the action.
            sampled: True to keep the steps of both agents.
        """
        worker = self.worker
        validator = self.validator
        assert worker is not None and validator is not None
        reasons = tuple(attempt.verdict.reason for attempt in previous_attempts)
        request = record
        if previous_attempts:
            request = RevisionRequest(input=record, output=previous_attempts[-1].output, reasons=reasons)
        work = await ctx.call_agent_traced(worker, request, sampled)
        draft = Draft(
            input=record,
            output=work.output,
            attempt=len(previous_attempts) + 1,
            reasons=reasons,
            verdicts=tuple(ctx.short_term_memory.get(VERDICTS, [])),
        )
        judgement = await ctx.call_agent_traced(validator, draft, sampled)
        verdict = _verdict_of(validator, judgement.agent, judgement.output)
        transcript = (*work.transcript, *judgement.transcript)
        return Attempt(output=work.output, verdict=verdict, transcript=transcript)

    def _emit_sample(
        self, event: InputEvent, ctx: RunnerContext, accepted: bool, attempts: list[Attempt]
    ) -> None:
        sample = ReviewSample(
            agent=ctx.agent_name,
            key=ctx.key,
            sequence_number=ctx.sequence_number,
            run_id=event.id or "",
            input=event.input,
            accepted=accepted,
            attempts=tuple(attempts),
        )
        ctx.emit_to(REVIEW_TAG, sample)


def _verdict_of(validator: Agent | type[Agent], name: str, output: Any) -> Verdict:
    """Return the output of a validator as a verdict; it may be an object with the same attributes.

    Args:
        validator: The validator, for the place in the error.
        name: Its name, for the error.
        output: The value that it emitted.

    Raises:
        NoVerdictError: It is not a verdict.
    """
    try:
        return Verdict.model_validate(output, from_attributes=True)
    except ValidationError as error:
        problems = [": ".join([*map(str, detail["loc"]), detail["msg"]]) for detail in error.errors()]
        raise NoVerdictError(
            f"the validator {name!r} emitted a value that is not a Verdict",
            expected="one OutputEvent with a flink_agents.api.validation.Verdict",
            found=f"a value of {type(output).__qualname__} ({'; '.join(problems)})"[:500],
            fix="emit Verdict.accept(), Verdict.reject(reason) or Verdict.retry(reason)",
            where=_place_of(validator),
        ) from error


def _place_of(agent: Agent | type[Agent]) -> str:
    """Return the place of an agent in the author's code."""
    kind = agent if isinstance(agent, type) else type(agent)
    place = None if isinstance(agent, type) else agent.__dict__["__places__"].get("agent")
    return place or place_of_class(kind)


def is_sampled(ctx: RunnerContext, share: float) -> bool:
    """Return True if the run of an action belongs to a random share of all runs.

    The result depends on the agent's name, the key and the sequence number: the same runs are sampled after a
    restart, and in another job with the same inputs.

    Args:
        ctx: The context of the action.
        share: The share, from 0 to 1.
    """
    run = f"{ctx.agent_name}\x00{ctx.key!r}\x00{ctx.sequence_number}".encode("utf-8", "surrogatepass")
    number = int.from_bytes(hashlib.blake2b(run, digest_size=8).digest(), "big")
    return number < share * 2**64


def key_or_verdict(key_selector: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a key selector for a union of a stream of inputs and a stream of reviews.

    Args:
        key_selector: Returns the key of an input. A review has its own.
    """

    def key_of(record: Any) -> Any:
        return record.key if isinstance(record, HumanReview) else key_selector(record)

    return key_of
