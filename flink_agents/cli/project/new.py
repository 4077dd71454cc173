"""``flink-agents new``: writes a small project with an agent, a test, a job and a README."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from string import Template

from flink_agents.api.common.installation import DISTRIBUTION, install_command
from flink_agents.api.errors import SetupError
from flink_agents.api.errors.base import suggest

TAKEN = frozenset(
    "agent conftest demo flink_agents job offline_model pyflink test tests topics".split(),
)
"""Names of modules that would hide another module of the project, or one of its imports."""

_COMMON = {"README.md": "README.md", "MODULE.py": "agent.py", "job.py": "job.py"}
_TESTS = {
    "tests/test_MODULE.py": "test_agent.py",
    "pyproject.toml": "pyproject.toml",
    ".gitignore": "gitignore",
}

TEMPLATES: Mapping[str, Mapping[str, str]] = {
    "basic": {**_COMMON, **_TESTS},
    "support": {
        **_COMMON,
        "topics.py": "topics.py",
        "offline_model.py": "offline_model.py",
        "demo.py": "demo.py",
        **_TESTS,
        "flink-agents.toml": "flink-agents.toml",
    },
}
"""The files of each template of a project, and what they are made from; MODULE is the agent's module."""

_EXTRAS = {"basic": ("jvm",), "support": ("jvm", "kafka", "openai")}
"""Extras that the jobs of a template need."""


@dataclass(frozen=True)
class ProjectNames:
    """The names that replace placeholders in the templates.

    Attributes:
        name: Name of the project, and of its directory.
        module: Name of the agent's module.
        agent: Name of the agent's class.
    """

    name: str
    module: str
    agent: str


def names_of(name: str) -> ProjectNames:
    """Derive the names of module and agent class from the name of a project.

    Args:
        name: Words of lower-case letters and digits, between hyphens or underscores, such as ``my-agent``.

    Raises:
        SetupError: No module can have the name, or one of Python or of the project has it.
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


def write_project(target: Path, template: str = "basic") -> list[Path]:
    """Write the files of a project into a new or empty directory.

    Args:
        target: The directory. Its last part is the name of the project.
        template: One of :data:`TEMPLATES`.

    Returns:
        The paths of the files, in the order in which to read them.

    Raises:
        SetupError: There is no such template, the directory has files already, its name is not valid for a
            module, or it cannot be written.
    """
    if template not in TEMPLATES:
        raise SetupError(
            f"There is no template {template!r}.",
            expected=", ".join(TEMPLATES),
            found=template,
            fix=suggest(template, TEMPLATES, "flink-agents new my-agent --template support"),
        )
    names = names_of(target.resolve().name)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise SetupError(
                f"{target} already exists. It was not changed.",
                expected="an empty directory, or a new path",
                found=str(target),
                fix="choose another name, or remove the directory",
            )
        return [_write_file(target / path, text) for path, text in _template_texts(names, template).items()]
    except OSError as error:
        raise SetupError(
            f"The project cannot be written to {target}: {error.strerror}.",
            fix="name a directory that you may write to",
        ) from error


def _write_file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _template_texts(names: ProjectNames, template: str) -> dict[str, str]:
    """Return the content of each file of a project, by its path in the project."""
    values = {
        "name": names.name,
        "module": names.module,
        "agent": names.agent,
        "distribution": DISTRIBUTION,
        "version": metadata.version(DISTRIBUTION),
        "install": install_command(*_EXTRAS[template]),
    }
    folder = resources.files("flink_agents.cli.project") / "templates" / template
    return {
        path.replace("MODULE", names.module): Template(
            (folder / f"{source}.tmpl").read_text(encoding="utf-8")
        ).substitute(values)
        for path, source in TEMPLATES[template].items()
    }
