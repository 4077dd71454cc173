"""The reference lists each public name, and the site finds what it shows for each."""

from __future__ import annotations

import importlib
import pydoc
import runpy
from collections import Counter

from docs_pages import ROOT, pages

from tests.suite.tables import each_case

PUBLIC_PATHS: list[str] = list(
    runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))["public_paths"](pages()["docs/reference.md"])
)
MODULES = (
    "flink_agents",
    "flink_agents.connectors.kafka",
    "flink_agents.testing",
    "flink_agents.testing.models",
)


@each_case("module_name", MODULES)
def test_the_reference_has_each_public_name(module_name: str) -> None:
    module = importlib.import_module(module_name)
    listed = [pydoc.locate(path) for path in PUBLIC_PATHS]
    missing = [name for name in module.__all__ if not any(getattr(module, name) is item for item in listed)]
    assert missing == []


def test_names_of_the_reference_exist_and_are_listed_once() -> None:
    assert [path for path in PUBLIC_PATHS if pydoc.locate(path) is None] == []
    assert [path for path, count in Counter(PUBLIC_PATHS).items() if count > 1] == []
    assert len(PUBLIC_PATHS) > 90
