"""``ScriptedModel``: a Pydantic AI model with a script, all lines of which have to be used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from flink_agents.api.errors import HarnessUseError
from flink_agents.testing.models.replies import Reply, ToolCall

Line = str | ToolCall | Reply | ModelResponse | BaseException | Callable[[list[ModelMessage]], Any]
"""A text, a tool call, a reply, a whole response, an error to raise, or a function that returns one."""


class ScriptEndedError(HarnessUseError, AssertionError):
    """A scripted model got more requests than its script has lines."""


class ScriptedModel(FunctionModel):
    """A model that answers each request with the next line of its script, whatever the request is.

    A script is used once: each test needs a new model.

    Args:
        lines: The replies, in order. Use a ``Reply`` for several tool calls at once.
        name: Name of the model in its responses.

    Attributes:
        asked: The messages of each request so far, in order.
    """

    def __init__(self, lines: Iterable[Line], name: str = "scripted") -> None:
        super().__init__(self._respond, stream_function=self._stream, model_name=name)
        self._lines = list(lines)
        self.asked: list[list[ModelMessage]] = []

    @property
    def count(self) -> int:
        """Number of requests so far."""
        return len(self.asked)

    def assert_complete(self) -> None:
        """Check that each line of the script was used.

        Raises:
            AssertionError: Some lines were not.
        """
        unused_lines = len(self._lines) - len(self.asked)
        if unused_lines > 0:
            raise AssertionError(
                f"the model got {len(self.asked)} requests, and {unused_lines} lines of its script are left"
            )

    async def _respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return self._response(messages)

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        for index, part in enumerate(self._response(messages).parts):
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                arguments = part.args_as_json_str()
                yield {index: DeltaToolCall(part.tool_name, arguments, tool_call_id=part.tool_call_id)}

    def _response(self, messages: Sequence[ModelMessage]) -> ModelResponse:
        number = len(self.asked)
        self.asked.append(list(messages))
        if number >= len(self._lines):
            raise ScriptEndedError(
                f"the script of the model has {len(self._lines)} lines, so request {number + 1} has none; "
                "add a line for it, and use a new model in each test"
            )
        line = self._lines[number]
        if callable(line) and not isinstance(line, BaseException):
            line = cast("Any", line)(list(messages))
        if isinstance(line, BaseException):
            raise line
        return line if isinstance(line, ModelResponse) else _response_of(line, number)


def _response_of(line: Any, number: int) -> ModelResponse:
    reply = line if isinstance(line, Reply) else Reply(tool_calls=[line]) if _is_call(line) else Reply(line)
    parts: list[Any] = [TextPart(reply.content)] if reply.content else []
    for name, call in reply.calls(number):
        arguments = call.arguments if isinstance(call.arguments, str) else dict(call.arguments)
        parts.append(ToolCallPart(call.name, arguments, name))
    return ModelResponse(parts)


def _is_call(line: object) -> bool:
    return isinstance(line, ToolCall)
