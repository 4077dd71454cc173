"""One workflow agent over a file: orders in, a line for each order out.

A workflow agent is a set of actions that trigger each other by events. Here the first action
reads an order, the second keeps the customer's account in memory, and only if the account
grows large, a third one runs. Run it with ``python examples/workflow_single_agent.py [FILE]``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyflink.common import WatermarkStrategy
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    Event,
    InputEvent,
    OutputEvent,
    RunnerContext,
    action,
)

ORDERS_FILE = Path(__file__).parent / "data" / "orders.txt"


class OrderPlaced(Event):
    """A line that is an order."""

    customer: str
    amount: float


class CreditExceeded(Event):
    """A customer's orders come to more than the credit."""

    customer: str
    total: float


class AccountAgent(Agent):
    """Adds up the orders of each customer, who is the key.

    Args:
        credit: How much a customer may order in total.
    """

    def __init__(self, credit: float) -> None:
        super().__init__()
        self.credit = credit

    @action(InputEvent)
    def read_order(self, event: InputEvent, ctx: RunnerContext) -> OrderPlaced | OutputEvent:
        customer, _, amount = event.input.partition(" ")
        try:
            return OrderPlaced(customer=customer, amount=float(amount))
        except ValueError:
            return OutputEvent(output=f"{customer}: {amount!r} is no amount")

    @action(OrderPlaced)
    def book(self, event: OrderPlaced, ctx: RunnerContext) -> CreditExceeded | OutputEvent:
        total = ctx.short_term_memory.get("total", 0.0) + event.amount
        ctx.short_term_memory.set("total", total)
        if total > self.credit:
            return CreditExceeded(customer=event.customer, total=total)
        return OutputEvent(output=f"{event.customer}: booked {event.amount:.2f}, {total:.2f} in total")

    @action(CreditExceeded)
    def ask_for_payment(self, event: CreditExceeded, ctx: RunnerContext) -> OutputEvent:
        over = event.total - self.credit
        return OutputEvent(output=f"{event.customer}: please pay, {over:.2f} above the credit")


def main(file: Path) -> None:
    """Run the job over the lines of ``file`` and print what the agent says."""
    agents = AgentsExecutionEnvironment.get_execution_environment()
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(file.resolve())).build()
    lines = agents.stream_env.from_source(source, WatermarkStrategy.no_watermarks(), "orders")
    messages = agents.from_datastream(lines, key_selector=customer_of).apply(AccountAgent(credit=500.0))
    messages.to_datastream().print()
    agents.execute("accounts")


def customer_of(line: str) -> str:
    """The key of a line: its first word."""
    return line.split(" ")[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ORDERS_FILE)
