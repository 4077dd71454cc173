"""Lets a model use the tools of an MCP server, offline. Run it with ``python examples/mcp_tools.py``.

The server, ``mcp_server.py`` in this directory, is a separate process, which each subtask starts on first
use. Its answers are recorded: after a restart, the job does not send the requests again. A function in
``mcp_clerk.py`` replaces the chat model; for a real one, declare ``ChatModel("openai:gpt-5-mini",
tools=["stock"])``.
"""

import sys
import tempfile
from pathlib import Path

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    ChatMessage,
    ChatModel,
    InputEvent,
    MCPServer,
    OutputEvent,
    Prompt,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
    mcp_server,
    prompt,
)

SERVER = str(Path(__file__).with_name("mcp_server.py"))
ORDERS = [("ada", "tea", 2), ("bo", "cocoa", 5), ("ada", "cocoa", 1)]


class Shop(Agent):
    """Reserves what customers order."""

    @mcp_server
    def stock(self) -> ResourceDescriptor:
        return MCPServer(command=sys.executable, args=[SERVER], prefix="stock")

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz="mcp_clerk:offline_clerk", tools=["stock"])

    @prompt
    def order(self) -> Prompt:
        wish = ChatMessage(role="user", content="The customer wants {number} {item}")
        return Prompt.from_messages([wish])

    @prompt
    def manner(self) -> Prompt:
        return Prompt.from_mcp("stock", "answer_customer")

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        customer, item, number = event.input
        [manner] = await ctx.prompt("manner", customer=customer)
        wish = ctx.prompt("order", item=item, number=number)
        result = await ctx.chat("clerk", wish, instructions=manner.content)
        rule = await ctx.mcp_server("stock").read_resource("stock://policy")
        return OutputEvent(output=f"{customer}: {result.output}. {rule}")


def customer_of(order: tuple[str, str, int]) -> str:
    """The key of an order."""
    return order[0]


def main() -> None:
    """Serve the orders in a local job."""
    with tempfile.TemporaryDirectory() as calls:
        config = {"job-identifier": "shop", "action-state.sqlite.path": f"{calls}/calls.sqlite"}
        env = AgentsExecutionEnvironment.get_execution_environment(config=config)
        answers = env.from_list(ORDERS, key_selector=customer_of).apply(Shop()).to_list()
        env.execute("shop")
    print("\n".join(sorted(answers)))


if __name__ == "__main__":
    main()
