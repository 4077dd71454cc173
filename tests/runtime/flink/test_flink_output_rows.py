"""Outputs as rows of tables: an output that lacks a column is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyflink.common import Row

from flink_agents.api.errors import UnsupportedTableError
from flink_agents.runtime.flink.values.rows import ToRow

COLUMNS = ["name", "amount"]


@pytest.mark.parametrize(
    "output", [{"name": "tea"}, {}, None, "tea", 5, SimpleNamespace(name="tea")], ids=repr
)
def test_an_output_without_a_column(output: Any) -> None:
    with pytest.raises(UnsupportedTableError, match="an output has no column '(name|amount)'"):
        ToRow(COLUMNS)(output)


def test_a_dict_is_no_cell_of_the_only_column() -> None:
    with pytest.raises(UnsupportedTableError, match="an output has no column 'name'"):
        ToRow(["name"])({"other": 1})


@pytest.mark.parametrize(
    "output", [{"name": "tea", "amount": None, "more": 1}, SimpleNamespace(name="tea", amount=None)]
)
def test_an_output_with_all_columns(output: Any) -> None:
    assert ToRow(COLUMNS)(output) == Row("tea", None)


@pytest.mark.parametrize("output", [None, 5, "tea", ("a", "b")])
def test_the_only_cell(output: Any) -> None:
    assert ToRow(["output"])(output) == Row(output)
