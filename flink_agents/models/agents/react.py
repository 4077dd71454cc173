"""``ReActAgent``: an agent on a stream whose model thinks and calls tools in turn until it has an answer."""

from __future__ import annotations

import dataclasses
import json
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

from pydantic import BaseModel, GetPydanticSchema
from pydantic_core import core_schema, to_jsonable_python

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.decorators import action
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.policies import OnError
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import calls_durably
from flink_agents.api.durable.type_texts import read_type, write_type
from flink_agents.api.errors import (
    AgentDefinitionError,
    AgentsError,
    ModelError,
    RecordedFailureError,
    ToolError,
)
from flink_agents.api.events import InputEvent, OutputEvent
from flink_agents.api.models.chat import ConversationOptions, OutputMode, UsageLimits
from flink_agents.api.models.history import ConversationHistory
from flink_agents.api.resources import ChatMessage, Prompt, ResourceDescriptor, ResourceType, Tool

MODEL = "model"
"""Name of the chat model if the agent gets a description of one, and the default if it gets no name."""
PROMPT = "prompt"
"""Name of the prompt if the agent gets a ``Prompt`` object."""

_NONE: Any = object()
"""Stands for a fallback that is not passed: None may be one."""
_CONVERSATION_FAILED = (ModelError, ToolError, RecordedFailureError)
"""Errors of this package that end a conversation; no other errors end one."""
_ANY = GetPydanticSchema(lambda kind, handler: core_schema.any_schema())
"""Marks arguments that may be objects: the plan records their names."""

_log = bounded_logger("flink_agents.react")


class ReActAgent(Agent):
    """An agent whose model thinks and calls tools in turn, for each input, until it has an answer.

    As a builder::

        agent = ReActAgent(
            model=ChatModel("openai:gpt-5-mini"), tools=[price_of], output_type=Verdict, max_steps=5
        )

    Your own subclass, with resources and actions, passes them to ``super().__init__(...)``. In YAML they are
    the ``configuration``. The model answers an input in the action ``react``, which a subclass may replace;
    it calls :meth:`answer`.

    Args:
        name: Name of the agent. Default: the class name.
        model: Name of its chat model, or a description that becomes the chat model ``model``.
        instructions: Instructions that precede all messages and follow those of the chat model.
        prompt: How an input becomes messages: a ``Prompt``, the name of one (a single word), or a template.
            Fields of the input fill it in, and ``{input}`` is the whole input as a string. If the prompt uses
            nothing of the input, the input follows as a user message. Default: the input as a string.
        tools: Names of tools, functions or ``Tool`` objects, besides the tools of the chat model.
        output_type: Type of the answer: any type that ``ctx.chat`` accepts, or ``"module:Class"``. Default:
            the class attribute ``output_type``; without one, ``str``. The agent's outputs have this type,
            too. If ``react`` is replaced, only the class attribute declares the type of outputs.
        output_mode: How the model returns it. Default: the mode of the chat model.
        max_steps: Maximum number of requests to the model for an input.
        limits: Usage limits of the conversation of an input. Default: the limits of the chat model.
        history: The part of earlier conversations that the key remembers. Default: none; each input starts a
            new conversation.
        fallback: The answer if the conversation fails: a value of ``output_type``, or its JSON. Default: the
            action fails, and ``on_error`` decides what follows.
        on_error: Policy for a failed action. Default: the policy of the class, or of the job.
    """

    output_type: Any = None

    def __init__(
        self,
        name: str | None = None,
        *,
        model: Annotated[str | ResourceDescriptor, _ANY] = MODEL,
        instructions: str | None = None,
        prompt: Annotated[str | Prompt | None, _ANY] = None,
        tools: Annotated[Sequence[Any], _ANY] = (),
        output_type: Any = None,
        output_mode: OutputMode | None = None,
        max_steps: int = 10,
        limits: UsageLimits | None = None,
        history: ConversationHistory | None = None,
        fallback: Any = _NONE,
        on_error: OnError | str | None = None,
    ) -> None:
        super().__init__(name)
        if isinstance(output_type, str):
            output_type = read_type(output_type, pkgutil.resolve_name)
        self._given_type = output_type
        if output_type is not None and not self._replaces_react():
            self.output_type = output_type
        if on_error is not None:
            self.on_error = on_error
        _check_max_steps(max_steps)
        self._model = self._name_resource(MODEL, ResourceType.CHAT_MODEL, model)
        self._prompt = self._name_resource(PROMPT, ResourceType.PROMPT, prompt)
        self._tools = [self._name_tool(tool) for tool in tools]
        self._fallback = fallback if fallback is _NONE else to_jsonable_python(fallback, fallback=_row_fields)
        options = ConversationOptions(max_requests=max_steps, tools=self._tools, instructions=instructions)
        if limits is not None:
            options["limits"] = limits
        if history is not None:
            options["history"] = history
        if output_mode is not None:
            options["output_mode"] = output_mode
        self._options = options
        self._write_arguments()

    @action(InputEvent)
    async def react(self, event: InputEvent, ctx: RunnerContext) -> Any:
        """Answer an input. An action that replaces this one may return any events."""
        return OutputEvent(output=await self.answer(event.input, ctx))

    async def answer(self, value: Any, ctx: RunnerContext) -> Any:
        """Return the model's answer to ``value``, for actions of the agent.

        Args:
            value: The value to answer, in the form of an input.
            ctx: The context of the action.

        Returns:
            An answer of the output type; the fallback, if there is one and the conversation fails.

        Raises:
            ModelError: The model did not answer.
            ToolError: A tool ended the conversation.
            Exception: A tool raised it.
        """
        try:
            messages = self._messages_for(value, ctx)
            result = await ctx.chat(self._model, messages, output_type=self._answer_type(), **self._options)
            return result.output
        except Exception as error:
            has_ended_chat = isinstance(error, _CONVERSATION_FAILED) or not isinstance(error, AgentsError)
            if self._fallback is _NONE or not has_ended_chat:
                raise
            ctx.agent_metric_group.get_sub_group("react").get_counter("fallbacks").inc()
            _log.warning("%s answers with its fallback: %s: %s", ctx.agent_name, type(error).__name__, error)
            return self._typed_fallback()

    # -- prompt of an input --------------------------------------------------------

    def _messages_for(self, value: Any, ctx: RunnerContext) -> list[ChatMessage]:
        """Return the prompt filled in with an input; the input itself if the prompt uses nothing of it."""
        text = _text_of(value)
        input_message = ChatMessage(role="user", content=text)
        if self._prompt is None:
            return [input_message]
        prompt = self._prompt_of(ctx, self._prompt)
        messages = prompt.format_messages(**{"input": text, **_fields_of(value)})
        return messages if prompt.variables else [*messages, input_message]

    def _prompt_of(self, ctx: RunnerContext, name_or_template: str) -> Prompt:
        is_name = name_or_template.split() == [name_or_template] and "{" not in name_or_template
        if is_name:
            return ctx.get_resource(name_or_template, ResourceType.PROMPT)
        return Prompt.from_text(name_or_template)

    def _typed_fallback(self) -> Any:
        """Return the fallback as an object of the output type."""
        # The prompt needs pydantic-ai, which is not required to declare an agent.
        from flink_agents.models.chat.output import OutputType

        kind = self._answer_type()
        if kind in (None, str):
            return self._fallback
        return OutputType(kind, OutputMode.TOOL).of_json(self._fallback)

    # -- arguments -------------------------------------------------------------

    def _answer_type(self) -> Any:
        """Return the type of answers: the argument ``output_type``, or else the class attribute."""
        return self.output_type if self._given_type is None else self._given_type

    @classmethod
    def _replaces_react(cls) -> bool:
        """Return True if a subclass replaces the action ``react``, or removes it."""
        return cls.react is not ReActAgent.react

    def _name_resource(self, name: str, kind: ResourceType, resource_or_name: Any) -> Any:
        """Return the name of a resource; add an object under ``name``. None stays None."""
        if resource_or_name is None or isinstance(resource_or_name, str):
            return resource_or_name
        self.add_resource(name, kind, resource_or_name)
        return name

    def _name_tool(self, tool_or_name: Any) -> str:
        """Return the name of a tool; add one that was passed as a function or ``Tool`` to the agent."""
        if isinstance(tool_or_name, str):
            return tool_or_name
        tool = tool_or_name if isinstance(tool_or_name, Tool) else Tool(tool_or_name)
        self.add_resource(tool.name, ResourceType.TOOL, tool_or_name)
        return tool.name

    def _write_arguments(self) -> None:
        """Record the arguments in the plan: workers create the agent again from them."""
        if type(self).__init__ is not ReActAgent.__init__:
            return
        _, arguments = self.__dict__["__arguments__"]
        plan_values = {
            "model": self._model,
            "prompt": self._prompt,
            "tools": self._tools,
            "fallback": self._fallback,
        }
        # The plan has separate entries for policy and type, except for a type that only answers have.
        omitted = ["on_error", "output_type"]
        type_text = None if self._given_type is None else write_type(self._given_type)
        if self._replaces_react() and type_text is not None:
            plan_values["output_type"] = type_text
            omitted.remove("output_type")
        plan_arguments = {
            name: plan_values.get(name, value) for name, value in arguments.items() if name not in omitted
        }
        self.__dict__["__arguments__"] = ((), plan_arguments)


calls_durably(ReActAgent.answer)


def _check_max_steps(max_steps: int) -> None:
    if max_steps < 1:
        raise AgentDefinitionError(
            "a ReActAgent has a limit of less than one request to its model",
            expected="max_steps of 1 or more",
            found=str(max_steps),
        )


def _text_of(value: Any) -> str:
    """Return an input as text for a model: a string as it is, any other value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(to_jsonable_python(value, fallback=_row_fields), ensure_ascii=False)


def _fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of an input by name: a mapping, model, dataclass, named tuple or row; else empty."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[Any, Any]", value)
        return {str(name): field_value for name, field_value in fields.items()}
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return cast("Any", value)._asdict()
    return _row_fields(value) if hasattr(value, "as_dict") else {}


def _row_fields(value: Any) -> Any:
    """Return the fields of a row of PyFlink; for any other value its text."""
    return (
        value.as_dict(True) if getattr(value, "_fields", None) and hasattr(value, "as_dict") else str(value)
    )
