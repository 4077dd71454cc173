"""The valve of an agent with signals: they never advance event time, and hold the end of the input."""

from __future__ import annotations

from typing import Any

import pytest
from pyflink.java_gateway import get_gateway

from flink_agents.runtime.flink.inputs import signals
from flink_agents.runtime.flink.inputs.signals import FAR, MARK
from tests.suite.tables import each_case

pytestmark = [pytest.mark.minicluster, pytest.mark.own_conditions]

GATE = 2**63 - 2**44
END = 2**63 - 1

Step = tuple[int, int | str]
"""A channel, and what it sends: a watermark, or its status."""


class Emitted:
    """What the valve emits; Java calls it."""

    def __init__(self) -> None:
        self.emitted: list[int | str] = []

    def emitWatermark(self, watermark: Any) -> None:
        self.emitted.append(watermark.getTimestamp())

    def emitWatermarkStatus(self, status: Any) -> None:
        self.emitted.append("idle" if status.isIdle() else "active")

    class Java:
        implements = ["org.apache.flink.streaming.runtime.io.PushingAsyncDataInput$DataOutput"]


def emitted(channels: int, endless: bool, steps: list[Step]) -> list[int | str]:
    """Return what a valve emits for the steps."""
    gateway: Any = get_gateway()
    jvm = gateway.jvm
    runtime = jvm.org.apache.flink.streaming.runtime.watermarkstatus
    loader = jvm.Thread.currentThread().getContextClassLoader()
    kind = jvm.org.apache.flink.table.runtime.generated.CompileUtils.compile(
        loader, signals.CLASS, signals.JAVA
    )
    arguments = gateway.new_array(jvm.Object, 4)
    for index, value in enumerate((channels, MARK, FAR, endless)):
        arguments[index] = value
    valve = kind.getConstructors()[0].newInstance(arguments)
    output = Emitted()
    for channel, sent in steps:
        if isinstance(sent, int):
            watermark = jvm.org.apache.flink.streaming.api.watermark.Watermark(sent)
            valve.inputWatermark(watermark, channel, output)
        else:
            valve.inputWatermarkStatus(getattr(runtime.WatermarkStatus, sent.upper()), channel, output)
    return output.emitted


A = 0
B = 1
S = 2
T = 3
"""Two channels of inputs, and two of signals."""

BOTH = [False, True]
MARKED: list[Step] = [(S, MARK), (T, MARK)]


@each_case("endless", BOTH)
@each_case(
    ("case", "steps", "expected"),
    [
        ("inputs alone", [(A, 5), (B, 7)], [5]),
        ("the source becomes idle", [(A, 5), (B, 7), (A, "idle"), (B, "idle")], [5, 7, "idle"]),
        (
            "and continues",
            [(A, 5), (B, 5), (A, "idle"), (B, "idle"), (B, "active"), (B, 9), (A, "active"), (A, 10)],
            [5, "idle", "active", 9],
        ),
        ("a partition becomes idle", [(A, 5), (B, 5), (A, "idle"), (B, 9)], [5, 9]),
        ("signals end first", [(A, 5), (B, 5), (S, END), (A, "idle"), (B, "idle")], [5, "idle"]),
        ("inputs end first", [(A, 5), (B, 5), (A, END), (B, END)], [5, FAR]),
        ("all end", [(A, END), (B, END), (S, END), (T, END)], [FAR, END]),
        ("signals end, then inputs", [(S, END), (A, END), (B, END), (T, END)], [FAR, END]),
        ("the gate ends before the signals", [(T, END), (A, END), (B, END), (S, END)], [FAR, END]),
        (
            "watermarks of an agent before",
            [(A, FAR), (B, FAR), (A, GATE + 2), (B, GATE + 2)],
            [FAR, GATE + 2],
        ),
        ("a status of signals", [(A, 5), (B, 5), (S, "active"), (A, "idle"), (B, "idle")], [5, "idle"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_passes(endless: bool, case: str, steps: list[Step], expected: list[int | str]) -> None:
    assert emitted(4, endless, MARKED + steps) == expected, case


@each_case(
    ("case", "endless", "steps", "expected"),
    [
        ("a mark after a record", True, [(A, 5), (B, 5), (S, MARK)], [5]),
        (
            "idle inputs before the mark",
            True,
            [(A, 5), (B, 5), (A, "idle"), (B, "idle"), (S, MARK)],
            [5, "idle"],
        ),
        ("ended inputs before the mark", False, [(A, END), (B, END), (S, MARK), (S, END)], [FAR, END]),
        ("the same, endless", True, [(A, END), (B, END), (S, MARK), (S, END)], [FAR, END]),
        ("the mark between them", True, [(A, END), (S, MARK), (B, 5), (B, END), (S, END)], [5, FAR, END]),
        ("all ended before the restart", True, [(A, END), (S, END), (B, END)], [END]),
        ("all ended before the restart", False, [(A, END), (S, END), (B, END)], [END]),
        # Flink sends no more than the end of signals that had ended before the restart.
        (
            "ended signals after a restart",
            True,
            [(S, END), (A, 5), (B, 5), (A, "idle"), (B, "idle")],
            [5, "idle"],
        ),
        ("a drain after a restart", True, [(S, END), (A, 5), (B, 5), (A, END), (B, END)], [5, END]),
        (
            "a bounded input has no part",
            False,
            [(S, MARK), (A, END), (B, 5), (B, END), (S, END)],
            [5, FAR, END],
        ),
        ("idle at the end", False, [(S, MARK), (B, "idle"), (A, 5), (A, END), (S, END)], [5, FAR, END]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_orders_of_events(case: str, endless: bool, steps: list[Step], expected: list[int | str]) -> None:
    assert emitted(3, endless, steps) == expected, case
