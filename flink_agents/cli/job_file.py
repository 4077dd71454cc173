"""``flink-agents.toml``: the places of a job, which commands otherwise take as options each time."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from typer.core import TyperGroup, TyperOption
from typing_extensions import override

from flink_agents.api.errors import OptionError
from flink_agents.api.settings.options import JOB_FILE_VARIABLE
from flink_agents.cli.errors import reports_lost_output

NAME = "flink-agents.toml"

TEXTS = ("cluster", "client", "path", "trace-topic", "requests", "signals", "answers", "store", "journal")
LISTS = ("dead-letters", "plan")
JOBS = "jobs"

_PATHS = ("path", "journal")
_PLAN_FILE = re.compile(r"(?s).+(\.json|\.ya?ml(:.+)?|\.py:[^:]+)")

MOST_BYTES = 1 << 20
"""Maximum size of a file. A device or pipe may have no end."""

_NOT_FOR = {"doctor", "run", "cluster", "demo", "new", "plan"}
"""Commands without defaults of the file: their options mean something else, or choose what they do."""

_OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "approvals": {"topic": "requests", "bootstrap_servers": "client"},
    "signal": {"topic": "signals", "bootstrap_servers": "client"},
    # Their --cluster reads records from logs instead of files.
    "runs": {"cluster": ""},
    "trace": {"cluster": ""},
    "end": {"cluster": "cluster"},
    # Their --path is a file of the store.
    "journal": {"path": "journal"},
}
"""Parameters whose key in the file is not their name, by command or group."""

_TRACES = frozenset({"path", "trace-topic"})
_JOURNAL: Mapping[str, Set[str]] = {"--journal": {"store"}}
_PLACES: Mapping[str, Set[str]] = {"--path": _TRACES, "--trace-topic": _TRACES, **_JOURNAL}
_INSTEAD: Mapping[str, Mapping[str, Set[str]]] = {
    **dict.fromkeys(("why", "top", "ui"), _PLACES),
    **dict.fromkeys(("runs", "trace"), {**_PLACES, "--cluster": _TRACES}),
    "end": {"--cluster": frozenset()},
    "erase": _JOURNAL,
    "journal": {"--path": {"store"}},
    "stop": {"--data": {"cluster"}},
    "cancel": {"--data": {"cluster"}},
    "topic": {"--data": {"client"}},
}
"""Keys that an option on the command line replaces, because both name one place; by command or group."""

Values = Mapping[str, Any]


class JobGroup(TyperGroup):
    """The command ``flink-agents``, which keeps the arguments behind the name of its command.

    Output that cannot be written ends each of its commands in the same way.
    """

    arguments: Sequence[str] = ()

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        remaining_arguments = super().parse_args(ctx, args)
        self.arguments = tuple(remaining_arguments)
        return remaining_arguments

    @override
    def main(self, *arguments: Any, **options: Any) -> Any:
        # Errors of usage are printed here.
        with reports_lost_output():
            return super().main(*arguments, **options)

    @override
    def make_context(self, *arguments: Any, **options: Any) -> Any:
        # --help and --version print here.
        with reports_lost_output():
            return super().make_context(*arguments, **options)

    @override
    def invoke(self, ctx: Any) -> Any:
        with reports_lost_output():
            return super().invoke(ctx)


def find_job_file() -> Path | None:
    """Return the file that the environment names, else that of the working directory; None without one.

    Raises:
        OptionError: The file of the working directory belongs to another user.
    """
    named_file = os.environ.get(JOB_FILE_VARIABLE)
    if named_file:
        return Path(os.path.expanduser(named_file))
    local_file = Path(NAME)
    # A directory, or a broken link, is an error when it is read.
    if not os.path.lexists(local_file):
        return None
    _check_owner(local_file)
    return local_file


def _check_owner(file: Path) -> None:
    """Reject another user's file: it names code to import, and brokers that get answers and credentials.

    Raises:
        OptionError: Its owner is neither this user nor root.
    """
    if not hasattr(os, "geteuid"):
        return
    owners = {os.lstat(file).st_uid, *([os.stat(file).st_uid] if file.exists() else ())}
    if foreign_owners := owners - {os.geteuid(), 0}:
        raise OptionError(
            f"{file}: the file belongs to another user",
            expected="a file of yours in the working directory",
            found=f"a file of the user {min(foreign_owners)}",
            fix=f"if you trust it, name it: {JOB_FILE_VARIABLE}={NAME}",
        )


def read_job_file(file: Path, job: str | None = None) -> dict[str, Any]:
    """Return the options in a file by name, merged with those of one of its jobs.

    Args:
        file: The file.
        job: Name of a job, whose table takes precedence over the top of the file. None: only the top.

    Raises:
        OptionError: The file cannot be read, an option is unknown or invalid, or there is no such job.
    """
    options = _load_file(file)
    jobs = options.pop(JOBS, {})
    if not isinstance(jobs, dict) or not all(isinstance(table, dict) for table in jobs.values()):
        raise _invalid_value_error(file, JOBS, jobs, "tables of options, as [jobs.orders]")
    values = _check_table(file, options)
    tables = {name: _check_table(file, table) for name, table in jobs.items()}
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


def _load_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes")
        # Editors of Windows begin files with a byte order mark.
        return tomllib.loads(content.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(
            f"{file}: the options of the job cannot be read",
            expected="a TOML file, such as: signals = 'answers'",
            found=f"{type(error).__name__}: {error}",
            fix=f"correct the file, or the variable {JOB_FILE_VARIABLE}",
        ) from error


def _check_table(file: Path, table: Values) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key in LISTS:
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, list) or not all(map(_is_text, value)):
                raise _invalid_value_error(file, key, value, "a string, or a list of strings")
        elif key not in TEXTS:
            raise _unknown_option_error(file, key)
        elif not _is_text(value):
            raise _invalid_value_error(file, key, value, "a string")
        # Wherever the command is called, files are those beside this file.
        if isinstance(value, str) and key in _PATHS:
            value = _path_beside(file, value)
        elif isinstance(value, list) and key == "plan":
            value = [
                _path_beside(file, plan) if _PLAN_FILE.fullmatch(plan) else plan for plan in map(str, value)
            ]
        values[key] = value
    return values


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != "" and value.isprintable()


def _path_beside(file: Path, name: str) -> str:
    return str(file.parent / os.path.expanduser(name))


def _unknown_option_error(file: Path, key: str) -> OptionError:
    option_names = (*TEXTS, *LISTS, JOBS)
    close = difflib.get_close_matches(key, option_names, 1)
    return OptionError(
        f"{file}: unknown option {key!r}",
        expected=f"one of {', '.join(option_names)}",
        found=repr(key),
        fix=f"write {close[0]}" if close else _NAMES_OF_UI,
    )


_NAMES_OF_UI = "correct the file: its options have the names of the options of 'flink-agents ui'"


def _invalid_value_error(file: Path, key: str, value: Any, expected: str) -> OptionError:
    """Return the error for an invalid value. It names only the type: the value may be a password."""
    return OptionError(
        f"{file}: invalid option {key!r}", expected=expected, found=_value_kind(value), fix=_NAMES_OF_UI
    )


def _value_kind(value: Any) -> str:
    if isinstance(value, str):
        return "a string that is empty, or has control characters"
    if isinstance(value, list):
        return f"a list of {len(value)} values"
    return "a table" if isinstance(value, dict) else f"a value of the type {type(value).__name__}"


def takes_options(group: TyperGroup, command: str | None) -> bool:
    """Return True if the file may set options of a command; None stands for no command."""
    everything: Values = {**dict.fromkeys(TEXTS, ""), **dict.fromkeys(LISTS, [""])}
    return bool(_has_defaults(defaults_of(group, everything).get(command or "", {})))


def _has_defaults(defaults: Mapping[str, Any]) -> bool:
    return any(_has_defaults(value) if isinstance(value, dict) else True for value in defaults.values())


def given_options(command: Any, arguments: Sequence[str]) -> Set[str]:
    """Return the options on a command line, such as ``--path``.

    The parser of the command distinguishes them from values and arguments.

    Args:
        command: The click command, or group, that takes the arguments.
        arguments: The arguments.
    """
    context = command.context_class(command, resilient_parsing=True)
    _, remaining_arguments, order = command.make_parser(context).parse_args(list(arguments))
    options = {
        f"--{parameter.name.replace('_', '-')}"
        for parameter in order
        if isinstance(parameter, TyperOption) and parameter.name
    }
    subcommand = (
        command.commands.get(remaining_arguments[0])
        if isinstance(command, TyperGroup) and remaining_arguments
        else None
    )
    return options if subcommand is None else options | given_options(subcommand, remaining_arguments[1:])


def defaults_of(group: TyperGroup, values: Values, passed_options: Set[str] = frozenset()) -> dict[str, Any]:
    """Return the defaults of the options of all commands in a group, as ``default_map`` of click.

    Args:
        group: The commands.
        values: Options in the file, by name.
        passed_options: Options on the command line. Options of the file that name the same place are left
            out.
    """

    def inner(command: Any, names: Mapping[str, str], instead: Mapping[str, Set[str]]) -> dict[str, Any]:
        replaced = {key for option in passed_options for key in instead.get(option, ())}
        defaults = dict(
            _command_defaults(command, names, {key: values[key] for key in values if key not in replaced})
        )
        for name, subcommand in command.commands.items() if isinstance(command, TyperGroup) else ():
            defaults[name] = inner(
                subcommand, {**names, **_OTHER_NAMES.get(name, {})}, {**instead, **_INSTEAD.get(name, {})}
            )
        return defaults

    defaults_by_command = inner(group, {}, {})
    return {name: defaults_by_command[name] for name in group.commands if name not in _NOT_FOR}


def _command_defaults(command: Any, names: Mapping[str, str], values: Values) -> Iterator[tuple[str, Any]]:
    for parameter in command.params:
        key = names.get(parameter.name or "", (parameter.name or "").replace("_", "-"))
        if isinstance(parameter, TyperOption) and key in values:
            value = values[key]
            if isinstance(value, list) and not parameter.multiple:
                value = value[0] if value else None
            yield parameter.name or "", value
