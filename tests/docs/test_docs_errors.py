"""Each exception has an entry: ``flink-agents explain`` prints it, and ``docs/errors.md`` is the index."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from docs_pages import ROOT, anchors, pages
from typer.testing import CliRunner

from flink_agents.api import errors
from flink_agents.api.errors import AgentsError
from flink_agents.api.errors.base import DOCS_URL
from flink_agents.cli.explain import entries_text, plain_entry, read_entries
from flink_agents.cli.main import app
from tests.error_index import written
from tests.suite.tables import each_case

PAGE = "docs/errors.md"
ENTRIES = "flink_agents/cli/error_entries.md"
CLASSES: list[type[AgentsError]] = sorted(
    (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, AgentsError)),
    key=lambda cls: cls.code,
)
FAILED_ACTION = {
    "agent": "Shop",
    "action": "check",
    "key": 1,
    "sequence_number": 0,
    "event": "_input_event",
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "ActionFailedError": FAILED_ACTION,
    "RetriesExhaustedError": FAILED_ACTION,
    "ActionInterruptedError": FAILED_ACTION,
}


def test_the_entries_are_the_classes() -> None:
    assert len(CLASSES) > 30
    assert list(read_entries()) == [cls.code for cls in CLASSES], f"each class needs an entry in {ENTRIES}"


@each_case("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_entry_describes_the_class(cls: type[AgentsError]) -> None:
    entry = read_entries()[cls.code]
    assert (entry.name, entry.parent) == (cls.__name__, cls.__bases__[0].__name__)
    for label in ("Meaning", "Cause", "Fix"):
        assert re.search(rf"^- {label}: \S.{{20,}}", entry.text, re.MULTILINE), f"{cls.code} has no {label}"


def test_the_page_is_the_index_of_the_entries() -> None:
    assert pages()[PAGE] == written(), "run python -m tests.error_index"


@each_case("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_url_in_the_text_leads_to_the_entry(cls: type[AgentsError]) -> None:
    text = str(cls("it failed", **ARGUMENTS.get(cls.__name__, {})))
    match = re.search(
        rf"\[{cls.code}\] flink-agents explain {cls.code}, or (?P<page>\S+)#(?P<anchor>\S+)$",
        text,
        re.MULTILINE,
    )
    assert match is not None
    assert match["page"] == f"{DOCS_URL}errors.html"
    assert match["anchor"] in anchors(PAGE)


def test_links_in_entries_resolve() -> None:
    for page, anchor in re.findall(r"\]\(([\w-]+\.md)?(?:#([\w-]+))?\)", entries_text()):
        name = f"docs/{page}" if page else PAGE
        assert name in pages(), f"{ENTRIES} links to {page}"
        assert not anchor or anchor in anchors(name), f"{ENTRIES}: no heading {page}#{anchor}"


def test_the_package_names_the_same_site() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["urls"]["Documentation"] == DOCS_URL


@each_case("word", ["FA4001", "fa4001", "4001", "[FA4001]", "ActionFailedError", "actionfailederror"])
def test_explain_prints_an_entry(word: str) -> None:
    done = CliRunner().invoke(app, ["explain", word])
    assert done.exit_code == 0
    assert done.stdout.startswith("FA4001 ActionFailedError (RunError)\n")
    assert all(f"- {label}: " in done.stdout for label in ("Meaning", "Cause", "Fix"))
    assert done.stdout.endswith(f"\n{DOCS_URL}errors.html#fa4001\n")


def test_explain_leaves_no_link_of_a_page() -> None:
    for entry in read_entries().values():
        assert ".md" not in re.sub(r"`[^`]*`|\w+\.md\b(?!\))", "", plain_entry(entry)), entry.code


def test_explain_lists_all_errors() -> None:
    done = CliRunner().invoke(app, ["explain"])
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(read_entries())


@each_case(
    ("word", "hint"), [("ActionFaildError", "Did you mean 'ActionFailedError'?"), ("x", "lists all errors")]
)
def test_explain_of_an_unknown_error(word: str, hint: str) -> None:
    done = CliRunner().invoke(app, ["explain", word])
    assert done.exit_code == 2
    assert f"Unknown error {word!r}." in done.output and hint in done.output
