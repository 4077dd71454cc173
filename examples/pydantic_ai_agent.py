"""A Pydantic AI agent on a stream, offline. Run it with ``python examples/pydantic_ai_agent.py``.

The only part of the agent, in ``refund_agent.py``, that depends on Flink is its capability
``FlinkDurability``. It sends requests to its model over HTTP, to a local server in place of OpenAI. The job
fails once on the way: Flink restarts it, and no request that was answered is sent again.
"""

import os
import re
import tempfile
from pathlib import Path

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    InputEvent,
    OutputEvent,
    RunnerContext,
    action,
)
from flink_agents.testing.models import ModelServer, Reply, ServedRequest, ToolCall

CLAIMS = [("ada", "My kettle leaks."), ("bo", "The toaster smokes."), ("ada", "The lamp broke, too.")]


class Refunds(Agent):
    """Lets the agent of pydantic-ai decide about a claim of a customer, who is the key.

    Args:
        directory: Where it notes that it failed.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @action(InputEvent)
    async def decide(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        from refund_agent import Customer, decider

        customer, claim = event.input
        paid = ctx.short_term_memory.get("paid", 0.0)
        result = await decider.run(claim, deps=Customer(customer, paid))
        ctx.short_term_memory.set("paid", paid + result.output.pay)
        failed = Path(self.directory, "failed")
        if paid and not failed.exists():
            failed.touch()
            raise RuntimeError("the process dies, and nobody knows what it did")
        return OutputEvent(output=f"{customer} gets {result.output.pay:g}: {result.output.reason}")


def think(request: ServedRequest) -> Reply:
    """Stands for a large model: what it says follows from the conversation so far."""
    messages = request.body["messages"]
    (item,) = re.findall("kettle|toaster|lamp", str(messages[1]["content"]))
    tool_texts = [message["content"] for message in messages if message["role"] == "tool"]
    if not tool_texts:
        calls = [ToolCall("price_of", {"item": item}), ToolCall("paid_before", {})]
        return Reply(tool_calls=calls)
    if "there is no" in tool_texts[0]:
        return Reply(tool_calls=[ToolCall("final_result", {"pay": 0, "reason": f"we sell no {item}"})])
    price, refunded = map(float, tool_texts)
    pay = min(price, 100 - refunded)
    return Reply(tool_calls=[ToolCall("final_result", {"pay": pay, "reason": f"a {item} costs {price:g}"})])


def main(directory: str) -> None:
    """Run the job, and show what was decided and asked."""
    with ModelServer(think) as server:
        # Before Flink starts, whose workers inherit them.
        os.environ.update(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="the local server takes any")
        env = AgentsExecutionEnvironment.get_execution_environment(
            config={
                "job-identifier": "refunds",
                "action-state.sqlite.path": f"{directory}/calls.sqlite",
                "local.restart.attempts": 1,
            }
        )
        env.stream_env.enable_checkpointing(1000)
        claims = env.from_list(CLAIMS, key_selector=lambda record: record[0])
        decisions = claims.apply(Refunds(directory=directory)).to_list()
        env.execute("refund agent")
        print("\n".join(sorted(decisions)))
        print(f"failed once; {server.count} requests to the model")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
