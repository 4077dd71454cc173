"""Filters and documents that no store could keep are refused before one is asked."""

from __future__ import annotations

from typing import Any

import pytest

from flink_agents.api.errors import DocumentError, VectorFilterError
from flink_agents.api.models.vector_filters import both_filters, matches, parse_filter
from flink_agents.api.vector_store import Document, check_document


def nested(depth: int) -> dict[str, Any]:
    filter: dict[str, Any] = {"a": 1}
    for _ in range(depth):
        filter = {"$and": [filter]}
    return filter


@pytest.mark.parametrize(
    ("filter", "found"),
    [
        ([], "[]"),
        ({"$not": {"a": 1}}, "'$not'"),
        ({"": 1}, "''"),
        ({1: 1}, "1"),
        ({"a": None}, "None"),
        ({"a": [1]}, "[1]"),
        ({"a": float("nan")}, "nan"),
        ({"a": 2**63}, str(2**63)),
        ({"a": {}}, "an empty mapping"),
        ({"a": {"$like": "x"}}, "'$like'"),
        ({"a": {"$gt": "x"}}, "'x'"),
        ({"a": {"$gt": True}}, "True"),
        ({"a": {"$in": "abc"}}, "'abc'"),
        ({"a": {"$in": [None]}}, "None"),
        ({"a": "\ud800"}, repr("\ud800")),
        ({"$or": {"a": 1}}, "{'a': 1}"),
        ({"$or": [1]}, "1"),
        ({"a": {"$in": list(range(201))}}, "201 conditions"),
        (nested(21), "more"),
        (nested(5000), "more"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_what_is_no_filter_is_refused(filter: Any, found: str) -> None:
    with pytest.raises(VectorFilterError) as caught:
        parse_filter(filter)
    assert caught.value.found == found


def test_filters_within_bounds_are_taken() -> None:
    assert matches(parse_filter(nested(20)), {"a": 1})
    assert matches(parse_filter({"a": {"$in": list(range(200))}}), {"a": 199})
    assert matches(parse_filter(None), {})


@pytest.mark.parametrize(("first", "second"), [({"a": 1}, {"a": 2}), ({"a": 1}, None), (None, {"a": 1})])
def test_both_filters(first: Any, second: Any) -> None:
    metadata = {"a": 1}
    expected = all(matches(parse_filter(condition), metadata) for condition in (first, second))
    assert matches(parse_filter(both_filters(first, second)), metadata) == expected


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (Document("x"), "no id"),
        (Document("\ud800", "a"), "UTF-8"),
        (Document("x", "\ud800"), "UTF-8"),
        (Document(None, "a", {"n": None}), "at 'n'"),  # pyright: ignore[reportArgumentType]
        (Document("x", "a", {"n": [1]}), "at 'n'"),  # pyright: ignore[reportArgumentType]
        (Document("x", "a", {"n": float("inf")}), "at 'n'"),
        (Document("x", "a", {"n": -(2**63) - 1}), "at 'n'"),
        (Document("x", "a", {"$n": 1}), "'$n'"),
        (Document("x", "a", {"": 1}), "''"),
        (Document("x", "a", {"n": "\ud800"}), "UTF-8"),
        (Document(b"x", "a"), "is not a string"),  # pyright: ignore[reportArgumentType]
        (Document("x", "a", {}, (1.0, float("nan"))), "embedding"),
    ],
)
def test_what_is_no_document_is_refused(given: Document, found: str) -> None:
    with pytest.raises(DocumentError) as caught:
        check_document(given)
    assert found in str(caught.value)
