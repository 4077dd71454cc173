"""Validation: one agent works, another one judges, and people look at a sample of it.

::

    class Refunds(ValidatedAgent):
        worker = RefundAgent
        validator = RefundChecker
        attempts = 3
        sample = 0.01

The validator accepts the worker's output, rejects it, or sends it back for another attempt. What is
sampled goes to a side output with all that both agents did; what a person thinks of it comes back as an input
of the same key.
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
"""Path in short-term memory at which :class:`ValidatedAgent` keeps what people said."""

MOST_VERDICTS = 20
"""How many of them it keeps for a key."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)


class Verdict(_Record):
    """What a validator says of an output.

    Attributes:
        decision: ``accept``, ``reject``, or ``again`` for another attempt.
        reason: Why; for whoever works on it, or looks at it later.
    """

    decision: Literal["accept", "reject", "retry"]
    reason: str = ""

    @classmethod
    def accept(cls, reason: str = "") -> Verdict:
        """The output is good, and leaves the agent."""
        return cls(decision="accept", reason=reason)

    @classmethod
    def reject(cls, reason: str) -> Verdict:
        """The output is no good, and another attempt would not help."""
        return cls(decision="reject", reason=reason)

    @classmethod
    def retry(cls, reason: str) -> Verdict:
        """The worker gets it back with the reason, as long as there are attempts."""
        return cls(decision="retry", reason=reason)


class HumanReview(_Record):
    """What a person says of a sample: an input of the key that the sample belongs to.

    Attributes:
        key: That key, as in the sample.
        sequence_number: Number of the run within the key, as in the sample.
        good: Whether the person agrees with the agent.
        comment: What else there is to say.
        reviewer: Who says it.
        output: The expected output, or None.
    """

    key: Any
    sequence_number: int
    good: bool
    comment: str = ""
    reviewer: str = ""
    output: Any = None


class Draft(_Record):
    """What a validator judges: the input of its ``InputEvent``.

    Attributes:
        input: The input that the worker had.
        output: Its output.
        attempt: Number of the attempt, from 1.
        reasons: Why the attempts before were sent back, oldest first.
        verdicts: What people said of the key so far, oldest first.
    """

    input: Any
    output: Any
    attempt: int = 1
    reasons: tuple[str, ...] = ()
    verdicts: tuple[HumanReview, ...] = ()


class RevisionRequest(AgentCallEvent):
    """What a worker gets for another attempt.

    Attributes:
        input: The input.
        output: Its last output.
        reasons: Why each attempt was sent back, oldest first.
    """

    input: Any
    output: Any
    reasons: tuple[str, ...]


class Attempt(_Record):
    """One attempt of a worker, and what the validator said of it.

    Attributes:
        output: The output of the worker.
        verdict: What the validator said.
        transcript: What both did, in order; only in a sample.
    """

    output: Any
    verdict: Verdict
    transcript: tuple[TranscriptEntry, ...] = ()


class Rejected(_Record):
    """An input without a good output.

    Attributes:
        input: The input.
        reason: Why the last attempt was not accepted.
        attempts: All attempts, oldest first.
    """

    input: Any
    reason: str
    attempts: tuple[Attempt, ...]


class ReviewSample(_Record):
    """A run for a person to look at.

    Attributes:
        agent: Name of the agent.
        key: Key of the run.
        sequence_number: Its number within the key.
        run_id: Id of its input event.
        input: The input.
        accepted: Whether its output left the agent.
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
    """A person has looked at a run of the key.

    Attributes:
        verdict: What the person said.
    """

    verdict: HumanReview


class ValidatedAgent(Agent):
    """Emits a worker's output once a validator accepts it.

    Attributes:
        worker: The agent that works: an instance, or a class without required arguments. It emits one
            value for an input. If the validator sends something back, it takes ``RevisionRequest``, too.
        validator: The agent that judges: it takes a ``Draft`` as input, and emits one ``Verdict``.
        attempts: How many attempts there are for an input. The last one that is sent back is rejected.
        sample: Share of the runs, from 0 to 1, that go to the side output ``review``. Which ones follows from
            the agent's name, key and sequence number alone.
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
                f"{type(self).__name__} cannot validate anything",
                expected="a worker, a validator, 1 attempt or more, and a sample from 0 to 1",
                found=f"worker={self.worker!r}, validator={self.validator!r}, attempts={self.attempts}, "
                f"sample={self.sample}",
                fix="derive a class, with these as its attributes",
            )

    @action(InputEvent)
    async def validate(self, event: InputEvent, ctx: RunnerContext) -> Any:
        """Let the worker try as often as it may; or hand on what a person said."""
        if isinstance(event.input, HumanReview):
            return HumanReviewEvent(verdict=event.input)
        sampled = self.sample > 0 and is_sampled(ctx, self.sample)
        attempts: list[Attempt] = []
        while len(attempts) < self.attempts:
            attempts.append(await self._attempt(event.input, attempts, ctx, sampled))
            if attempts[-1].verdict.decision != "retry":
                break
        last = attempts[-1]
        accepted = last.verdict.decision == "accept"
        if sampled:
            self._emit_sample(event, ctx, accepted, attempts)
        if accepted:
            return OutputEvent(output=last.output)
        plain = tuple(Attempt(output=one.output, verdict=one.verdict) for one in attempts)
        ctx.emit_to(REJECTED_TAG, Rejected(input=event.input, reason=last.verdict.reason, attempts=plain))
        return None

    @action(HumanReviewEvent)
    def reviewed(self, event: HumanReviewEvent, ctx: RunnerContext) -> Any:
        """Keep a person's review for the validator; override it to do something else."""
        kept = [*ctx.short_term_memory.get(VERDICTS, []), event.verdict]
        ctx.short_term_memory.set(VERDICTS, kept[-MOST_VERDICTS:])

    async def _attempt(
        self, record: Any, before: list[Attempt], ctx: RunnerContext, sampled: bool
    ) -> Attempt:
        worker, validator = self.worker, self.validator
        assert worker is not None and validator is not None
        reasons = tuple(one.verdict.reason for one in before)
        told = RevisionRequest(input=record, output=before[-1].output, reasons=reasons) if before else record
        work = await ctx.call_agent_traced(worker, told, sampled)
        draft = Draft(
            input=record,
            output=work.output,
            attempt=len(before) + 1,
            reasons=reasons,
            verdicts=tuple(ctx.short_term_memory.get(VERDICTS, [])),
        )
        judged = await ctx.call_agent_traced(validator, draft, sampled)
        verdict = _verdict_of(validator, judged.agent, judged.output)
        transcript = (*work.transcript, *judged.transcript)
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


def _verdict_of(agent: Agent | type[Agent], validator: str, output: Any) -> Verdict:
    """Return the output of a validator as a verdict.

    Raises:
        NoVerdictError: It is none.
    """
    try:
        return Verdict.model_validate(output, from_attributes=True)
    except ValidationError as error:
        wrong = "; ".join(": ".join([*map(str, one["loc"]), one["msg"]]) for one in error.errors())
        raise NoVerdictError(
            f"the validator {validator!r} put out what is no verdict",
            expected="one OutputEvent with a flink_agents.api.validation.Verdict",
            found=f"a value of {type(output).__qualname__} ({wrong})"[:500],
            fix="put out Verdict.accept(), Verdict.reject(reason) or Verdict.retry(reason)",
            where=_place_of(agent),
        ) from error


def _place_of(agent: Agent | type[Agent]) -> str:
    """Where the author wrote an agent."""
    kind = agent if isinstance(agent, type) else type(agent)
    place = None if isinstance(agent, type) else agent.__dict__["__places__"].get("agent")
    return place or place_of_class(kind)


def is_sampled(ctx: RunnerContext, share: float) -> bool:
    """Whether the run of an action belongs to a share of all runs.

    It follows from the agent's name, the key and the sequence number: the same run is sampled again after a
    restart, and in another job with the same inputs.

    Args:
        ctx: The context of the action.
        share: The share, from 0 to 1.
    """
    of = f"{ctx.agent_name}\x00{ctx.key!r}\x00{ctx.sequence_number}".encode("utf-8", "surrogatepass")
    drawn = int.from_bytes(hashlib.blake2b(of, digest_size=8).digest(), "big")
    return drawn < share * 2**64


def key_or_verdict(key_selector: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A key selector for a stream of inputs that was united with one of human verdicts.

    Args:
        key_selector: Gives the key of an input.
    """

    def key_of(record: Any) -> Any:
        return record.key if isinstance(record, HumanReview) else key_selector(record)

    return key_of
