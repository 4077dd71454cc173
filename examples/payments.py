"""Charges each order once, even though the job fails on the way. Run it with ``python examples/payments.py``.

A durable call is recorded before the action continues. When Flink restarts the job and the run is
repeated, the call is not made again: its receipt comes from the record.
"""

import tempfile
from pathlib import Path

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, RunnerContext, action

ORDERS = ["ada 400", "alan 25", "ada 50"]


def charge(ledger: str, order: str, idempotency_key: str) -> str:
    """Stands for a payment service; a real one takes the key, to know a call that comes again."""
    with Path(ledger).open("a", encoding="utf-8") as file:
        file.write(f"{order}\n")
    return f"receipt {idempotency_key[:8]}"


class Payments(Agent):
    """Charges an order, and fails once behind it: the second order, the first time."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @action(InputEvent)
    def pay(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        receipt = ctx.durable_execute(charge, f"{self.directory}/ledger", event.input)
        failed = Path(self.directory) / "failed"
        if event.input == ORDERS[1] and not failed.exists():
            failed.touch()
            raise RuntimeError("the process dies, and nobody knows what it did")
        return OutputEvent(output=f"{event.input}: {receipt}")


def main(directory: str) -> None:
    """Run the job, and show what was charged."""
    env = AgentsExecutionEnvironment.get_execution_environment(
        config={
            "job-identifier": "payments",
            "action-state.sqlite.path": f"{directory}/calls.sqlite",
            "local.restart.attempts": 1,
        }
    )
    env.stream_env.enable_checkpointing(1000)
    orders = env.from_list(ORDERS, key_selector=lambda order: order.split()[0])
    receipts = orders.apply(Payments(directory=directory)).to_list()
    env.execute("payments")
    print("\n".join(sorted(receipts)))
    charged = (Path(directory) / "ledger").read_text("utf-8").splitlines()
    print(f"failed once, charged {len(charged)} times: {', '.join(sorted(charged))}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
