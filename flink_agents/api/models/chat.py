"""Chat models as authors declare them, and results of conversations: plain data, free of model libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from flink_agents.api.common.checked_models import CheckedModelType
from flink_agents.api.common.places import caller_place
from flink_agents.api.common.policies import RateLimit, RetryTimes
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.models.descriptions import two_makers, written
from flink_agents.api.models.history import ChatTranscript, ConversationHistory
from flink_agents.api.resources import ChatMessage, ResourceDescriptor, ResourceRef
from flink_agents.api.settings import Limits

T = TypeVar("T")

RESPONSE_LIMIT = 16 * 1024 * 1024
"""Default limit of a service's answer in bytes."""

ChatInput = str | ChatMessage | ChatTranscript | Sequence[Any]
"""Messages to a model: a string of the user, contents such as pictures, or messages."""


class _Plain(BaseModel, metaclass=CheckedModelType):
    """Base of frozen descriptions without other fields than the declared ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Secret(_Plain):
    """A reference to a secret on the worker. Plans, records and logs hold this reference, never the value.

    Attributes:
        env: The environment variable that holds it.
        file: The file that holds it; white space around the secret is ignored.
    """

    env: str | None = Field(default=None, min_length=1, description="The environment variable that holds it.")
    file: str | None = Field(default=None, min_length=1, description="The file that holds it.")

    @model_validator(mode="before")
    @classmethod
    def _check_reference(cls, value: object) -> object:
        if isinstance(value, str):
            # The value must not become part of the error: it may be the secret.
            raise ValueError(
                "refer to a secret by {'env': VARIABLE} or {'file': PATH}; do not write its value"
            )
        return value

    @model_validator(mode="after")
    def _check_source(self) -> Secret:
        if (self.env is None) == (self.file is None):
            raise ValueError("a secret has either env or file")
        return self


class Public(_Plain):
    """A value that looks or is named like a secret, but is public.

    Attributes:
        public: The value.
    """

    public: str = Field(description="A public value.")


class UsageLimits(_Plain):
    """Usage limits of one conversation, which is one ``ctx.chat``. None switches a limit off.

    Attributes:
        requests: Requests to models that were answered, those of fallbacks and judges included.
        tool_calls: Calls of tools by models.
        input_tokens: Tokens that were sent to models.
        output_tokens: Tokens that models sent.
        total_tokens: Tokens in both directions.
        cost: US dollars, by the list prices in pydantic-ai; the cost of a judge counts if the judge has a
            limit of cost, too.
    """

    requests: int | None = Field(default=25, ge=1, description="Requests to models.")
    tool_calls: int | None = Field(default=None, ge=0, description="Calls of tools.")
    input_tokens: int | None = Field(default=None, ge=1, description="Tokens that are sent.")
    output_tokens: int | None = Field(default=None, ge=1, description="Tokens that are received.")
    total_tokens: int | None = Field(default=None, ge=1, description="Tokens in both directions.")
    cost: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="US dollars.")


class OutputMode(StrEnum):
    """Modes in which a model returns an output of a type.

    Attributes:
        TOOL: It calls a tool whose arguments are the output.
        NATIVE: The provider enforces a JSON schema for its text.
        PROMPTED: The schema is part of the instructions.
    """

    TOOL = "tool"
    NATIVE = "native"
    PROMPTED = "prompted"


class OnToolError(StrEnum):
    """Policy if a tool raises an exception that has no special meaning.

    Attributes:
        FAIL: The conversation ends, and the action gets the exception.
        TELL_MODEL: The model gets the exception's message as the result of its call.
    """

    FAIL = "fail"
    TELL_MODEL = "tell-model"


class OnUnknownOutcome(StrEnum):
    """Policy if it is unknown whether a tool call took effect.

    Attributes:
        FAIL: The conversation ends with ``ToolOutcomeUnknownError``.
        ASK: A person decides, by an approval, if the call is repeated.
    """

    FAIL = "fail"
    ASK = "ask"


class OnRefusal(StrEnum):
    """Policy if a model refuses to answer, or a content filter withholds the answer.

    Attributes:
        FAIL: The conversation ends with ``ModelRefusedError``.
        RETRY: The request is sent again, as after a failure.
        FALLBACK: The request goes to the fallbacks of the chat model.
    """

    FAIL = "fail"
    RETRY = "retry"
    FALLBACK = "fallback"


class RouteRule(_Plain):
    """A rule of a router: the first rule whose conditions all hold selects the model.

    Attributes:
        model: Name of the chat model.
        contains: A regular expression that occurs in the last message of the user.
        max_characters: Maximum number of characters of the conversation.
    """

    model: str = Field(min_length=1, description="Name of the chat model.")
    contains: str | None = Field(default=None, description="A regular expression for the user's text.")
    max_characters: int | None = Field(default=None, ge=0, description="Maximum length of the conversation.")

    @field_validator("contains")
    @classmethod
    def _check_expression(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value


class Router(_Plain):
    """Chooses one of several chat models for each conversation: by rules, by a function, or by a judge.

    Attributes:
        models: The chat models, and the purpose of each. The last one is the default.
        rules: Rules, in order.
        function: ``module:qualname`` of a function that gets the messages and returns a name.
        judge: A chat model that gets the purpose of each model and chooses one. Its request is recorded.
    """

    models: dict[str, str] = Field(min_length=1, description="Names of chat models, and their purposes.")
    rules: tuple[RouteRule, ...] = Field(default=(), description="The first matching rule decides.")
    function: str | None = Field(default=None, pattern=r"^[^:\s]+:[^:\s]+$", description="module:qualname.")
    judge: str | None = Field(default=None, min_length=1, description="A chat model that decides.")

    if TYPE_CHECKING:
        # Of the rules, type checkers would accept nothing but a tuple.
        def __init__(
            self,
            *,
            models: dict[str, str],
            rules: Sequence[RouteRule] = (),
            function: str | None = None,
            judge: str | None = None,
        ) -> None: ...

    @model_validator(mode="after")
    def _check_strategy(self) -> Router:
        if sum((bool(self.rules), self.function is not None, self.judge is not None)) != 1:
            raise ValueError("a router has either rules, a function or a judge")
        unknown = [rule.model for rule in self.rules if rule.model not in self.models]
        if unknown:
            raise ValueError(f"the rules name {unknown[0]!r}, which is not a model of the router")
        return self


class Endpoint(_Plain):
    """The endpoint of a provider's models.

    Attributes:
        base_url: Address of the service. Default: the provider's.
        api_key: Reference to the key. Default: the variable that the provider's library reads.
        headers: HTTP headers of each request, by name.
        options: More arguments of pydantic-ai's class of the provider, such as ``api_version``.
    """

    base_url: str | None = Field(default=None, description="Address of the service.")
    api_key: Secret | None = Field(default=None, description="Reference to the key.")
    headers: dict[str, str | Secret | Public] = Field(
        default_factory=dict, description="Headers of each request."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="More arguments of the provider.")


class ChatModelSpec(Endpoint, Limits):
    """The description of a chat model. ``docs/models.md`` explains each field."""

    model: str | None = Field(default=None, min_length=1, description="The model, as 'provider:name'.")
    connection: str | None = Field(default=None, description="A chat_model_connection with the endpoint.")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings such as temperature or max_tokens."
    )
    instructions: str | None = Field(default=None, description="Instructions before all messages.")
    prompt: str | ResourceRef | None = Field(default=None, description="A prompt before the messages.")
    tools: tuple[str, ...] = Field(default=(), description="Tools that the model may call.")
    skills: tuple[str, ...] = Field(default=(), description="Skills that the model may load.")
    output_mode: OutputMode | None = Field(default=None, description="How it returns a typed output.")
    output_retries: int = Field(default=2, ge=0, description="Retries of a wrong output.")
    tool_retries: int = Field(default=2, ge=0, description="Retries of a wrong call of a tool.")
    tool_timeout: float | None = Field(default=None, gt=0, description="Timeout of a tool call, in seconds.")
    tool_result_limit: int = Field(default=100_000, ge=1, description="Limit of a tool result, in bytes.")
    on_tool_error: OnToolError = Field(default=OnToolError.FAIL, description="If a tool raises.")
    on_unknown_outcome: OnUnknownOutcome = Field(
        default=OnUnknownOutcome.FAIL, description="If it is unknown whether a tool call took effect."
    )
    on_refusal: OnRefusal = Field(default=OnRefusal.FAIL, description="If the model refuses to answer.")
    limits: UsageLimits = Field(default=UsageLimits(), description="Usage limits of a conversation.")
    allow_urls: bool = Field(default=False, description="True if contents may be URLs to download.")
    stream: bool = Field(default=False, description="Ask for a stream, which is recorded as a whole.")
    timeout: float | None = Field(default=120.0, gt=0, description="Timeout of an attempt, in seconds.")
    retry: RetryTimes = Field(default=RetryTimes(), description="Policy for failed requests.")
    retry_after_limit: float = Field(
        default=300.0,
        ge=0,
        allow_inf_nan=False,
        description="Longest wait that the service may ask for, in seconds.",
    )
    response_limit: int = Field(default=RESPONSE_LIMIT, ge=1, description="Limit of an answer, in bytes.")
    fallback: tuple[str, ...] = Field(default=(), description="Chat models to ask if this one fails.")
    router: Router | None = Field(default=None, description="Chooses a chat model for each conversation.")

    @field_validator("model")
    @classmethod
    def _check_model(cls, value: str | None) -> str | None:
        if value is not None and value != "test" and not all(value.partition(":")):
            raise ValueError("a model is named 'provider:name', such as 'openai:gpt-5-mini'")
        return value


class ChatModelOptions(TypedDict, total=False):
    """Keywords of :class:`ChatModel`: the fields of :class:`ChatModelSpec`."""

    base_url: str | None
    api_key: Secret | Mapping[str, str] | None
    headers: Mapping[str, str | Secret | Mapping[str, str]]
    options: Mapping[str, Any]
    connection: str | None
    settings: Mapping[str, Any]
    instructions: str | None
    prompt: str | None
    tools: Sequence[str]
    skills: Sequence[str]
    output_mode: OutputMode | str | None
    output_retries: int
    tool_retries: int
    tool_timeout: float | None
    tool_result_limit: int
    on_tool_error: OnToolError | str
    on_unknown_outcome: OnUnknownOutcome | str
    on_refusal: OnRefusal | str
    limits: UsageLimits | Mapping[str, Any]
    allow_urls: bool
    stream: bool
    timeout: float | None
    retry: RetryTimes | Mapping[str, Any]
    retry_after_limit: float
    response_limit: int
    fallback: Sequence[str]
    router: Router | Mapping[str, Any] | None
    max_concurrency: int | None
    rate_limit: RateLimit | None


class ConnectionOptions(TypedDict, total=False):
    """Keywords of :class:`ChatModelConnection`: the fields of :class:`Endpoint`."""

    base_url: str | None
    api_key: Secret | Mapping[str, str] | None
    headers: Mapping[str, str | Secret | Mapping[str, str]]
    options: Mapping[str, Any]


class ChatModel(ResourceDescriptor):
    """A chat model, as the result of a ``@chat_model`` method or an argument of ``add_resource``.

    Args:
        model: ``provider:name``, such as ``openai:gpt-5-mini``. Empty for a router, or for a class.
        clazz: A function or class that creates a model of pydantic-ai, or such a model itself, for models
            without a ``provider:name``. An object, or its name ``module:qualname``.
        arguments: Arguments of ``clazz`` by name; JSON values.
        **options: The fields of ``ChatModelSpec``.

    Raises:
        AgentDefinitionError: An option is unknown, or its value is invalid.
    """

    def __init__(
        self,
        model: str = "",
        *,
        clazz: str | Any = "",
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[ChatModelOptions],
    ) -> None:
        all_options = {**options, **({"model": model} if model else {})}
        json_options = written(ChatModelSpec, all_options, "the chat model")
        conflict = two_makers(json_options, clazz)
        if conflict is not None:
            raise AgentDefinitionError(
                "the chat model is described twice",
                expected="one of model, router and clazz",
                found=conflict,
                fix="remove one of them",
                where=caller_place(0),
            )
        super().__init__(clazz=clazz, **{**(arguments or {}), **json_options})


class ChatModelConnection(ResourceDescriptor):
    """The endpoint of several chat models, as the result of a ``@chat_model_connection`` method.

    Args:
        **options: The fields of ``Endpoint``.

    Raises:
        AgentDefinitionError: An option is unknown, or its value is invalid.
    """

    def __init__(self, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(clazz="", **written(Endpoint, options, "the connection"))


class ConversationOptions(TypedDict, total=False):
    """Keywords of ``ctx.chat``."""

    tools: Sequence[Any]
    """More tools than those of the model: names of tools and of skills, functions, ``Tool`` objects."""
    output_mode: OutputMode | str | None
    """Mode in which the model returns an output of a type. Default: the model's."""
    limits: UsageLimits | None
    """Usage limits of this conversation. Default: the model's limits."""
    max_requests: int | None
    """Maximum number of requests, if lower than in the limits."""
    settings: Mapping[str, Any]
    """Settings such as ``temperature``, which override those of the model."""
    instructions: str | None
    """Instructions before all messages, after the model's own instructions."""
    history: Sequence[Any] | ChatTranscript | ConversationHistory
    """Earlier messages: the ``messages`` of a result or of a ``ChatResponseEvent``.

    A ``ConversationHistory`` continues the conversation in the key's short-term memory.
    """
    allow_urls: bool
    """True if contents may be URLs, which the provider or the worker downloads. Default: the model's setting.
    """
    variables: Mapping[str, Any]
    """Values for the variables of the model's prompt."""
    run_tools: bool
    """If False, tool calls are left to you: the result contains them."""


class ChatUsage(_Plain):
    """The usage of a conversation, according to the recorded responses.

    Attributes:
        requests: Requests to models that were answered.
        tool_calls: Calls of tools by models.
        input_tokens: Tokens that were sent to models.
        output_tokens: Tokens that models sent.
        cost: US dollars, if the cost is limited; otherwise None.
        cache_read_tokens: Input tokens that the provider read from its cache; None if it did not report any.
        cache_write_tokens: Input tokens that it wrote to its cache; None if it did not report any.
    """

    requests: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        """Tokens in both directions."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: ChatUsage) -> ChatUsage:
        """Return the sum of both; unknown numbers count as zero."""
        return ChatUsage(
            requests=self.requests + other.requests,
            tool_calls=self.tool_calls + other.tool_calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=sum_amounts(self.cost, other.cost),
            cache_read_tokens=sum_amounts(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens=sum_amounts(self.cache_write_tokens, other.cache_write_tokens),
        )


N = TypeVar("N", int, float)


def sum_amounts(first: N | None, second: N | None) -> N | None:
    """Return the sum of two amounts, of which None counts as zero; None if both are None."""
    if first is None or second is None:
        return first if second is None else second
    return first + second


@dataclass(frozen=True)
class ChatResult(Generic[T]):
    """The result of a conversation.

    Attributes:
        output: The answer: a string, or an object of the requested type.
        messages: The whole transcript, as messages of pydantic-ai.
        usage: Requests, tokens and cost of the conversation.
        model: Name of the chat model that answered.
        new: Index in ``messages`` of the first one that the conversation added.
        tool_calls: Tool calls that the model requests, if ``run_tools`` is False.
    """

    output: T
    messages: list[Any]
    usage: ChatUsage
    model: str
    new: int = 0
    tool_calls: list[Any] = field(default_factory=list[Any])

    @property
    def new_messages(self) -> list[Any]:
        """The messages that the conversation added to its history."""
        return self.messages[self.new :]
