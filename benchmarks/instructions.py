"""Counts Python instructions of a call in the loop: ``python -m benchmarks.instructions STORE [CALLS]``.

The numbers of instructions and of function calls do not depend on the load of the machine, so they
show differences that times cannot. They do not include C code: encoding, digests, memory,
the garbage collector. ``STORE`` is the name of a store, or ``none`` for the same calls without a record.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from types import FrameType
from typing import Any

from benchmarks.durable import DIRECT, Calling, CallingDirectly, options
from flink_agents.testing import OperatorHarness

LOOP = "agent-loop"


class Instructions:
    """Counts instructions and function calls of each thread that begins from now on.

    Attributes:
        counts: Numbers by identifier of the thread and by event of ``sys.settrace``.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, str]] = Counter()
        threading.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        self.counts[threading.get_ident(), event] += 1
        return self._trace


def main(store: str, calls: int) -> None:
    """Print the numbers of a call, behind as many that warm it up."""
    counted = Instructions()
    agent = (CallingDirectly if store == DIRECT else Calling)(0)
    with tempfile.TemporaryDirectory() as directory:
        config = {**options(store, directory), "loop.blocked-after": "0 s"}
        with OperatorHarness(
            agent,
            lambda number: number,
            config=config,
            auto_run=False,
            forced_serialization=False,
            crash=None,
        ) as harness:
            harness.push_all(range(calls))
            harness.run_until_idle()
            (loop,) = [thread.ident for thread in threading.enumerate() if thread.name == LOOP]
            assert loop is not None
            previous_counts = Counter(counted.counts)
            harness.push_all(range(calls))
            harness.run_until_idle()
            for event, what in (("opcode", "instructions"), ("call", "function calls")):
                print(f"{what}: {(counted.counts[loop, event] - previous_counts[loop, event]) / calls:.0f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200)
