"""Outputs of a type: their schema for the model, and their validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition
from pydantic_core import PydanticCustomError

from flink_agents.api.errors import AgentConfigurationError
from flink_agents.api.models.chat import OutputMode
from flink_agents.api.models.output_types import described
from flink_agents.api.resources.provenance import as_data

OUTPUT_TOOL = "final_result"
"""Name of the tool that a model calls to return its output, in the modes that use a tool."""

_DESCRIPTION = "The final response which ends this conversation"
_WRAPPED = "response"
"""Key of an output that is not a JSON object: schemas of tools have to be objects."""


class OutputType:
    """The requested type of an output: asks a model for it, and validates what the model returns.

    Args:
        kind: Any type that pydantic supports, a type of a library that a Python type describes (see
            ``output_types``), or a JSON schema of an object.
        mode: How the model returns it: by a tool, or as text.

    Raises:
        AgentConfigurationError: The type has no schema.
    """

    def __init__(self, kind: Any, mode: OutputMode) -> None:
        self.mode = mode
        library_type = described(kind)
        self._make: Callable[[Any], Any] | None = None if library_type is None else library_type.make
        if isinstance(kind, dict):
            self._adapter = TypeAdapter[Any](dict[str, Any])
            schema = kind
        else:
            self._adapter, schema = _create_adapter(kind if library_type is None else library_type.kind)
        self._is_wrapped = schema.get("type") != "object"
        if self._is_wrapped:
            schema = _wrap_schema(schema)
        self._schema = schema
        self._name = schema.get("title") or getattr(kind, "__name__", None)
        self._description = schema.get("description")

    def parameters(
        self, tools: list[ToolDefinition], output_tool: str = OUTPUT_TOOL
    ) -> ModelRequestParameters:
        """Return parameters of a request that ask for this output, in the mode of this type.

        Args:
            tools: The other tools that the model can call.
            output_tool: Name of the tool that returns the output, if the mode uses one.
        """
        if self.mode is OutputMode.TOOL:
            output = ToolDefinition(
                name=output_tool,
                description=f"{self._description or self._name or ''}. {_DESCRIPTION}".lstrip(". "),
                parameters_json_schema=self._schema,
                kind="output",
            )
            return ModelRequestParameters(
                function_tools=tools, output_mode="tool", output_tools=[output], allow_text_output=False
            )
        return ModelRequestParameters(
            function_tools=tools,
            output_mode=self.mode.value,
            output_object=OutputObjectDefinition(
                json_schema=self._schema, name=self._name, description=self._description
            ),
            allow_text_output=True,
        )

    def of_call(self, call: ToolCallPart) -> Any:
        """Return the output in the arguments of a call of the output tool.

        Raises:
            ValidationError: They are not JSON, or the output has another type.
        """
        if isinstance(call.args, str):
            return self.of_text(call.args)
        return self._unwrap_value(call.args or {})

    def of_text(self, text: str) -> Any:
        """Return the output in a text of JSON, perhaps in a Markdown code block.

        Raises:
            ValidationError: It is not JSON, or has another type.
        """
        json_text = text.strip()
        if json_text.startswith("```"):
            # Prompted models often put JSON into a Markdown code block.
            json_text = json_text.removeprefix("```json").removeprefix("```").removesuffix("```").strip()
        if self._is_wrapped:
            return self._unwrap_value(_ANY.validate_json(json_text))
        return self._make_value(self._adapter.validate_json(json_text))

    def of_json(self, value: Any) -> Any:
        """Return the output that a JSON value represents.

        Raises:
            ValidationError: It has another type.
        """
        return self._make_value(self._adapter.validate_python(value))

    def _unwrap_value(self, value: Any) -> Any:
        """Return the output of a JSON value that the schema describes, under its key if it is wrapped."""
        if self._is_wrapped:
            if not isinstance(value, dict) or _WRAPPED not in value:
                # Without the key there is no output, also if the type allows None.
                raise _missing_key_error(value)
            value = cast("dict[str, Any]", value)[_WRAPPED]
        return self.of_json(value)

    def _make_value(self, value: Any) -> Any:
        """Return a validated value as an object of the library, if the type is one, marked as data."""
        # An answer of a model is data, whatever its type.
        return as_data(value if self._make is None else self._make(value))


_ANY: TypeAdapter[Any] = TypeAdapter(Any)


def _wrap_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has a value of ``schema`` under the key ``response``."""
    definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    return {
        "type": "object",
        "properties": {_WRAPPED: schema},
        "required": [_WRAPPED],
        "additionalProperties": False,
        **definitions,
    }


def _missing_key_error(value: Any) -> ValidationError:
    """Return the error of an answer whose output is not under the key that the schema requires."""
    missing = PydanticCustomError("missing", f"Field required: the output belongs under the key {_WRAPPED!r}")
    return ValidationError.from_exception_data(
        OUTPUT_TOOL, [{"type": missing, "loc": (_WRAPPED,), "input": value}]
    )


def _create_adapter(kind: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    """Return a validator of a type, and its JSON schema; AgentConfigurationError if it has none."""
    try:
        adapter = TypeAdapter[Any](kind)
        return adapter, adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise AgentConfigurationError(
            "the output type of a chat request has no schema",
            expected="a pydantic model, a dataclass, or plain data",
            found=str(error).split("\n")[0],
            fix="describe the output by a pydantic model",
        ) from None


def validation_problems(error: ValidationError) -> list[Any]:
    """Return the problems of an output as pydantic lists them, for the model that gave it."""
    return list(error.errors(include_url=False, include_context=False))
