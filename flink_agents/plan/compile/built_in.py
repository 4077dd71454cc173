"""Adds the actions of this package that an agent needs for the events that it emits."""

from __future__ import annotations

from collections.abc import Sequence

from flink_agents.api.agents.built_in_actions import BUILT_IN_ACTIONS, BuiltInAction
from flink_agents.api.agents.decorators import ActionMark
from flink_agents.plan.analysis.reading import Reading
from flink_agents.plan.compile.declarations import ActionDeclaration
from flink_agents.plan.compile.events import Emissions, type_of
from flink_agents.plan.references import FunctionRef


def needed_actions(own: Sequence[ActionDeclaration], emissions: Emissions) -> list[ActionDeclaration]:
    """Return the actions of this package that an agent needs in addition to its own.

    Args:
        own: The actions that the user declared.
        emissions: The events that these can emit.

    Raises:
        FunctionReferenceError: A package that such an action needs is not installed.
    """
    triggers = {type_of(trigger) for action in own for trigger in action.mark.triggers}
    emitted = emissions.together()
    return [_declaration(one) for one in BUILT_IN_ACTIONS if _is_needed(one, triggers, emitted)]


def _is_needed(one: BuiltInAction, triggers: set[str], emitted: Reading) -> bool:
    request, response = one.request.EVENT_TYPE, one.response.EVENT_TYPE
    if request in triggers:
        return False
    return one.request in emitted.events or request in emitted.texts or response in triggers


def _declaration(one: BuiltInAction) -> ActionDeclaration:
    function = FunctionRef.parse(one.function).resolve()
    mark = ActionMark((one.request,), (one.response,), name=one.name)
    return ActionDeclaration(one.name, mark, function, "function")
