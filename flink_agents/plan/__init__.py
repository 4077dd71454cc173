"""Agent class, builder or YAML file -> ``AgentPlan`` -> an agent that can run."""

from flink_agents.plan.binding import BoundAction, BoundAgent, bind
from flink_agents.plan.code import AgentCode
from flink_agents.plan.compiler import compile_agent
from flink_agents.plan.model import ActionPlan, AgentPlan
from flink_agents.plan.targets import load_target
from flink_agents.plan.validation import AgentPlanWarning
from flink_agents.plan.yaml import load_yaml

__all__ = [
    "ActionPlan",
    "AgentCode",
    "AgentPlan",
    "AgentPlanWarning",
    "BoundAction",
    "BoundAgent",
    "bind",
    "compile_agent",
    "load_target",
    "load_yaml",
]
