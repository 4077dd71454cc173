"""The configuration of an agent: its constructor arguments as JSON, and settings among its attributes.

A misspelt setting would have no effect, so an attribute that looks like one is an error.
"""

from __future__ import annotations

import dis
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType
from typing import Any, TypeGuard, TypeVar, get_type_hints

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from flink_agents.api.agents.agent import Agent
from flink_agents.api.common.places import describe, place_of_class, unwrap
from flink_agents.api.errors import AgentConfigurationError, AgentDefinitionError
from flink_agents.api.settings import check_near

A = TypeVar("A", bound=Agent)


def is_agent(value: object) -> TypeGuard[Agent | type[Agent]]:
    """Return True if ``value`` is an agent or a class of agents."""
    return isinstance(value, Agent) or (isinstance(value, type) and issubclass(value, Agent))


def instance_of(agent: object) -> Agent:
    """Return ``agent`` itself, or an instance of the class ``agent``.

    Raises:
        AgentDefinitionError: ``agent`` is neither.
        AgentConfigurationError: The class needs arguments.
    """
    if isinstance(agent, Agent):
        return agent
    if not (isinstance(agent, type) and issubclass(agent, Agent)):
        raise AgentDefinitionError(
            "only agents can be compiled",
            expected="an Agent class or instance",
            found=describe(agent),
            fix="derive the class from flink_agents.Agent",
        )
    try:
        return agent()
    except TypeError as error:
        raise AgentConfigurationError(
            f"{agent.__name__} cannot be created without arguments",
            expected="a class without required arguments, or an instance",
            found=str(error),
            fix=f"pass {agent.__name__}(...) instead of the class",
            where=place_of_class(agent),
        ) from error


def parameter_types(agent_class: type[Agent]) -> dict[str, Any]:
    """Return the types of the constructor's parameters, by name; ``Any`` if there is no annotation."""
    constructor: Any = agent_class.__init__
    if constructor is Agent.__init__:
        return {}
    try:
        hints = get_type_hints(constructor, include_extras=True)
    except NameError:
        # Names that only type checkers import: these parameters have to be plain JSON.
        hints = {}
    parameters = list(inspect.signature(constructor).parameters)[1:]
    return {name: hints.get(name, Any) for name in parameters}


def configuration_of(agent: Agent) -> dict[str, Any]:
    """Return the constructor arguments of ``agent`` as JSON values, by parameter.

    Only passed arguments are included; defaults stay in the code.

    Raises:
        AgentConfigurationError: A value does not survive the round trip through JSON.
    """
    agent_class = type(agent)
    if agent_class.__init__ is Agent.__init__:
        return {}
    args, kwargs = agent.__dict__["__arguments__"]
    bound = inspect.signature(agent_class.__init__).bind(agent, *args, **kwargs)
    types = parameter_types(agent_class)
    return {
        name: _to_json(agent_class, name, value, _type_of_argument(agent_class, name, types))
        for name, value in list(bound.arguments.items())[1:]
    }


def make_instance(
    agent_class: type[A], configuration: Mapping[str, Any], types: Mapping[str, Any] | None = None
) -> A:
    """Return an instance with ``configuration``, with arguments of the constructor's types.

    Args:
        agent_class: The class.
        configuration: The result of :func:`configuration_of`.
        types: The result of :func:`parameter_types`, if it comes from another process.

    Raises:
        AgentConfigurationError: The constructor does not accept these arguments.
    """
    if agent_class.__init__ is Agent.__init__:
        return agent_class()
    signature = inspect.signature(agent_class.__init__)
    types = parameter_types(agent_class) if types is None else types
    arguments: dict[str, Any] = {next(iter(signature.parameters)): None}
    for name, value in configuration.items():
        if name not in signature.parameters:
            raise AgentConfigurationError(
                f"{agent_class.__name__}() has no argument {name!r}",
                expected=", ".join(list(signature.parameters)[1:]) or "no arguments",
                found=name,
                fix="remove it from the configuration, or compile the plan again",
                where=place_of_class(agent_class),
            )
        arguments[name] = _restore(agent_class, name, value, _type_of_argument(agent_class, name, types))
    bound = inspect.BoundArguments(signature, arguments)  # pyright: ignore[reportArgumentType]
    try:
        return agent_class(*bound.args[1:], **bound.kwargs)
    except Exception as error:  # Whatever the constructor raises.
        raise AgentConfigurationError(
            f"{agent_class.__name__} cannot be constructed from its configuration",
            expected=f"{agent_class.__name__}{signature}",
            found=f"{json.dumps(dict(configuration))}: {type(error).__name__}: {error}",
            fix="pass the arguments that the constructor needs, with values that it accepts",
            where=place_of_class(agent_class),
        ) from error


def json_or_reason(value: Any, is_exact: bool = False) -> tuple[Any, str | None]:
    """Return ``value`` as JSON, and the reason why that is impossible, or None.

    Args:
        value: The value.
        is_exact: True if it must consist of exactly the types that JSON returns.
    """
    try:
        written = to_jsonable_python(value)
        json.dumps(written, allow_nan=False, ensure_ascii=False).encode()
    except (PydanticSerializationError, ValueError, TypeError) as error:
        return None, str(error)
    return written, "JSON would not preserve its type" if is_exact and not is_plain_json(value) else None


def is_plain_json(value: Any) -> bool:
    """Return True if ``value`` consists of exactly the types that JSON returns."""
    if type(value) is dict:
        return all(type(key) is str and is_plain_json(item) for key, item in value.items())
    if type(value) is list:
        return all(map(is_plain_json, value))
    return value is None or type(value) in (str, int, float, bool)


def _type_of_argument(agent_class: type[Agent], name: str, types: Mapping[str, Any]) -> Any:
    """Return the type of a parameter's argument: for ``*args`` a tuple, for ``**kwargs`` a dict."""
    kind = inspect.signature(agent_class.__init__).parameters[name].kind
    declared = types.get(name, Any)
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple[declared, ...]
    if kind is inspect.Parameter.VAR_KEYWORD:
        return dict[str, declared]
    return declared


def _to_json(agent_class: type[Agent], name: str, value: Any, declared: Any) -> Any:
    """Return an argument as JSON values.

    Raises:
        AgentConfigurationError: Its type would not read the same value back from them.
    """
    written, reason = json_or_reason(value, is_exact=declared is Any)
    if reason is None and declared is not Any:
        restored = _restore(agent_class, name, written, declared)
        reason = None if _are_equal(restored, value) else f"JSON would change it to {restored!r}"
    if reason is not None:
        raise AgentConfigurationError(
            f"the argument {name!r} of {agent_class.__name__} cannot be written into the plan",
            expected="a value that JSON preserves: each subtask creates its own instance",
            found=f"{type(value).__name__}: {reason}",
            fix=f"annotate {name!r} with its type (plain data, a dataclass, a pydantic model), or create "
            "the object inside the constructor",
            where=place_of_class(agent_class),
        )
    return written


def _restore(agent_class: type[Agent], name: str, value: Any, declared: Any) -> Any:
    """Return an argument of its declared type from JSON values.

    Raises:
        AgentConfigurationError: Pydantic does not know the type, or the value does not fit it.
    """
    if declared is Any:
        return value
    try:
        return TypeAdapter(declared).validate_json(json.dumps(value))
    except (ValidationError, PydanticSchemaGenerationError, PydanticUserError) as error:
        raise AgentConfigurationError(
            f"the argument {name!r} of {agent_class.__name__} cannot be read from the plan",
            expected=f"a value that pydantic reads as {inspect.formatannotation(declared)}",
            found=f"{value!r}: {error}",
            fix="use plain data, a dataclass or a pydantic model, or create the object inside the "
            "constructor",
            where=place_of_class(agent_class),
        ) from error


def _are_equal(restored: Any, value: Any) -> bool:
    """Return True if two values are equal; False if comparing them raises."""
    try:
        return bool(restored == value)
    except Exception:  # Whatever a foreign __eq__ raises: the values do not count as equal.
        return False


def check_attributes(agent: Agent, title: str, where: str) -> None:
    """Check that no attribute of an agent is a misspelt setting.

    An attribute that a method of the agent reads is the user's own, whatever its name is.

    Raises:
        AgentDefinitionError: An attribute is.
    """
    settings: set[str] = set()
    attributes = set(_data_names(vars(agent)))
    user_classes: list[type] = []
    for kind in type(agent).__mro__[:-1]:
        if kind.__module__.startswith("flink_agents."):
            settings.update(_data_names(vars(kind)))
        else:
            attributes.update(_data_names(vars(kind)))
            user_classes.append(kind)
    for name in sorted(attributes - settings):
        try:
            check_near(f"the agent {title!r}", where, [name], settings)
        except AgentDefinitionError:
            # Reading the methods takes long, and hardly any agent has such an attribute.
            members = (unwrap(value) for kind in user_classes for value in vars(kind).values())
            codes = [member.__code__ for member in members if inspect.isfunction(member)]
            if name not in _names_read_by(codes):
                raise


def _data_names(members: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the attributes that can be settings: plain data, or a class."""
    for name, value in members.items():
        is_code = inspect.isroutine(unwrap(value)) or isinstance(value, property)
        if not name.startswith("_") and (isinstance(value, type) or not is_code):
            yield name


def _names_read_by(codes: Iterable[CodeType]) -> set[str]:
    """Return the attribute names and strings that code reads."""
    names: set[str] = set()
    for code in codes:
        names.update(
            str(part.argval) for part in dis.get_instructions(code) if part.opname.startswith("LOAD_")
        )
        names |= _names_read_by(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return names
