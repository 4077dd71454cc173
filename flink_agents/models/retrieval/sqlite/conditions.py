"""Filters as SQL: the rows of a collection that a filter matches."""

from __future__ import annotations

from typing import Any

from flink_agents.api.models.vector_filters import AllOf, AnyOf, Condition, Parsed
from flink_agents.api.vector_store import Scalar

_COMPARISONS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def field_of(value: Scalar) -> tuple[str, Scalar]:
    """Return kind (``b``, ``s`` or ``n``) and value of a metadata entry, as in the table ``fields``."""
    if isinstance(value, bool):
        return "b", int(value)
    return ("s", value) if isinstance(value, str) else ("n", value)


def rows_of(parsed: Parsed, collection: int) -> tuple[str, list[Any]]:
    """Return a statement that selects the rows of the documents that a filter matches, and its parameters.

    Args:
        parsed: The filter.
        collection: Id of the collection in the file.
    """
    if isinstance(parsed, Condition):
        return _translate_condition(parsed, collection)
    if not parsed.parts:
        return (
            _select_all(collection) if isinstance(parsed, AllOf) else ("SELECT row FROM fields WHERE 0", [])
        )
    return _join_conditions(parsed, collection)


def _join_conditions(parsed: AllOf | AnyOf, collection: int) -> tuple[str, list[Any]]:
    """Join the conditions of one level as sets, so that a statement is nested no deeper than its filter."""
    connective = " AND " if isinstance(parsed, AllOf) else " OR "
    tests: list[str] = []
    parameters: list[Any] = [collection]
    for part in parsed.parts:
        part_statement, part_parameters = rows_of(part, collection)
        tests.append(f"row IN ({part_statement})")
        parameters += part_parameters
    return f"SELECT row FROM documents WHERE collection = ? AND ({connective.join(tests)})", parameters


def _translate_condition(condition: Condition, collection: int) -> tuple[str, list[Any]]:
    """Return the statement of one comparison. A document without the field is unequal to each value."""
    kind, value = field_of(condition.value)
    template = "SELECT row FROM fields WHERE collection = ? AND name = ? AND kind = ? AND value {} ?"
    parameters: list[Any] = [collection, condition.field, kind, value]
    if condition.operator in _COMPARISONS:
        return template.format(_COMPARISONS[condition.operator]), parameters
    equal = template.format("=")
    if condition.operator == "$eq":
        return equal, parameters
    rows, row_parameters = _select_all(collection)
    return f"{rows} AND row NOT IN ({equal})", [*row_parameters, *parameters]


def _select_all(collection: int) -> tuple[str, list[Any]]:
    return "SELECT row FROM documents WHERE collection = ?", [collection]
