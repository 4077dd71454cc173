"""Checks of the files of a release, and a list of the facts that only its owner can add."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile

from packaging.metadata import Metadata

import flink_agents
from tests.release.build import ROOT, Built, known_files

WHEEL_ONLY = re.compile(r"[^/]+\.dist-info/")
SDIST_FILES = {
    *(
        "CHANGELOG.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "NOTICE",
        "README.md",
        "SECURITY.md",
    ),
    *("MANIFEST.in", "PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py"),
}
"""What the source distribution has besides the package: what builds it, and what its reader wants to know."""


def metadata_of(built: Built) -> Metadata:
    """The wheel's metadata, validated as the package index does it."""
    with zipfile.ZipFile(built.wheel) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        return Metadata.from_email(wheel.read(name), validate=True)


def problems(built: Built) -> list[str]:
    """Return what is wrong with the files, a sentence for each."""
    version = str(metadata_of(built).version)
    findings = [*_wheel_problems(built), *_sdist_problems(built)]
    if version != flink_agents.__version__:
        findings.append(f"pyproject.toml says version {version}, the package {flink_agents.__version__}.")
    return findings


def unready(built: Built, changelog: str) -> list[str]:
    """Return what forbids the upload of good files: something of the checkout is not ready for a release.

    Args:
        built: The files.
        changelog: The text of the changelog.
    """
    findings: list[str] = []
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    if changed:
        findings.append("The checkout has changes that are not committed.")
    if f"## [{(version := metadata_of(built).version)}]" not in changelog:
        findings.append(f"CHANGELOG.md has no section [{version}]; what is below [Unreleased] belongs there.")
    return findings


def notes(built: Built) -> list[str]:
    """Return what an upload can do without, and its readers miss."""
    package_metadata = metadata_of(built)
    missing: list[str] = []
    if not (
        package_metadata.license_expression or package_metadata.license_files or package_metadata.license
    ):
        missing.append("The metadata names no licence: nobody may use the package. Its owner chooses one.")
    if not package_metadata.project_urls:
        missing.append("The metadata has no address of the documentation and the source ([project.urls]).")
    if re.search(r"\]\((?!https://|#)", package_metadata.description or ""):
        missing.append("Links of the README lead to files, which the package index does not have.")
    return missing


def package_files() -> set[str]:
    """The files of the package that git knows."""
    return {name for name in known_files() if name.startswith(("flink_agents/", "flink_agents_pytest."))}


def _wheel_problems(built: Built) -> list[str]:
    with zipfile.ZipFile(built.wheel) as wheel:
        inside = {name for name in wheel.namelist() if not WHEEL_ONLY.match(name)}
        findings = [f"The wheel lacks {name}." for name in sorted(package_files() - inside)]
        findings += [
            f"The wheel has {name}, which git does not know." for name in sorted(inside - package_files())
        ]
        if (broken := wheel.testzip()) is not None:
            findings.append(f"The wheel's {broken} is damaged.")
    try:
        metadata_of(built)
    except ExceptionGroup as group:
        findings += [f"The metadata is wrong: {error}" for error in group.exceptions]
    return findings


def _sdist_problems(built: Built) -> list[str]:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if not archive.getmember(name).isdir()}
    wanted = package_files() | SDIST_FILES
    extra = {name for name in names - wanted if ".egg-info/" not in name}
    return [f"The source distribution lacks {name}." for name in sorted(wanted - names)] + [
        f"The source distribution has {name}." for name in sorted(extra)
    ]
