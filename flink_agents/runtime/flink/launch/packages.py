"""Checks of the installed packages: extras that are missing, and packages that collide."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from types import ModuleType

from flink_agents.api.common.installation import DISTRIBUTION, install_command
from flink_agents.api.errors import ConflictingPackageError, MissingExtraError

PEERS: frozenset[str] = frozenset({"flink-agents"})
"""Distributions that install the same import name, ``flink_agents``."""


def normalize_name(name: str) -> str:
    """Return a distribution's name in the normalized spelling that installers compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def conflicting_packages() -> list[str]:
    """Return ``name version`` of each installed distribution that shares our import name."""
    packages = {
        f"{name} {distribution.version}"
        for distribution in metadata.distributions()
        # A half-removed distribution has no name.
        if (name := normalize_name(str(distribution.metadata["Name"]))) in PEERS
    }
    return sorted(packages)


def check_conflicting_packages() -> None:
    """Check that no other distribution with the import name ``flink_agents`` is installed.

    Raises:
        ConflictingPackageError: One is installed; each overwrites modules of the other.
    """
    if not (packages := conflicting_packages()):
        return
    raise ConflictingPackageError(
        "Another installed package has the import name flink_agents as well.",
        expected=f"{DISTRIBUTION} alone",
        found=", ".join(packages),
        fix=conflict_fix(),
    )


def conflict_fix() -> str:
    """Return the command that leaves only this package in the environment."""
    peers = " ".join(sorted(PEERS))
    # Uninstalling the peer deletes files at paths that both own, so ours are installed again.
    return (
        f"pip uninstall -y {peers} {DISTRIBUTION} && {install_command()} "
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
        ImportError: The module is installed, and its own import fails.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Only if the module itself is missing; an import error inside it is another matter.
        missing = error.name or ""
        if module != missing and not module.startswith(missing + "."):
            raise
        raise MissingExtraError(
            f"The module {module} is not installed.",
            expected=f"the extra {extra!r} of {DISTRIBUTION}",
            fix=install_command(extra),
        ) from error
