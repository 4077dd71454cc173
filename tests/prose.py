"""Checks how the documentation is written: words, rates, length of sentences, size of pages.

``python -m tests.prose`` checks README, ``docs/``, the docstrings and messages of the package, comments,
scripts and ``AGENTS.md``, and ``scripts/lint`` runs it. With ``--report`` it also lists what
:data:`OLD_PAGES` allows.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

BANNED = {
    r"anew": "again",
    r"somebody|nobody": "name who acts",
    r"(?:goes|going|went|gone|go) on (?!to\b)": "continue, resume",
    r"under way": "in flight",
    r"side by side": "concurrently, in parallel",
    r"puts? out": "emit",
    r"whole agents? of": "a Pydantic AI agent",
    r"truth value": "bool",
    r"processor time": "CPU time",
    r"stragglers?": "late output",
    r"strays?": "unmatched signal",
    r"in front of": "before, upstream of",
    r"(?:is|are) refused": "is rejected, raises",
    r"told by|tells of": "logs, reports, shows",
    r"all the same": "anyway, or drop it",
    r"that is none": "say what it is not: invalid, empty",
    r"what (?:was|is|were) (?:asked|said|recorded|seen|meant)": "name the thing: requests, messages, records",
    r"asked agents?": "sub-agent",
    r"one's own": "your own",
}
"""Words that a reader has to decode, and what to write."""

CODE_BANNED = {
    r"(?:is|are) given something else(?: than)?": "got a value that is not ...",
    r"that there is not": "unknown",
    r"says? (?:what|which|whether|nothing)": "name the thing: defines, lists, reports",
    r"not? any ?more": "no longer",
    r"so many": "the number",
    r"where (?:there|it) (?:is|are|has) (?:none|no)": "if there is none",
    r"whoever": "name who acts",
    r"(?:everybody|anybody)": "name who acts",
}
"""Further words that docstrings and messages must not have."""

OPENING = re.compile(
    r"\s*(?:Returns? |Tells? |Says? )?(?:what|whether|where|how|who|which|why)\b", re.IGNORECASE
)
"""The first words of a docstring that names no object, such as "Return what ..." or "Whether ..."."""

RATES = {
    "if": (20, None),
    "you|your": (40, None),
    "where": (None, 12),
    "behind": (None, 2),
}
"""Words per 10,000 words of prose: at least, and at most."""

LONGEST_SENTENCE = 35
USER_WORDS = 35_000
DESIGN_WORDS = 20_000
README_LINES = 140
"""Budgets of all pages together. They only go down: the goal was 35,000 and 20,000 words."""

OLD_PAGES: set[str] = set()
"""Pages that are not rewritten yet: they are reported, and neither fail nor count for the rates."""

NOT_PROSE = {"docs/cli.md", "docs/metrics.md", "docs/performance.md", "docs/design/glossary.md"}
"""Pages that are generated, or that list words."""

_FENCE = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)
_NOISE = re.compile(r"`[^`]*`|\]\([^)]*\)|^\|.*$|<[^>]+>", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z*`\[(])|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s|\n#+ ")


@dataclass(frozen=True)
class Finding:
    """A place that reads badly."""

    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


def pages() -> dict[str, str]:
    """Text of each page for users and of each design page, by path."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files}


def prose(text: str) -> str:
    """The text without code; lines keep their numbers."""
    return _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)


def banned(place: str, text: str, table: dict[str, str] = BANNED) -> Iterator[Finding]:
    """Each word of a table in a text."""
    for number, line in enumerate(re.sub(r"`[^`\n]*`", "``", text).splitlines(), 1):
        for word, better in table.items():
            for match in re.finditer(rf"\b(?:{word})\b", line, re.IGNORECASE):
                yield Finding(f"{place}:{number}", f"{match[0].strip()!r}: write {better}")


def long_sentences(place: str, text: str) -> Iterator[Finding]:
    """Each sentence that is too long."""
    for sentence in _SENTENCE.split(re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)):
        words = len(sentence.split())
        if words > LONGEST_SENTENCE:
            yield Finding(place, f"{words} words in a sentence: {' '.join(sentence.split()[:9])} ...")


def wrong_rates(text: str) -> Iterator[Finding]:
    """Each word that is too rare or too frequent in all pages together."""
    plain = _NOISE.sub(" ", text)
    total = max(1, len(plain.split()))
    for word, (least, most) in RATES.items():
        rate = 10_000 * len(re.findall(rf"\b(?:{word})\b", plain, re.IGNORECASE)) / total
        if (least is not None and rate < least) or (most is not None and rate > most):
            yield Finding(
                "all pages", f"{word!r}: {rate:.0f} in 10,000 words, wanted {least or 0} to {most or 'any'}"
            )


def sizes(texts: dict[str, str]) -> Iterator[Finding]:
    """What is longer than its budget."""
    design = sum(len(text.split()) for page, text in texts.items() if "/design/" in page)
    users = sum(len(text.split()) for page, text in texts.items() if "/design/" not in page)
    if users > USER_WORDS:
        yield Finding("pages for users", f"{users} words, at most {USER_WORDS}")
    if design > DESIGN_WORDS:
        yield Finding("docs/design", f"{design} words, at most {DESIGN_WORDS}")
    lines = len(texts["README.md"].splitlines())
    if lines > README_LINES:
        yield Finding("README.md", f"{lines} lines, at most {README_LINES}")


def code_words() -> Iterator[Finding]:
    """Old words in docstrings and messages of the package, and docstrings that name no object."""
    for file in sorted((ROOT / "flink_agents").rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                place = f"{file.relative_to(ROOT)}:{node.lineno}"
                for table in (BANNED, CODE_BANNED):
                    yield from (Finding(place, finding.text) for finding in banned(place, node.value, table))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                opening = OPENING.match(str(node.value.value))
                if opening:
                    place = f"{file.relative_to(ROOT)}:{node.lineno}"
                    yield Finding(place, f"{opening[0].strip()!r}: begin with a verb or the thing itself")


def comments() -> Iterator[tuple[str, str]]:
    """Place and text of each comment in code that readers see, of each line of a script, and of AGENTS.md."""
    for folder in ("flink_agents", "examples", "benchmarks"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            with file.open("rb") as source:
                for token in tokenize.tokenize(source.readline):
                    if token.type == tokenize.COMMENT:
                        yield f"{file.relative_to(ROOT)}:{token.start[0]}", token.string
    for file in (*sorted((ROOT / "scripts").iterdir()), ROOT / ".ci" / "run", ROOT / "AGENTS.md"):
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            yield f"{file.relative_to(ROOT)}:{number}", line


def main(arguments: list[str]) -> int:
    """Check, print what is found, and return the exit code."""
    texts = pages()
    checked = {page: prose(text) for page, text in texts.items() if page not in OLD_PAGES | NOT_PROSE}
    findings = [
        finding
        for page, text in checked.items()
        for finding in (*banned(page, text), *long_sentences(page, text))
    ]
    findings += wrong_rates("\n".join(checked.values()))
    waiting: list[Finding] = []
    findings += sizes(texts)
    findings += code_words()
    for place, text in comments():
        findings += [
            Finding(place, finding.text)
            for table in (BANNED, CODE_BANNED)
            for finding in banned("", text, table)
        ]
    print(*findings, sep="\n", end="\n" if findings else "")
    if "--report" in arguments:
        for page in sorted(OLD_PAGES):
            waiting += (*banned(page, prose(texts[page])), *long_sentences(page, prose(texts[page])))
        print("not fatal yet:", *waiting, sep="\n")
    print(
        f"prose: {len(findings)} findings in {len(checked)} pages, the package, comments and scripts; "
        f"{len(OLD_PAGES)} pages are not rewritten yet"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
