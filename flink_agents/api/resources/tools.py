"""Function tools, and calls of them that need an approval first."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, Unpack

from pydantic import ConfigDict, validate_call

from flink_agents.api.common.awaited import note_result, truth_of
from flink_agents.api.common.current import contained, current_action_run, isolated
from flink_agents.api.durable import IDEMPOTENCY_KEY, DurableCallable, calls_durably
from flink_agents.api.errors import ApprovalDeniedError, ContextMisuseError
from flink_agents.api.events.approvals import ApprovalOutcome, Check
from flink_agents.api.resources.provenance import taking_data
from flink_agents.api.resources.raised_notes import add_raised_note
from flink_agents.api.resources.tool_schema import (
    aliases_of,
    arguments_model,
    arguments_schema,
    documentation,
    function_for_models,
    replace_annotations,
    runtime_parameters,
    takes_key,
    written_hints,
)
from flink_agents.api.settings import ToolOptions, ToolSettings, check_settings


class ApprovingContext(Protocol):
    """The part of an action's context that a tool with approval needs: contexts are built on tools."""

    def request_approval(
        self,
        what: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        check: Check | None = None,
    ) -> Awaitable[ApprovalOutcome]:
        """Ask a person for an approval, and wait for the answer; see ``RunnerContext.request_approval``."""
        ...


class Tool:
    """A Python function with a name, a description and a JSON schema of its arguments.

    Args:
        func: The function, with annotated parameters and a docstring.
        name: Name of the tool. Default: the function's.
        description: Its purpose, for models. Default: the first paragraph of the docstring.
        **limits: ``max_concurrency`` and ``rate_limit`` of the tool that ``ctx.get_resource`` returns;
            ``needs_approval``, ``approval_timeout`` and ``idempotent``, as ``ToolOptions`` describes them.

    Attributes:
        given: Annotations of the parameters of type ``RunnerContext`` and ``MemoryObject``, by name. They are
            hidden from models: the conversation passes them. If you call the tool yourself, pass them, too.
        takes_key: True if the function has a parameter ``idempotency_key``, which is hidden from models. A
            model's call and a durable step fill it in; other code passes it.

    Raises:
        AgentDefinitionError: A limit is invalid.
        ActionSignatureError: It is not a function, or a parameter has no annotation, cannot be passed by
            name, or has a type without a schema.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        name: str | None = None,
        description: str | None = None,
        **limits: Unpack[ToolOptions],
    ) -> None:
        self.func = func
        self.name = name or getattr(function_for_models(func), "__name__", type(func).__name__)
        self.settings = check_settings(ToolSettings, f"tool {self.name!r}", None, limits)
        self.description = description or documentation(func).split("\n\n")[0].replace("\n", " ")
        self._read_signature()

    def _read_signature(self) -> None:
        """Derive all that follows from the function's signature: schema, aliases, validation."""
        self._arguments = arguments_model(self.func, self.name)
        self._parameters = arguments_schema(self._arguments, self.name)
        self._aliases = aliases_of(self.func)
        self.given = runtime_parameters(self.func)
        self.takes_key = takes_key(self.func)
        if self.takes_key:
            # A durable step of the tool itself finds the parameter here.
            self.__signature__ = inspect.signature(self.func)
        if self.settings.needs_approval:
            calls_durably(self)
        # Objects that the conversation passes to a tool have no schema.
        add_validation = validate_call(
            config=ConfigDict(arbitrary_types_allowed=bool(self.given), validate_by_name=True)
        )
        types = [field.annotation for field in self._arguments.model_fields.values()]
        self._validated = add_raised_note(
            f"in tool {self.name!r}", contained(add_validation(taking_data(self.func, types)))
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without pydantic's generated classes, which a worker derives again."""
        state = {name: getattr(self, name) for name in ("func", "name", "settings", "description")}
        return {**state, "hints": written_hints(self.func)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        attributes = dict(state)
        replace_annotations(attributes["func"], attributes.pop("hints"))
        self.__dict__.update(attributes)
        self._read_signature()

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments that a model passes."""
        return self._parameters

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Check the arguments of a model or an approval against the parameters; values are not changed.

        Raises:
            ValidationError: An argument is unknown, missing or invalid.
        """
        self._arguments.model_validate(dict(arguments))

    def by_name(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a model's arguments by the names of the function's parameters, instead of their aliases."""
        return {self._aliases.get(name, name): value for name, value in arguments.items()}

    def through(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Tool:
        """Return a copy of this tool, whose calls go through ``wrap(function)``."""
        wrapped_tool = object.__new__(type(self))
        wrapped_tool.__dict__.update(self.__dict__)
        wrapped_tool._validated = wrap(self._validated)
        return wrapped_tool

    @property
    def approved(self) -> Tool:
        """This tool without the need for approvals: a copy, or itself if it needs none."""
        if not self.settings.needs_approval:
            return self
        tool_copy = copy.copy(self)
        tool_copy.settings = self.settings.model_copy(update={"needs_approval": False})
        return tool_copy

    @property
    def is_repeatable(self) -> bool:
        """True if a call may be repeated, with its idempotency key, if its outcome is unknown."""
        idempotent = self.settings.idempotent
        return self.takes_key if idempotent is None else idempotent

    def needs_approval(self, arguments: Mapping[str, Any]) -> bool:
        """Return True if a call with these arguments needs an approval; the author's function may decide."""
        needed = self.settings.needs_approval
        if not callable(needed):
            return bool(needed)
        return truth_of(isolated().run(needed, dict(arguments)), f"needs_approval of the tool {self.name!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; arguments are validated against its annotations.

        If a tool needs an approval, await the result in an ``async def`` action. It is one recorded call
        then, unless the tool has context or memory parameters.

        Raises:
            ApprovalDeniedError: When awaited: it was not approved.
            ContextMisuseError: It needs an approval, and the caller is not an ``async def`` action.
        """
        if self.settings.needs_approval:
            return note_result(f"the tool {self.name}", call_approved(self, args, kwargs))
        return note_result(f"the tool {self.name}", self._validated(*args, **kwargs))

    call = __call__


def call_approved(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Awaitable[Any]:
    """Return an awaitable call of a tool that starts when a person has approved it.

    Args:
        tool: A tool that needs approvals, for all calls or for some.
        args: Arguments of the call by position.
        kwargs: Arguments of the call by name.

    Raises:
        ContextMisuseError: The running code is not that of an ``async def`` action.
    """
    run = current_action_run.get()
    context = None if run is None else run.context_here()
    if context is None:
        raise ContextMisuseError(
            f"the tool {tool.name!r} needs an approval, but no run can wait for an approval here",
            expected="an awaited call in an async def action",
            found="a call in a def action, in a durable function, or outside of actions",
            fix=f"write async def, and await {tool.name}(...)",
        )
    # By name: an answer changes arguments by their names.
    bound = inspect.signature(tool.func).bind(*args, **tool.by_name(kwargs))
    return _call_tool(context, tool, dict(bound.arguments))


async def _call_tool(context: Any, tool: Tool, arguments: dict[str, Any]) -> Any:
    """Wait for the approval of a call, if it needs one, and make it, with the changes of the answer.

    The call is one durable step, unless the tool has parameters of type context or memory.
    """
    runtime_arguments = {name: arguments.pop(name) for name in tool.given if name in arguments}
    if tool.needs_approval(arguments):
        outcome = await ask_approval(
            context, tool.name, arguments, tool.settings.approval_timeout, tool.check_arguments
        )
        if outcome.changed:
            requested_arguments = outcome.request.arguments
            arguments |= {
                name: value
                for name, value in outcome.arguments.items()
                if value != requested_arguments.get(name)
            }
    approved_tool = tool.approved
    if tool.given:
        if tool.takes_key:
            arguments.setdefault(IDEMPOTENCY_KEY, context.uuid4().hex)
        returned = approved_tool(**runtime_arguments, **arguments)
        return await returned if inspect.isawaitable(returned) else returned
    return await context.durable_execute_async(_recorded_call(approved_tool, arguments), arguments)


async def ask_approval(
    context: ApprovingContext,
    tool: str,
    arguments: Mapping[str, Any],
    timeout: float | None,
    check: Check | None = None,
) -> ApprovalOutcome:
    """Request an approval of a tool's call, wait for the answer, and return it.

    Args:
        context: The context of the action.
        tool: Name of the tool.
        arguments: The arguments of the call by name, as JSON values.
        timeout: Seconds after which the request counts as denied; None for never.
        check: Raises ``ValueError`` for arguments that an answer must not contain; None accepts any values
            of the shown arguments.

    Raises:
        ApprovalDeniedError: It was denied, no answer came in time, or the input ended.
    """
    outcome = await context.request_approval(f"tool {tool}", arguments, timeout=timeout, check=check)
    if not outcome.approved:
        raise ApprovalDeniedError(
            outcome.text,
            expected="an approval of the call",
            found=outcome.decision,
            fix="catch ApprovalDeniedError in the action, and continue without the tool",
            decision=outcome.decision,
        )
    return outcome


def _recorded_call(tool: Tool, arguments: Mapping[str, Any]) -> DurableCallable:
    """Return the durable step of a tool's call, whose function takes all arguments as one dict."""

    async def call_async(arguments: dict[str, Any]) -> Any:
        return await tool(**arguments)

    def call(arguments: dict[str, Any]) -> Any:
        return tool(**arguments)

    function: Any = call_async if inspect.iscoroutinefunction(tool.func) else call
    if tool.takes_key and IDEMPOTENCY_KEY not in arguments:
        function = with_key(function, inspect.iscoroutinefunction(tool.func))
    return DurableCallable(function, name=f"tool:{tool.name}")


def with_key(function: Any, is_async: bool) -> Any:
    """Return ``function`` with a second parameter, the idempotency key, which is added to its arguments.

    Args:
        function: A function that takes its arguments as one dict.
        is_async: True if it is a coroutine function; the result is one, too.
    """

    async def call_async(arguments: dict[str, Any], idempotency_key: str) -> Any:
        return await function({**arguments, IDEMPOTENCY_KEY: idempotency_key})

    def call(arguments: dict[str, Any], idempotency_key: str) -> Any:
        return function({**arguments, IDEMPOTENCY_KEY: idempotency_key})

    return call_async if is_async else call
