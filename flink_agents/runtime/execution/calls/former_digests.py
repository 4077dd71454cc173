"""Digests of values as former code would have made them, before their classes changed.

A record has the digest of the arguments of a call, and the names of the fields that their classes had. If a
class got a field since, an argument whose new field has its default has the value that it had. If a class was
renamed, and its successor is declared with ``@upgrades``, it is the same class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

from pydantic import BaseModel

from flink_agents.api.durable.upgrades import upgrade_of
from flink_agents.api.errors import StateError
from flink_agents.runtime.serde.canonical import Forms, digest_of_form, tree_of
from flink_agents.runtime.serde.changed import Stored, aliases_of
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.typenames import find_type, stored_name
from flink_agents.runtime.serde.values import own_fields, with_own_form

_MOST_CHOICES = 16
"""The most combinations of former names that are tried, if a class has several."""

_NO_DEFAULT = object()


class _Differs(Exception):
    """An object cannot have been recorded with the former fields."""


def former_digests(codec: ValueCodec, data: bytes, recorded: Mapping[str, Sequence[str]]) -> Iterator[bytes]:
    """Yield the digests that a value may have had when its classes had other names or fewer fields.

    Args:
        codec: Encodes defaults.
        data: The bytes of the value.
        recorded: The names of the fields of each class when the digest was made.
    """
    tree = tree_of(data)
    current = Forms()
    current.form(tree)
    former = {name: _successor_name(name) for name in recorded if name not in current.fields}
    choices = [
        # A class without a former name may be that of a default.
        [name] if name in recorded else [old for old, new in former.items() if new == name] or [""]
        for name in current.fields
    ]
    for names in islice(product(*choices), _MOST_CHOICES):
        forms = _FormerForms(codec, dict(zip(current.fields, names, strict=True)), recorded)
        try:
            yield digest_of_form(forms.form(tree))
        except _Differs:
            continue


class _FormerForms(Forms):
    """Forms of objects with the names and fields that their classes had.

    Args:
        codec: Encodes defaults.
        names: The former names of classes by their present names.
        recorded: The former fields by former name.
    """

    def __init__(
        self, codec: ValueCodec, names: Mapping[str, str], recorded: Mapping[str, Sequence[str]]
    ) -> None:
        super().__init__()
        self._codec = codec
        self._names = names
        self._recorded = recorded

    def object_form(self, stored: Stored) -> bytes:
        """Return the form that an object had.

        Raises:
            _Differs: It has lost a field, or has a new one whose value is not the default.
        """
        name = self._names[stored.name]
        if not name:
            raise _Differs
        former = self._recorded[name]
        cls = find_type(stored.name)
        fields = _under_former_names(cls, stored.fields, former)
        for field in [field for field in fields if field not in former]:
            value = fields.pop(field)
            # What a class keeps to itself is no value that the author passes.
            is_private = field.startswith("_") and isinstance(cls, type) and issubclass(cls, BaseModel)
            if not is_private and field not in stored.unset and not self._is_default(cls, field, value):
                raise _Differs
        if any(field not in fields and not field.startswith("_") for field in former):
            raise _Differs
        return self.form_of_fields(name, fields, stored.extra)

    def _is_default(self, cls: Any, field: str, value: Any) -> bool:
        default = _default_of(cls, field)
        if default is _NO_DEFAULT:
            return False
        try:
            data = self._codec.encode(with_own_form(own_fields(cls).get(field), default))
        except StateError:
            return False
        return Forms().form(tree_of(data)) == Forms().form(value)


def _successor_name(name: str) -> str | None:
    """Return the present name of a recorded class; None if a function takes its place."""
    upgrade = upgrade_of(name)
    cls = find_type(name) if upgrade is None else upgrade
    if not isinstance(cls, type):
        return None
    try:
        return stored_name(cls)
    except StateError:
        return None


def _under_former_names(cls: Any, fields: Mapping[str, Any], former: Sequence[str]) -> dict[str, Any]:
    """Return the fields of an object; a renamed one with its former name as an alias is under that."""
    declared = getattr(cls, "__pydantic_fields__", {}) if isinstance(cls, type) else {}
    under: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in former and name in declared:
            name = next((alias for alias in aliases_of(declared[name]) if alias in former), name)
        under[name] = value
    return under


def _default_of(cls: Any, field: str) -> Any:
    try:
        if issubclass(cls, BaseModel):
            info = cls.__pydantic_fields__[field]
            return _NO_DEFAULT if info.is_required() else info.get_default(call_default_factory=True)
        if dataclasses.is_dataclass(cls):
            declared = cls.__dataclass_fields__[field]
            if declared.default_factory is not dataclasses.MISSING:
                return declared.default_factory()
            return _NO_DEFAULT if declared.default is dataclasses.MISSING else declared.default
        return getattr(cls, "_field_defaults", {}).get(field, _NO_DEFAULT)
    except Exception:  # Code of the class, or a factory that needs the other fields.
        return _NO_DEFAULT
