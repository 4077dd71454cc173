"""``FlinkDurability``: records each model and tool call of a Pydantic AI agent in an action.

It implements the public interface of ``pydantic_ai.durable_exec``, which wraps models and toolsets and names
their calls. Here each call becomes a durable step of the running action.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, TypedDict, cast

from pydantic_ai.agent import AbstractAgent, EventStreamHandler
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, RequestInput
from pydantic_ai.capabilities.abstract import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    BoundDurableOperation,
    DurabilityEngineSpec,
    DurableOperation,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    conversation_id_from_run_id,
    record_durable_unit,
    replay_scope,
)
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolDefinition,
)
from pydantic_ai.toolsets import AbstractToolset
from pydantic_core import PydanticSerializationError

from flink_agents import redaction
from flink_agents.api.common.current import OWN_LOCKS, unrecorded_action
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.context.current import current_context
from flink_agents.api.durable import IDEMPOTENCY_KEY, DurableCallable, calls_durably
from flink_agents.api.errors import AgentNotDurableError, DurableResultError
from flink_agents.api.models.chat import OnUnknownOutcome
from flink_agents.api.models.mcp import OnNameTaken
from flink_agents.api.resources.raised_notes import note_once
from flink_agents.api.resources.sendable_text import sendable
from flink_agents.models.engine.approvals import (
    HumanApproval,
    ask_for_approvals,
    ask_people,
    name_deferral_error,
    note_deferred,
)
from flink_agents.models.engine.effects import Effects
from flink_agents.models.engine.free_names import check_names, output_names, with_free_names
from flink_agents.models.engine.messages import describe_request, own_messages
from flink_agents.models.engine.model_calls import (
    RETRY,
    RETRY_AFTER_LIMIT,
    leave_retries_to_us,
    policy_of,
    send_request,
)
from flink_agents.models.engine.model_loop import on_model_loop
from flink_agents.models.engine.tool_calls import (
    ServerFailedError,
    call_tool,
    new_key,
    reaching_servers,
    server_unavailable_error,
    takes_key,
    with_hints,
    with_placeholder,
    without_key,
)
from flink_agents.models.setup.limiter import enter_nested_conversation
from flink_agents.models.setup.secrets import know_models

# Their operations wait for durable steps, which are not tasks of the action, or for other tasks.
OWN_LOCKS.update(("pydantic_ai", "pydantic_graph"))

TOOL_CONFIG = "flink"
"""Key in a tool's metadata: settings of its calls, or False if the tool runs as code of the action."""

_NOT_OF_DURABLE_CALLS = frozenset({"idempotent", "retry_after_limit"})
"""Keys of ``CallSettings`` that are no settings of a ``DurableCallable``."""

_LISTS = (ToolsetGetToolsId, ToolsetGetInstructionsId)
"""Operations that only read properties of a toolset."""


def _watch_toolset(toolset: AbstractToolset[Any]) -> None:
    """Let a toolset of an MCP server report failures of the server; other toolsets stay as they are."""
    if "pydantic_ai.mcp" in sys.modules:
        from flink_agents.models.engine.tool_calls import watch_toolset

        watch_toolset(toolset)


class CallSettings(TypedDict, total=False):
    """Settings of the model calls, or of the tool calls, of an agent.

    Attributes:
        timeout: Timeout of one attempt: seconds, or a timedelta. Default: none.
        retry: Policy for failed attempts. Default of model calls: ``RetryPolicy()``, which without
            ``retry_on`` repeats transient failures: timeouts, lost connections, unreadable answers, 408, 409,
            425, 429 and 5xx except 501. Default of tool calls: no retries.
        retry_after_limit: For model calls: the longest ``Retry-After`` to wait for, in seconds. If the
            provider asks for more, the request fails at once and logs a WARNING. Default: 300.
        idempotent: For tool calls: True if a call with an unknown outcome may be repeated. False if it must
            not be repeated even after a crash, at the cost of a second record. Default: the hint of the
            tool's MCP server.
    """

    timeout: float | timedelta
    retry: RetryPolicy
    retry_after_limit: float
    idempotent: bool


@calls_durably
@dataclass(init=False)
class FlinkDurability(BaseDurabilityCapability[AgentDepsT]):
    """Lets a Pydantic AI agent survive crashes inside an action.

    Pass it to the agent: ``Agent(..., name="refunds", capabilities=[FlinkDurability()])``. In an ``async
    def`` action, each request to a model, tool call and request to an MCP server is a durable step of that
    action. After a crash, recorded calls are not repeated. Elsewhere, as in a script or a unit test, the
    capability has no effect.

    The agent needs a ``name``, and each of its MCP and dynamic toolsets an ``id``: records refer to calls by
    them, so do not change them while runs are unfinished.

    Args:
        models: More models, by the names that runs can request.
        event_stream_handler: Receives the events of a run; each is then a durable step.
        name: Replaces the agent's name in records.
        model_calls: Settings of model requests.
        tool_calls: Settings of tool calls, unless the tool's metadata ``{"flink": {...}}`` sets others.
        approvals: True if people approve calls of tools with ``requires_approval``, and answer questions of
            ``RequestInput``. The run of the action is suspended until they answer.
        approval_timeout: Seconds, or a duration, after which a request counts as denied. Default: never.
        on_unknown_outcome: Policy if it is unknown whether a tool call took effect: ``fail`` ends the run,
            ``ask`` lets a person decide.
        on_name_taken: Policy if the agent has another tool with the name of a tool of an ``MCPToolset``:
            ``skip`` leaves it out, ``prefix`` names it ``ID_tool``, ``fail`` ends the run.
        allow_urls: True if prompts and histories that came with data may have contents that are URLs.
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="Flink",
        durable_unit_noun="durable call",
        durable_container_noun="action",
        codec=JSON_CODEC,
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=TOOL_CONFIG,
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        model_calls: CallSettings | None = None,
        tool_calls: CallSettings | None = None,
        approvals: bool = False,
        approval_timeout: float | timedelta | None = None,
        on_unknown_outcome: OnUnknownOutcome | str = OnUnknownOutcome.FAIL,
        on_name_taken: OnNameTaken = "skip",
        allow_urls: bool = False,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._further_models = tuple((models or {}).values())
        self._model_calls: CallSettings = model_calls or {}
        self._tool_calls: CallSettings = tool_calls or {}
        self._on_unknown = OnUnknownOutcome(on_unknown_outcome)
        self._on_name_taken = on_name_taken
        self._allow_urls = allow_urls
        self._people: HumanApproval | None = None
        if approvals:
            is_duration = isinstance(approval_timeout, timedelta)
            self._people = HumanApproval(
                approval_timeout.total_seconds() if is_duration else approval_timeout
            )

    def for_agent(self, agent: AbstractAgent[AgentDepsT, Any]) -> AbstractCapability[AgentDepsT]:
        """Return the capability for one agent, whose functions and toolsets it checks.

        Raises:
            DuplicateNameError: A function of the agent has the name of an output tool.
        """
        calls_durably(agent)
        check_names(agent.toolsets, output_names(agent.output_type))
        capability = super().for_agent(agent)
        for toolset in agent.toolsets:
            toolset.apply(_watch_toolset)
        return capability

    def get_ordering(self) -> CapabilityOrdering:
        """Order it after policies that answer at once, and before capabilities that pass questions on."""
        ordering = super().get_ordering()
        return replace(ordering, wraps=(*ordering.wraps, RequestInput))

    @property
    def asks_people(self) -> bool:
        """True if people decide about calls, so that runs of actions wait for their answers."""
        return self._people is not None or self._on_unknown is OnUnknownOutcome.ASK

    @property
    def in_durable_context(self) -> bool:
        """True if the code of an ``async def`` action runs, and not that of one of its durable steps."""
        return current_context() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[CallSettings]:
        """Return the backend that makes each operation of the agent a durable step."""
        resolve_config = self._build_resolve_tool_config(self._tool_calls)

        def settings_of_tool(
            operation_id: DurableOperationId, tool: Any, tool_name: str
        ) -> CallSettings | Literal[False]:
            config = cast("CallSettings | Literal[False]", resolve_config(tool, tool_name))
            return config if config is False else cast("CallSettings", with_hints(config, tool))

        return _Calls(
            self.name,
            self._on_unknown,
            self._models_to_keep_open(),
            self.default_model_id,
            RoleBasedOperationConfig[CallSettings](
                model=self._model_calls,
                event={},
                capability={},
                tool=self._tool_calls,
                resolve_tool=settings_of_tool,
            ),
        )

    def _models_to_keep_open(self) -> tuple[Model, ...]:
        """Return the agent's own model, if it is an object, and those that runs can request."""
        default = None if self.agent is None else self.agent.model
        return (*((default,) if isinstance(default, Model) else ()), *self._further_models)

    async def prepare_tools(
        self, ctx: RunContext[AgentDepsT], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """Hide the parameter ``idempotency_key`` from the model."""
        return [without_key(tool_def) for tool_def in tool_defs]

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Reject content from data that only the agent's code may send, and make texts sendable."""
        if self.in_durable_context:
            request_context.model_request_parameters = sendable(request_context.model_request_parameters)
            request_context.model_settings = sendable(request_context.model_settings)
            request_context.messages = sendable(own_messages(request_context.messages, self._allow_urls))
        return await super().before_model_request(ctx, request_context)

    async def before_tool_validate(
        self, ctx: RunContext[AgentDepsT], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any
    ) -> Any:
        """Add a placeholder for the idempotency key, which the tool requires and gets later."""
        return with_placeholder(args) if takes_key(tool_def) else args

    async def before_tool_execute(
        self, ctx: RunContext[AgentDepsT], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any
    ) -> Any:
        """Add the idempotency key to the arguments of a tool that has a parameter for it."""
        return {**args, IDEMPOTENCY_KEY: new_key()} if takes_key(tool_def) else args

    async def on_tool_execute_error(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: Any,
        error: Exception,
    ) -> Any:
        """Raise the error of a tool again, with a note of the tool's name."""
        note_once(error, f"in tool {tool_def.name!r}")
        raise error

    def get_wrapper_toolset(self, toolset: AbstractToolset[AgentDepsT]) -> AbstractToolset[AgentDepsT] | None:
        """Return a toolset whose calls are recorded; in an action, each tool has a name of its own."""
        recorded = super().get_wrapper_toolset(toolset) or toolset
        if self.agent is None or not self.in_durable_context:
            return recorded
        return with_free_names(recorded, self._on_name_taken, output_names(self.agent.output_type))

    def get_default_run_id(self) -> str | None:
        """Return an id for a new run, the same on replay; None outside of actions, for pydantic-ai's own."""
        context = current_context()
        return None if context is None else str(context.uuid4())

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of a conversation that starts with a run; None outside of actions."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return the start of the action's run as that of the agent's run; None outside of actions."""
        context = current_context()
        return None if context is None else context.now()

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Execute a run. The tools of one response run concurrently; their events have a fixed order.

        Raises:
            AgentNotDurableError: An action awaits the run in a place where its calls cannot be recorded.
            MessageOriginError: A message from data has another role than the user's.
        """
        if not self.in_durable_context or self.agent is None:
            self._check_recordable()
            return await super().wrap_run(ctx, handler=handler)
        # Before pydantic-ai makes other objects of those that it cannot send as they are.
        own_messages(ctx.messages, self._allow_urls)
        ordered_tools = self.agent.parallel_tool_call_execution_mode("parallel_ordered_events")
        nesting = enter_nested_conversation(f"the agent {self.name!r} of pydantic-ai")
        with nesting, ordered_tools, replay_scope(), ask_for_approvals(self.name, self._people):
            return await super().wrap_run(ctx, handler=handler)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Remember tool calls that need an approval or an external result, and return people's answers.

        None if people are not asked, or another capability asks them.
        """
        note_deferred(requests)
        if self._people is None or not self.in_durable_context or not requests.approvals:
            return None
        if self._has_request_input():
            return None
        return await ask_people(self.name, requests, self._people)

    def _has_request_input(self) -> bool:
        """Return True if the agent has the capability ``RequestInput``, which asks for itself."""
        capabilities: list[AbstractCapability[AgentDepsT]] = []
        if self.agent is not None:
            self.agent.root_capability.apply(capabilities.append)
        return any(isinstance(capability, RequestInput) for capability in capabilities)

    async def on_run_error(self, ctx: RunContext[AgentDepsT], *, error: BaseException) -> AgentRunResult[Any]:
        """Raise the error of a run; if the run cannot wait for an approval or a result, a named one.

        Raises:
            ApprovalUnavailableError: A tool needs an approval or an external result, and nothing gives it.
        """
        raise name_deferral_error(self.name, error)

    def _check_recordable(self) -> None:
        """Raise AgentNotDurableError if an action runs the agent where calls cannot be recorded."""
        action = unrecorded_action()
        if action is not None:
            raise AgentNotDurableError(
                f"the action {action!r} runs the agent {self.name!r} of pydantic-ai in a place where its "
                "calls cannot be recorded",
                expected="an async def action that awaits it in its own thread",
                found=f"a run in a def action, or in another thread of {action!r}",
                fix="write async def and 'await agent.run(...)'; or record the whole run as one durable "
                "step: of a function that returns the output of agent.run_sync(...)",
            )


class _Calls(JournalCallableOperationBackend[CallSettings]):
    """Makes each operation of an agent a durable step of the running action.

    Args:
        agent: Name of the agent in records.
        on_unknown: Policy if it is unknown whether a tool call took effect.
        models: All models that the agent may use.
        default_model_id: Id of the agent's own model; None if it has none.
        config: Settings of calls, by the kind of operation.
    """

    def __init__(
        self,
        agent: str,
        on_unknown: OnUnknownOutcome,
        models: tuple[Model, ...],
        default_model_id: str | None,
        config: RoleBasedOperationConfig[CallSettings],
    ) -> None:
        super().__init__(agent_name=agent, default_model_id=default_model_id, config=config)
        self._agent = agent
        self._on_unknown = on_unknown
        self._models = models
        self._result_readers: dict[DurableOperationId, Callable[[object], object]] = {}
        know_models(models)

    def bind(self, operation: DurableOperation[Any, Any, Any]) -> BoundDurableOperation[Any, Any, Any]:
        """Bind an operation, and remember the function that reads its result from a record."""
        self._result_readers[operation.operation_id] = operation.result_codec.load
        return super().bind(operation)

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: CallSettings,
    ) -> object:
        """Await ``body()`` in a durable step, or return its recorded result.

        Args:
            operation_id: The operation: a request to a model, a call of a tool, or a list of a toolset.
            name: Name of the durable step.
            body: Executes the operation.
            cache_key: The parts of the request, whose digest identifies it.
            config: Settings of the call.

        Raises:
            DurableResultError: JSON cannot hold the result.
        """
        context = current_context()
        if context is None:
            return await body()
        executed = False

        async def execute_body() -> object:
            nonlocal executed
            executed = True
            try:
                result = await self._call_body(operation_id, body)
                return redaction.hidden(result, known_only=True)
            except PydanticSerializationError as error:
                raise self._unrecordable_error(name, error) from error

        digest, text = describe_request(cache_key)
        if isinstance(operation_id, ToolsetCallToolId):
            effects = Effects(cache_key)
            result = await call_tool(
                context, name, execute_body, config, digest, text, self._on_unknown, effects
            )
        else:

            async def call(request: str) -> object:
                return await execute_body()

            step = DurableCallable(call, name=name, **_step_arguments(operation_id, config))
            vars(step)["request"] = text
            try:
                result = await context.durable_execute_async(step, digest)
            except ServerFailedError as error:
                raise server_unavailable_error(name, error) from None
        record_durable_unit(executed=executed)
        return result

    async def _call_body(
        self, operation_id: DurableOperationId, body: Callable[[], Awaitable[object]]
    ) -> object:
        """Await ``body()``: a model's on the loop of models, all others where MCP servers report failures."""
        if not isinstance(operation_id, ModelRequestId):
            return await reaching_servers(body, isinstance(operation_id, _LISTS))
        leave_retries_to_us(self._models)
        read_result = self._result_readers[operation_id]
        return await send_request(lambda: on_model_loop(body, self._models), self._agent, read_result)

    def _unrecordable_error(self, name: str, error: PydanticSerializationError) -> DurableResultError:
        return DurableResultError(
            f"the durable call {name!r} of the agent {self._agent!r} returned a result that JSON cannot hold",
            expected="plain data, dataclasses and pydantic models",
            found=str(error),
            fix="return plain data from the tool, or keep the object outside and return a reference to it",
        )


def _step_arguments(operation_id: DurableOperationId, config: CallSettings) -> dict[str, Any]:
    """Return the settings of the durable step of a model request, or of a list of a toolset, by name."""
    settings: dict[str, Any] = {
        name: setting for name, setting in config.items() if name not in _NOT_OF_DURABLE_CALLS
    }
    if isinstance(operation_id, ModelRequestId):
        retry = settings.get("retry", RETRY)
        limit = config.get("retry_after_limit", RETRY_AFTER_LIMIT)
        settings["retry"] = retry and policy_of(retry, limit)
    elif isinstance(operation_id, _LISTS):
        settings.setdefault("retry", RetryPolicy(retry_on=(ServerFailedError,)))
    return settings
