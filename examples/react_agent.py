"""A ReAct agent that answers customers of a shop, offline. Run it with ``python examples/react_agent.py``.

For each question the model calls tools until it has an answer, and each customer's conversation continues.
The requests go over HTTP to a local server in place of OpenAI; ``ChatModel("openai:gpt-5-mini")`` without a
base_url would use the real one. The job fails once on the way: Flink restarts it, no answered request is sent
again, and no refund is paid twice.
"""

import os
import re
import tempfile
from pathlib import Path

from pydantic import BaseModel

from flink_agents import (
    AgentsExecutionEnvironment,
    ChatModel,
    ConversationHistory,
    InputEvent,
    OutputEvent,
    ReActAgent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
    tool,
)
from flink_agents.testing.models import ModelServer, Reply, ServedRequest, ToolCall

ORDERS = {"7": "delivered yesterday", "8": "still in the warehouse"}
QUESTIONS = [
    ("ada", "Where is order 7?"),
    ("bo", "Where is order 8?"),
    ("ada", "It is broken. I want my money back."),
]


class Answer(BaseModel):
    """The reply to the customer."""

    text: str
    refunded: bool = False


class Support(ReActAgent):
    """Answers a question of a customer, who is the key.

    Args:
        directory: Where the list of refunds is.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(
            model="clerk",
            instructions="You answer customers of a shop. Look at an order before you refund it.",
            prompt="Customer {customer} asks: {question}",
            tools=["state_of", "refund"],
            output_type=Answer,
            max_steps=5,
            history=ConversationHistory(max_messages=20),
            fallback=Answer(text="A colleague will call you."),
        )
        self.directory = directory

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel("openai-chat:gpt-5-mini", api_key={"env": "SHOP_MODEL_KEY"})

    @tool
    def state_of(self, order: str) -> str:
        """Say where an order is.

        Args:
            order: Number of the order.
        """
        return ORDERS[order]

    @tool
    def refund(self, order: str) -> str:
        """Send the customer the money for an order."""
        with Path(self.directory, "refunds").open("a", encoding="utf-8") as file:
            file.write(f"{order}\n")
        return f"refunded {order}"

    @action(InputEvent)
    async def react(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        """Answer a question; the first refund of all is followed by a failure."""
        customer, question = event.input
        answer = await self.answer({"customer": customer, "question": question}, ctx)
        failed = Path(self.directory, "failed")
        if answer.refunded and not failed.exists():
            failed.touch()
            raise RuntimeError("the process dies, and nobody knows what it did")
        return OutputEvent(output=f"{customer}: {answer.text}")


def think(request: ServedRequest) -> Reply:
    """Stands for a large model: what it says follows from the conversation so far."""
    messages = request.body["messages"]
    questions = [message["content"] for message in messages if message["role"] == "user"]
    order = re.findall(r"order (\d+)", " ".join(questions))[-1]
    wants_money = "money" in questions[-1]
    if messages[-1]["role"] == "user":
        return Reply(tool_calls=[ToolCall("state_of", {"order": order})])
    last_content = messages[-1]["content"]
    if wants_money and "refunded" not in last_content:
        return Reply(tool_calls=[ToolCall("refund", {"order": order})])
    text = f"Order {order} is {last_content}." if not wants_money else f"We have {last_content}."
    return Reply(tool_calls=[ToolCall("final_result", {"text": text, "refunded": wants_money})])


def main(directory: str) -> None:
    """Run the job, and show the requests and the payments."""
    os.environ["SHOP_MODEL_KEY"] = "the local server takes any"
    with ModelServer(think) as server:
        env = AgentsExecutionEnvironment.get_execution_environment(
            config={
                "job-identifier": "support",
                "action-state.sqlite.path": f"{directory}/calls.sqlite",
                "chat-models.clerk.base_url": server.base_url,
                "local.restart.attempts": 1,
            }
        )
        env.stream_env.enable_checkpointing(1000)
        questions = env.from_list(QUESTIONS, key_selector=lambda record: record[0])
        answers = questions.apply(Support(directory=directory)).to_list()
        env.execute("support")
        print("\n".join(sorted(answers, key=lambda line: line[:3])))
        refunds = Path(directory, "refunds").read_text("utf-8").split()
        print(f"failed once; {server.count} requests to the model, refunds of {', '.join(refunds)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
