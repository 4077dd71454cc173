"""The chat model that ``ctx.get_resource`` returns: holds conversations by its description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestParameters

from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import ModelRefusedError, ModelRequestError
from flink_agents.api.models.chat import (
    ChatInput,
    ChatModelSpec,
    ChatResult,
    ChatUsage,
    ConversationOptions,
    Endpoint,
    OnRefusal,
    OutputMode,
    UsageLimits,
)
from flink_agents.api.models.history import ChatTranscript, ConversationHistory
from flink_agents.api.resources import Prompt, ResourceRef, ResourceType
from flink_agents.api.resources.providers import DeclaredResource
from flink_agents.api.settings.options import Configuration
from flink_agents.models.chat.conversation import Conversation, Terms
from flink_agents.models.chat.endpoint import make_model
from flink_agents.models.chat.messages.converting import Transcript, asks_something, messages_of
from flink_agents.models.chat.messages.history import RememberedChat, check_recordable
from flink_agents.models.chat.options import check_options, override_spec
from flink_agents.models.chat.output import OutputType
from flink_agents.models.chat.requests import ModelRequests, RequestAnswer
from flink_agents.models.chat.router import choose_model
from flink_agents.models.chat.usage import UsageCounter
from flink_agents.models.setup.classes import check_ready
from flink_agents.models.setup.limiter import enter_nested_conversation
from flink_agents.models.setup.secrets import Secrets
from flink_agents.models.tools.calls import ToolPolicy
from flink_agents.models.tools.skills.resource import with_skills
from flink_agents.models.tools.toolbox import Toolbox, tools_of

_NO_USAGE = ChatUsage()


class ChatModelResource:
    """A chat model of a subtask. Its first use opens it, when the options of the job are known.

    Args:
        declared: The resource as its author declared it.
        spec: Its description, without the options of the job.
        arguments: Arguments of its class by name, if it has one.
    """

    def __init__(self, declared: DeclaredResource, spec: ChatModelSpec, arguments: Mapping[str, Any]) -> None:
        self.name = declared.name
        self._declared = declared
        self._declared_spec = spec
        self._arguments = arguments
        self._spec: ChatModelSpec | None = None
        self._requests: ModelRequests | None = None

    def spec(self, ctx: RunnerContext) -> ChatModelSpec:
        """Return the description of the model, overridden by the options of the job."""
        if self._spec is None:
            self._spec = override_spec(self.name, self._declared_spec, ctx.config)
        return self._spec

    def requests(self, ctx: RunnerContext) -> ModelRequests:
        """Return the object that sends requests to this model; it shares limits among all actions."""
        if self._requests is None:
            spec = self.spec(ctx)
            secrets = Secrets(f"the chat model {self.name!r}")
            self._requests = ModelRequests(self.name, spec, secrets, partial(self._make_model, spec, secrets))
        return self._requests

    def _make_model(self, spec: ChatModelSpec, secrets: Secrets) -> tuple[Model, Mapping[str, str]]:
        """Create the model, and return it with the headers of its requests."""
        connection: Any = None
        if spec.connection is not None:
            connection = self._declared.get(spec.connection, ResourceType.CHAT_MODEL_CONNECTION)
        model = make_model(self.name, spec, connection, self._declared.clazz, self._arguments, secrets)
        connection_headers = connection.headers if isinstance(connection, Endpoint) else {}
        return model, secrets.headers({**connection_headers, **spec.headers})

    def check_worker(self, config: Configuration) -> None:
        """Check that this process has all requirements of the model.

        Raises:
            AgentsError: A package, a module or a secret is missing.
        """
        what = f"the chat model {self.name!r}"
        spec = override_spec(self.name, self._declared_spec, config)
        values = {**self._arguments, **spec.model_dump(mode="json", exclude_unset=True)}
        check_ready(what, self._declared.clazz, {**values, "arguments": self._arguments})
        if not self._declared.clazz and spec.model is not None:
            # The library reports at once if it does not know the model or finds no key.
            self._make_model(spec, Secrets(what))

    async def aclose(self) -> None:
        """Close the connections of the model."""
        if self._requests is not None:
            requests = self._requests
            self._requests = None
            await requests.aclose()

    async def chat(
        self,
        ctx: RunnerContext,
        messages: ChatInput,
        *,
        output_type: Any = None,
        **options: Unpack[ConversationOptions],
    ) -> ChatResult[Any]:
        """Hold a conversation, as ``RunnerContext.chat`` describes it; a router chooses the model first."""
        options = check_options(options)
        history = options.get("history", ())
        if self.spec(ctx).router is None:
            return await self._hold_conversation(ctx, messages, history, output_type, options)
        now = ctx.now()
        if isinstance(history, ConversationHistory):
            previous_messages = RememberedChat(ctx, history, now).messages()
        else:
            previous_messages = messages_of(history, now)
        choice = await choose_model(ctx, self.name, [*previous_messages, *messages_of(messages, now)])
        chosen: ChatModelResource = ctx.get_resource(choice.model, ResourceType.CHAT_MODEL)
        return await chosen._hold_conversation(ctx, messages, history, output_type, options, choice.used)

    async def _hold_conversation(
        self,
        ctx: RunnerContext,
        messages: ChatInput,
        history: Sequence[Any] | ChatTranscript | ConversationHistory,
        output_type: Any,
        options: ConversationOptions,
        used: ChatUsage = _NO_USAGE,
    ) -> ChatResult[Any]:
        """Hold a conversation with this model itself; ``used`` is the usage of the router that chose it."""
        spec = self.spec(ctx)
        now = ctx.now()
        remembered_chat: RememberedChat | None = None
        previous_messages: list[ModelMessage] = []
        if isinstance(history, ConversationHistory):
            remembered_chat = RememberedChat(ctx, history, now)
        else:
            previous_messages = messages_of(history, now)
        added = messages_of(messages, now)
        prompt = [] if previous_messages else await self._fill_prompt(ctx, spec, options.get("variables", {}))
        # A remembered history ends with an answer.
        if not asks_something([*previous_messages, *prompt], added):
            raise self._nothing_to_answer_error()
        create_conversation = partial(self._create_conversation, ctx, spec, output_type, options, used)
        with enter_nested_conversation(f"the chat model {self.name!r}"):
            if remembered_chat is None:
                conversation = await create_conversation([*prompt, *previous_messages, *added])
                return await conversation.run()
            check_recordable(options.get("run_tools", True))
            with remembered_chat.lock_history():
                conversation = await create_conversation(remembered_chat.begin_chat([*prompt, *added]))
                result = await conversation.run()
                await remembered_chat.store_chat(result.new_messages)
            return result

    def _nothing_to_answer_error(self) -> ModelRequestError:
        return ModelRequestError(
            f"the chat model {self.name!r} was not asked, since its messages are empty",
            expected="a text or another content of the user",
            found="no message, or an empty one",
            fix="check the input before the chat; or answer it without the model",
        )

    async def _create_conversation(
        self,
        ctx: RunnerContext,
        spec: ChatModelSpec,
        output_type: Any,
        options: ConversationOptions,
        used: ChatUsage,
        messages: Sequence[ModelMessage],
    ) -> Conversation:
        """Create a conversation with its tools; waits for lists of tools of MCP servers."""
        now = ctx.now()
        tools, skill_instructions = with_skills(ctx, [*spec.tools, *options.get("tools", ())], spec.skills)
        return Conversation(
            ctx,
            self,
            Toolbox(ctx, await tools_of(ctx, tools), _tool_policy(spec), spec.tool_retries, now),
            self._conversation_terms(spec, output_type, options, skill_instructions, now),
            UsageCounter(_usage_limits(spec, options), used),
            messages,
        )

    def _conversation_terms(
        self,
        spec: ChatModelSpec,
        output_type: Any,
        options: ConversationOptions,
        skill_instructions: str | None,
        now: datetime,
    ) -> Terms:
        """Return the settings of a conversation: those of the chat override those of the description."""
        all_instructions = (spec.instructions, options.get("instructions"), skill_instructions)
        instructions = "\n\n".join(filter(None, all_instructions))
        mode = OutputMode(options.get("output_mode") or spec.output_mode or OutputMode.TOOL)
        return Terms(
            None if output_type in (None, str) else OutputType(output_type, mode),
            options.get("settings", {}),
            instructions or None,
            spec.output_retries,
            options.get("run_tools", True),
            options.get("allow_urls", spec.allow_urls),
            now,
        )

    async def _fill_prompt(
        self, ctx: RunnerContext, spec: ChatModelSpec, variables: Mapping[str, Any]
    ) -> Sequence[ModelMessage]:
        """Return the messages of the model's prompt with values for its variables; empty without a prompt."""
        if spec.prompt is None:
            return []
        name = spec.prompt.name if isinstance(spec.prompt, ResourceRef) else spec.prompt
        prompt: Prompt = ctx.get_resource(name, ResourceType.PROMPT)
        if prompt.mcp is None:
            # A chat model may have more variables than its prompt.
            return messages_of(prompt.format_messages(**variables), ctx.now())
        return messages_of(await ctx.prompt(name, **variables), ctx.now())

    async def send(
        self,
        ctx: RunnerContext,
        transcript: Transcript,
        settings: Mapping[str, Any],
        parameters: ModelRequestParameters,
        priced: bool,
    ) -> tuple[str, RequestAnswer]:
        """Send a request to this model; if it fails, to its fallbacks, one after the other.

        Returns:
            The name of the chat model that answered, and its answer.

        Raises:
            ModelRequestError: All of them failed.
            ModelRefusedError: A model refused to answer, and the policy does not ask fallbacks.
        """
        errors: list[ModelRequestError | ModelRefusedError] = []
        for name in (self.name, *self.spec(ctx).fallback):
            if name != self.name:
                # A fallback may be a router.
                name = (await choose_model(ctx, name, transcript.messages)).model
            model = self if name == self.name else ctx.get_resource(name, ResourceType.CHAT_MODEL)
            try:
                requests = model.requests(ctx)
                return name, await requests.send(ctx, transcript, settings, parameters, priced)
            except ModelRequestError as error:
                errors.append(error)
            except ModelRefusedError as error:
                if self.spec(ctx).on_refusal is not OnRefusal.FALLBACK:
                    raise
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        raise ModelRequestError(
            f"the chat model {self.name!r} and its fallbacks did not answer",
            found="; ".join(f"{error.message}: {error.found}" for error in errors),
            fix="check the services",
        )


def _tool_policy(spec: ChatModelSpec) -> ToolPolicy:
    return ToolPolicy(spec.tool_timeout, spec.tool_result_limit, spec.on_tool_error, spec.on_unknown_outcome)


def _usage_limits(spec: ChatModelSpec, options: ConversationOptions) -> UsageLimits:
    """Return the limits of a conversation; ``max_requests`` counts if it is lower than theirs."""
    limits = options.get("limits") or spec.limits
    max_requests = options.get("max_requests")
    if max_requests is None or (limits.requests is not None and limits.requests <= max_requests):
        return limits
    return limits.model_copy(update={"requests": max_requests})
