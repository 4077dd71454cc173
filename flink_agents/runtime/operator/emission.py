"""What leaves the operator after a commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from flink_agents.runtime.execution.run import Run


@dataclass
class Emission:
    """Values in the order in which they leave.

    Attributes:
        outputs: Values for the main output, in order.
        side_outputs: Pairs of tag and value, in order.
        timestamps: Timestamp of each output, where event time is held.
        side_timestamps: Timestamp of each side output, where event time is held.
    """

    outputs: list[object] = field(default_factory=list)
    side_outputs: list[tuple[str, object]] = field(default_factory=list)
    timestamps: list[int | None] = field(default_factory=list)
    side_timestamps: list[int | None] = field(default_factory=list)

    def take(self, run: Run) -> None:
        """Let what a run put out leave with the timestamp of its input."""
        self.outputs += run.outputs
        self.timestamps += [run.timestamp] * len(run.outputs)
        self.side_outputs += run.side_outputs
        self.side_timestamps += [run.timestamp] * len(run.side_outputs)
