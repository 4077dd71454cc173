"""An hour of trace at 2,000 runs per second, with a manual clock: checks its bounds.

    python -m tests.trace.hour                      # 7.2 million runs, some minutes
    python -m tests.trace.hour --seconds 60 --json

Nine of ten runs begin and end on Flink's thread, the others make a durable call; one of a hundred is
suspended first, and one of a thousand becomes a dead letter. They go through recorder, writer and the sink
``jsonl``. After the hour comes a burst for which the queue is too short: each record is written, or counted
as dropped.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from flink_agents.api.agents.observers import Phase, RunObserver
from flink_agents.api.settings.tracing import TraceLevel
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.metrics.observers import Observers
from flink_agents.trace.recording.recorder import TracedSubtask, TraceRecorder
from flink_agents.trace.sinks.jsonl import JsonlSink
from flink_agents.trace.target import TraceLine
from flink_agents.trace.writer import TraceWriter

FILE_BYTES = 16 << 20
TOTAL_BYTES = 256 << 20
QUEUE = 10_000
FILE_SECONDS = 600.0
BURST = 50_000
START = 1_800_000_000.0

MEMORY_MB = 64
"""How much the process may grow after the first minute."""


class Run:
    """A run as its recorder sees it."""

    agent = "hour"
    identity = "job"
    run_id = ""
    parent = traceparent = None
    waits_for = ""
    since = 0.0
    phase = Phase.RUNNING
    notes: Any = None

    def __init__(self, number: int) -> None:
        self.key = number % 100_000
        self.key_text = f"i{self.key}"
        self.sequence_number = number // 100_000 + 1
        self.open_waits: tuple[Any, ...] = ()


@lru_cache(maxsize=4)
def observers_of(recorder: TraceRecorder) -> Observers:
    """Return what the runtime passes reports to."""

    def failed() -> None:
        raise

    return Observers(RunObserver(), [recorder], failed)


def turn(recorder: TraceRecorder, run: Any, phase: Phase, before: Phase | None) -> Phase:
    """Enter a phase, as the runtime does."""
    if before is None:
        run.phase = phase
        recorder.phase_changed(run, None)
    else:
        run.phase, run._observers = before, observers_of(recorder)
        RunState.enter(run, phase)
    return phase


def ended(recorder: TraceRecorder, run: Any, action: str, sent: Any, inline: bool, seconds: float) -> None:
    """Tell of an attempt of an action that ended well, as the runtime does."""
    notes = run.notes
    if notes is not None and notes.folds and (inline or not notes.lasts):
        notes.steps.append((None, action, None if inline else recorder.now(), seconds, sent))
    else:
        recorder.events_sent(run, action, sent)
        recorder.action_ended(run, action, seconds, inline)


class Nth(NamedTuple):
    """The number of a durable call in its action."""

    nth: int = 0
    task: str = ""


class Outcome(NamedTuple):
    """The recorded outcome of a durable call."""

    attempts: int = 1
    ended_at: int = 1_000_000
    error: dict[str, Any] | None = None


@dataclass(frozen=True)
class Wait:
    """What would end the wait of a suspended run."""

    kind: str = "signal"
    name: str = "paid"
    deadline: int = 0
    step: str = "pay"
    task: str = ""
    nth: int = 0


class CountingSink(JsonlSink):
    """Counts what it writes, and waits while it is held."""

    written = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.free = threading.Event()
        self.free.set()

    def write_lines(self, records: Sequence[TraceLine]) -> None:
        self.free.wait()
        super().write_lines(records)
        self.written += len(records)


class CountingWriter(TraceWriter):
    """Counts what it is given."""

    given = 0

    def queue_record(self, pending: Any) -> None:
        self.given += 1
        super().queue_record(pending)

    def queue_lines(self, lines: Sequence[TraceLine]) -> None:
        self.given += len(lines)
        super().queue_lines(lines)


@dataclass
class Result:
    """What an hour took.

    Attributes:
        runs: How many runs there were.
        given: How many records they had.
        written: How many were written.
        dropped: How many were dropped in that time.
        burst_dropped: How many were dropped in the burst.
        lost: How many were neither written nor counted.
        most_bytes: The most that all files held at a time.
        files: How many files there were at the end.
        grown_mb: How much the process grew after the first minute.
        kept: How many runs the recorder knows at the end.
        seconds: How long it took.
    """

    runs: int = 0
    given: int = 0
    written: int = 0
    dropped: int = 0
    burst_dropped: int = 0
    lost: int = 0
    most_bytes: int = 0
    files: int = 0
    grown_mb: float = 0.0
    kept: int = 0
    seconds: float = 0.0

    def broken(self) -> list[str]:
        """Return the bounds that do not hold."""
        bounds = {
            f"files hold at most {TOTAL_BYTES} bytes": self.most_bytes <= TOTAL_BYTES,
            f"the process grows by at most {MEMORY_MB} MB": self.grown_mb <= MEMORY_MB,
            "nothing is dropped if the writer keeps up": not self.dropped,
            "a burst is dropped in part": self.burst_dropped > 0,
            "each record is written or counted": not self.lost,
            "no run is kept after its end": not self.kept,
        }
        return [what for what, holds in bounds.items() if not holds]


def record_run(recorder: TraceRecorder, run: Run, number: int) -> None:
    """Tell of one run what the runtime would tell."""
    enter = partial(turn, recorder, run)
    if number % 10:
        enter(Phase.RUNNING, None)
        for action, event in (("check", "Checked"), ("reply", "_output_event")):
            ended(recorder, run, action, (event,), True, 1e-5)
        enter(Phase.COMMITTED, Phase.RUNNING)
        return
    if number % 100 == 0:
        run.open_waits = (Wait(),)
        previous_phase = enter(Phase.RUNNING, enter(Phase.QUEUED, None))
        enter(Phase.SUSPENDED, previous_phase)
        enter(Phase.QUEUED, Phase.SUSPENDED)
    else:
        enter(Phase.QUEUED, None)
    enter(Phase.RUNNING, Phase.QUEUED)
    recorder.call_begun(run, "pay", "charge", Nth(), False)
    enter(Phase.CALL, Phase.RUNNING)
    recorder.call_recorded(run, "pay", "charge", Nth())
    enter(Phase.RUNNING, Phase.CALL)
    if number % 1000 == 0:
        recorder.action_failed(run, "pay", ValueError("the card was declined"))
        recorder.event_given_up(run, "_input_event", True)
    else:
        ended(recorder, run, "pay", (), False, 1e-3)
    enter(Phase.COMMITTED, enter(Phase.FINISHED, Phase.RUNNING))


def an_hour(directory: Path, seconds: int = 3600, rate: int = 2000) -> Result:
    """Trace ``rate`` runs in each second of a clock that is turned by hand, and a burst behind them."""
    clock, result, start_seconds, grown = [START], Result(), time.monotonic(), memory_mb()

    def now() -> float:
        return clock[0]

    sink = CountingSink(directory, "hour-0-", FILE_BYTES, FILE_SECONDS, TOTAL_BYTES, now)
    writer = CountingWriter({"jsonl": sink}, QUEUE)
    recorder = TraceRecorder(TracedSubtask("job", "hour", 0), TraceLevel.CALLS, writer, now=now)
    for second in range(seconds):
        # The writer wakes five times in a second.
        for part in range(5):
            for number in range(rate * part // 5, rate * (part + 1) // 5):
                record_run(recorder, Run(result.runs + number), result.runs + number)
            clock[0] += 0.2
            if not writer.flush(300):
                raise TimeoutError("the writer has not written a fifth of a second in five minutes")
        result.runs += rate
        if second % 10 == 0:
            result.most_bytes = max(result.most_bytes, bytes_in(directory))
        if second == min(60, seconds // 10):
            grown = memory_mb()
    result.dropped = writer.dropped
    sink.free.clear()
    for number in range(BURST):
        record_run(recorder, Run(result.runs + number), result.runs + number)
    sink.free.set()
    writer.flush(300)
    result.grown_mb = round(memory_mb() - grown, 1)
    recorder.closed()
    result.given = writer.given
    result.written = sink.written
    result.burst_dropped = writer.dropped - result.dropped
    result.lost = writer.given - sink.written - writer.dropped
    result.most_bytes = max(result.most_bytes, bytes_in(directory))
    result.files = len(list(directory.iterdir()))
    result.kept = recorder.unfinished_count
    result.seconds = round(time.monotonic() - start_seconds, 1)
    return result


def bytes_in(directory: Path) -> int:
    """Return how much the files of a directory hold."""
    return sum(path.stat().st_size for path in directory.iterdir())


def memory_mb() -> float:
    """Return the most that the process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str]) -> int:
    """Run the hour, and say whether its bounds hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.trace.hour", description=__doc__)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        result = an_hour(Path(directory), options.seconds, options.rate)
    broken = result.broken()
    figures = asdict(result) | {"broken": broken}
    print(
        json.dumps(figures)
        if options.json
        else "\n".join(f"{name}: {figure}" for name, figure in figures.items())
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
