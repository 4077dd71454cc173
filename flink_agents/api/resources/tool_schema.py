"""The description of a function for a model: a JSON schema of its parameters, with texts from its docstring.

It does not include parameters of type ``RunnerContext`` and ``MemoryObject``, nor ``idempotency_key``: the
conversation passes these.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast, get_args, get_origin

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PydanticUserError, create_model
from pydantic.fields import FieldInfo

from flink_agents.api.durable.checks import IDEMPOTENCY_KEY, misspelt_key
from flink_agents.api.errors import ActionSignatureError

GIVEN_TO_TOOLS = "__given_to_tools__"
"""Attribute of classes whose objects the conversation passes to tools; models do not see such parameters."""

# A docstring's heading of parameters, and its entries in three styles.
_HEADING = re.compile(r"^(?:Args|Arguments|Parameters|Params):?\s*$")
_GOOGLE = re.compile(r"^\*{0,2}(?P<name>\w+)(?:\s*\([^)]*\))?\s*:\s*(?P<text>.*)$")
_NUMPY = re.compile(r"^(?P<name>\w+)(?:\s*:.*)?$")
_SPHINX = re.compile(r"^:param\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)$")


def runtime_parameters(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the parameters that the runtime fills in, by name. Models do not see them.

    Empty if the signature or an annotation cannot be read.
    """
    try:
        parameters = inspect.signature(func, eval_str=True).parameters.values()
    except (NameError, TypeError, ValueError):
        return {}
    return {
        parameter.name: parameter.annotation
        for parameter in parameters
        if _is_runtime_parameter(parameter.annotation)
    }


def takes_key(func: Callable[..., Any]) -> bool:
    """Return True if a function has a parameter for the idempotency key of the call."""
    try:
        parameter = inspect.signature(func).parameters.get(IDEMPOTENCY_KEY)
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY


def written_hints(func: Any) -> dict[str, Any]:
    """Return the annotations that are strings as types, by parameter; under ``return`` that of the result."""
    written_signature = inspect.signature(func)
    typed_signature = inspect.signature(func, eval_str=True)
    hints = {
        name: parameter.annotation
        for name, parameter in typed_signature.parameters.items()
        if isinstance(written_signature.parameters[name].annotation, str)
    }
    if isinstance(written_signature.return_annotation, str):
        hints["return"] = typed_signature.return_annotation
    return hints


def replace_annotations(func: Any, hints: Mapping[str, Any]) -> None:
    """Replace the string annotations of a function that was sent to this process by types.

    A function that was sent as code has the globals that its code needs, but not those of its annotations.

    Args:
        func: The function or bound method.
        hints: The result of :func:`written_hints` in the process that sent it.
    """
    try:
        inspect.signature(func, eval_str=True)
    except NameError:
        function = getattr(func, "__func__", func)
        function.__annotations__ = {**function.__annotations__, **hints}


def _is_runtime_parameter(annotation: Any) -> bool:
    """Return True if the conversation passes parameters with this annotation."""
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return isinstance(kind, type) and hasattr(kind, GIVEN_TO_TOOLS)


def function_for_models(func: Any) -> Any:
    """Return the function that a ``partial`` calls, unless the author described the ``partial`` itself."""
    inner: Any = func
    while isinstance(inner, functools.partial) and "__doc__" not in vars(cast("Any", inner)):
        inner = cast("Any", inner).func
    return cast("Any", inner)


def documentation(func: Any) -> str:
    """Return the docstring of a tool's function; empty if it has none."""
    return inspect.getdoc(function_for_models(func)) or ""


def aliases_of(func: Callable[..., Any]) -> dict[str, str]:
    """Return the names of parameters that have aliases, by alias: the names that models use.

    Aliases are those of ``Field(alias=...)`` or ``Field(validation_alias=...)``; a schema has the first one.
    """
    aliases: dict[str, str] = {}
    for parameter in inspect.signature(func, eval_str=True).parameters.values():
        aliases |= dict.fromkeys(_parameter_aliases(parameter), parameter.name)
    return aliases


def _parameter_aliases(parameter: inspect.Parameter) -> list[str]:
    """Return the aliases of a parameter in its last ``Field`` that has any; empty if it has none."""
    described = [*getattr(parameter.annotation, "__metadata__", ()), parameter.default]
    for field in reversed([candidate for candidate in described if isinstance(candidate, FieldInfo)]):
        alias = field.validation_alias or field.alias
        if alias is not None:
            choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
            # A path leads into another argument, which the schema cannot show.
            return [choice for choice in choices if isinstance(choice, str) and choice != parameter.name]
    return []


def _field_of(parameter: inspect.Parameter, text: str | None) -> tuple[Any, Any]:
    """Return a parameter as a field for ``create_model``: its type and its ``Field``.

    Args:
        parameter: The parameter of a tool's function.
        text: Its description for models; None if the docstring has none.
    """
    options: dict[str, Any] = {} if text is None else {"description": text}
    # By alias: a model's field cannot be named "_id", "json" or "copy", but a parameter can.
    if aliases := _parameter_aliases(parameter):
        options |= {"alias": aliases[0], "validation_alias": AliasChoices(*aliases, parameter.name)}
    else:
        options |= {"alias": parameter.name, "validation_alias": parameter.name}
    if isinstance(parameter.default, FieldInfo):
        return Annotated[parameter.annotation, parameter.default], Field(**options)
    default = ... if parameter.default is parameter.empty else parameter.default
    return parameter.annotation, Field(default, **options)


def arguments_model(func: Any, name: str) -> type[BaseModel]:
    """Return a pydantic model whose fields are the parameters of a tool that a chat model fills in.

    Args:
        func: The function of the tool.
        name: Name of the tool.

    Raises:
        ActionSignatureError: It is not a function, or a parameter has no schema, a misspelt or a repeated
            name.
    """
    parameters = _parameters_of(func, name)
    _check_names(parameters, name)
    texts = parameter_texts(documentation(func))
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        if not _is_runtime_parameter(parameter.annotation) and parameter.name != IDEMPOTENCY_KEY:
            fields[f"parameter{number}"] = _field_of(parameter, texts.get(parameter.name))
    try:
        # A payment of NaN is none, whether a model or a person asks for it.
        config = ConfigDict(extra="forbid", allow_inf_nan=False)
        return create_model(name, __config__=config, **fields)
    except PydanticUserError as error:
        raise _undescribed_error(name, error) from error


def _parameters_of(func: Any, name: str) -> list[inspect.Parameter]:
    """Return the parameters of a tool's function, with types in place of string annotations.

    Raises:
        ActionSignatureError: It is not a function, or an annotation names an unknown type.
    """
    if not any((inspect.isroutine(func), isinstance(func, functools.partial))):
        raise ActionSignatureError(
            f"tool {name!r} is not a function",
            expected="a function with annotated parameters",
            found=f"an object of type {type(func).__name__}",
            fix="pass the function itself, or the method of the object",
        )
    try:
        return list(inspect.signature(func, eval_str=True).parameters.values())
    except NameError as error:
        raise _undescribed_error(name, error) from error


def _check_names(parameters: list[inspect.Parameter], name: str) -> None:
    """Check the parameters of the tool ``name``: the model can pass each of them, by a name of its own.

    Raises:
        ActionSignatureError: A parameter has no annotation, cannot be passed by name, is most likely a
            misspelt idempotency key, or has the name or alias of another one.
    """
    if (misspelt := misspelt_key(parameter.name for parameter in parameters)) is not None:
        raise ActionSignatureError(
            f"tool {name!r} has a parameter {misspelt!r}, which the model would have to fill in",
            expected=f"{IDEMPOTENCY_KEY}, which the runtime fills in",
            found=misspelt,
            fix=f"did you mean {IDEMPOTENCY_KEY!r}?",
        )
    for parameter in parameters:
        if _is_runtime_parameter(parameter.annotation) or parameter.name == IDEMPOTENCY_KEY:
            continue
        has_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not has_name or parameter.annotation is parameter.empty:
            raise ActionSignatureError(
                f"tool {name!r} has a parameter {str(parameter)!r} without a schema",
                expected="annotated parameters that can be passed by name",
                fix=f"annotate it, as in '{parameter.name}: str'",
            )
    counts = Counter(
        alias for parameter in parameters for alias in {parameter.name, *_parameter_aliases(parameter)}
    )
    repeated = [alias for alias, count in counts.items() if count > 1]
    if repeated:
        raise ActionSignatureError(
            f"tool {name!r} has two parameters with the name {repeated[0]!r}",
            expected="names and aliases that differ",
            found=", ".join(map(repr, repeated)),
            fix="give one of them another alias",
        )


def arguments_schema(model: type[BaseModel], name: str) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments.

    Args:
        model: The result of :func:`arguments_model`.
        name: Name of the tool, for the error.

    Raises:
        ActionSignatureError: A parameter has no schema.
    """
    try:
        schema = model.model_json_schema()
    except PydanticUserError as error:
        raise _undescribed_error(name, error) from error
    # The schema does not forbid extra arguments: they are rejected when a model passes them.
    return {part: value for part, value in schema.items() if part != "additionalProperties"}


def parameter_texts(doc: str) -> dict[str, str]:
    """Return the texts of parameters in a docstring, by name.

    The docstring has the style of Google, NumPy or Sphinx. NumPy's text is in the lines below a parameter.
    """
    texts: dict[str, str] = {}
    lines = doc.split("\n")
    for number, line in enumerate(lines):
        if _HEADING.match(line.strip()):
            below = lines[number + 1 :]
            is_numpy = bool(below) and re.fullmatch(r"\s*-{3,}\s*", below[0]) is not None
            texts |= _read_section(below[1:] if is_numpy else below, _NUMPY if is_numpy else _GOOGLE)
        elif match := _SPHINX.match(line.strip()):
            texts[match["name"]] = match["text"]
    return {name: text for name, text in texts.items() if text}


def _read_section(lines: list[str], pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the texts of a section's entries by name. A line with a deeper indent continues the entry above.

    Args:
        lines: The lines after the heading. The section ends before a line that is no entry.
        pattern: The form of the first line of an entry, with the group ``name``, and perhaps ``text``.
    """
    texts: dict[str, str] = {}
    name = ""
    section_indent: int | None = None
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if section_indent is None:
            section_indent = indent
        if indent > section_indent:
            texts[name] = f"{texts[name]} {line.strip()}".strip()
            continue
        match = pattern.match(line.strip()) if indent == section_indent else None
        if match is None:
            break
        name = match["name"]
        texts[name] = match.groupdict().get("text") or ""
    return texts


def _undescribed_error(name: str, error: Exception) -> ActionSignatureError:
    return ActionSignatureError(
        f"tool {name!r} has parameters of a type without a schema",
        expected="plain data, dataclasses and pydantic models, defined in the module of the function",
        found=str(error).split("\n")[0],
        fix="accept plain data, and create objects from it in the tool",
    )
