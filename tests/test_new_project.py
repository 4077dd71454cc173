"""``flink-agents new``: what it writes, and what it refuses. The wheel's tests run a project of it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flink_agents.api.errors import SetupError
from flink_agents.cli.project.new import names_of, write_project

LINES = ("--line-length", "110")


@pytest.mark.parametrize(
    ("name", "module", "agent"),
    [
        ("my-agent", "my_agent", "MyAgent"),
        ("reviews", "reviews", "ReviewsAgent"),
        ("fraud_2", "fraud_2", "Fraud2Agent"),
    ],
)
def test_names_follow_from_the_directory(name: str, module: str, agent: str) -> None:
    names = names_of(name)
    assert (names.name, names.module, names.agent) == (name, module, agent)


@pytest.mark.parametrize(
    "name", ["My Agent", "2nd", "a--b", "class", "json", "agent", "flink-agents", "job", ""]
)
def test_a_name_that_serves_no_module_is_refused(name: str) -> None:
    with pytest.raises(SetupError, match="flink-agents new "):
        names_of(name)


def test_a_keyword_is_named_as_one() -> None:
    with pytest.raises(SetupError) as caught:
        names_of("class")
    assert caught.value.expected == "a name that is not a keyword of Python"
    assert caught.value.fix == "flink-agents new class-agent"


BASIC = ["README.md", "reviews.py", "job.py", "tests/test_reviews.py", "pyproject.toml", ".gitignore"]
SUPPORT = [*BASIC[:3], "topics.py", "offline_model.py", "demo.py", *BASIC[3:], "flink-agents.toml"]


@pytest.mark.parametrize(("template", "names"), [("basic", BASIC), ("support", SUPPORT)])
def test_the_project_is_complete_and_clean(tmp_path: Path, template: str, names: list[str]) -> None:
    files = write_project(tmp_path / "reviews", template)
    assert [file.relative_to(tmp_path / "reviews").as_posix() for file in files] == names
    shells = {"$PWD/.venv/bin:$PATH"}
    for file in files:
        assert set(re.findall(r"\$[^\s\"]+", file.read_text())) <= shells
    for file in files:
        if file.suffix == ".py":
            assert ast.get_docstring(ast.parse(file.read_text()))
    project = tomllib.loads((tmp_path / "reviews" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "reviews"
    modules = {f"{name}.py" for name in project["tool"]["setuptools"]["py-modules"]}
    assert modules == {name for name in names if name.endswith(".py") and "/" not in name}
    ruff = Path(sys.executable).with_name("ruff")
    for check in (["check", "--select", "E,F,W,I,UP,B", *LINES], ["format", "--diff", *LINES]):
        done = subprocess.run(
            [str(ruff), *check[:1], "--isolated", *check[1:], "."],
            cwd=tmp_path / "reviews",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_template_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="did you mean 'support'") as caught:
        write_project(tmp_path / "reviews", "suport")
    assert caught.value.expected == "basic, support"
    assert not (tmp_path / "reviews").exists()


def test_the_support_desk_passes_its_tests_with_crashes(tmp_path: Path) -> None:
    write_project(tmp_path / "help-desk", "support")
    environment = {name: text for name, text in os.environ.items() if name != "FLINK_AGENTS_TEST_MODE"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "help-desk",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_what_is_there_stays(tmp_path: Path) -> None:
    write_project(tmp_path / "reviews")
    (tmp_path / "reviews" / "reviews.py").write_text("# mine\n")
    with pytest.raises(SetupError, match="already exists. It was not changed"):
        write_project(tmp_path / "reviews")
    assert (tmp_path / "reviews" / "reviews.py").read_text() == "# mine\n"


def test_an_empty_directory_and_the_present_one_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reviews").mkdir()
    monkeypatch.chdir(tmp_path / "reviews")
    assert write_project(Path("."))[1] == Path("reviews.py")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot be written"):
        write_project(tmp_path / "file" / "reviews")
