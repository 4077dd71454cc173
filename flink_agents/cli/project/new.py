"""``flink-agents new``: writes a small project with an agent, a test, a job and a README."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from string import Template

from flink_agents.api.errors import SetupError
from flink_agents.runtime.flink.launch.packages import DISTRIBUTION

TAKEN = frozenset({"agent", "job", "tests", "test", "conftest", "flink_agents", "pyflink"})
"""Names of modules that would hide another module of the project, or one of its imports."""


@dataclass(frozen=True)
class ProjectNames:
    """The names in the templates.

    Attributes:
        name: Name of the project and its directory.
        module: The module of the agent.
        agent: The class of the agent.
    """

    name: str
    module: str
    agent: str


def names_of(name: str) -> ProjectNames:
    """Derive module and class from the name of a project.

    Args:
        name: Words of letters and digits, between hyphens or underscores, such as ``my-agent``.

    Raises:
        SetupError: The name is not valid for a module, or Python has a module of that name.
    """
    module = name.replace("-", "_")
    if keyword.iskeyword(module):
        raise SetupError(
            f"No module of Python can have the name {name!r}.",
            expected="a name that is not a keyword of Python",
            found=name,
            fix=f"flink-agents new {name.lower()}-agent",
        )
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise SetupError(
            f"No module of Python can have the name {name!r}.",
            expected="words of lower-case letters and digits, with hyphens between them",
            found=name,
            fix="flink-agents new my-agent",
        )
    if module in TAKEN or module in sys.stdlib_module_names:
        raise SetupError(
            f"A module {module} would hide another one of that name.",
            found=name,
            fix=f"flink-agents new {name}-agent",
        )
    words = "".join(word.capitalize() for word in module.split("_"))
    return ProjectNames(name, module, words if words.endswith("Agent") else f"{words}Agent")


def write_project(target: Path) -> list[Path]:
    """Write a project into a new directory.

    Args:
        target: The directory. Its last part is the name of the project.

    Returns:
        The files, in the order in which to read them.

    Raises:
        SetupError: The directory has files already, its name is not valid for a module, or it cannot be
            written.
    """
    names = names_of(target.resolve().name)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise SetupError(
                f"{target} already exists. It was not changed.",
                expected="an empty directory, or a new path",
                found=str(target),
                fix="choose another name, or remove the directory",
            )
        return [_write(target / path, text) for path, text in _texts(names).items()]
    except OSError as error:
        raise SetupError(
            f"The project cannot be written to {target}: {error.strerror}.",
            fix="name a directory that you may write to",
        ) from error


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _texts(names: ProjectNames) -> dict[str, str]:
    """Return the text of each file, by its path in the project."""
    templates = {
        "README.md": "README.md.tmpl",
        f"{names.module}.py": "agent.py.tmpl",
        "job.py": "job.py.tmpl",
        f"tests/test_{names.module}.py": "test_agent.py.tmpl",
        "pyproject.toml": "pyproject.toml.tmpl",
        ".gitignore": "gitignore.tmpl",
    }
    values = {
        "name": names.name,
        "module": names.module,
        "agent": names.agent,
        "distribution": DISTRIBUTION,
        "version": metadata.version(DISTRIBUTION),
    }
    folder = resources.files("flink_agents.cli.project")
    return {
        path: Template((folder / template).read_text(encoding="utf-8")).substitute(values)
        for path, template in templates.items()
    }
