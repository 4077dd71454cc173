"""Links, file names and mentions of pages lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import PurePosixPath

from docs_pages import ROOT, anchors, links, pages, prose

from tests.suite.tables import each_case

PAGES = sorted(pages())

_FILE = re.compile(r"`((?:flink_agents|docs|tests|examples|benchmarks|scripts|requirements)/[\w./-]*)`")
_ABSOLUTE = re.compile(r"(?<![\w.])/(?:home|root|work|usr|opt|Users)/")


def resolve(page: str, target: str) -> tuple[str, str]:
    """Path relative to the root, and anchor, of a link on ``page``."""
    path, _, anchor = target.partition("#")
    if not path:
        return page, anchor
    file = (ROOT / PurePosixPath(page).parent / path).resolve()
    return file.relative_to(ROOT).as_posix(), anchor


@each_case("page", PAGES)
def test_links_resolve(page: str) -> None:
    for target in links(page):
        if target.startswith("https://"):
            continue
        path, anchor = resolve(page, target)
        assert (ROOT / path).exists(), f"{page}: no file for {target}"
        if anchor:
            assert anchor in anchors(path), f"{page}: no heading for {target}"


@each_case("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    for name in _FILE.findall(prose(page)):
        assert (ROOT / name).exists(), f"{page} names {name}"


@each_case("page", PAGES)
def test_no_path_of_a_machine(page: str) -> None:
    assert not _ABSOLUTE.search(pages()[page])


def test_every_page_can_be_reached_from_the_index() -> None:
    reached = {"README.md"}
    waiting = ["README.md"]
    while waiting:
        page = waiting.pop()
        for target in links(page):
            path = resolve(page, target)[0] if "://" not in target else page
            if path in pages() and path not in reached:
                reached.add(path)
                waiting.append(path)
    assert sorted(reached) == PAGES
    assert "docs/index.md" in reached


def test_pages_that_the_code_names_exist() -> None:
    mention_count = 0
    for file in ROOT.glob("flink_agents/**/*.py"):
        for path in re.findall(r"docs/[\w/]+\.md", file.read_text(encoding="utf-8")):
            assert path in pages(), f"{file.relative_to(ROOT)} names {path}"
            mention_count += 1
    assert mention_count > 3


def test_the_readme_has_each_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    section = pages()["README.md"].partition("## Install")[2].partition("\n## ")[0]
    named = re.findall(r"^- (`.*)$", section, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(named))) == sorted(extras)
