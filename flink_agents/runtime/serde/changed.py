"""Makes values of classes from their stored fields, even if the class has changed since they were stored.

Fields that still fit are used: new fields get their defaults, and a value whose declared type has changed is
converted as Pydantic converts it. Nothing is guessed: the error names the class, the field
and the fix, which is ``@upgrades``.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from zlib import crc32

from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError
from pydantic.dataclasses import is_pydantic_dataclass

from flink_agents.api.common.current import isolated
from flink_agents.api.common.places import place_of_class
from flink_agents.api.durable.upgrades import Upgrade, place_of_upgrade, upgrade_of
from flink_agents.api.errors import StateError, UpgradeFailedError, ValueChangedError
from flink_agents.runtime.serde.declared_types import strict_adapter
from flink_agents.runtime.serde.raised_texts import innermost_place, text_of
from flink_agents.runtime.serde.typenames import Kind, kind_of, resolve_type, shorten

ENUM = 11
MODEL = 12
DATACLASS = 13
NAMED_TUPLE = 14

KINDS = {ENUM: Kind.ENUM, MODEL: Kind.MODEL, DATACLASS: Kind.DATACLASS, NAMED_TUPLE: Kind.NAMED_TUPLE}
"""The kinds of classes that are written by name, by their codes in the format."""

_MARK_BYTES = 2
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MODULE = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])|['\"]")


@dataclasses.dataclass(slots=True)
class Stored:
    """The stored form of a value of an enum, model, dataclass or named tuple.

    Attributes:
        name: The name of the class, ``module:qualname``.
        kind: The kind of the class when the value was stored.
        fields: The values of the fields by name; empty for an enum.
        member: The name of an enum's member, or the value of a combination of flags.
        extra: Further attributes that a model does not declare, or None.
        private: Private attributes of a model, or None.
        unset: Fields of a model that had their default.
        marks: The marks of a dataclass or named tuple, see :func:`marks_of`; empty to check all fields.
    """

    name: str
    kind: Kind
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    member: Any = None
    extra: Any = None
    private: Any = None
    unset: Iterable[str] = ()
    marks: bytes = b""

    @classmethod
    def from_content(cls, code: int, content: Any) -> Stored:
        """Return the stored form from the content that the codec wrote for a value.

        Args:
            code: The code of the kind of class, such as ``MODEL``.
            content: The list that follows the code.
        """
        name, *parts = content
        kind = KINDS[code]
        if kind is Kind.ENUM:
            return cls(name, kind, member=parts[0])
        if kind is Kind.MODEL:
            _, fields, unset, *optional_parts = parts
            extra, private = optional_parts[:2] or (None, None)
            return cls(name, kind, dict(fields), extra=extra, private=private, unset=unset)
        return cls(name, kind, dict(parts[0]), marks=parts[1])

    def unchanged_fields(self, cls: type) -> frozenset[str]:
        """Return the names of the fields whose declared type is the same in the present class."""
        if kind_of(cls) not in (Kind.DATACLASS, Kind.NAMED_TUPLE):
            return frozenset()
        stored_marks = zip(self.fields, _pieces(self.marks), strict=False)
        current_names, current_marks = marks_of(cls)
        return frozenset(
            name for name, _ in {*stored_marks} & {*zip(current_names, _pieces(current_marks), strict=True)}
        )


@lru_cache(maxsize=4096)
def shape_of(kind: type[BaseModel]) -> int:
    """Return a checksum of the names and types of a model's fields, which shows if they have changed."""
    fields = [(name, repr(field.annotation)) for name, field in kind.__pydantic_fields__.items()]
    private = sorted(getattr(kind, "__private_attributes__", None) or ())
    text = repr((fields, private, kind.model_config.get("extra")))
    # Functions in annotations, such as validators, show their addresses.
    return crc32(_ADDRESS.sub("", text).encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=4096)
def marks_of(kind: type) -> tuple[tuple[str, ...], bytes]:
    """Return the field names of a dataclass or named tuple, and a checksum of two bytes for each type."""
    if dataclasses.is_dataclass(kind):
        types = {field.name: field.type for field in dataclasses.fields(kind)}
    else:
        declared: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            declared.update(inspect.get_annotations(base))
        types = {name: declared.get(name) for name in getattr(kind, "_fields", ())}
    return tuple(types), b"".join(map(_mark, types.values()))


def _mark(annotation: Any) -> bytes:
    """Return the checksum of a declared type: two bytes, equal for each spelling of one type."""
    text = annotation.__qualname__ if isinstance(annotation, type) else annotation
    # A class may be imported from another module, and written as a string or not.
    unqualified = _MODULE.sub("", _ADDRESS.sub("", text if isinstance(text, str) else repr(text)))
    return (crc32(unqualified.encode("utf-8", "surrogatepass")) & 0xFFFF).to_bytes(_MARK_BYTES, "big")


def _pieces(marks: bytes) -> list[bytes]:
    """Return the mark of each field."""
    return [marks[start : start + _MARK_BYTES] for start in range(0, len(marks), _MARK_BYTES)]


def read_changed(stored: Stored, known_class: type | None = None) -> Any:
    """Make a value whose class has changed since it was stored, by its upgrade or from its fields.

    Args:
        stored: The stored form of the value.
        known_class: The present class; None to resolve its name.

    Raises:
        UnknownTypeNameError: The class is gone, and no ``@upgrades`` takes over its values.
        ValueChangedError: The value does not fit its class.
        UpgradeFailedError: The function that takes over its values raised.
    """
    # A function of a generic class takes the values of all its parametrizations.
    upgrade = upgrade_of(stored.name) or upgrade_of(stored.name.partition("[")[0])
    if upgrade is not None and not isinstance(upgrade, type):
        return _upgraded(upgrade, stored)
    successor = upgrade_of(stored.name)
    cls = successor if isinstance(successor, type) else known_class or resolve_type(stored.name)
    kind = kind_of(cls)
    if kind is None or (kind is Kind.ENUM) != (stored.kind is Kind.ENUM):
        raise _changed(
            stored,
            cls,
            expected=f"a class of the same kind, {stored.kind.value}",
            found=f"{cls.__qualname__} is {kind.value if kind else 'no data class'}",
            fix=f"return the new value from a function with @upgrades({stored.name!r})",
        )
    try:
        return _MAKERS[kind](cls, stored)
    except StateError:
        raise
    except Exception as error:  # The user's constructors and validators may raise anything.
        raise _changed(
            stored,
            cls,
            found=f"{type(error).__name__}: {text_of(error)}",
            fix="let the class accept the stored fields, or return the new value from a function with "
            f"@upgrades({stored.name!r})",
        ) from error


def _upgraded(upgrade: Upgrade, stored: Stored) -> Any:
    """Return the value that a function with ``@upgrades`` makes of a stored one.

    Raises:
        UpgradeFailedError: The upgrade raises, or returns no value.
    """
    try:
        new_value = isolated().run(upgrade, _stored_content(stored))
    except Exception as error:
        raise UpgradeFailedError(
            f"the upgrade of a stored {stored.name} raised {type(error).__name__}: {text_of(error)}",
            found=shorten(_stored_content(stored)),
            fix="let the function handle these stored fields",
            where=innermost_place(error) or place_of_upgrade(upgrade),
        ) from error
    if new_value is None or inspect.iscoroutine(new_value):
        if new_value is not None:
            new_value.close()
        raise UpgradeFailedError(
            f"the upgrade of a stored {stored.name} returned no value",
            expected="the new value, from a plain function",
            found="None" if new_value is None else "a coroutine",
            fix="return the new value; write it with def",
            where=place_of_upgrade(upgrade),
        )
    return new_value


def _stored_content(stored: Stored) -> Any:
    """Return the argument of an upgrade: the member of an enum, or the fields by name."""
    return stored.member if stored.kind is Kind.ENUM else dict(stored.fields)


# -- enums ---------------------------------------------------------------------------


def _make_enum(cls: Any, stored: Stored) -> Any:
    """Return the stored member of an enum; raise a ``ValueChangedError`` if the class lacks it."""
    member = stored.member
    try:
        return cls[member] if isinstance(member, str) else cls(member)
    except (KeyError, ValueError):
        raise _changed(
            stored,
            cls,
            [str(member)],
            expected=f"one of {', '.join(cls.__members__)}",
            found=f"the stored member {shorten(member)}",
            fix="keep the member, if only as an alias of its successor; or return another one from a "
            f"function with @upgrades({stored.name!r})",
        ) from None


# -- pydantic models -----------------------------------------------------------------


def remake_model(
    cls: type[BaseModel], fields: dict[str, Any], unset: Iterable[str], extra: Any = None, private: Any = None
) -> Any:
    """Return a model with values that were validated before, without calling its constructor.

    Args:
        cls: The class.
        fields: The values of all fields by name.
        unset: Names of the fields that had their default.
        extra: Further attributes that the class does not declare, or None.
        private: Private attributes, or None.
    """
    model = cls.__new__(cls)
    if extra is None and cls.model_config.get("extra") == "allow":
        extra = {}
    if private is None and cls.__private_attributes__:
        private = {}
    model.__setstate__(
        {
            "__dict__": fields,
            "__pydantic_fields_set__": (fields.keys() | (extra or {}).keys()) - set(unset),
            "__pydantic_extra__": extra,
            "__pydantic_private__": private,
        }
    )
    return model


def _make_model(cls: type[BaseModel], stored: Stored) -> Any:
    """Return a model from its stored fields, which the present class validates."""
    fields = stored.fields
    content = fields.get("root") if cls.__pydantic_root_model__ and set(fields) == {"root"} else dict(fields)
    try:
        model = cls.model_validate(content, by_name=True)
    except ValidationError as error:
        raise _misfit_error(stored, cls, error) from error
    _check_renamed(cls, model, stored)
    if stored.private and model.__pydantic_private__ is not None:
        attributes = model.__private_attributes__
        model.__pydantic_private__.update(
            {name: item for name, item in stored.private.items() if name in attributes}
        )
    model.model_fields_set.difference_update(stored.unset)
    return model


def _check_renamed(cls: type[BaseModel], model: BaseModel, stored: Stored) -> None:
    """Reject dropping a stored field while another one gets its default: it may have been renamed."""
    fields = cls.__pydantic_fields__
    if cls.__pydantic_root_model__ or model.model_extra is not None:
        return
    dropped = _dropped(cls, stored)
    new = [name for name in fields if name not in model.model_fields_set]
    if dropped and new:
        raise _changed(
            stored,
            cls,
            dropped,
            expected=f"the stored fields, or none that are new; new is {', '.join(new)}",
            found=f"fields that the class no longer has: {', '.join(dropped)}",
            fix=_fix_of(stored.name, new, dropped),
        )


def _dropped(cls: type[BaseModel], stored: Stored) -> list[str]:
    """Return the stored fields that a model no longer has."""
    fields = cls.__pydantic_fields__
    aliases = {alias for field in fields.values() for alias in aliases_of(field)}
    return [name for name in stored.fields if name not in fields and name not in aliases]


def aliases_of(field: Any) -> Iterator[str]:
    """Yield the aliases of a model's field: names that input may use for it."""
    for alias in (field.alias, field.validation_alias):
        for choice in alias.choices if isinstance(alias, AliasChoices) else [alias]:
            first = choice.path[0] if isinstance(choice, AliasPath) else choice
            if isinstance(first, str):
                yield first


def _misfit_error(stored: Stored, cls: type[BaseModel], error: ValidationError) -> ValueChangedError:
    """Return the error for stored fields that a model rejects, with the fields and the fix."""
    problems = error.errors(include_url=False, include_context=False)
    places: dict[str, list[str]] = {"missing": [], "extra_forbidden": [], "type": []}
    texts: list[str] = []
    for problem in problems:
        place = ".".join(map(str, problem["loc"])) or "the value"
        places[problem["type"] if problem["type"] in places else "type"].append(place)
        texts.append(
            f"{place}: {problem['msg']}"
            + ("" if problem["type"] in places else f", not {shorten(problem['input'])}")
        )
    missing = places["missing"]
    unknown = places["extra_forbidden"] or _dropped(cls, stored)
    if unknown != places["extra_forbidden"]:
        texts += [f"{name}: the class no longer has it" for name in unknown]
    return _changed(
        stored,
        cls,
        [*missing, *unknown, *places["type"]],
        expected=f"the fields {', '.join(cls.__pydantic_fields__)}",
        found="; ".join(texts),
        fix=_fix_of(stored.name, missing, unknown),
    )


# -- dataclasses and named tuples ----------------------------------------------------


def allows_extra_fields(cls: Any) -> bool:
    """Return True if the instances of a dataclass may have more attributes than its fields."""
    return is_pydantic_dataclass(cls) and (cls.__pydantic_config__ or {}).get("extra") == "allow"


def _remake_validated(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return an instance of a dataclass of pydantic, whose constructor would validate the fields again."""
    remade = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(remade, name, value)
    if hasattr(cls, "__post_init__"):
        # It may set attributes that are no fields. Variables of the constructor have their defaults.
        fields: dict[str, Any] = cls.__dataclass_fields__
        init_var: Any = dataclasses._FIELD_INITVAR  # pyright: ignore[reportAttributeAccessIssue]
        variables = [name for name, field in fields.items() if field._field_type is init_var]
        remade.__post_init__(*(getattr(cls, name, None) for name in variables))
        for name, value in values.items():
            object.__setattr__(remade, name, value)
    return remade


def remake_dataclass(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return an instance of a dataclass with these values of its fields, also of those without ``init``."""
    if is_pydantic_dataclass(cls):
        return _remake_validated(cls, values)
    parameters = {field.name for field in dataclasses.fields(cls) if field.init}
    instance = cls(**{name: value for name, value in values.items() if name in parameters})
    # The stored fields already include the work of __post_init__.
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def _make_dataclass(cls: Any, stored: Stored) -> Any:
    """Return a dataclass instance from its stored fields, converted to their present types."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    needed = [
        name
        for name, field in fields.items()
        if field.init and field.default is field.default_factory is dataclasses.MISSING
    ]
    _check_names(cls, stored, list(fields), needed)
    return remake_dataclass(cls, _converted(cls, stored))


def _make_named_tuple(cls: Any, stored: Stored) -> Any:
    """Return a named tuple from its stored fields, converted to their present types."""
    defaults = getattr(cls, "_field_defaults", {})
    _check_names(cls, stored, cls._fields, [name for name in cls._fields if name not in defaults])
    return cls(**_converted(cls, stored))


def _check_names(cls: type, stored: Stored, field_names: Iterable[str], needed: Iterable[str]) -> None:
    """Reject stored fields if a needed one is missing, or the class no longer has one."""
    missing = [name for name in needed if name not in stored.fields]
    unknown = [name for name in stored.fields if name not in set(field_names)]
    problems = [f"it has no {name!r}" for name in missing]
    problems += [f"the class no longer has {name!r}" for name in unknown]
    if problems:
        raise _changed(
            stored,
            cls,
            [*missing, *unknown],
            expected=f"the fields {', '.join(field_names)}",
            found="; ".join(problems),
            fix=_fix_of(stored.name, missing, unknown),
        )


def _converted(cls: type, stored: Stored) -> dict[str, Any]:
    """Return the stored fields by name; those whose declared type has changed are converted."""
    fields = dict(stored.fields)
    to_check = fields.keys() - stored.unchanged_fields(cls)
    if not to_check:
        return fields
    hints = hints_of(cls)
    for name in to_check & hints.keys():
        try:
            fields[name] = strict_adapter(hints[name]).validate_python(fields[name])
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            raise _changed(
                stored,
                cls,
                [name],
                expected=f"{name}: {getattr(hints[name], '__qualname__', None) or hints[name]}",
                found=f"{name}: {problems[0]['msg']}, not {shorten(fields[name])}",
                fix=_fix_of(stored.name),
            ) from error
        except Exception:
            continue  # Pydantic cannot describe such values.
    return fields


def hints_of(cls: type) -> dict[str, Any]:
    """Return the declared types of a class's fields by name, without those that cannot be resolved."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:
        hints: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            names = dict(vars(sys.modules.get(base.__module__, object)))
            for name, declared in inspect.get_annotations(base).items():
                try:
                    hints[name] = eval(declared, names) if isinstance(declared, str) else declared
                except Exception:
                    hints.pop(name, None)
        return hints


# -- texts ---------------------------------------------------------------------------


def _fix_of(name: str, missing: Iterable[str] = (), unknown: Iterable[str] = ()) -> str:
    """Return the fix for a stored value that lacks fields of its class, or has fields that this lacks."""
    new = ", ".join(missing)
    old = ", ".join(unknown)
    function = f"a function with @upgrades({name!r})"
    if new and old:
        return f"if {old} was renamed to {new}, convert it in {function}; otherwise keep the field"
    if new:
        return f"add a default for {new}, or return the new value from {function}"
    if old:
        return f"keep {old}, or drop it in {function}"
    return f"keep the type of the field, or convert the stored value in {function}"


def _changed(stored: Stored, cls: type, fields: Iterable[str] = (), **texts: Any) -> ValueChangedError:
    """Return the error that a stored value does not fit its class; ``texts`` are its further parts."""
    return ValueChangedError(
        f"a stored {stored.name} no longer fits its class",
        type_name=stored.name,
        fields=tuple(fields),
        where=place_of_class(cls),
        **texts,
    )


_MAKERS: dict[Kind, Callable[[Any, Stored], Any]] = {
    Kind.ENUM: _make_enum,
    Kind.MODEL: _make_model,
    Kind.DATACLASS: _make_dataclass,
    Kind.NAMED_TUPLE: _make_named_tuple,
}
