"""``scripts/nightly``: parts, their results, the table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.suite import nightly
from tests.suite.nightly import Night, code_digest, figures_of
from tests.suite.parts import PARTS, PYTEST, Part

ROOT = Path(__file__).parents[2]

PAGE = "before\n<!-- nightly -->\n| `chats` | kept | 7 programs | 1 | a day |\n<!-- end -->\nafter\n"


def python(name: str, code: str) -> Part:
    return Part(name, "something", ("-c", code))


@pytest.fixture
def night(tmp_path: Path) -> Callable[..., Night]:
    """Return a function that makes a night of parts, with a page and results of its own."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    return lambda *parts, code="code": Night(code, parts, tmp_path / "results", page)


def test_the_table_has_the_last_result_of_each_part_and_keeps_other_rows(night: Callable[..., Night]) -> None:
    good = python("good", "print('== 3 passed in 1 s ==')")
    bad = python("bad", "import sys; print('1 failed | 2 passed'); sys.exit(3)")
    tonight = night(good, bad, python("chats", ""), python("never", ""))
    assert nightly.main(["good", "bad"], tonight) == 1
    text = tonight.page.read_text()
    assert text.startswith("before\n<!-- nightly -->\n| part |") and text.endswith("<!-- end -->\nafter\n")
    rows = text.splitlines()[4:-2]
    assert rows[0].startswith("| `good` | something | 3 passed in 1 s | 0.")
    assert rows[1].startswith("| `bad` | something | **failed**: 1 failed / 2 passed | 0.")
    assert rows[2] == "| `chats` | kept | 7 programs | 1 | a day |"
    assert rows[3] == "| `never` | something | | | |"


def test_a_run_repeats_only_what_has_not_passed_with_this_code(
    night: Callable[..., Night], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    note = "import pathlib, sys; p = pathlib.Path({!r}); p.write_text(p.read_text() + {!r}); sys.exit({})"
    notes.write_text("")
    parts = [python("a", note.format(str(notes), "a", 0)), python("b", note.format(str(notes), "b", 1))]
    for arguments, code, status, written in (
        ([], "code", 1, "ab"),
        ([], "code", 1, "abb"),
        (["a"], "code", 0, "abb"),
        (["--again", "a"], "code", 0, "abba"),
        (["a"], "other code", 0, "abbaa"),
    ):
        assert nightly.main(arguments, night(*parts, code=code)) == status
        assert notes.read_text() == written


def test_a_part_that_takes_too_long_is_ended(
    night: Callable[..., Night], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nightly, "LONGEST", 0.2)
    tonight = night(python("slow", "import time; time.sleep(600)"))
    assert nightly.main([], tonight) == 1
    assert "**failed**: ended after" in tonight.page.read_text()


def test_the_command_lists_its_parts_and_rejects_unknown_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert nightly.main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{part.name} " in f"\n{listed}" for part in PARTS)
    with pytest.raises(SystemExit):
        nightly.main(["crahs"])
    assert "no such part: crahs" in capsys.readouterr().err


def test_the_soak_can_be_shorter(capsys: pytest.CaptureFixture[str]) -> None:
    assert nightly.main(["soak", "chats", "--soak-minutes", "16", "--list"]) == 0
    chats, soak = capsys.readouterr().out.splitlines()
    assert soak.endswith("-m tests.soak --json --minutes 16") and "minutes" not in chats


def test_figures_are_the_closing_line_or_those_of_a_report() -> None:
    target = {"part": "ratio", "figure": "of_bare", "measured": 0.55, "at_least": 0.5, "met": True}
    assert figures_of(
        'noise\n{"targets": [' + str(target).replace("'", '"').replace("True", "true") + "]}"
    ) == ("ratio of_bare 0.55 (at least 0.5)")
    assert figures_of('{"seed": 7, "clean": true, "lost": []}') == "seed 7; clean True"
    assert figures_of("a\n== 12 passed in 3 s ==\n== all: exit 0 ==") == "12 passed in 3 s"
    assert (
        figures_of("40 programs from seed 5, 0 failed, 25.6 s\n")
        == "40 programs from seed 5, 0 failed, 25.6 s"
    )
    assert figures_of("nothing known\n") == "nothing known"
    assert figures_of("") == "no output"


def test_the_digest_of_the_code_sees_changes_but_not_the_table(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "tests").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests" / "a.py").write_text("1")
    (tmp_path / "docs" / "a.md").write_text("1")
    git("init")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "a")
    first = code_digest(tmp_path)
    (tmp_path / "docs" / "a.md").write_text("2")
    assert code_digest(tmp_path) == first
    (tmp_path / "tests" / "a.py").write_text("2")
    assert code_digest(tmp_path) != first


def test_names_of_parts_are_unique() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)


@pytest.mark.nightly
def test_each_command_knows_its_options() -> None:
    """A part that no longer starts would only be noticed by night."""
    commands = {part.arguments[1]: part.arguments for part in PARTS if part.arguments[:2] != PYTEST[:2]}
    for name, arguments in commands.items():
        # argparse checks what comes before --help.
        done = subprocess.run(
            [sys.executable, *arguments, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"


def test_each_path_of_a_part_exists() -> None:
    for part in PARTS:
        for path in (argument.removeprefix("--ignore=") for argument in part.arguments):
            assert not path.startswith("tests/") or (ROOT / path).exists(), f"{part.name}: {path}"
