"""Makes values of classes from their stored fields, even if the class has changed since they were stored.

Fields that still fit are used: new fields get their defaults, and a value whose declared type has changed is
converted as Pydantic converts it. Nothing is guessed: the error names the class, the field
and the fix, which is ``@upgrades``.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError

from flink_agents.api.common.places import place_of_class
from flink_agents.api.durable.upgrades import Upgrade, place_of_upgrade, upgrade_of
from flink_agents.api.errors import StateError, UpgradeFailedError, ValueChangedError
from flink_agents.runtime.serde.declared_types import strict_adapter
from flink_agents.runtime.serde.tracebacks import innermost_place, text_of
from flink_agents.runtime.serde.typenames import Kind, kind_of, resolve_type, shorten


@dataclasses.dataclass(frozen=True)
class Stored:
    """The stored form of a value of a class.

    Attributes:
        name: The class, ``module:Name``.
        kind: The kind of the class when the value was stored.
        fields: The fields by name; none of an enum.
        member: The name of an enum's member, or the value of a combination of flags.
        private: Private attributes of a model.
        unset: Fields of a model that had their default.
        same: Returns the fields whose type in a class is unchanged. Default: all fields are checked.
    """

    name: str
    kind: Kind
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    member: Any = None
    private: Any = None
    unset: Iterable[str] = ()
    same: Callable[[type], frozenset[str]] = lambda cls: frozenset()


def read_changed(stored: Stored, known: type | None = None) -> Any:
    """Return a value whose class has changed.

    Args:
        stored: The stored value.
        known: The class, if its name does not resolve to it.

    Raises:
        UnknownTypeNameError: The class is gone, and no ``@upgrades`` takes over its values.
        ValueChangedError: The value does not fit its class.
        UpgradeFailedError: The function that takes over its values raised.
    """
    upgrade = upgrade_of(stored.name)
    if upgrade is not None and not isinstance(upgrade, type):
        return _upgraded(upgrade, stored)
    cls = upgrade or known or resolve_type(stored.name)
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
    try:
        made = upgrade(stored.member if stored.kind is Kind.ENUM else dict(stored.fields))
    except Exception as error:
        raise UpgradeFailedError(
            f"the upgrade of a stored {stored.name} raised {type(error).__name__}: {text_of(error)}",
            found=_stored_text(stored),
            fix="let the function handle these stored fields",
            where=innermost_place(error) or place_of_upgrade(upgrade),
        ) from error
    if made is None or inspect.iscoroutine(made):
        if made is not None:
            made.close()
        raise UpgradeFailedError(
            f"the upgrade of a stored {stored.name} returned no value",
            expected="the new value, from a plain function",
            found="None" if made is None else "a coroutine",
            fix="return the new value; write it with def",
            where=place_of_upgrade(upgrade),
        )
    return made


# -- enums ---------------------------------------------------------------------------


def _make_enum(cls: Any, stored: Stored) -> Any:
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
    """Return a model with these fields, without validating them again."""
    made = cls.__new__(cls)
    if extra is None and cls.model_config.get("extra") == "allow":
        extra = {}
    if private is None and cls.__private_attributes__:
        private = {}
    made.__setstate__(
        {
            "__dict__": fields,
            "__pydantic_fields_set__": (fields.keys() | (extra or {}).keys()) - set(unset),
            "__pydantic_extra__": extra,
            "__pydantic_private__": private,
        }
    )
    return made


def _make_model(cls: type[BaseModel], stored: Stored) -> Any:
    fields = stored.fields
    content = fields.get("root") if cls.__pydantic_root_model__ and set(fields) == {"root"} else dict(fields)
    try:
        made = cls.model_validate(content, by_name=True)
    except ValidationError as error:
        raise _misfits(stored, cls, error) from error
    _check_renamed(cls, made, stored)
    if stored.private and made.__pydantic_private__ is not None:
        known = made.__private_attributes__
        made.__pydantic_private__.update(
            {name: item for name, item in stored.private.items() if name in known}
        )
    made.model_fields_set.difference_update(stored.unset)
    return made


def _check_renamed(cls: type[BaseModel], made: BaseModel, stored: Stored) -> None:
    """Reject dropping a stored field while another one gets its default: it may have been renamed."""
    known = cls.__pydantic_fields__
    if cls.__pydantic_root_model__ or made.model_extra is not None:
        return
    dropped = _dropped(cls, stored)
    new = [name for name in known if name not in made.model_fields_set]
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
    known = cls.__pydantic_fields__
    taken = {alias for field in known.values() for alias in _aliases(field)}
    return [name for name in stored.fields if name not in known and name not in taken]


def _aliases(field: Any) -> Iterator[str]:
    for alias in (field.alias, field.validation_alias):
        for one in alias.choices if isinstance(alias, AliasChoices) else [alias]:
            first = one.path[0] if isinstance(one, AliasPath) else one
            if isinstance(first, str):
                yield first


def _misfits(stored: Stored, cls: type[BaseModel], error: ValidationError) -> ValueChangedError:
    problems = error.errors(include_url=False, include_context=False)
    of: dict[str, list[str]] = {"missing": [], "extra_forbidden": [], "type": []}
    texts: list[str] = []
    for one in problems:
        place = ".".join(map(str, one["loc"])) or "the value"
        of[one["type"] if one["type"] in of else "type"].append(place)
        texts.append(
            f"{place}: {one['msg']}" + ("" if one["type"] in of else f", not {shorten(one['input'])}")
        )
    missing, unknown = of["missing"], of["extra_forbidden"] or _dropped(cls, stored)
    if unknown != of["extra_forbidden"]:
        texts += [f"{name}: the class no longer has it" for name in unknown]
    return _changed(
        stored,
        cls,
        [*missing, *unknown, *of["type"]],
        expected=f"the fields {', '.join(cls.__pydantic_fields__)}",
        found="; ".join(texts),
        fix=_fix_of(stored.name, missing, unknown),
    )


# -- dataclasses and named tuples ----------------------------------------------------


def remake_dataclass(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return a dataclass instance with these fields."""
    takes = {field.name for field in dataclasses.fields(cls) if field.init}
    made = cls(**{name: value for name, value in values.items() if name in takes})
    # The stored fields already include the work of __post_init__.
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _make_dataclass(cls: Any, stored: Stored) -> Any:
    known = {field.name: field for field in dataclasses.fields(cls)}
    needed = [
        name
        for name, field in known.items()
        if field.init and field.default is field.default_factory is dataclasses.MISSING
    ]
    _check_names(cls, stored, list(known), needed)
    return remake_dataclass(cls, _converted(cls, stored))


def _make_named_tuple(cls: Any, stored: Stored) -> Any:
    defaults = getattr(cls, "_field_defaults", {})
    _check_names(cls, stored, cls._fields, [name for name in cls._fields if name not in defaults])
    return cls(**_converted(cls, stored))


def _check_names(cls: type, stored: Stored, known: Iterable[str], needed: Iterable[str]) -> None:
    missing = [name for name in needed if name not in stored.fields]
    unknown = [name for name in stored.fields if name not in set(known)]
    found = [f"it has no {name!r}" for name in missing]
    found += [f"the class no longer has {name!r}" for name in unknown]
    if found:
        raise _changed(
            stored,
            cls,
            [*missing, *unknown],
            expected=f"the fields {', '.join(known)}",
            found="; ".join(found),
            fix=_fix_of(stored.name, missing, unknown),
        )


def _converted(cls: type, stored: Stored) -> dict[str, Any]:
    """Return the stored fields; those whose type has changed are converted."""
    fields = dict(stored.fields)
    to_check = fields.keys() - stored.same(cls)
    if not to_check:
        return fields
    hints = _hints_of(cls)
    for name in to_check & hints.keys():
        try:
            fields[name] = strict_adapter(hints[name]).validate_python(fields[name])
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            raise _changed(
                stored,
                cls,
                [name],
                expected=f"{name}: {_type_text(hints[name])}",
                found=f"{name}: {problems[0]['msg']}, not {shorten(fields[name])}",
                fix=_fix_of(stored.name),
            ) from error
        except Exception:
            continue  # Pydantic cannot describe such values.
    return fields


def _hints_of(cls: type) -> dict[str, Any]:
    """Return the declared types of fields, as far as their names can be resolved."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:
        found: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            names = dict(vars(sys.modules.get(base.__module__, object)))
            for name, declared in inspect.get_annotations(base).items():
                try:
                    found[name] = eval(declared, names) if isinstance(declared, str) else declared
                except Exception:
                    found.pop(name, None)
        return found


# -- texts ---------------------------------------------------------------------------


def _type_text(declared: Any) -> str:
    return getattr(declared, "__qualname__", None) or str(declared)


def _stored_text(stored: Stored) -> str:
    return shorten(stored.member) if stored.kind is Kind.ENUM else shorten(dict(stored.fields))


def _fix_of(name: str, missing: Iterable[str] = (), unknown: Iterable[str] = ()) -> str:
    new, old = ", ".join(missing), ", ".join(unknown)
    function = f"a function with @upgrades({name!r})"
    if new and old:
        return f"if {old} was renamed to {new}, convert it in {function}; otherwise keep the field"
    if new:
        return f"add a default for {new}, or return the new value from {function}"
    if old:
        return f"keep {old}, or drop it in {function}"
    return f"keep the type of the field, or convert the stored value in {function}"


def _changed(stored: Stored, cls: type, fields: Iterable[str] = (), **texts: Any) -> ValueChangedError:
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
