"""An agent that talks with a model: a request, a tool, a request, a script of a skill, and a request."""

from __future__ import annotations

import json

from flink_agents import Agent, ChatModel, InputEvent, OutputEvent, RunnerContext, Skills, Tool, action
from flink_agents.testing.models import Reply, ServedRequest, ToolCall

TURNS = 3
AT_A_TIME = 6

SKILL = "---\nname: share\ndescription: Says how much is paid back.\n---\nRun `scripts/half.py`."
SCRIPT = "import sys; print(int(sys.argv[1]) // 2)"


def price_of(number: int) -> int:
    """Say what an order costs."""
    return 10 * number


def turn_of(request: ServedRequest) -> tuple[int, int]:
    """The number of the order that a request is about, and how often the model has answered before."""
    messages = request.body["messages"]
    order = next(message["content"] for message in messages if message["role"] == "user")
    return int(order.split()[1]), sum(message["role"] == "assistant" for message in messages)


def answer(request: ServedRequest) -> Reply:
    """What the model says: it follows from what was said before."""
    number, turn = turn_of(request)
    if turn == 0:
        return Reply(tool_calls=[ToolCall("price_of", {"number": number})], delay=0.1)
    if turn == 1:
        arguments = {"skill": "share", "script": "scripts/half.py", "arguments": [request.text]}
        return Reply(tool_calls=[ToolCall("run_script", arguments)], delay=0.1)
    return Reply(request.text, delay=0.1)


class ChatAgent(Agent):
    """Puts out the number and what the model said at last, which is what the script printed.

    Args:
        url: Address of the model server.
        key: The file with its key.
        skills: The folder of the skill.
    """

    output_type = str

    def __init__(self, url: str, key: str, skills: str) -> None:
        model = ChatModel(
            "openai-chat:any",
            base_url=url,
            api_key={"file": key},
            tools=["price_of"],
            skills=["manuals"],
            max_concurrency=AT_A_TIME,
        )
        self.add_resource("clerk", "chat_model", model)
        self.add_resource("price_of", "tool", Tool(price_of))
        self.add_resource("manuals", "skills", Skills(skills))

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("clerk", f"order {event.input}")
        return OutputEvent(output=f"{event.input} {result.output}")


def expected(number: int) -> str:
    """The output for an order."""
    result = {"exit_code": 0, "stdout": f"{price_of(number) // 2}\n", "stderr": ""}
    return f"{number} {json.dumps(result, separators=(',', ':'))}"
