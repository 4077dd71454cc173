"""Creates records from the recorder's notes, in the thread of the writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flink_agents import redaction
from flink_agents.api.agents.observers import ObservedRun
from flink_agents.trace.recording.attributes import WRITTEN, origin_of, written_of
from flink_agents.trace.recording.segments import KnownRun
from flink_agents.trace.records import TraceRecord, run_id_of, span_id, trace_of


@dataclass(frozen=True)
class TracedSubtask:
    """The fields that all records of a subtask share.

    Attributes:
        job: Identity of the job.
        agent: Name of the agent.
        subtask: Number of the subtask.
        attempt: Number of the task's attempt, from 0.
    """

    job: str
    agent: str
    subtask: int
    attempt: int = 0


class RecordMaker:
    """Creates the records of a subtask. Only the writer's thread may use it.

    Args:
        subtask: The fields that all records share.
    """

    def __init__(self, subtask: TracedSubtask) -> None:
        self._subtask = subtask
        self._latest = KnownRun(None, "", "", "", "")
        self._secrets: Any = None

    def __call__(
        self,
        run: ObservedRun,
        identity: str,
        kind: str,
        name: str,
        outcome: str,
        path: tuple[Any, ...],
        parent: tuple[Any, ...] | None,
        attributes: Mapping[str, Any],
        seconds: float | None,
        now: float,
        replayed: bool,
    ) -> TraceRecord:
        """Create a record.

        Args:
            run: The run that it is about.
            identity: Identity of the job in which the run started; empty for the present job.
            kind: Its kind; see :class:`TraceRecord`.
            name: Name of the agent, action, function or event type.
            outcome: Its outcome.
            path: The path of its span in the run; empty for the span of the run.
            parent: The path of the parent span; None if there is none.
            attributes: Further facts.
            seconds: Duration in seconds; None if it is unknown.
            now: Its time, in seconds since the epoch.
            replayed: True if its work came from the journal.
        """
        subtask = self._subtask
        context = run.traceparent
        job = identity or subtask.job
        number = run.sequence_number
        latest_run = self._latest
        secrets = redaction.known_secrets.pattern
        if latest_run.run is not run or latest_run.job != job or secrets is not self._secrets:
            # A run has several records, which mostly follow one another. A secret can become known meanwhile.
            self._secrets = secrets
            run_id = run_id_of(job, run.key_text, number)
            latest_run = self._latest = KnownRun(
                run, job, run_id, span_id(run_id), redaction.hide(run.key_text)
            )
        run_id = latest_run.run_id
        if kind == "run":
            attributes = dict(attributes)
            if WRITTEN in attributes:
                attributes[WRITTEN] = written_of(attributes[WRITTEN])
            if run.parent or context:
                attributes |= origin_of(run.parent, context)
        return TraceRecord(
            kind,
            name,
            outcome,
            job,
            subtask.agent,
            subtask.subtask,
            subtask.attempt,
            latest_run.key,
            number,
            run_id,
            span_id(run_id, *path) if path else latest_run.span,
            None if parent is None else span_id(run_id, *parent) if parent else latest_run.span,
            now,
            seconds,
            replayed,
            attributes,
            trace=trace_of(context),
        )
