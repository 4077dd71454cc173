"""What ``human_approval.py`` takes for an answer in the terminal."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


ANSWERS: list[tuple[str, tuple[bool, Any, Any] | None]] = [
    ("yes", (True, None, None)),
    (" Y ", (True, None, None)),
    ("no", (False, None, None)),
    ("n", (False, None, None)),
    ("No: too much", (False, None, "too much")),
    ("12.50", (True, {"amount": 12.5}, None)),
    *(
        (text, None)
        for text in (
            "",
            "ye",
            "yes please",
            "it was used",
            "nan",
            "inf",
            "-1",
            "1e9",
            "12,50",
            "0x10",
            "nope",
        )
    ),
]


def test_the_terminal_guesses_nothing() -> None:
    read_answer: Any = importlib.import_module("human_approval").read_answer

    for text, expected in ANSWERS:
        answer = read_answer("r", text)
        answer_parts = None if answer is None else (answer.approved, answer.arguments, answer.reason)
        assert answer_parts == expected, text
