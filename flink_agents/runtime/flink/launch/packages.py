"""Checks of the installed packages: extras that are missing, and packages that collide."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from types import ModuleType

from flink_agents.api.errors import ConflictingPackageError, MissingExtraError

DISTRIBUTION = "flink-agents-python"
"""Name of this package on the package index."""

PEERS: frozenset[str] = frozenset({"flink-agents"})
"""Distributions that install the same import name, ``flink_agents``."""


def normalize(name: str) -> str:
    """Return the one spelling of a distribution's name that installers compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def conflicting_packages() -> list[str]:
    """Return ``name version`` of each installed distribution that shares our import name."""
    found = {
        f"{name} {distribution.version}"
        for distribution in metadata.distributions()
        # A half-removed distribution has no name at all.
        if (name := normalize(str(distribution.metadata["Name"]))) in PEERS
    }
    return sorted(found)


def check_conflicting_packages() -> None:
    """Refuse to go on beside another distribution with the import name ``flink_agents``.

    Raises:
        ConflictingPackageError: One is installed; each overwrites modules of the other.
    """
    if not (found := conflicting_packages()):
        return
    raise ConflictingPackageError(
        "Another installed package has the import name flink_agents as well.",
        expected=f"{DISTRIBUTION} alone",
        found=", ".join(found),
        fix=conflict_fix(),
    )


def conflict_fix() -> str:
    """Return the command that leaves this package alone in the environment."""
    peers = " ".join(sorted(PEERS))
    # The peer's removal deletes files at paths that both own, so ours are laid down again.
    return (
        f"pip uninstall -y {peers} {DISTRIBUTION} && pip install {DISTRIBUTION} "
        "(or keep the two in separate virtual environments)"
    )


def require_extra(module: str, extra: str) -> ModuleType:
    """Import a module of an optional dependency.

    Args:
        module: Import name of the module.
        extra: The extra of this package that installs it.

    Returns:
        The imported module.

    Raises:
        MissingExtraError: The package of the module is not installed.
        ImportError: It is installed, and its own import fails.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Only the absence of the module itself; what it misses in turn is another matter.
        missing = error.name or ""
        if module != missing and not module.startswith(missing + "."):
            raise
        raise MissingExtraError(
            f"The module {module} is not installed.",
            expected=f"the extra {extra!r} of {DISTRIBUTION}",
            fix=f'pip install "{DISTRIBUTION}[{extra}]"',
        ) from error
