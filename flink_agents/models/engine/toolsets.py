"""The MCP servers of an agent on a stream, and skills, as toolsets of a Pydantic AI agent in its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.exceptions import ApprovalRequired, ModelRetry, ToolFailed
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema
from typing_extensions import override

from flink_agents.api.context import RunnerContext
from flink_agents.api.context.current import current_context
from flink_agents.api.errors import ContextMisuseError
from flink_agents.api.models.chat import OnUnknownOutcome
from flink_agents.api.models.skills import Skills, SkillsSpec
from flink_agents.api.resources import ResourceType
from flink_agents.models.engine.free_names import ServedToolsetTool
from flink_agents.models.setup.descriptions import read_configured
from flink_agents.models.tools.calls import ServedTool, ToolPolicy, ToolSource, resolve_outcome
from flink_agents.models.tools.skills.resource import SkillSet, open_skills

_ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))
"""Accepts any arguments: the server checks them itself."""


def server_toolset(
    server: str,
    *,
    result_limit: int = 100_000,
    on_unknown_outcome: OnUnknownOutcome | str = OnUnknownOutcome.FAIL,
) -> AbstractToolset[Any]:
    """Make a toolset of an MCP server that the agent on the stream declares.

    ``ModelAgent(..., toolsets=[server_toolset("shop")], capabilities=[FlinkDurability()])``: the run uses the
    connection of the subtask, with the options of the job. Its list of tools and each call are durable steps.
    Tools that need approval require ``FlinkDurability(approvals=True)``, whose ``approval_timeout`` applies.

    Args:
        server: Name of the MCP server.
        result_limit: Maximum size of a result, in bytes of JSON.
        on_unknown_outcome: Policy if it is unknown whether a call took effect: ``fail`` ends the run, ``ask``
            lets a person decide. For ``ask``, set ``on_unknown_outcome="ask"`` of the capability, too.
    """
    policy = ToolPolicy(result_limit=result_limit, on_unknown=OnUnknownOutcome(on_unknown_outcome))
    return _ServerToolset(server, policy)


class _ServerToolset(AbstractToolset[Any]):
    """The tools of an MCP server that the running agent on the stream declares.

    Args:
        server: Name of the MCP server.
        policy: Limits and policies of calls.
    """

    def __init__(self, server: str, policy: ToolPolicy) -> None:
        self._server = server
        self._policy = policy

    @property
    @override
    def id(self) -> str:
        return self._server

    @override
    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {
            tool.name: ServedToolsetTool(
                on_name_taken=vars(tool)["on_name_taken"],
                toolset=self,
                tool_def=tool.definition,
                max_retries=ctx.max_retries,
                args_validator=_ANY_OBJECT,
            )
            for tool in await self._tools()
        }

    @override
    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        server_tool: Any = next(tool for tool in await self._tools() if tool.name == name)
        if server_tool.needs_approval:
            if not ctx.tool_call_approved:
                raise ApprovalRequired
            server_tool = server_tool.approved
        context = self._context()
        call_outcome = await server_tool.call(context, tool_args, self._policy)
        outcome = await resolve_outcome(context, call_outcome, self._policy)
        if outcome.kind == "retry":
            raise ModelRetry(str(outcome.content))
        if outcome.kind == "failed":
            raise ToolFailed(str(outcome.content))
        return outcome.content

    async def _tools(self) -> Sequence[ServedTool]:
        """Return the tools of the server; their list is a durable step."""
        context = self._context()
        source: ToolSource = context.get_resource(self._server, ResourceType.MCP_SERVER)
        return await source.model_tools(context)

    def _context(self) -> RunnerContext:
        """Return the context of the running action; ContextMisuseError outside of actions."""
        context = current_context()
        if context is None:
            raise ContextMisuseError(
                f"the MCP server {self._server!r} is used outside of an action",
                expected="a run in an async def action of the agent that declares the server",
                fix="run it there, or use an MCPToolset of pydantic-ai elsewhere",
            )
        return context


def skills_toolset(skills: Skills | Mapping[str, Any], *, id: str = "skills") -> AbstractToolset[Any]:
    """Make a toolset of skills for a Pydantic AI agent.

    ``Agent(..., toolsets=[skills_toolset(Skills("skills"))], capabilities=[FlinkDurability()])`` describes
    the skills to the model and adds their tools. Each of their calls is a durable step. Scripts that need
    approval require ``FlinkDurability(approvals=True)``, whose ``approval_timeout`` applies.

    Args:
        skills: The skills, as for an agent on a stream. They are read at once.
        id: Identity of the toolset within its agent.

    Raises:
        SkillError: They do not exist, or one of them is invalid.
        OptionError: The description is invalid.
    """
    arguments = skills.arguments if isinstance(skills, Skills) else skills
    skill_set = SkillSet([open_skills(id, read_configured(SkillsSpec, arguments, id))])
    toolset = FunctionToolset[Any](skill_set.functions, id=id, instructions=skill_set.instructions)
    if not any(tool.settings.needs_approval for tool in skill_set.tools):
        return toolset
    return toolset.approval_required(
        lambda ctx, tool, arguments: tool.name == "run_script" and skill_set.needs_approval(arguments)
    )
