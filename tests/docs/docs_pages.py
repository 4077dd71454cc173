"""Reads the pages of the documentation: snippets, headings, links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP_PAGES = ("README.md", "CHANGELOG.md", "AGENTS.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md")

_FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (?P<name>[\w/-]+\.(?:py|yaml))\n")
_HEADING = re.compile(r"^#{1,6} (?P<title>.+?)\s*$", re.MULTILINE)
_LINK = re.compile(r"\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page.

    Attributes:
        page: The page, relative to the root of the repository.
        line: Line of the page at which the text begins.
        language: What stands behind the fence.
        text: The text.
        expected: The ``text`` block that follows at once: what the snippet prints.
    """

    page: str
    line: int
    language: str
    text: str
    expected: str | None

    @property
    def id(self) -> str:
        """Page and line, for names of tests."""
        return f"{self.page}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The name in the first line, ``# greetings.py``: the snippet is that file."""
        match = _FILE_NAME.match(self.text)
        return match["name"] if match else None

    @property
    def module_name(self) -> str:
        """The name under which the snippet runs; unique where it is no file."""
        if self.file_name is not None:
            return self.file_name.rpartition(".")[0].replace("/", ".")
        return "docs_" + re.sub(r"\W", "_", self.id)

    @property
    def starts_flink(self) -> bool:
        """Whether the snippet runs a job."""
        return self.language == "python" and "get_execution_environment" in self.text


@cache
def pages() -> dict[str, str]:
    """Text of each page by its path relative to the root."""
    files = [
        *(ROOT / name for name in TOP_PAGES),
        *ROOT.glob("docs/**/*.md"),
    ]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in sorted(files)}


@cache
def snippets(language: str) -> tuple[Snippet, ...]:
    """All snippets of a language."""
    return tuple(snippet for page in pages() for snippet in snippets_of(page) if snippet.language == language)


@cache
def snippets_of(page: str) -> tuple[Snippet, ...]:
    """All snippets of a page, in order."""
    text = pages()[page]
    fences = list(_FENCE.finditer(text))
    page_snippets: list[Snippet] = []
    for index, fence in enumerate(fences):
        following = fences[index + 1] if index + 1 < len(fences) else None
        adjacent = following is not None and not text[fence.end() : following.start()].strip()
        expected = following["text"] if following and adjacent and following["language"] == "text" else None
        line = text.count("\n", 0, fence.start("text")) + 1
        page_snippets.append(Snippet(page, line, fence["language"], fence["text"], expected))
    return tuple(page_snippets)


def prose(page: str) -> str:
    """The page without its fenced blocks; lines keep their numbers."""
    return _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), pages()[page])


def anchors(page: str) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    slugs: set[str] = set()
    for heading in _HEADING.finditer(prose(page)):
        slug = re.sub(r"[^\w\- ]", "", heading["title"].lower()).replace(" ", "-")
        assert slug not in slugs, f"{page}: two headings {heading['title']!r}"
        slugs.add(slug)
    return slugs


def links(page: str) -> Iterator[str]:
    """Targets of all links."""
    for link in _LINK.finditer(prose(page)):
        yield link["target"]


def checks_something(text: str) -> bool:
    """Whether running the Python code ``text`` runs an assertion.

    Assertions count at the top level of the module and in functions ``test_...``.
    """
    return any(_asserts(statement) for statement in ast.parse(text).body)


def _asserts(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.ClassDef | ast.AsyncFunctionDef):
        return False
    if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("test_"):
        return False
    return any(isinstance(node, ast.Assert) or _is_raises(node) for node in ast.walk(statement))


def _is_raises(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any("raises(" in ast.unparse(item) for item in node.items)
