"""Finds the features that an agent's code will need at run time."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from types import CodeType, FunctionType, ModuleType
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.built_in_actions import BUILT_IN_ACTIONS
from flink_agents.api.agents.decorators import ACTION_MARK, ActionMark
from flink_agents.api.common.identity import IdentityCache
from flink_agents.api.durable import is_known_to_call_durably
from flink_agents.api.resources import ResourceType
from flink_agents.plan.analysis.imports import imports_of
from flink_agents.plan.analysis.reading import names_of
from flink_agents.plan.binding.loaded import LoadedAgent
from flink_agents.plan.compile.declarations import actions_of, resources_of
from flink_agents.plan.references import FunctionRef

_MAX_FOLLOWED = 10_000
"""Maximum number of code objects that are read for one action."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_LIBRARIES = (
    *{sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    _PACKAGE + os.sep,
    # The pytest plugin is a module beside the package.
    f"{_PACKAGE}_pytest.py",
)

_DURABLE = frozenset({"durable_execute", "durable_execute_async", "chat"})
"""Methods of the context that make durable steps."""

ASKS = frozenset({"call_agent", "call_agent_all", "call_agent_traced", "as_tool"})
"""Methods with which code calls other agents; their durable steps count as its own."""

OF_MODULES = ("LOAD_GLOBAL", "LOAD_NAME")

_DATA = frozenset({str, bytes, int, float, bool, type(None)})

_BUILT_IN = frozenset(action.function for action in BUILT_IN_ACTIONS)
"""Actions of this package that make durable steps."""

_OF_RESOURCES: Mapping[ResourceType, frozenset[str]] = {
    ResourceType.EMBEDDING_MODEL: frozenset({"embed"}),
    ResourceType.VECTOR_STORE: frozenset({"vector_store", "retrieve"}),
    ResourceType.LONG_TERM_MEMORY: frozenset({"long_term_memory"}),
    ResourceType.MCP_SERVER: frozenset({"mcp_server", "prompt"}),
}
"""Context methods that make durable steps, by the resource that they need.

Their names are common: in an agent without such a resource, they mean something else.
"""


def _durable_names(agent: LoadedAgent) -> frozenset[str]:
    """Return the names with which code of the agent makes durable steps."""
    kinds = {resource.type for resource in agent.plan.resources}
    return _DURABLE.union(*(names for kind, names in _OF_RESOURCES.items() if kind in kinds))


def makes_durable_calls(agent: LoadedAgent) -> bool:
    """Return True if the code of the agent's actions names a durable step."""
    return any(_makes_calls(action.function, agent) for action in agent.actions)


def may_make_durable_calls(agent: LoadedAgent) -> bool:
    """Return True if any user code that the actions lead to may make durable steps."""
    if makes_durable_calls(agent) or any(resource.needs_approval for resource in agent.plan.resources):
        return True
    return any(_may_make_calls(action.function, agent) for action in agent.actions)


def mark_durable_actions(agent: LoadedAgent) -> None:
    """Mark the actions that make durable steps, and those that may make some through other user code.

    The former never start on Flink's thread, where they could not end. The latter get copies of events.
    """
    for action in agent.actions:
        if _makes_calls(action.function, agent):
            action.make_calls()
        elif _may_make_calls(action.function, agent):
            action.journalled = True


def _may_make_calls(action: Callable[..., Any], agent: LoadedAgent) -> bool:
    """Return True if any user code that an action leads to names a durable step."""
    # Sub-agents have their own resources.
    durable = _DURABLE.union(*_OF_RESOURCES.values()) if _asks(action) else _durable_names(agent)

    def names_call(function: FunctionType) -> bool:
        return not durable.isdisjoint(names_in(function.__code__))

    return _leads_to(action, agent, names_call, calls_by_itself)


def calls_by_itself(value: Any) -> bool:
    """Return True if a library declares that an object makes durable steps, or an agent's package code does.

    The code of this package is not read as user code is. So its agents are recognized by their actions, and
    its built-in actions by the events that request them.
    """
    if is_known_to_call_durably(value) or any(value is action.request for action in BUILT_IN_ACTIONS):
        return True
    kind = value if isinstance(value, type) else type(value)
    return issubclass(kind, Agent) and _inherits_calls(kind)


def _inherits_calls(kind: type[Agent]) -> bool:
    """Return True if an agent has an action of this package that makes durable steps."""
    attribute_names = names_of(kind)
    members = [inspect.getattr_static(kind, name, None) for name in attribute_names]
    ahead = [member for member in members if isinstance(getattr(member, ACTION_MARK, None), ActionMark)]
    seen: set[int] = set()
    while ahead:
        function = inspect.unwrap(ahead.pop())
        if not isinstance(function, FunctionType) or id(function) in seen or _is_authors(function):
            continue
        seen.add(id(function))
        names = names_in(function.__code__)
        used = [inspect.getattr_static(kind, name, None) for name in names & attribute_names]
        if names & _DURABLE or any(map(is_known_to_call_durably, used)):
            return True
        ahead += used
    return False


def _leads_to(
    action: Callable[..., Any],
    agent: LoadedAgent,
    wanted: Callable[[FunctionType], bool],
    is_registered: Callable[[Any], bool] | None = None,
) -> bool:
    """Return True if an action leads to an object that ``is_registered``, or to code that is ``wanted``.

    The search follows whatever the code names, through modules, classes and objects, but not into libraries.
    The content of a module is unknown before its import; this does not import it, and assumes that it is
    wanted.
    """
    attribute_values = vars(agent.instance).values()
    ahead: list[Any] = [action, type(agent.instance), *attribute_values, *agent.functions]
    # Visited objects are kept alive, so that no other object gets the same id().
    opened: dict[int, Any] = {}
    seen: set[int] = set()
    while ahead and len(seen) < _MAX_FOLLOWED:
        candidate = ahead.pop()
        if is_registered is not None and any(map(is_registered, with_contents([candidate]))):
            return True
        if id(candidate) not in opened:
            opened[id(candidate)] = candidate
            ahead += _inside(candidate)
        candidate = getattr(candidate, "__func__", getattr(candidate, "func", candidate))
        if not isinstance(candidate, FunctionType | type | ModuleType):
            candidate = type(candidate)
        if id(candidate) in seen or not _is_authors(candidate):
            continue
        seen.add(id(candidate))
        if isinstance(candidate, type):
            ahead += [*vars(candidate).values(), *filter(_is_authors, candidate.__mro__[1:])]
        elif isinstance(candidate, FunctionType):
            if wanted(candidate) or _imports_unseen_code(candidate):
                return True
            ahead += named_by(names_in(candidate.__code__), candidate)
    return False


def _inside(candidate: Any) -> Iterator[Any]:
    """Yield the callable parts of ``candidate``; data in a collection is skipped, as there may be much."""
    if isinstance(candidate, Agent):
        yield from (
            declaration.function for declaration in (*actions_of(candidate), *resources_of(candidate))
        )
        yield from vars(candidate).values()
    elif isinstance(candidate, property):
        yield from (candidate.fget, candidate.fset, candidate.fdel)
    elif isinstance(candidate, FunctionType):
        yield from (candidate.__defaults__, candidate.__kwdefaults__)
        # Functions of libraries are not read, but may call their arguments.
        yield from _cells(candidate)
    elif not isinstance(candidate, type | ModuleType) and _is_authors(type(candidate)):
        # An object that holds agents or clients.
        yield from _attributes(candidate).values()
    yield inspect.getattr_static(candidate, "__wrapped__", None)
    yield from (content for content in _contents(candidate) if type(content) not in _DATA)


def _attributes(candidate: Any) -> Mapping[str, Any]:
    """Return the attributes of an object itself, without running its code."""
    try:
        return object.__getattribute__(candidate, "__dict__")
    except AttributeError:
        return {}


def _asks(function: Callable[..., Any]) -> bool:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return isinstance(code, CodeType) and not ASKS.isdisjoint(names_in(code))


def named_by(names: Set[str], function: FunctionType, of_modules: Set[str] | None = None) -> Iterator[Any]:
    """Yield the objects that a function's code names: globals, imports, their attributes, closures.

    Args:
        names: The names.
        function: The function.
        of_modules: The names to look up in modules. Default: ``names``.
    """
    ahead = [*map(function.__globals__.get, names), *map(sys.modules.get, _imports(function))]
    modules: set[str] = set()
    for named_object in ahead:
        if not isinstance(named_object, ModuleType) or not _is_authors(named_object):
            yield named_object
        elif named_object.__name__ not in modules:
            modules.add(named_object.__name__)
            ahead += (vars(named_object)[name] for name in of_modules or names if name in vars(named_object))
    yield from _cells(function)


def _imports(function: FunctionType) -> Iterator[str]:
    """Yield the names of the modules that a function's code imports as it runs."""
    package = function.__globals__.get("__package__")
    for code in _codes(function.__code__):
        yield from imports_of(code, package)


def _imports_unseen_code(function: FunctionType) -> bool:
    """Return True if a function imports, as it runs, user code that is not imported yet."""
    return any(_is_unseen(name) for name in _imports(function) if name not in sys.modules)


def _is_unseen(module: str) -> bool:
    top = module.partition(".")[0]
    if top in sys.modules:
        return _is_authors(sys.modules[top])
    spec = importlib.util.find_spec(top)
    if spec is None:
        return False
    return not all(map(_is_in_library, spec.submodule_search_locations or [spec.origin or ""]))


def _is_authors(candidate: Any) -> bool:
    """Return True if a function, class or module is the user's, not of a library or of this package."""
    if isinstance(candidate, FunctionType):
        file = candidate.__code__.co_filename
    else:
        module = candidate.__name__ if isinstance(candidate, ModuleType) else candidate.__module__
        if module in sys.builtin_module_names:
            return False
        loaded = sys.modules.get(module)
        file = getattr(loaded, "__file__", None) or ""
        if not file:
            # A package without __init__ has several locations instead.
            return not all(map(_is_in_library, getattr(loaded, "__path__", None) or [""]))
    return not _is_in_library(file)


def _is_in_library(file: str) -> bool:
    return file in ("built-in", "frozen") or file.startswith(("<frozen", *_LIBRARIES))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _makes_calls(action: Callable[..., Any], agent: LoadedAgent) -> bool:
    """Return True if the code of an action names a durable step.

    Looks at the action, at methods of the agent and of its context class that it names, and at functions
    of the same modules. Calls that other code makes are not seen here.
    """
    if str(FunctionRef.of(action)) in _BUILT_IN:
        return True
    durable = _durable_names(agent)
    kinds = [type(agent.instance), *filter(None, [agent.context_class])]
    # Looking a name up is slow, and classes have few of the names in code.
    owners = [(kind, names_of(kind)) for kind in kinds]
    attributes = vars(agent.instance)
    ahead: list[Any] = [inspect.unwrap(action)]
    seen: set[int] = set()
    while ahead:
        function = ahead.pop()
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        names = names_in(function.__code__)
        if names & durable:
            return True
        values = (*named_by(names, function), *(attributes[name] for name in names & attributes.keys()))
        values += tuple(_members(names, owners))
        if any(map(is_known_to_call_durably, with_contents(values))):
            return True
        if names & ASKS and _may_make_calls(function, agent):
            return True
        ahead += _functions(names, function, owners)
    return False


def with_contents(values: Iterable[Any]) -> Iterator[Any]:
    """Yield ``values``, and the items of those that are collections."""
    for value in values:
        yield value
        yield from _contents(value)


def _contents(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple | set | frozenset) else ()


def names_in(code: CodeType) -> frozenset[str]:
    """Return the names of globals and attributes in code, and in its inner functions."""
    cached_names = _NAMES.get(code)
    return (
        _NAMES.put(code, frozenset().union(*(code_object.co_names for code_object in _codes(code))))
        if cached_names is None
        else cached_names
    )


_NAMES: IdentityCache[frozenset[str]] = IdentityCache()

Owners = Iterable[tuple[type, set[str]]]
"""Classes, each with all its attribute names."""


def _members(names: frozenset[str], owners: Owners) -> Iterator[Any]:
    """Yield the attributes of classes with some names."""
    for owner, attribute_names in owners:
        for name in names & attribute_names:
            yield inspect.getattr_static(owner, name, None)


def _functions(names: frozenset[str], function: FunctionType, owners: Owners) -> Iterator[Any]:
    """Yield the functions of the module, methods of the agent and closures that ``names`` may mean."""
    for candidate in (*map(function.__globals__.get, names), *_members(names, owners)):
        if getattr(candidate, "__module__", None) == function.__module__:
            yield inspect.unwrap(candidate) if callable(candidate) else candidate
    yield from _cells(function)


def _cells(function: FunctionType) -> Iterator[Any]:
    """Yield the values that a function has from enclosing functions."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # A name without a value yet.
