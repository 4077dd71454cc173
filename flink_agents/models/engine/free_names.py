"""The tools of a Pydantic AI agent in a recorded run, each under a unique name.

pydantic-ai ends a run in which two toolsets have tools of one name. A running MCP server can add a tool of
any name, so each run would fail from then on: ``on_name_taken`` decides how such a tool is handled instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai.output import ToolOutput
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import (
    AbstractToolset,
    CombinedToolset,
    FunctionToolset,
    ToolsetTool,
    WrapperToolset,
)
from typing_extensions import override

from flink_agents.api.common.logs import bounded_logger
from flink_agents.models.tools.toolbox import duplicate_names_error

_log = bounded_logger("flink_agents.mcp")

_OUTPUT = "final_result"
"""Name of the tool with which an agent returns its output. Further output tools have a suffix."""


@dataclass(kw_only=True)
class ServedToolsetTool(ToolsetTool[Any]):
    """A tool of an MCP server of the job.

    Attributes:
        on_name_taken: Policy if the agent has another tool with its name: ``skip``, ``prefix`` or ``fail``.
    """

    on_name_taken: str


def output_names(output_type: Any) -> frozenset[str]:
    """Return the names of all ``ToolOutput(name=...)`` in the type, or the list of types, of an output."""
    if isinstance(output_type, list | tuple):
        alternatives: Iterable[Any] = output_type
        return frozenset[str]().union(*map(output_names, alternatives))
    name: str | None = output_type.name if isinstance(output_type, ToolOutput) else None
    return frozenset() if name is None else frozenset({name})


def check_names(toolsets: Iterable[AbstractToolset[Any]], outputs: frozenset[str]) -> None:
    """Check that no function of an agent has the name of an output tool.

    Args:
        toolsets: The toolsets of the agent.
        outputs: Names of output tools.

    Raises:
        DuplicateNameError: A function has such a name.
    """
    functions = {
        name for toolset in toolsets if isinstance(toolset, FunctionToolset) for name in toolset.tools
    }
    if shared_names := sorted(functions & outputs):
        raise duplicate_names_error(shared_names)


def with_free_names(
    toolset: AbstractToolset[Any], on_name_taken: str, outputs: frozenset[str] = frozenset()
) -> AbstractToolset[Any]:
    """Return the toolset of a run, in which tools of MCP servers give way to others with the same name.

    Args:
        toolset: All tools of the agent except output tools.
        on_name_taken: Policy for a tool of an ``MCPToolset`` whose name is taken.
        outputs: Names of output tools, besides ``final_result``.
    """
    if type(toolset) is CombinedToolset:
        members = [with_free_names(member, on_name_taken, outputs) for member in toolset.toolsets]
        return _FreeNames(members, on_name_taken=on_name_taken, outputs=outputs)
    if isinstance(toolset, WrapperToolset):
        wrapped = with_free_names(toolset.wrapped, on_name_taken, outputs)
        # A wrapper of a single toolset need not be a dataclass.
        return toolset if wrapped is toolset.wrapped else replace(toolset, wrapped=wrapped)
    return toolset


@dataclass
class _Keyed(WrapperToolset[Any]):
    """Lists the tools of a toolset under keys that no other toolset has: ``number/name``.

    Attributes:
        number: Index of the toolset among those of the agent.
    """

    number: int

    @override
    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools = await self.wrapped.get_tools(ctx)
        return {f"{self.number}/{name}": tool for name, tool in tools.items()}


@dataclass
class _FreeNames(CombinedToolset[Any]):
    """Several toolsets as one, in which each tool has a name of its own; see :func:`with_free_names`.

    Attributes:
        on_name_taken: Policy for a tool of an ``MCPToolset`` whose name is taken.
        outputs: Names of output tools, besides ``final_result``.
    """

    on_name_taken: str = field(kw_only=True)
    outputs: frozenset[str] = field(kw_only=True)

    @override
    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools of all toolsets by unique names; waits for the lists of MCP servers.

        Raises:
            DuplicateNameError: A tool of the author has the name of an output tool, or a policy is to fail.
        """
        keyed = CombinedToolset([_Keyed(toolset, number) for number, toolset in enumerate(self.toolsets)])
        named_tools = [
            (key.partition("/")[2], tool, self._policy(tool))
            for key, tool in (await keyed.get_tools(ctx)).items()
        ]
        author_names = [name for name, _, policy in named_tools if policy is None]
        if len(set(author_names)) < len(author_names):
            # Both toolsets are the author's: pydantic-ai names them in its error.
            return await super().get_tools(ctx)
        if shared_names := sorted(self.outputs.intersection(author_names)):
            raise duplicate_names_error(shared_names)
        reserved_names = {*author_names, *self.outputs}
        tools = dict[str, ToolsetTool[Any]]()
        for name, tool, policy in named_tools:
            free_name = name if policy is None else _free_name(name, tool, policy, reserved_names)
            if free_name is not None:
                reserved_names.add(free_name)
                tools[free_name] = tool if free_name == name else _rename_tool(tool, free_name)
        return tools

    @override
    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        source: ToolsetTool[Any] = vars(tool)["source_tool"]
        if (source_name := source.tool_def.name) != name:
            # Records use the name that the server knows.
            ctx = replace(ctx, tool_name=source_name)
            tool = _rename_tool(tool, source_name)
        return await super().call_tool(source_name, tool_args, ctx, tool)

    def _policy(self, tool: ToolsetTool[Any]) -> str | None:
        """Return the policy for a tool whose name is taken; None if it is a tool of the author."""
        source: ToolsetTool[Any] | None = tool
        while source is not None:
            if isinstance(source, ServedToolsetTool):
                return source.on_name_taken
            source = vars(source).get("source_tool")
        return self.on_name_taken if "annotations" in (tool.tool_def.metadata or {}) else None


def _rename_tool(tool: ToolsetTool[Any], name: str) -> ToolsetTool[Any]:
    return replace(tool, tool_def=replace(tool.tool_def, name=name))


def _free_name(name: str, tool: ToolsetTool[Any], policy: str, reserved_names: set[str]) -> str | None:
    """Return the name under which the model gets a server's tool; None if the tool is omitted.

    Args:
        name: The name that the server gives the tool.
        tool: The tool.
        policy: Policy if the name is taken: ``skip``, ``prefix`` or ``fail``.
        reserved_names: Names that other tools have.

    Raises:
        DuplicateNameError: The name is taken, and the policy is to fail.
    """
    if name not in reserved_names and not _gives_output(name):
        return name
    if policy == "fail":
        raise duplicate_names_error([name])
    server = tool.tool_def.toolset_id or tool.toolset.id
    if policy == "prefix" and server and (prefixed_name := f"{server}_{name}") not in reserved_names:
        _log.warning("an agent has a tool %r already: the tool of an MCP server is %r", name, prefixed_name)
        return prefixed_name
    _log.warning("an agent has a tool %r already: the tool of an MCP server is omitted", name)
    return None


def _gives_output(name: str) -> bool:
    """Return True if pydantic-ai may use a name for an output tool."""
    return name == _OUTPUT or name.startswith(f"{_OUTPUT}_")
