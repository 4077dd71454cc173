"""Reads the actions and resources that an agent declares.

Actions of a class come first, base classes before subclasses and each in the order of
definition; actions added to the instance follow. A method that overrides an action without
``@action`` keeps its triggers and its position; ``None`` in its place removes the action.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.decorators import (
    ACTION_MARK,
    RESOURCE_MARK,
    ActionMark,
    ResourceMark,
)
from flink_agents.api.common.places import place_of, place_of_class, unwrap
from flink_agents.api.errors import ActionSignatureError, AgentDefinitionError, DuplicateNameError
from flink_agents.api.resources import ResourceType, Tool
from flink_agents.api.settings import ToolSettings
from flink_agents.plan.model import Kind


@dataclass(frozen=True)
class ActionDeclaration:
    """An action as you declared it.

    Attributes:
        name: Its name in the agent.
        mark: The arguments of its declaration.
        function: The plain function.
        kind: How it belongs to the agent.
        place: Where it is declared, if that differs from where its function is.
    """

    name: str
    mark: ActionMark
    function: Callable[..., Any]
    kind: Kind
    place: str | None = None

    @property
    def label(self) -> str:
        """Its kind and name, for errors."""
        return f"action {self.name!r}"

    @property
    def where(self) -> str:
        """The position of the declaration, as ``file:line in name``."""
        return self.place or place_of(self.function)


@dataclass(frozen=True)
class ResourceDeclaration:
    """A resource as you declared it.

    Attributes:
        name: Its name in the agent.
        type: Its kind.
        function: The plain function that is the tool or returns the resource, or None.
        kind: How that function belongs to the agent.
        value: The resource itself, if it was added as an object.
        title: Name of a tool that was added as ``Tool``.
        description: Description of such a tool.
        place: Where it is declared, if that differs from where its function is.
        settings: Limits of a tool.
    """

    name: str
    type: ResourceType
    function: Callable[..., Any] | None
    kind: Kind | None
    value: Any = None
    title: str | None = None
    description: str | None = None
    place: str | None = None
    settings: ToolSettings = ToolSettings()

    @property
    def label(self) -> str:
        """Its kind and name, for errors."""
        return f"{self.type.value} {self.name!r}"

    def bound(self, agent: Agent) -> Callable[..., Any]:
        """Return the function, bound to the agent if it is a method of it."""
        function: Any = self.function
        return function.__get__(agent, type(agent)) if self.kind == "instance" else function

    @property
    def where(self) -> str:
        """The position of the declaration, as ``file:line in name``."""
        return self.place or place_of(self.function)


def actions_of(agent: Agent) -> list[ActionDeclaration]:
    """Return the actions of the agent's class and those added to the agent.

    Raises:
        DuplicateNameError: Two have the same name.
        ActionSignatureError: One is a class method.
    """
    declarations = [
        ActionDeclaration(mark.name or attribute, mark, unwrap(member), _kind(member, "an action"))
        for attribute, mark, member in _marked(type(agent), ACTION_MARK)
    ]
    places = agent.__dict__["__places__"]
    declarations += [
        ActionDeclaration(name, mark, func, "function", places.get(("action", name)))
        for name, (mark, func) in agent.__dict__["__actions__"].items()
    ]
    _check_unique(declarations)
    return declarations


def resources_of(agent: Agent) -> list[ResourceDeclaration]:
    """Return the resources of the agent's class and those added to the agent.

    Raises:
        DuplicateNameError: Two of one type have the same name.
        ActionSignatureError: One is a class method.
    """
    declarations = [
        ResourceDeclaration(
            mark.name or attribute,
            mark.type,
            unwrap(member),
            _kind_of_tool(attribute, member)
            if mark.type is ResourceType.TOOL
            else _kind(member, "a resource"),
            settings=mark.settings,
        )
        for attribute, mark, member in _marked(type(agent), RESOURCE_MARK)
        if not isinstance(member, Tool)
    ]
    declarations += [
        _added_resource(name, ResourceType.TOOL, tool, place_of_class(type(agent)))
        for name, tool in _tools(type(agent)).items()
    ]
    places = agent.__dict__["__places__"]
    declarations += [
        _added_resource(name, kind, value, places[kind, name])
        for (kind, name), value in agent.__dict__["__resources__"].items()
    ]
    _check_unique(declarations)
    return declarations


def _added_resource(name: str, kind: ResourceType, value: Any, place: str) -> ResourceDeclaration:
    """Return the declaration of a resource that was added to an agent as an object or a function."""
    if kind not in (ResourceType.CLIENT, ResourceType.TOOL):
        return ResourceDeclaration(name, kind, None, None, value=value, place=place)
    if not isinstance(value, Tool):
        function = value if kind is ResourceType.CLIENT else unwrap(value)
        return ResourceDeclaration(name, kind, function, "function", place=place)
    return ResourceDeclaration(
        name,
        kind,
        value.func,
        "function",
        title=value.name,
        description=value.description,
        place=place,
        settings=value.settings,
    )


def _tools(agent_class: type[Agent]) -> dict[str, Tool]:
    """Return the ``Tool`` objects of the class, by the names of their attributes."""
    members: dict[str, Any] = {}
    for owner in reversed(agent_class.__mro__):
        members |= vars(owner)
    return {name: member for name, member in members.items() if isinstance(member, Tool)}


def _marked(agent_class: type[Agent], attribute: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, mark and member of each declared member of a class.

    Args:
        agent_class: The class.
        attribute: The attribute in which decorators store their marks.

    Raises:
        AgentDefinitionError: A value replaces a declared member of a base class.
    """
    marks: dict[str, ActionMark | ResourceMark] = {}
    members: dict[str, Any] = {}
    for owner in reversed(agent_class.__mro__):
        for name, member in vars(owner).items():
            mark = getattr(unwrap(member), attribute, None)
            if isinstance(mark, ActionMark | ResourceMark):
                marks[name] = mark
            if name in marks:
                members[name] = member
    for name, mark in marks.items():
        member = members[name]
        if member is None:
            continue
        if not callable(unwrap(member)):
            raise AgentDefinitionError(
                f"{name!r} replaces a decorated method of a base class by a value",
                expected="a method, or None to remove it",
                found=repr(member),
                fix="rename the attribute",
                where=place_of_class(agent_class),
            )
        yield name, mark, member


def _kind(member: Any, what: str) -> Kind:
    """Return the relation of a method to its agent.

    Args:
        member: The member of the class.
        what: What it declares, for the error.

    Raises:
        ActionSignatureError: It is a class method.
    """
    if isinstance(member, classmethod):
        raise ActionSignatureError(
            f"{what} cannot be a class method",
            expected="a method with self, or a static method",
            found="@classmethod",
            fix="use self, or @staticmethod",
            where=place_of(member),
        )
    return "static" if isinstance(member, staticmethod) else "instance"


def _kind_of_tool(name: str, member: Any) -> Kind:
    """Return the relation of a tool's function to its agent.

    Raises:
        ActionSignatureError: It is a class method, or a function without ``self``.
    """
    kind = _kind(member, "a tool")
    function = unwrap(member)
    if kind == "static" or not isinstance(function, FunctionType):
        return kind
    first = next(iter(inspect.signature(function).parameters.values()), None)
    owner = function.__qualname__.rpartition(".")[0]
    is_outside = not owner or owner.endswith("<locals>")
    # It would be the agent, and the model would not learn of it.
    if first is not None and first.name != "self" and (is_outside or first.annotation is not first.empty):
        raise ActionSignatureError(
            f"the tool {name!r} has no self: a call would lose {first.name!r}",
            expected="a method with self, a static method, or a Tool",
            found=f"{function.__name__}{inspect.signature(function)}",
            fix=f"write {name} = Tool({function.__name__})" if is_outside else "add self, or @staticmethod",
            where=place_of(member),
        )
    return kind


def _check_unique(declarations: Sequence[ActionDeclaration | ResourceDeclaration]) -> None:
    """Check that each name is declared once.

    Raises:
        DuplicateNameError: One is declared twice.
    """
    first: dict[str, ActionDeclaration | ResourceDeclaration] = {}
    for declaration in declarations:
        other_declaration = first.setdefault(declaration.label, declaration)
        if other_declaration is not declaration:
            raise DuplicateNameError(
                f"the agent has two of {declaration.label}",
                expected="one of each name: recovery finds state and records by it",
                found=f"the other one at {other_declaration.where}",
                fix="rename one, for example with name=...",
                where=declaration.where,
            )
