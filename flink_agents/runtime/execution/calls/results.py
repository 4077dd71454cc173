"""Results of durable calls as bytes, and errors about them.

Results with a ``result_type`` are validated once, stored as they then are, and checked before the call.

The value that the type makes of a result is recorded with its classes, like every value. A replay restores it
and does not validate it again: validators may change a value each time they see it, and serializers may hide
or drop a part. Only a result that was recorded without a type, or for another one, is validated on replay.

The type tells before the call which values it can have. So a type with a part that no record can hold is
rejected then, and not after the call has had its effect. It also gives the classes that cannot be
found by name, such as those of functions.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Awaitable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from flink_agents.api.common.places import place_of_class
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import (
    AgentConfigurationError,
    AgentsError,
    DurableResultError,
    ResultTypeError,
    StateError,
    UnknownTypeNameError,
    UnserializableValueError,
)
from flink_agents.plan.references import type_text
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.journal.records import CallIdentity
from flink_agents.runtime.serde import values as class_values
from flink_agents.runtime.serde.changed import hints_of
from flink_agents.runtime.serde.codec import ValueCodec, is_writable
from flink_agents.runtime.serde.declared_types import adapter_of, order_of, problems_text
from flink_agents.runtime.serde.typenames import LocalClasses, is_data_class
from flink_agents.runtime.serde.values import OwnForm, has_form, own_form_adapter, with_own_form

_RETURN_LESS = "return what the run needs, or a reference to it"

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address in a repr, which differs in every process."""


class ResultType:
    """A type of results, with what follows from it.

    Args:
        kind: The type, as the author wrote it.

    Attributes:
        text: The type as text that is equal in every process, for records.
        unstorable: The first part that no record can hold; None if there is none.
    """

    def __init__(self, kind: Any) -> None:
        self._adapter: TypeAdapter[Any] = adapter_of(kind)
        if not self._adapter.pydantic_complete:
            self._adapter.rebuild()
        self._own_form = own_form_adapter(kind)
        self._classes = LocalClasses(classes_in(self._adapter.core_schema))
        self.text = _ADDRESS.sub("", _text(kind))
        self.unstorable: Unstorable | None = unstorable_part(self._adapter.core_schema)

    def encode(self, codec: ValueCodec, value: Any) -> bytes:
        """Return the bytes of what the type makes of a result.

        Raises:
            ValidationError: The result does not fit the type.
            UnserializableValueError: A part of it cannot be encoded.
        """
        result = with_own_form(self._own_form, self._adapter.validate_python(value))
        with self._classes.activate():
            return codec.encode(result)

    def decode(self, codec: ValueCodec, data: bytes, recorded_type: str | None) -> Any:
        """Return a recorded result.

        Args:
            codec: Decodes it.
            data: The bytes of the result.
            recorded_type: The text of the type for which it was recorded; None if there was none.
        """
        with self._classes.activate():
            try:
                value = self._restore_own_form(codec.decode(data))
            except UnknownTypeNameError:
                # Its class was renamed: the type names the successor.
                return self._convert_fields(codec, data)
        if recorded_type == self.text:
            return value
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            try:
                return self._convert_fields(codec, data)
            except (ValidationError, StateError):
                raise error from None

    def _restore_own_form(self, value: Any) -> Any:
        """Return a decoded result; one that its class serialized itself is read by that class."""
        if isinstance(value, OwnForm):
            assert self._own_form is not None
            return self._own_form.validate_python(value.content)
        return value

    def _convert_fields(self, codec: ValueCodec, data: bytes) -> Any:
        """Return a result of another class, from its stored fields."""
        return self._adapter.validate_python(codec.decode_fields(data), by_name=True, by_alias=True)


def result_type_of(kind: Any) -> ResultType:
    """Return a type with its checks; built once.

    Raises:
        Exception: Pydantic does not describe such values.
    """
    try:
        return _cached(kind, order_of(kind))
    except TypeError:
        return ResultType(kind)  # Such a type is not hashable.


@lru_cache(maxsize=256)
def _cached(kind: Any, order: str | None) -> ResultType:
    """Return a type with its checks. Equal types may differ in the ``order`` of their members."""
    return ResultType(kind)


def check_result_type(codec: ValueCodec, callable_: DurableCallable) -> None:
    """Check ``result_type`` before the function has any effect.

    Raises:
        AgentConfigurationError: Pydantic does not know that type.
        ResultTypeError: No record can hold its values.
    """
    try:
        unstorable = result_type_of(callable_.result_type).unstorable
    except Exception as error:  # a foreign type may raise anything where it is described
        raise AgentConfigurationError(
            f"the durable call of {callable_.identity} has a wrong result_type",
            expected="a type that pydantic describes, such as a model, a dataclass or list[str]",
            found=f"{type_text(callable_.result_type)}: {type(error).__name__}",
            fix="name such a type, or leave result_type out: results keep the types that they have",
        ) from error
    if unstorable is not None and not codec.allow_pickle:
        at = f" ({unstorable.where})" if unstorable.where is not None else ""
        raise ResultTypeError(
            f"the result_type of the durable call of {callable_.identity} has values that no record can hold",
            expected="plain values, pydantic models or dataclasses of them, or types that pydantic writes as "
            "JSON and reads back",
            found=f"{type_text(callable_.result_type)}: {unstorable.text}{at}",
            fix="leave that part out of the type, or give it such a type. The call was not made",
        )


def misfit_error(result_type: Any, value: Any, error: ValidationError) -> DurableResultError:
    """Return the error of a call whose result does not have its declared type."""
    return DurableResultError(
        "the result does not fit result_type",
        expected=f"a result of the type {type_text(result_type)}",
        found=problems_text(error, value),
        fix="let the function return such a value, or correct result_type",
    )


def result_error(
    step: ActionRun, identity: CallIdentity, number: int, refused: AgentsError
) -> DurableResultError:
    """Return the error of a call whose result cannot be recorded."""
    fix = refused.fix if isinstance(refused, DurableResultError) and refused.fix else _RETURN_LESS
    return DurableResultError(
        f"what {identity.function} returned cannot be recorded: call {number} of action "
        f"{step.action.name!r}, key {step.run.key!r}, sequence {step.run.sequence_number}",
        expected=refused.expected or "plain values, pydantic models or dataclasses, within the store's limit",
        found=f"{refused.message}: {refused.found}" if refused.found else refused.message,
        fix=f"{fix}. The call took effect and is not repeated",
    )


def _text(kind: Any) -> str:
    """Return a type as text, without what pydantic is told about its values."""
    if get_origin(kind) is Annotated:
        return _text(get_args(kind)[0])
    if isinstance(kind, type) and get_origin(kind) is None:
        return f"{kind.__module__}:{kind.__qualname__}"
    arguments = ", ".join(_texts(get_args(kind)))
    return f"{get_origin(kind)}[{arguments}]" if arguments else repr(kind)


def _texts(kinds: tuple[Any, ...]) -> Iterator[str]:
    """Yield types as text. A list, as in ``Callable[[int], str]``, is one text."""
    for kind in kinds:
        yield f"[{', '.join(_texts(tuple(kind)))}]" if isinstance(kind, list) else _text(kind)


# -- parts of a type that state cannot hold ------------------------------------------

_NEVER = {
    "callable": "a function",
    "is-subclass": "a class",
    "generator": "an iterator, which can be read only once",
}
"""Kinds of schemas of pydantic whose values state never holds."""

_LIVE = Iterator, Awaitable, AsyncIterable, BaseException
"""Classes whose instances exist in one process only, so that state never holds them."""

_OF_FIELDS = frozenset({"model-fields", "dataclass-args", "typed-dict"})
"""Kinds of schemas that have named fields."""

_NO_SCHEMAS = frozenset({"metadata", "serialization", "default", "expected"})
"""Parts of a schema that are not about the parts of its values."""

_PLAIN = frozenset({str, int, float, bool, bytes, type(None), object})
"""Classes of plain values, and ``object``, of which nothing is known."""


class Unstorable(NamedTuple):
    """A part of a type that state cannot hold.

    Attributes:
        path: The part, such as ``Order.callback``; empty for the type itself.
        what: The values of that part.
        where: The place of the class with that part, or None.
    """

    path: str
    what: str
    where: str | None

    @property
    def text(self) -> str:
        """The part and its values, as text for errors."""
        return f"{self.path}: {self.what}" if self.path else self.what


def unstorable_part(schema: Any) -> Unstorable | None:
    """Return the first part of a type whose values state can never hold; None if there is none.

    Args:
        schema: The core schema of the type.
    """
    return next(_Search(schema).unstorable(schema, "", None, False), None)


def classes_in(schema: Any) -> list[type]:
    """Return the classes of the values of a type, in the order in which the type names them."""
    classes: dict[type, None] = {}
    nodes = [schema]
    while nodes:
        node = nodes.pop(0)
        cls = node.get("cls") if node["type"] != "call" else node.get("function")
        if isinstance(cls, type) and is_data_class(cls):
            classes[cls] = None
        nodes[:0] = _parts(node)
    return list(classes)


def _parts(node: Any) -> Iterator[Any]:
    """Yield the schemas directly inside a schema, such as those of list items or union members."""
    for name, part in node.items():
        if name not in _NO_SCHEMAS:
            yield from _schemas_in(part)


def _schemas_in(part: Any) -> Iterator[Any]:
    """Yield the outermost schemas in a part of a schema: in itself, or in a dict or list of them."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part
        else:
            for inner in part.values():
                yield from _schemas_in(inner)
    elif isinstance(part, list | tuple):
        for inner in part:
            yield from _schemas_in(inner)


class _Search:
    """A search in the schema of one type.

    Args:
        schema: The schema.
    """

    def __init__(self, schema: Any) -> None:
        definitions = schema.get("definitions", ()) if schema["type"] == "definitions" else ()
        self._definitions: Mapping[str, Any] = {definition["ref"]: definition for definition in definitions}
        self._seen: set[str] = set()

    def unstorable(self, node: Any, path: str, where: str | None, has_own_form: bool) -> Iterator[Unstorable]:
        """Yield the parts of a schema whose values state cannot hold.

        Args:
            node: The schema, or a part of it.
            path: The class and field that it describes, such as ``Order.callback``.
            where: The place of the class around it, or None.
            has_own_form: True if its type serializes its values itself: then that may be their stored form.
        """
        kind = node["type"]
        if kind == "definition-ref":
            reference = node["schema_ref"]
            if reference not in self._seen and reference in self._definitions:
                self._seen.add(reference)
                yield from self.unstorable(self._definitions[reference], path, where, has_own_form)
        elif kind == "definitions":
            yield from self.unstorable(node["schema"], path, where, has_own_form)
        elif kind in _NEVER:
            yield Unstorable(path, _NEVER[kind], where)
        elif kind == "is-instance":
            what = _live_instance(node["cls"], has_own_form and "serialization" not in node)
            if what is not None:
                yield Unstorable(path, what, where)
        elif kind in ("model", "dataclass"):
            yield from self._of_class(node)
        elif kind in _OF_FIELDS:
            fields = node["fields"]
            named = (
                fields.items()
                if isinstance(fields, dict)
                else [(field_node["name"], field_node) for field_node in fields]
            )
            for name, field in named:
                yield from self.unstorable(field["schema"], f"{path}.{name}".lstrip("."), where, False)
        else:
            serializes_itself = has_own_form or "serialization" in node
            for part in _parts(node):
                yield from self.unstorable(part, path, where, serializes_itself)

    def _of_class(self, node: Any) -> Iterator[Unstorable]:
        """Yield the parts of a model or data class that state cannot hold, private attributes included."""
        cls: Any = node["cls"]
        place = place_of_class(cls)
        try:
            class_values.writer_of(cls)
        except UnserializableValueError as error:
            yield Unstorable(cls.__name__, error.message, place)
        yield from self.unstorable(node["schema"], cls.__name__, place, False)
        if isinstance(cls, type) and issubclass(cls, BaseModel):
            hints = hints_of(cls)
            for name in getattr(cls, "__private_attributes__", None) or ():
                if not has_form(hints.get(name)):
                    what = f"values of the type {_name(hints[name])}, which has no stored form"
                    yield Unstorable(f"{cls.__name__}.{name}", what, place)


def _live_instance(cls: Any, has_own_form: bool) -> str | None:
    """Return the instances of a class as text if state never holds them, or None."""
    if cls is type:
        return _NEVER["is-subclass"]
    if not isinstance(cls, type) or cls in _PLAIN:
        return None
    if issubclass(cls, _LIVE):
        return f"a live object of the type {_name(cls)}"
    if has_own_form or has_form(cls) or is_writable(cls):
        return None
    return f"values of the type {_name(cls)}, which has no stored form"


def _name(cls: Any) -> str:
    """Return a class as ``module.qualname``."""
    return f"{cls.__module__}.{cls.__qualname__}" if isinstance(cls, type) else str(cls)
