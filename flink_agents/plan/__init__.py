"""Agent class, builder or YAML file -> ``AgentPlan`` -> an agent that can run."""

from flink_agents.plan.binding import BoundAction, BoundAgent, bind
from flink_agents.plan.code import AgentCode
from flink_agents.plan.compiler import compile_agent
from flink_agents.plan.model import ActionPlan, AgentPlan
from flink_agents.plan.validation import AgentPlanWarning

__all__ = [
    "ActionPlan",
    "AgentCode",
    "AgentPlan",
    "AgentPlanWarning",
    "BoundAction",
    "BoundAgent",
    "bind",
    "compile_agent",
]
