"""A type checker has no complaint about code that follows the documentation.

One run of pyright reads all snippets, the projects of ``flink-agents new``, and ``typed_project``, which uses
each public name. Files of projects are read in strict mode, unless they import a library without types.
``scripts/lint`` checks ``typed_project`` with pyright and mypy; both find each line of ``MISTAKES``.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docs_pages import pages, snippets_of

from flink_agents.cli.project.new import TEMPLATES, write_project
from tests.suite.tables import each_case

TYPED_PROJECT = Path(__file__).parent / "typed_project"
MODULES = (
    "flink_agents",
    "flink_agents.connectors.kafka",
    "flink_agents.testing",
    "flink_agents.testing.models",
)


MISTAKES = """
@chat_model(nmae="m")
def model() -> ChatModel: return ChatModel("openai:gpt-5-mini")
@prompt(name=1)
def greeting() -> Prompt: return Prompt.from_text("hello")
@client(timeout=1)
def connect() -> Session: return Session()
@tool(need_approval=True)
def find(order: str) -> str: return order
@action(InputEvent, timeuot=1)
def act(event: InputEvent, ctx: RunnerContext) -> None: ...
Declared().analyst(1)
Declared().analyst().nothing
Declared().search("order")
RateLimit(cals=1)
RateLimit(calls="1")
RetryPolicy(max_attemts=1)
RetryPolicy(max_attempts="1")
RetryPolicy(retry_on="ValueError")
Secret(evn="KEY")
UsageLimits(requests="1")
Router(models=["analyst"], judge="analyst")
DurableCallable(look, timeuot=4)
DurableCallable(look, timeout="4")
DurableCallable(look)(1)
ctx.durable_execute(look)
ctx.durable_execute(look, 1)
ctx.durable_execute(look, "a", "b")
ctx.durable_execute(look, "a", True, 1)
ctx.durable_execute(look, "a", depe=True)
ctx.durable_execute(look, order=1)
ctx.durable_execute(look, 1, timeout=2)
ctx.durable_execute(look, "a", timeout="2")
ctx.durable_execute(nothing, 1)
ctx.durable_execute(session.post, 1)
ctx.durable_execute(DurableCallable(look, timeout=2), 1)
ctx.durable_execute(DurableCallable(look, timeout=2), "a", depe=True)
ctx.durable_execute(pay, 1, 1.0)
ctx.durable_execute(pay, "a", "b")
ctx.durable_execute(pay, 1, amount=1.0)
ctx.durable_execute(charge, "a", "b")
ctx.durable_execute(bill, "a", "b")
ctx.durable_execute(DurableCallable(pay, timeout=2), "a", "b")
ctx.durable_execute(pay, "a", "b", timeout=2)
text = ctx.durable_execute(look, "a"); text.upper()
ctx.durable_execute_async(look, 1)
ctx.durable_execute_async(pay, 1, 1.0)
ctx.durable_execute_async(fetch, "a", verfy=True)
ctx.durable_execute_async(session.post, 1, timeout=2)
ctx.durable_execute_async(look, "a").upper()
"""
"""Lines, or functions with a decorator, each with one mistake."""


def write_snippets(target: Path) -> list[str]:
    """Write the Python of each page into a folder of its own, at the lines that it has on the page."""
    folders: list[str] = []
    for page in pages():
        folder = target / page.replace("/", "_")
        for snippet in snippets_of(page):
            if snippet.language in ("python", "py"):
                path = folder / (snippet.file_name or f"{snippet.module_name}.py")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n" * (snippet.line - 1) + snippet.text, encoding="utf-8")
        if folder.is_dir():
            folders.append(folder.name)
    return folders


def write_projects(target: Path) -> list[str]:
    """Write the typed project and one for each template."""
    shutil.copytree(TYPED_PROJECT, target / "typed_project")
    for template in TEMPLATES:
        write_project(target / f"new-{template}", template)
    return ["typed_project", *(f"new-{template}" for template in TEMPLATES)]


def typed_files(target: Path, project: str) -> Iterator[str]:
    """Yield the files that import no library without types, such as PyFlink, which strict mode rejects."""
    for path in sorted((target / project).rglob("*.py")):
        if not re.search("^from (pyflink|kafka)", path.read_text("utf-8"), re.MULTILINE):
            yield path.relative_to(target).as_posix()


def complaints(target: Path, folders: list[str], strict: list[str]) -> list[str]:
    """Run pyright over folders, each with its own modules, and return its errors."""
    settings = {
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
        "strict": strict,
        "executionEnvironments": [{"root": folder} for folder in folders],
    }
    (target / "pyrightconfig.json").write_text(json.dumps(settings))
    pyright = str(Path(sys.executable).with_name("pyright"))
    command = [pyright, "--outputjson", "--project", str(target), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(target.rglob("*.py"))), done.stderr
    return [
        f"{Path(error['file']).relative_to(target)}:{error['range']['start']['line'] + 1}: {error['message']}"
        for error in report["generalDiagnostics"]
        if error["severity"] == "error"
    ]


@pytest.mark.nightly
def test_documented_code_passes_a_type_checker(tmp_path: Path) -> None:
    folders = write_snippets(tmp_path)
    # The tutorial continues with the project that `flink-agents new my-agent` wrote.
    write_project(tmp_path / "my-agent")
    shutil.copy(tmp_path / "my-agent" / "my_agent.py", tmp_path / "docs_tutorial.md")
    shutil.rmtree(tmp_path / "my-agent")
    projects = write_projects(tmp_path)
    strict = [name for project in projects for name in typed_files(tmp_path, project)]
    assert len(strict) == 11
    errors = complaints(tmp_path, [*folders, *projects], strict)
    assert errors == [], "\n".join(errors)


def test_wrong_types_are_found(tmp_path: Path) -> None:
    for folder in ("page", "project"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "it.py").write_text("def it(event): ...\n\n\nit() + 1\n")
    errors = complaints(tmp_path, ["page", "project"], ["project"])
    assert {error.split(":")[0] for error in errors} == {"page/it.py", "project/it.py"}
    assert any("annotation is missing" in error and error.startswith("project") for error in errors)
    assert not any("annotation is missing" in error and error.startswith("page") for error in errors)


@each_case("module", MODULES)
def test_the_typed_project_uses_each_public_name(module: str) -> None:
    used = {
        name.name
        for file in TYPED_PROJECT.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == module
        for name in node.names
    }
    assert sorted(used) == sorted(importlib.import_module(module).__all__)


def write_mistakes(target: Path) -> set[int]:
    """Write a module with the mistakes beside the typed project; return their lines."""
    shutil.copytree(TYPED_PROJECT, target)
    head = [
        "from calls import Declared, bill, charge, fetch, look, nothing",
        "from shop import Session, pay",
        f"from flink_agents import {', '.join(importlib.import_module('flink_agents').__all__)}",
        "def make_mistakes(ctx: RunnerContext, session: Session) -> None:",
    ]
    lines = MISTAKES.strip().splitlines()
    (target / "mistakes.py").write_text("\n".join([*head, *(f"    {line}" for line in lines), ""]))
    return {number for number, line in enumerate(lines, len(head) + 1) if not line.startswith("def ")}


@pytest.mark.nightly
def test_both_type_checkers_find_mistakes(tmp_path: Path) -> None:
    expected = write_mistakes(tmp_path / "project")
    by_pyright = complaints(tmp_path, ["project"], ["project/shop.py", "project/calls.py"])
    assert_only_mistakes(by_pyright, expected)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", "project"]
    done = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert_only_mistakes([line for line in done.stdout.splitlines() if ": error: " in line], expected)


def assert_only_mistakes(errors: list[str], expected: set[int]) -> None:
    """Check that all errors are in the lines of mistakes, and that each of these has one."""
    places = {tuple(error.split(":", 2)[:2]) for error in errors}
    text = "\n".join(errors)
    assert {file for file, _ in places} == {"project/mistakes.py"}, text
    numbers = {int(line) for _, line in places}
    # An error of a decorator may be at its function.
    shifted = {line - 1 if line not in expected else line for line in numbers}
    differing = f"not found: {sorted(expected - shifted)}, wrong: {sorted(shifted - expected)}"
    assert shifted == expected, f"{differing}\n{text}"
