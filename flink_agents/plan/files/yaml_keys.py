"""The valid keys of an entry in a YAML file, for errors about unknown ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel


def keys_at(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Return the keys of the entry at ``location``, as the file spells them; empty if they are unknown.

    Args:
        model: The model of the whole file.
        location: Keys and indexes that lead to the entry.
    """
    at: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        found = [one for name, one in _fields(at) if name == part]
        inner = list(_models(found[0])) if found else []
        if len(inner) != 1:
            return []
        at = inner[0]
    return [name for name, _ in _fields(at)]


def _fields(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a model or dataclass, as the file spells them, and their annotations."""
    for name, field in model.__pydantic_fields__.items():
        yield field.alias or name, field.annotation


def _models(annotation: Any) -> Iterator[Any]:
    """Yield the models in an annotation, such as the one of ``list[ActionEntry] | None``."""
    if hasattr(annotation, "__pydantic_fields__"):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
