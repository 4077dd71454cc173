"""Chat models as authors declare them, and what a conversation gives: plain data, free of model libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from flink_agents.api.common.checked_models import CheckedModelType
from flink_agents.api.common.places import caller_place
from flink_agents.api.common.policies import RateLimit, RetryTimes
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.errors.base import suggest
from flink_agents.api.models.history import ChatTranscript, ConversationHistory
from flink_agents.api.resources import ChatMessage, ResourceDescriptor, ResourceRef
from flink_agents.api.settings import Limits

T = TypeVar("T")

RESPONSE_LIMIT = 16 * 1024 * 1024
"""How many bytes an answer of a service may have, unless a description says otherwise."""

ChatInput = str | ChatMessage | ChatTranscript | Sequence[Any]
"""Messages to a model: a string of the user, contents such as pictures, or messages."""


class _Plain(BaseModel, metaclass=CheckedModelType):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Secret(_Plain):
    """Where a secret is found on the worker. Plans, records and logs hold this reference, never the value.

    Attributes:
        env: The environment variable that holds it.
        file: The file that holds it; white space around it does not belong to it.
    """

    env: str | None = Field(default=None, min_length=1, description="The environment variable that holds it.")
    file: str | None = Field(default=None, min_length=1, description="The file that holds it.")

    @model_validator(mode="before")
    @classmethod
    def _check_reference(cls, value: object) -> object:
        if isinstance(value, str):
            # The text must not become part of the error: it may be the secret.
            raise ValueError("a secret is named by {'env': VARIABLE} or {'file': PATH}, and not written out")
        return value

    @model_validator(mode="after")
    def _check_one(self) -> Secret:
        if (self.env is None) == (self.file is None):
            raise ValueError("a secret has either env or file")
        return self


class Public(_Plain):
    """A value that looks or is named like a secret, and that everybody may see.

    Attributes:
        public: The value.
    """

    public: str = Field(description="A value that everybody may see.")


class UsageLimits(_Plain):
    """What one conversation, which is one ``ctx.chat``, may use. Each limit is off where it is None.

    Attributes:
        requests: Requests to models that were answered, those of fallbacks and judges included.
        tool_calls: Calls of tools.
        input_tokens: Tokens that were sent.
        output_tokens: Tokens that came back.
        total_tokens: Both together.
        cost: US dollars, by the list prices that pydantic-ai knows; that of a judge counts where the judge
            limits it as well.
    """

    requests: int | None = Field(default=25, ge=1, description="Requests to models.")
    tool_calls: int | None = Field(default=None, ge=0, description="Calls of tools.")
    input_tokens: int | None = Field(default=None, ge=1, description="Tokens that are sent.")
    output_tokens: int | None = Field(default=None, ge=1, description="Tokens that come back.")
    total_tokens: int | None = Field(default=None, ge=1, description="Tokens in both directions.")
    cost: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="US dollars.")


class OutputMode(StrEnum):
    """How a model is brought to give an output of a type.

    Attributes:
        TOOL: It calls a tool whose arguments are the output.
        NATIVE: The provider holds its text to a JSON schema.
        PROMPTED: The schema stands in the instructions.
    """

    TOOL = "tool"
    NATIVE = "native"
    PROMPTED = "prompted"


class OnToolError(StrEnum):
    """What happens if a tool raises an exception without a meaning of its own.

    Attributes:
        FAIL: The conversation ends, and the action gets the exception.
        TELL_MODEL: The model is told the exception's text as the result of its call.
    """

    FAIL = "fail"
    TELL_MODEL = "tell-model"


class OnUnknownOutcome(StrEnum):
    """What happens if it is unknown if the call of a tool took effect.

    Attributes:
        FAIL: The conversation ends with ``ToolOutcomeUnknownError``.
        ASK: A person decides, by an approval, whether the call is made again.
    """

    FAIL = "fail"
    ASK = "ask"


class OnRefusal(StrEnum):
    """What happens if a model refuses to answer, or a content filter withholds the answer.

    Attributes:
        FAIL: The conversation ends with ``ModelRefusedError``.
        RETRY: The request is sent again, as after a failure.
        FALLBACK: The fallbacks of the chat model are asked.
    """

    FAIL = "fail"
    RETRY = "retry"
    FALLBACK = "fallback"


class RouteRule(_Plain):
    """A rule of a router: the first whose conditions all hold names the model.

    Attributes:
        model: Name of the chat model.
        contains: A regular expression that occurs in the last message of the user.
        max_characters: The conversation has at most so many characters.
    """

    model: str = Field(min_length=1, description="Name of the chat model.")
    contains: str | None = Field(default=None, description="A regular expression for the user's text.")
    max_characters: int | None = Field(default=None, ge=0, description="Length of the conversation, at most.")

    @field_validator("contains")
    @classmethod
    def _check_expression(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from None
        return value


class Router(_Plain):
    """Chooses one of several chat models for each conversation: by rules, by a function, or by a judge.

    Attributes:
        models: The chat models, and what each is for. The last one is taken where nothing chooses.
        rules: Rules, from the first to the last.
        function: ``module:qualname`` of a function that is given the messages, and returns a name.
        judge: A chat model that is told what each model is for, and names one. Its request is recorded.
    """

    models: dict[str, str] = Field(min_length=1, description="Names of chat models, and what each is for.")
    rules: tuple[RouteRule, ...] = Field(default=(), description="The first rule that holds decides.")
    function: str | None = Field(default=None, pattern=r"^[^:\s]+:[^:\s]+$", description="module:qualname.")
    judge: str | None = Field(default=None, min_length=1, description="A chat model that decides.")

    @model_validator(mode="after")
    def _check_one(self) -> Router:
        if sum((bool(self.rules), self.function is not None, self.judge is not None)) != 1:
            raise ValueError("a router has either rules, a function or a judge")
        unknown = [rule.model for rule in self.rules if rule.model not in self.models]
        if unknown:
            raise ValueError(f"the rules name {unknown[0]!r}, which is none of the router's models")
        return self


class Endpoint(_Plain):
    """Where a provider's models are reached.

    Attributes:
        base_url: Address of the service. Default: the provider's.
        api_key: Where the key is found. Default: the variable that the provider's library reads.
        headers: Headers of each request.
        options: More arguments of pydantic-ai's class of the provider, such as ``api_version``.
    """

    base_url: str | None = Field(default=None, description="Address of the service.")
    api_key: Secret | None = Field(default=None, description="Where the key is found.")
    headers: dict[str, str | Secret | Public] = Field(
        default_factory=dict, description="Headers of each request."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="More arguments of the provider.")


class ChatModelSpec(Endpoint, Limits):
    """All that can be said about a chat model. ``docs/models.md`` explains each."""

    model: str | None = Field(default=None, min_length=1, description="The model, as 'provider:name'.")
    connection: str | None = Field(default=None, description="A chat_model_connection with the endpoint.")
    settings: dict[str, Any] = Field(default_factory=dict, description="Such as temperature or max_tokens.")
    instructions: str | None = Field(default=None, description="What the model is told before all messages.")
    prompt: str | ResourceRef | None = Field(default=None, description="A prompt before the messages.")
    tools: tuple[str, ...] = Field(default=(), description="Tools that the model may call.")
    skills: tuple[str, ...] = Field(default=(), description="Skills that the model may load.")
    output_mode: OutputMode | None = Field(default=None, description="How it gives an output of a type.")
    output_retries: int = Field(default=2, ge=0, description="How often a wrong output is told.")
    tool_retries: int = Field(default=2, ge=0, description="How often it may repeat a wrong call of a tool.")
    tool_timeout: float | None = Field(default=None, gt=0, description="Seconds for a call of a tool.")
    tool_result_limit: int = Field(default=100_000, ge=1, description="Bytes of JSON that a tool may return.")
    on_tool_error: OnToolError = Field(default=OnToolError.FAIL, description="Where a tool raises.")
    on_unknown_outcome: OnUnknownOutcome = Field(
        default=OnUnknownOutcome.FAIL, description="Where nobody knows whether a call of a tool took effect."
    )
    on_refusal: OnRefusal = Field(default=OnRefusal.FAIL, description="Where the model refuses to answer.")
    limits: UsageLimits = Field(default=UsageLimits(), description="What one conversation may use.")
    allow_urls: bool = Field(default=False, description="Whether contents may be URLs, to be downloaded.")
    stream: bool = Field(default=False, description="Ask for a stream, which the record holds as a whole.")
    timeout: float | None = Field(default=120.0, gt=0, description="Seconds for an attempt of a request.")
    retry: RetryTimes = Field(default=RetryTimes(), description="When a failed request is sent again.")
    retry_after_limit: float = Field(
        default=300.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds to wait at most if the service says so.",
    )
    response_limit: int = Field(default=RESPONSE_LIMIT, ge=1, description="Bytes that an answer may have.")
    fallback: tuple[str, ...] = Field(default=(), description="Chat models asked where this one fails.")
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
    """A chat model: what a method below ``@chat_model`` returns, or what ``add_resource`` is given.

    Args:
        model: ``provider:name``, such as ``openai:gpt-5-mini``. Empty for a router, or for a class.
        clazz: A function or class that makes a model of pydantic-ai, or such a model itself, where no
            provider's name stands for it.
        arguments: Arguments for ``clazz``.
        **options: The fields of ``ChatModelSpec``.

    Raises:
        AgentDefinitionError: An option is unknown or has a wrong value.
    """

    def __init__(
        self,
        model: str = "",
        *,
        clazz: str | Any = "",
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[ChatModelOptions],
    ) -> None:
        given = {**options, **({"model": model} if model else {})}
        plain = written(ChatModelSpec, given, "the chat model")
        both = two_makers(plain, clazz)
        if both is not None:
            raise AgentDefinitionError(
                "the chat model is described twice",
                expected="one of model, router and clazz, which says what answers",
                found=both,
                fix="leave one of them out",
                where=caller_place(0),
            )
        super().__init__(clazz=clazz, **{**(arguments or {}), **plain})


class ChatModelConnection(ResourceDescriptor):
    """The endpoint that several chat models share: what a method below ``@chat_model_connection`` returns.

    Args:
        **options: The fields of ``Endpoint``.

    Raises:
        AgentDefinitionError: An option is unknown or has a wrong value.
    """

    def __init__(self, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(clazz="", **written(Endpoint, options, "the connection"))


class ConversationOptions(TypedDict, total=False):
    """Keywords of ``ctx.chat``."""

    tools: Sequence[Any]
    """Tools besides those of the model: names of tools and of skills, functions, ``Tool`` objects."""
    output_mode: OutputMode | str | None
    """How the model is brought to give an output of a type. Default: the model's."""
    limits: UsageLimits | None
    """What this conversation may use. Default: the model's limits."""
    max_requests: int | None
    """How many requests it may use, where that is less than the limits allow."""
    settings: Mapping[str, Any]
    """Settings such as ``temperature``, over those of the model."""
    instructions: str | None
    """What the model is told before all messages, behind its own instructions."""
    history: Sequence[Any] | ChatTranscript | ConversationHistory
    """Earlier messages: the ``messages`` of a result or of a ``ChatResponseEvent``; or how much of it
    short-term memory keeps for the key, so that the conversation continues from there."""
    allow_urls: bool
    """Whether contents may be URLs, which the provider or the worker downloads. Default: the model's."""
    variables: Mapping[str, Any]
    """Values for the variables of the model's prompt."""
    run_tools: bool
    """False leaves calls of tools to the caller, who finds them in the result."""


def two_makers(arguments: Mapping[str, Any], clazz: Any) -> str | None:
    """Return what describes a chat model twice; None where one of name, router and class does."""
    given = [name for name in ("model", "router") if arguments.get(name)] + ["clazz"] * bool(clazz)
    return " and ".join(given) if "clazz" in given and len(given) > 1 else None


def written(
    kind: type[BaseModel], given: Mapping[str, Any], what: str, page: str = "docs/models.md"
) -> dict[str, Any]:
    """What was given, as JSON values of the fields of ``kind``.

    Args:
        kind: The model of what can be said.
        given: The messages.
        what: What it is said of, for the error.
        page: The page that describes the fields.

    Raises:
        AgentDefinitionError: A field is unknown or has a wrong value.
    """
    try:
        return kind.model_validate(dict(given)).model_dump(mode="json", exclude_unset=True)
    except ValidationError as error:
        raise AgentDefinitionError(
            f"{what} is described wrongly",
            expected=f"the options that {page} describes",
            found=problem(error),
            fix=_fix(kind, error),
            where=caller_place(1),
        ) from None


def _fix(kind: type[BaseModel], error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] != "extra_forbidden" or len(first["loc"]) != 1:
        return "correct the option"
    otherwise = "leave it out"
    if "settings" in kind.model_fields:
        otherwise += "; what the provider is told, such as a temperature, stands in settings={...}"
    return suggest(str(first["loc"][0]), kind.model_fields, otherwise)


def problem(error: ValidationError) -> str:
    """The first thing that is wrong, without the value, which may be a secret."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"


class ChatUsage(_Plain):
    """What a conversation used, by the recorded responses.

    Attributes:
        requests: Requests that were answered.
        tool_calls: Calls of tools.
        input_tokens: Tokens that were sent.
        output_tokens: Tokens that came back.
        cost: US dollars, where they are limited; None where they are not.
        cache_read_tokens: Those of ``input_tokens`` that the provider read from its cache; None if it told
            of none.
        cache_write_tokens: Those that it wrote into its cache; None if it told of none.
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
        """What both used; what one of them does not know counts as nothing."""
        return ChatUsage(
            requests=self.requests + other.requests,
            tool_calls=self.tool_calls + other.tool_calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=_sum(self.cost, other.cost),
            cache_read_tokens=_sum(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens=_sum(self.cache_write_tokens, other.cache_write_tokens),
        )

    def with_cached(self, read: int, written: int) -> ChatUsage:
        """The same with more tokens that the provider read from its cache, or wrote into it."""
        return self + ChatUsage(cache_read_tokens=read or None, cache_write_tokens=written or None)


N = TypeVar("N", int, float)


def _sum(one: N | None, other: N | None) -> N | None:
    return one if other is None else other if one is None else one + other


@dataclass(frozen=True)
class ChatResult(Generic[T]):
    """What a conversation came to.

    Attributes:
        output: The answer: a text, or an object of the type that was asked for.
        messages: The whole transcript, as messages of pydantic-ai.
        usage: What it used.
        model: Name of the chat model that answered.
        new: Number of the first message that the conversation added to what it was given.
        tool_calls: Calls that the model asks for, where the conversation was to leave them to its caller.
    """

    output: T
    messages: list[Any]
    usage: ChatUsage
    model: str
    new: int = 0
    tool_calls: list[Any] = field(default_factory=list[Any])

    @property
    def new_messages(self) -> list[Any]:
        """The messages that the conversation added to what it was given."""
        return self.messages[self.new :]
