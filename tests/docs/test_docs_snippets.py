"""Every snippet of the documentation does what the page says."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from docs_pages import Snippet, checks_something, snippets, snippets_of

from flink_agents import Configuration
from flink_agents.plan import compile_agent, load_yaml
from tests.suite.tables import each_case

Run = Callable[[Snippet], str]

PYTHON = snippets("python")
PARTS = snippets("py")
"""Python that needs a broker or a cluster: only its names are checked."""
YAML = snippets("yaml")


def parameters(found: tuple[Snippet, ...]) -> list[Any]:
    """One test for each snippet; those that start Flink are marked."""
    mark = pytest.mark.minicluster
    return [
        pytest.param(snippet, id=snippet.id, marks=[mark] if snippet.starts_flink else [])
        for snippet in found
    ]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that modules are imported from; what was imported is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def run(
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Run:
    """A function that runs a Python snippet as its reader would, and returns what it printed."""

    def execute(snippet: Snippet) -> str:
        write_files(workspace, snippet.page)
        name = "__main__" if snippet.starts_flink else snippet.module_name
        if not snippet.starts_flink:
            monkeypatch.chdir(workspace)
        path = workspace / (snippet.file_name or f"{snippet.module_name}.py")
        path.write_text(snippet.text, encoding="utf-8")
        if snippet.starts_flink and needs_modules(snippet):
            return printed_by(path)
        module = ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)
        # A script may read its first argument, which must not be one of pytest's.
        monkeypatch.setattr(sys, "argv", [str(path), str(workspace / "argument")])
        capsys.readouterr()
        exec(compile(snippet.text, str(path), "exec"), module.__dict__)
        for test in [value for key, value in vars(module).items() if key.startswith("test_")]:
            test(
                **{
                    argument: request.getfixturevalue(argument)
                    for argument in inspect.signature(test).parameters
                }
            )
        return capsys.readouterr().out

    return execute


def write_files(workspace: Path, page: str) -> None:
    """Write the snippets of ``page`` that are files."""
    for snippet in snippets_of(page):
        if snippet.file_name is not None:
            path = workspace / snippet.file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(snippet.text, encoding="utf-8")


def needs_modules(snippet: Snippet) -> bool:
    """Whether a snippet imports modules of its page, which the JVM of all tests cannot find."""
    names = {
        page_snippet.module_name
        for page_snippet in snippets_of(snippet.page)
        if page_snippet.file_name is not None
    }
    return any(re.search(rf"^from {name} ", snippet.text, re.MULTILINE) for name in names)


def printed_by(script: Path) -> str:
    """Run a script in a process of its own, with a JVM of its own; returns what it printed."""
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def matches(printed: str, expected: str) -> bool:
    """Whether ``printed`` is ``expected``, where ``...`` stands for anything."""
    pattern = re.escape(expected.rstrip()).replace(re.escape("..."), ".*?")
    return re.fullmatch(pattern, printed.rstrip(), re.DOTALL) is not None


@pytest.mark.parametrize("snippet", parameters(PYTHON))
def test_python_snippet(snippet: Snippet, run: Run) -> None:
    printed = run(snippet)
    expected = snippet.expected or ""
    assert matches(printed, expected), f"printed:\n{printed}\nexpected:\n{expected}"


@each_case("snippet", PYTHON, ids=lambda snippet: snippet.id)
def test_python_snippet_shows_something(snippet: Snippet) -> None:
    is_used = snippet.file_name is not None and any(
        other_snippet is not snippet
        and re.search(rf"\b{re.escape(snippet.module_name)}\b", other_snippet.text)
        for other_snippet in snippets_of(snippet.page)
        if other_snippet.language in ("python", "yaml")
    )
    assert checks_something(snippet.text) or snippet.expected or is_used, (
        "the snippet neither asserts nor prints what the page shows, and no other one uses it"
    )


@pytest.mark.parametrize("snippet", parameters(YAML))
def test_yaml_snippet(snippet: Snippet, workspace: Path) -> None:
    write_files(workspace, snippet.page)
    path = workspace / (snippet.file_name or "snippet.yaml")
    path.write_text(snippet.text, encoding="utf-8")
    if "agents" in yaml.safe_load(snippet.text):
        agents = load_yaml(path)
        assert [compile_agent(agent).name for agent in agents.values()] == list(agents) != []
    else:
        assert len(Configuration.from_yaml(path)) > 0


@each_case("snippet", PARTS, ids=lambda snippet: snippet.id)
def test_names_of_a_part_exist(snippet: Snippet) -> None:
    for node in ast.walk(ast.parse(snippet.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flink_agents"):
            module = importlib.import_module(node.module or "")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_there_are_snippets() -> None:
    by_page = {
        page: [snippet for snippet in PYTHON if snippet.page == page]
        for page in {snippet.page for snippet in PYTHON}
    }
    assert len(by_page["README.md"]) >= 2
    assert len(PYTHON) >= 20
    assert len([snippet for snippet in YAML if "agents:" in snippet.text]) >= 1
    assert len([snippet for snippet in YAML if "agents:" not in snippet.text]) >= 1
    assert 1 <= len([snippet for snippet in PYTHON if snippet.starts_flink]) <= 6


def test_output_that_differs_is_found() -> None:
    assert matches("a\nb 1\n", "a\nb ...\n")
    assert not matches("a\nb\n", "a\n")
    assert not matches("", "a\n")


def test_assertions_that_do_not_run_do_not_count() -> None:
    assert checks_something("def test_it():\n    assert 1")
    assert checks_something("for one in [1]:\n    assert one")
    assert not checks_something("def helper():\n    assert 1")
    assert not checks_something("class A:\n    def f(self):\n        assert 1")
