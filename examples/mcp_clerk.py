"""A clerk for ``mcp_tools.py``: a function in place of a chat model, so that the example needs no network."""

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel


def offline_clerk() -> FunctionModel:
    """Make a model that looks at the stock, reserves what is there, and reports."""
    return FunctionModel(answer, model_name="offline-clerk")


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Say what comes next in a conversation."""
    wish = next(part for part in messages[0].parts if isinstance(part, UserPromptPart))
    number, item = str(wish.content).rsplit(" ", 2)[1:]
    returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    if not returned:
        return ModelResponse([ToolCallPart("stock_in_stock", {"item": item}, "look")])
    if len(returned) == 1 and returned[0].content:
        arguments = {"item": item, "number": int(number)}
        return ModelResponse([ToolCallPart("stock_reserve", arguments, "reserve")])
    return ModelResponse([TextPart(str(returned[-1].content))])
