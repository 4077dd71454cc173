"""Makes the README readable on a package index, which has no other file of the repository."""

import re
from pathlib import Path

from setuptools import setup

SITE = "https://flink-agents-python.readthedocs.io/latest/"
"""Where the files of ``docs`` are; ``[project.urls]`` has the same address."""


def to_index(text: str) -> str:
    """Return a README whose links lead to the documentation; those to other files are plain text."""
    text = re.sub(r"\]\(docs/([\w./-]+)\.md(#[\w-]+)?\)", rf"]({SITE}\1.html\2)", text)
    text = re.sub(r"\]\(docs/([^)]+)\)", rf"]({SITE}\1)", text)
    return re.sub(r"(?<!!)\[([^][]*)\]\((?!https?://|#)[^)]*\)", r"\1", text)


if __name__ == "__main__":
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(long_description=to_index(readme), long_description_content_type="text/markdown")
