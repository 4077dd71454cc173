"""State in its present format, in ``golden_state.json``: values, heads, and the state of an operator.

``python tests/runtime/golden_state.py`` made it. After the first release it is never rewritten, since
savepoints are not either: then a change of the format gets a version and a file of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from core_values import SUPPORTED

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness, Snapshot
from flink_agents.testing.fakes.state import KeyState

FILE = Path(__file__).with_name("golden_state.json")

HEADS: dict[str, Head] = {
    "new": Head("job"),
    "later": Head("0123456789abcdef0123456789abcdef", 70_000),
    "waiting": Head("jöb", 3, 2**33, 2**33 + 5),
    "with rare fields": Head("job", 1, marker=cast("Any", [1, "a"]), ahead=2, skipped={3: 4}),
}

KEY = ("user", 1)


def remember(event: InputEvent, ctx: Any) -> OutputEvent:
    memory = ctx.short_term_memory
    number = memory.get("count.all", 0) + 1
    memory.set("count.all", number)
    memory.append("ünïcode \\ .seen", event.input)
    return OutputEvent(output=(number, ctx.sequence_number, ctx.timestamp, memory.get("ünïcode \\ .seen")))


def harness(inline: bool) -> OperatorHarness:
    """An agent that counts and remembers its inputs."""
    config: dict[str, Any] = {"run.inline": inline, "job-identifier": "golden"}
    agent = Agent(name="golden").add_action("remember", [InputEvent], remember)
    return OperatorHarness(agent, lambda record: KEY, config=config, auto_run=False)


def restored(entry: dict[str, Any]) -> Snapshot:
    """The checkpoint that an entry ``operator`` of the file describes."""
    state = KeyState(
        rested=bytes.fromhex(entry["rested"]),
        busy=bytes.fromhex(entry["busy"]),
        pending={int(number): bytes.fromhex(data) for number, data in entry["pending"].items()},
        memory={path: (bytes.fromhex(data), None) for path, data in entry["memory"].items()},
        processing_timers=set(entry["processing_timers"]),
        event_timers=set(entry["event_timers"]),
    )
    return Snapshot({entry["key"]: state}, 0, {}, 128)


def written() -> dict[str, Any]:
    """The content of the file, as today's code writes it."""
    first_harness = harness(inline=True)
    first_harness.push("first", timestamp=1)
    second_harness = harness(inline=False)
    second_harness.restore(first_harness.snapshot())
    second_harness.push({"second": (1,)}, timestamp=2)
    second_harness.push_all([None, 2, 3, 4])
    ((key, state),) = second_harness.snapshot().keys.items()
    codec = ValueCodec()
    return {
        "values": {name: codec.encode(value).hex() for name, value in SUPPORTED.items()},
        "heads": {name: head.pack().hex() for name, head in HEADS.items()},
        "operator": {
            "key": key,
            "rested": (state.rested or b"").hex(),
            "busy": (state.busy or b"").hex(),
            "pending": {str(number): data.hex() for number, data in state.pending.items()},
            "memory": {path: data.hex() for path, (data, _) in state.memory.items()},
            "processing_timers": sorted(state.processing_timers),
            "event_timers": sorted(state.event_timers),
        },
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(written(), indent=1) + "\n")
