"""What a call of a tool comes to, and what every kind of tool can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic_ai.tools import ToolDefinition

from flink_agents.api.chat import OnToolError
from flink_agents.api.context import RunnerContext


@dataclass(frozen=True)
class ToolPolicy:
    """How tools of a conversation are called.

    Attributes:
        timeout: Seconds that a call may take; None for no limit.
        result_limit: Bytes of JSON that a call may return.
        on_error: What happens where a tool raises something that is meant for nobody in particular.
    """

    timeout: float | None = None
    result_limit: int = 100_000
    on_error: OnToolError = OnToolError.FAIL


@dataclass(frozen=True)
class ToolOutcome:
    """What the model is told of a call.

    Attributes:
        kind: ``success``; ``failed``, where the tool cannot do it; ``retry``, where the call was wrong;
            ``denied``, where nobody approved it.
        content: The result, or why there is none; a JSON value.
        cause: Of a retry, what was wrong, in pydantic-ai's words.
    """

    kind: Literal["success", "failed", "retry", "denied"]
    content: Any
    cause: Literal["validation_error", "model_retry", "unknown_tool"] = "model_retry"


class ModelTool(Protocol):
    """A tool that a model can call: of a function, of a server, of anything else.

    Attributes:
        name: The name by which the model calls it.
    """

    name: str

    @property
    def definition(self) -> ToolDefinition:
        """What the model is told of it."""
        ...

    async def call(self, ctx: RunnerContext, arguments: Mapping[str, Any], policy: ToolPolicy) -> ToolOutcome:
        """Call it, in a way that a replay takes from records.

        Raises:
            Exception: What ends the conversation.
        """
        ...


class ServedTool(ModelTool, Protocol):
    """A tool of a source, which knows whether somebody has to approve its calls."""

    @property
    def needs_approval(self) -> bool:
        """Whether :meth:`call` asks before it calls."""
        ...

    @property
    def approved(self) -> ModelTool:
        """The same tool, which asks nobody."""
        ...


class ToolSource(Protocol):
    """A resource that has tools for models, such as a server."""

    async def model_tools(self, ctx: RunnerContext) -> Sequence[ServedTool]:
        """Its tools, in a way that a replay takes from records.

        Raises:
            AgentsError: It cannot say which it has.
        """
        ...
