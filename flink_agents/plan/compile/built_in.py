"""Adds the actions of this package that an agent needs for the events which it emits."""

from __future__ import annotations

from flink_agents.api.agent import Agent
from flink_agents.api.built_in_actions import BUILT_IN_ACTIONS, BuiltInAction
from flink_agents.api.decorators import ActionMark
from flink_agents.plan.analysis.reading import Reading
from flink_agents.plan.compile.declarations import ActionDeclaration, actions_of
from flink_agents.plan.compile.events import emissions_of, type_of
from flink_agents.plan.references import FunctionRef


def all_actions_of(agent: Agent) -> list[ActionDeclaration]:
    """The actions that the author declared, and behind them those of this package.

    Raises:
        DuplicateNameError: Two have one name.
        FunctionReferenceError: What an action of this package needs is not installed.
    """
    own = actions_of(agent)
    triggers = {type_of(trigger) for action in own for trigger in action.mark.triggers}
    emitted = emissions_of(type(agent), own, agent.context_class).together()
    added = [one for one in BUILT_IN_ACTIONS if _is_needed(one, triggers, emitted)]
    return [*own, *map(_declaration, added)]


def _is_needed(one: BuiltInAction, triggers: set[str], emitted: Reading) -> bool:
    request, response = one.request.EVENT_TYPE, one.response.EVENT_TYPE
    if request in triggers:
        return False
    return one.request in emitted.events or request in emitted.texts or response in triggers


def _declaration(one: BuiltInAction) -> ActionDeclaration:
    function = FunctionRef.parse(one.function).resolve()
    mark = ActionMark((one.request,), (one.response,), name=one.name)
    return ActionDeclaration(one.name, mark, function, "function")
