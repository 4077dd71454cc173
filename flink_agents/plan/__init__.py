"""Compiles an agent class, builder or YAML file to an ``AgentPlan``, and creates a running agent from it."""

from flink_agents.plan.binding.loaded import BoundAction, LoadedAgent
from flink_agents.plan.compile.code import AgentCode
from flink_agents.plan.compile.compiler import compile_agent, compile_with_code
from flink_agents.plan.compile.events import AgentPlanWarning
from flink_agents.plan.files.targets import load_target
from flink_agents.plan.files.yaml import load_yaml
from flink_agents.plan.model import ActionPlan, AgentPlan

__all__ = [
    "ActionPlan",
    "AgentCode",
    "AgentPlan",
    "AgentPlanWarning",
    "BoundAction",
    "LoadedAgent",
    "compile_agent",
    "compile_with_code",
    "load_target",
    "load_yaml",
]
