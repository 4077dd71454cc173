"""What descriptions name instead of holding it: secrets, and packages that an extra installs."""

from __future__ import annotations

import importlib
import os
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from flink_agents.api.chat import Secret
from flink_agents.api.errors import MissingExtraError, OptionError, ResourceUnavailableError

T = TypeVar("T")


def read_secret(value: str | Secret, what: str) -> str:
    """The text that ``value`` is, or names.

    Raises:
        OptionError: It is not there.
    """
    if isinstance(value, str):
        return value
    if value.env is not None:
        if value.env in os.environ:
            return os.environ[value.env]
        raise OptionError(
            f"the secret for {what} is missing",
            expected=f"the environment variable {value.env} in this worker",
            fix="set it for the TaskManagers",
        )
    assert value.file is not None
    try:
        return Path(value.file).read_text("utf-8").strip()
    except OSError as error:
        raise OptionError(
            f"the secret for {what} cannot be read",
            expected=f"the file {value.file} on this worker",
            found=type(error).__name__,
            fix="put it there, readable for the TaskManagers",
        ) from error


def import_extra(module: str, extra: str, what: str) -> ModuleType:
    """A module that an extra installs.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra(extra, what, error) from error


def made_by(clazz: str, kind: type[T], what: str, *arguments: Any, **named: Any) -> T:
    """Make what the class of a description, or a function in its place, makes.

    Args:
        clazz: Its name, ``module:qualname``.
        kind: What it has to make.
        what: What asks for it, for errors.
        *arguments: Arguments for it.
        **named: Arguments for it by name.

    Raises:
        ResourceUnavailableError: It makes none.
    """
    module, _, qualname = clazz.partition(":")
    expected = f"{clazz}, a {kind.__name__}, or a function that makes one"
    try:
        made = attrgetter(qualname)(importlib.import_module(module))(*arguments, **named)
    except Exception as error:  # whatever foreign code raises
        raise ResourceUnavailableError(
            f"{what} cannot be made",
            expected=expected,
            found=f"{type(error).__name__}: {error}"[:500],
            fix="correct the class and its arguments",
        ) from error
    if not isinstance(made, kind):
        raise ResourceUnavailableError(
            f"{what} is made by something else", expected=expected, found=type(made).__qualname__
        )
    return made


def missing_extra(extra: str, what: str, error: BaseException) -> MissingExtraError:
    """The error that names the command that installs an extra."""
    return MissingExtraError(
        f"{what} needs packages that are not installed",
        found=f"{type(error).__name__}: {error}"[:300],
        fix=f'pip install "flink-agents-python[{extra}]", on the workers as well',
    )
