"""``flink-agents.toml``: the places of a job, which commands otherwise take as options each time."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.core import TyperGroup, TyperOption

from flink_agents.api.errors import OptionError
from flink_agents.api.settings.options import JOB_FILE_VARIABLE

NAME = "flink-agents.toml"

TEXTS = ("cluster", "client", "path", "trace-topic", "requests", "signals", "answers", "store", "journal")
LISTS = ("dead-letters", "plan")
JOBS = "jobs"

_PATHS = ("path", "journal")

_NOT_FOR = {"doctor", "run", "cluster", "demo", "new", "plan"}
"""Commands without defaults of the file: their options mean something else, or choose what they do."""

_OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "approvals": {"topic": "requests", "bootstrap_servers": "client"},
    "signal": {"topic": "signals", "bootstrap_servers": "client"},
    # Their --cluster reads records from logs instead of files.
    "runs": {"cluster": ""},
    "trace": {"cluster": ""},
    "end": {"cluster": "cluster"},
}
"""Parameters whose key in the file is not their name, by command or group."""

Values = Mapping[str, Any]


def find_job_file() -> Path | None:
    """Return the file that the environment names, or that of the working directory; None without one."""
    named = os.environ.get(JOB_FILE_VARIABLE)
    if named:
        return Path(named).expanduser()
    here = Path(NAME)
    return here if here.is_file() else None


def read_job_file(file: Path, job: str | None = None) -> dict[str, Any]:
    """Return the options in a file, and those of one of its jobs.

    Args:
        file: The file.
        job: Name of a job, whose table goes before the options at the top.

    Raises:
        OptionError: The file cannot be read, has unknown or invalid options, or no such job.
    """
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(
            f"{file}: the options of the job cannot be read",
            expected="a TOML file, such as: signals = 'answers'",
            found=f"{type(error).__name__}: {error}",
            fix=f"correct the file, or the variable {JOB_FILE_VARIABLE}",
        ) from error
    jobs = found.pop(JOBS, {})
    if not isinstance(jobs, dict) or not all(isinstance(one, dict) for one in jobs.values()):
        raise _invalid(file, JOBS, jobs, "tables of options, as [jobs.orders]")
    values = _checked(file, found)
    tables = {name: _checked(file, table) for name, table in jobs.items()}
    if job is None:
        return values
    if job not in tables:
        raise OptionError(
            f"{file}: no job {job!r}",
            expected=", ".join(map(repr, tables)) or f"tables as [{JOBS}.{job}]",
            found=repr(job),
            fix="correct --job, or add its table to the file",
        )
    return values | tables[job]


def _checked(file: Path, table: Values) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key in LISTS:
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise _invalid(file, key, value, "a string, or a list of strings")
        elif key not in TEXTS:
            raise _invalid(file, key, value, f"one of {', '.join((*TEXTS, *LISTS, JOBS))}")
        elif not isinstance(value, str):
            raise _invalid(file, key, value, "a string")
        # Wherever the command is called, files are those beside this file.
        if isinstance(value, str) and key in _PATHS:
            value = str(file.parent / Path(value).expanduser())
        values[key] = value
    return values


def _invalid(file: Path, key: str, value: Any, expected: str) -> OptionError:
    return OptionError(
        f"{file}: invalid option {key!r}",
        expected=expected,
        found=repr(value)[:200],
        fix="correct the file: its options have the names of the options of 'flink-agents ui'",
    )


def defaults_of(group: TyperGroup, values: Values) -> dict[str, Any]:
    """Return the defaults of all commands of a group, as click takes them."""
    return {
        name: _defaults(command, values, _OTHER_NAMES.get(name, {}))
        for name, command in group.commands.items()
        if name not in _NOT_FOR
    }


def _defaults(command: Any, values: Values, names: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in command.params:
        key = names.get(one.name or "", (one.name or "").replace("_", "-"))
        if isinstance(one, TyperOption) and key in values:
            value = values[key]
            if isinstance(value, list) and not one.multiple:
                value = value[0] if value else None
            found[one.name or ""] = value
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            found[name] = _defaults(inner, values, {**names, **_OTHER_NAMES.get(name, {})})
    return found
