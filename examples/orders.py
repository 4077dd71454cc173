"""Charges three orders, a second each. Kill it with ``kill -9``, and run it again: it resumes.

``python examples/orders.py`` keeps its data in ``.flink-agents`` beside it. ``--fresh`` starts over.
"""

import time

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, RunnerContext, action


def charge(order: str) -> str:
    """Stand for a payment service that takes a second."""
    print("charging", order, flush=True)
    time.sleep(1)
    return f"receipt of {order}"


class Payments(Agent):
    """Charges an order: a recorded charge is never made again."""

    @action(InputEvent)
    def pay(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=ctx.durable_execute(charge, event.input))


if __name__ == "__main__":
    env = AgentsExecutionEnvironment.get_execution_environment()
    orders = env.from_list(["tea", "cake", "coffee"], key_selector=lambda order: "shop")
    receipts = orders.apply(Payments).to_list()
    # The name makes the job resume.
    env.execute("orders")
    print(receipts)
