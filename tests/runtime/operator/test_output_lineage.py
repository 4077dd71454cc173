"""Outputs of an agent with ``lineage=True`` say which run put them out, and which message began it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flink_agents import Agent, EventTime, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.lineage import OutputLineage, TracedOutput
from flink_agents.connectors.kafka import KafkaRecord
from flink_agents.testing import OperatorHarness


@dataclass(frozen=True)
class Message:
    key: str
    message_id: str | None


def upper(text: str) -> str:
    return text.upper()


class Twice(Agent):
    """Puts out two values and one at the side; a durable call lies between them."""

    side_outputs = {"audit": object}
    on_error = "dead-letter"

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: RunnerContext) -> Any:
        ctx.send_event(OutputEvent(output="first"))
        await ctx.durable_execute_async(upper, "x")
        if event.input.key == "broken":
            raise ValueError("broken")
        ctx.emit_to("audit", "seen")
        return OutputEvent(output="second")


def lineages_of(harness: OperatorHarness) -> list[OutputLineage]:
    assert all(isinstance(output, TracedOutput) for output in harness.outputs)
    return [output.lineage for output in harness.outputs]


def test_each_output_has_its_own_id_and_the_parent_of_its_run(
    agent_harness: Callable[..., OperatorHarness],
) -> None:
    harness = agent_harness(Twice, lambda message: message.key, lineage=True)
    harness.push(Message("a", "orders/0/7"))
    harness.push(Message("a", None))
    first, second, third, _ = lineages_of(harness)
    assert [output.value for output in harness.outputs] == ["first", "second"] * 2
    assert (first.parent, third.parent) == ("orders/0/7", None)
    assert (first.agent, first.sequence_number, third.sequence_number) == ("Twice", 0, 1)
    assert (first.id, second.id) == (f"{first.run_id}-0", f"{first.run_id}-1")
    assert first.run_id == second.run_id != third.run_id
    (seen, _) = harness.side_output("audit")
    assert (seen.value, seen.lineage.id) == ("seen", f"{first.run_id}-side-0")


def test_ids_are_the_same_where_the_same_input_comes_again(
    agent_harness: Callable[..., OperatorHarness],
) -> None:
    lineages = []
    for _ in range(2):
        harness = agent_harness(Twice, lambda message: message.key, lineage=True, job_id="same")
        harness.push(Message("a", "orders/0/7"))
        lineages.append(lineages_of(harness))
    assert lineages[0] == lineages[1] != []


def test_dead_letters_stay_as_they_are(agent_harness: Callable[..., OperatorHarness]) -> None:
    harness = agent_harness(Twice, lambda message: message.key, lineage=True)
    harness.push(Message("broken", "orders/0/7"))
    (letter,) = harness.dead_letters
    assert letter.error_type == "ValueError"


def test_without_lineage_outputs_are_plain(agent_harness: Callable[..., OperatorHarness]) -> None:
    harness = agent_harness(Twice, lambda message: message.key)
    assert harness.push(Message("a", "orders/0/7")) == ["first", "second"]


def test_the_input_of_a_next_agent_names_its_parent(agent_harness: Callable[..., OperatorHarness]) -> None:
    """Whether it comes within the job, or over a topic."""

    class Next(Agent):
        @action(InputEvent)
        def hand_on(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=event.input.value)

    harness = agent_harness(Next, lineage=True, event_time=EventTime.hold_watermarks())
    output_lineage = OutputLineage("run-0", "run", "Twice", '"a"', 0)
    harness.push(TracedOutput("within", output_lineage), timestamp=1)
    harness.push(KafkaRecord("over", "a", {"flink-agents-id": b"run-1"}, 1, "t", 0, 0), timestamp=2)
    harness.push(KafkaRecord("from outside", None, {}, 1, "t", 0, 5), timestamp=3)
    assert [lineage.parent for lineage in lineages_of(harness)] == ["run-0", "run-1", "t/0/5"]
