"""The outputs of a commit, on their way out of the operator."""

from __future__ import annotations

from dataclasses import dataclass, field

from flink_agents.api.common.policies import DEAD_LETTER_TAG
from flink_agents.api.events import DELAYED_TAG
from flink_agents.api.lineage import OutputLineage, TracedOutput
from flink_agents.runtime.execution.run import Run
from flink_agents.trace.records import traceparent


@dataclass(slots=True)
class Emission:
    """Values in the order in which they leave.

    Attributes:
        outputs: Values for the main output, in order.
        side_outputs: Pairs of tag and value, in order.
        timestamps: Timestamp of each output, if watermarks are held.
        side_timestamps: Timestamp of each side output, if watermarks are held.
    """

    outputs: list[object] = field(default_factory=list)
    side_outputs: list[tuple[str, object]] = field(default_factory=list)
    timestamps: list[int | None] = field(default_factory=list)
    side_timestamps: list[int | None] = field(default_factory=list)

    def take_timed(self, run: Run) -> None:
        """Add the outputs of a run, each with the timestamp of the run's input."""
        self.outputs += run.outputs
        self.side_outputs += run.side_outputs
        self.timestamps += [run.timestamp] * len(run.outputs)
        self.side_timestamps += [run.timestamp] * len(run.side_outputs)

    def followed_by(self, next_emission: Emission) -> Emission:
        """Add the values of another emission, and return this one."""
        self.outputs += next_emission.outputs
        self.side_outputs += next_emission.side_outputs
        self.timestamps += next_emission.timestamps
        self.side_timestamps += next_emission.side_timestamps
        return self


NOTHING = Emission()
"""The emission if nothing is committed. Never change it."""


def trace_outputs(run: Run, agent: str) -> None:
    """Wrap each output of a run with its lineage, also side outputs, but not dead letters.

    Delayed events stay in state, but they are counted: the numbers of outputs that left with a suspended run
    include them.
    """
    run_id = run.lineage.id
    side = ""
    context = traceparent(run_id, run.state.traceparent)

    def traced(value: object) -> TracedOutput:
        nonlocal number
        lineage = OutputLineage(
            f"{run_id}-{side}{number}",
            run_id,
            agent,
            run.key_text,
            run.sequence_number,
            run.parent,
            context,
        )
        number += 1
        return TracedOutput(value, lineage)

    # Outputs may leave in several parts. Each has the same id, however many there are.
    waits = run.waits
    number = 0 if waits is None else waits.outputs_left
    run.outputs = [traced(value) for value in run.outputs]
    number = 0 if waits is None else waits.side_outputs_left
    side = "side-"
    side_outputs: list[tuple[str, object]] = []
    for tag, value in run.side_outputs:
        if tag == DELAYED_TAG:
            number += 1
        side_outputs.append((tag, value if tag in (DEAD_LETTER_TAG, DELAYED_TAG) else traced(value)))
    run.side_outputs = side_outputs
