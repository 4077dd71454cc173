"""One conversation with a chat model: requests and tool calls in turn, until there is an output.

Everything between the recorded calls follows from their results, so that a replay takes the same path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, count
from typing import Any, Protocol

from pydantic import ValidationError
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import ModelOutputError
from flink_agents.api.models.chat import ChatResult, ChatUsage
from flink_agents.api.resources.sendable_text import sendable
from flink_agents.models.chat.messages.converting import Transcript
from flink_agents.models.chat.output import OUTPUT_TOOL, OutputType, validation_problems
from flink_agents.models.chat.requests import RequestAnswer
from flink_agents.models.chat.usage import UsageCounter
from flink_agents.models.tools.calls import ToolOutcome
from flink_agents.models.tools.toolbox import Toolbox, retry_part, tool_return

# Texts for the model: the result of the call that gave the output, that of other calls, a correction.
_PROCESSED = "Final result processed."
_SKIPPED = "Tool not executed - a final result was already processed."
_NOTHING = "Answer with a text, or call a tool."


class Sender(Protocol):
    """Sends requests: to one model, or also to its fallbacks."""

    async def send(
        self,
        ctx: RunnerContext,
        transcript: Transcript,
        settings: Mapping[str, Any],
        parameters: ModelRequestParameters,
        priced: bool,
    ) -> tuple[str, RequestAnswer]:
        """Send a request, and return the name of the chat model that answered, and its answer.

        Args:
            ctx: The context of the action, in which the request is a durable step.
            transcript: All messages of the conversation.
            settings: Settings of this conversation, such as ``temperature``.
            parameters: Tools, output and instructions.
            priced: True if the answer needs its price, since the cost is limited.

        Raises:
            ModelRequestError: The request failed in all attempts, and so did the fallbacks.
        """
        ...


@dataclass(frozen=True)
class Terms:
    """The settings of one conversation.

    Attributes:
        output: The type of its output; None for a string.
        settings: Settings of its requests by name, such as ``temperature``.
        instructions: Instructions that precede all messages.
        output_retries: Maximum number of corrections of a wrong output.
        run_tools: True if tool calls are executed; if False, they end the conversation.
        allow_urls: True if messages may contain URLs of files.
        now: The timestamp of its messages: the start of the run, so that a replay has the same one.
    """

    output: OutputType | None
    settings: Mapping[str, Any]
    instructions: str | None
    output_retries: int
    run_tools: bool
    allow_urls: bool
    now: datetime


class Conversation:
    """A conversation with a chat model, from its messages to its output.

    Args:
        ctx: The context of the action.
        sender: Sends requests to the model, or to its fallbacks.
        toolbox: The tools that the model may call, and their execution.
        terms: The settings of the conversation.
        counter: Counts requests, tokens and calls, and checks the usage limits.
        messages: Messages of earlier conversations and the first messages of this one.
    """

    def __init__(
        self,
        ctx: RunnerContext,
        sender: Sender,
        toolbox: Toolbox,
        terms: Terms,
        counter: UsageCounter,
        messages: Sequence[ModelMessage],
    ) -> None:
        self._ctx = ctx
        self._sender = sender
        self._toolbox = toolbox
        self._terms = terms
        self._counter = counter
        self._message_count = len(messages)
        self._wrong_outputs = 0
        self._model = ""
        self._transcript = Transcript(terms.allow_urls)
        self._transcript.add(messages)
        self._output_tool = ""
        self._parameters = self._request_parameters()

    async def run(self) -> ChatResult[Any]:
        """Send requests and call tools in turn, until the model gives an output; return the result.

        Raises:
            ModelError: The model did not answer, gave no valid output, or exceeded a usage limit.
            ToolError: A tool ended the conversation.
        """
        while True:
            self._counter.check_request()
            self._model, answer = await self._sender.send(
                self._ctx,
                self._transcript,
                self._terms.settings,
                self._parameters,
                self._counter.counts_cost,
            )
            self._transcript.add([answer.response])
            self._counter.count_answer(answer)
            result = await self._handle_response(answer.response)
            if result is not None:
                return result

    @property
    def usage(self) -> ChatUsage:
        """Requests, tool calls, tokens and cost of the conversation so far."""
        return self._counter.usage

    def _request_parameters(self) -> ModelRequestParameters:
        tools: list[ToolDefinition] = sendable(self._toolbox.definitions)
        output = self._terms.output
        if output is None:
            parameters = ModelRequestParameters(function_tools=tools)
        else:
            self._output_tool = _output_tool_name(self._toolbox)
            parameters = sendable(output.parameters(tools, self._output_tool))
        if self._terms.instructions:
            parameters.instruction_parts = [InstructionPart(content=sendable(self._terms.instructions))]
        return parameters

    async def _handle_response(self, response: ModelResponse) -> ChatResult[Any] | None:
        """Return the result if a response is the last one; otherwise call its tools, and return None.

        Results of tools, and corrections of a wrong output, are added to the transcript.
        """
        calls = response.tool_calls
        if not calls:
            return self._handle_text(response.text or "")
        corrections: list[ModelRequestPart] = []
        first_error: ValidationError | None = None
        for call in filter(self._gives_output, calls):
            try:
                output = self._output_of(call)
            except ValidationError as error:
                first_error = first_error or error
                outcome = ToolOutcome("retry", validation_problems(error), "validation_error")
                corrections.append(retry_part(call, outcome, self._terms.now))
            else:
                self._add_parts(self._closing_parts(calls, call))
                return self._build_result(output)
        if first_error is not None:
            # Once for all calls of the response: the model gets their results only after all of them.
            self._count_wrong_output(first_error)
        tool_calls = [call for call in calls if not self._gives_output(call)]
        if tool_calls and not self._terms.run_tools:
            return self._build_result(response.text or "", tool_calls)
        self._counter.call_tools(len(tool_calls))
        self._add_parts([*corrections, *(await self._toolbox.call_all(tool_calls))])
        return None

    @property
    def _gives_output_by_tool(self) -> bool:
        return bool(self._parameters.output_tools)

    def _gives_output(self, call: ToolCallPart) -> bool:
        return self._gives_output_by_tool and call.tool_name == self._output_tool

    def _output_of(self, call: ToolCallPart) -> Any:
        assert self._terms.output is not None
        return self._terms.output.of_call(call)

    def _closing_parts(self, calls: Sequence[ToolCallPart], final: ToolCallPart) -> list[ModelRequestPart]:
        """Return the results of all calls of the last response, of which ``final`` gave the output."""
        now = self._terms.now
        return [tool_return(call, _PROCESSED if call is final else _SKIPPED, now) for call in calls]

    def _handle_text(self, text: str) -> ChatResult[Any] | None:
        """Return the result if a response without calls is a valid output; otherwise ask for a correction."""
        output = self._terms.output
        if output is None and text:
            return self._build_result(text)
        if output is not None and text and not self._gives_output_by_tool:
            try:
                return self._build_result(output.of_text(text))
            except ValidationError as error:
                self._count_wrong_output(error)
                self._add_correction(validation_problems(error), "validation_error")
                return None
        expected = f"Call the tool {self._output_tool}." if self._gives_output_by_tool else _NOTHING
        self._count_wrong_output(text[:500] or "an empty response")
        self._add_correction(expected, "model_retry")
        return None

    def _add_correction(self, content: Any, cause: Any) -> None:
        """Add a message that tells the model what is wrong; ``cause`` is pydantic-ai's name of the reason."""
        correction = RetryFeedbackPart(content, retry=RetryInfo(cause=cause), timestamp=self._terms.now)
        self._add_parts([correction])

    def _add_parts(self, parts: Sequence[ModelRequestPart]) -> None:
        """Add a message with these parts to the transcript; the next request sends it."""
        self._transcript.add([ModelRequest(list(parts), timestamp=self._terms.now)])

    def _count_wrong_output(self, problem: object) -> None:
        """Count a wrong output; ModelOutputError if there were more than ``output_retries`` corrections."""
        self._wrong_outputs += 1
        if self._wrong_outputs > self._terms.output_retries:
            raise ModelOutputError(
                f"the chat model {self._model!r} gave no valid output in {self._wrong_outputs} attempts",
                expected="an output of the requested type",
                found=str(problem)[:1000],
                fix="describe the output better, raise output_retries, or ask another model",
            )

    def _build_result(self, output: Any, calls: Sequence[ToolCallPart] = ()) -> ChatResult[Any]:
        return ChatResult(
            output,
            self._transcript.messages,
            self._counter.usage,
            self._model,
            self._message_count,
            list(calls),
        )


def _output_tool_name(toolbox: Toolbox) -> str:
    """Return a name for the tool that returns the output: a name that no other tool has."""
    tool_names = {tool.name for tool in toolbox.definitions}
    names = chain([OUTPUT_TOOL], (f"{OUTPUT_TOOL}_{number}" for number in count(2)))
    return next(name for name in names if name not in tool_names)
