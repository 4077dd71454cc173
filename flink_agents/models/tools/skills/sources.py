"""Reads the files of skills: from a folder, a zip file, or an installed package in one of these forms.

All files are read once. Later changes have no effect, so nothing can change between a check and a use.
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from flink_agents.api.errors import SkillError
from flink_agents.api.models.skills import SkillsSpec

LINK = "a symbolic link, which might lead elsewhere"
SPECIAL = "not a regular file"
"""Reasons why a file of skills is not read."""


@dataclass
class Tree:
    """The files that were read from a source. Their paths have ``/`` between the parts.

    Attributes:
        place: Path of the source, for errors.
        limit: Maximum size of all files together, in bytes.
        files: The content of each file, by path.
        refused: The reason for each file that was not read, by path.
    """

    place: str
    limit: int
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    _size: int = 0

    def count_bytes(self, size: int) -> None:
        """Count the bytes of a file before it is read.

        Raises:
            SkillError: The files exceed the limit.
        """
        self._size += size
        if self._size > self.limit:
            raise SkillError(
                "the files of skills are too large",
                expected=f"at most {self.limit:,} bytes in {self.place}",
                fix="remove files that no skill needs, or raise size_limit",
            )

    def subtree(self, folder: str) -> Tree:
        """Return the files below a folder, with paths from there; all files if the name is empty."""
        start = folder and f"{folder}/"
        return Tree(
            f"{self.place}/{folder}" if folder else self.place,
            self.limit,
            {path[len(start) :]: content for path, content in self.files.items() if path.startswith(start)},
            {path[len(start) :]: reason for path, reason in self.refused.items() if path.startswith(start)},
        )


def read_source(spec: SkillsSpec) -> Tree:
    """Read the files of skills: of a folder, a zip file, or a package in one of these forms.

    Args:
        spec: The description of the skills, which names their source.

    Raises:
        SkillError: The source does not exist, is too large, or is a zip file with paths outside of it.
    """
    if spec.package is None:
        assert spec.path is not None
        return _read_tree(Path(spec.path), "", spec.size_limit)
    below = PurePosixPath(spec.path or "")
    if below.is_absolute() or ".." in below.parts:
        raise SkillError(
            "the path of skills leads out of their package",
            expected=f"a path below the package {spec.package}",
            found=spec.path,
            fix="name a folder of the package",
        )
    place = _package_path(spec.package)
    if place.is_dir():
        return _read_tree(place / below, "", spec.size_limit)
    # A package in a zip file on sys.path: the path of the zip file, and the path within it.
    for outer in place.parents:
        if outer.is_file():
            within = (place.relative_to(outer) / below).as_posix()
            return _read_tree(outer, "" if within == "." else within, spec.size_limit)
    raise _absent_error(str(place))


def _package_path(package: str) -> Path:
    """Return the path of an installed package, which may lead into a zip file; SkillError without one."""
    try:
        package_spec = find_spec(package)
    except ModuleNotFoundError:
        package_spec = None
    paths = list(package_spec.submodule_search_locations or ()) if package_spec is not None else []
    if not paths:
        raise SkillError(
            f"no package {package!r} with skills was found",
            expected="a package that is installed on the workers, or came with the job by -pyfs",
            found="a module without a folder" if package_spec is not None else "no package of that name",
            fix="install it on the workers, or correct its name",
        )
    return Path(paths[0])


def _read_tree(place: Path, within: str, limit: int) -> Tree:
    """Return the files of a folder or a zip file.

    Args:
        place: The folder, or the zip file.
        within: A folder of the zip file; empty for all of it.
        limit: Maximum size of all files together, in bytes.

    Raises:
        SkillError: There is neither, or it cannot be read.
    """
    tree = Tree(str(place), limit)
    try:
        if place.is_dir():
            _read_folder(tree, place.resolve(), "")
            return tree
        if place.is_file():
            _read_zip(tree, place)
            return tree.subtree(within)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise SkillError(
            "skills cannot be read",
            expected=f"{place}, a folder or a zip file that is not encrypted",
            found=f"{type(error).__name__}: {error}"[:500],
            fix="correct the path, or the file",
        ) from error
    raise _absent_error(str(place))


def _absent_error(place: str) -> SkillError:
    return SkillError(
        "the skills were not found",
        expected=f"{place}, a folder or a zip file on this worker",
        found="nothing",
        fix="bring it to the workers: docs/skills.md explains how",
    )


def is_hidden(name: str) -> bool:
    """Return True if a file or folder of this name is ignored: tools create it, and no skill needs it."""
    return name.startswith(".") or name == "__pycache__"


def _read_folder(tree: Tree, folder: Path, prefix: str) -> None:
    """Read the files of a folder and of those below it into ``tree``, with a prefix of their paths."""
    with os.scandir(folder) as entries:
        sorted_entries = sorted(entries, key=lambda entry: entry.name)
    for entry in sorted_entries:
        path = f"{prefix}{entry.name}"
        if is_hidden(entry.name):
            continue
        if entry.is_symlink():
            tree.refused[path] = LINK
        elif entry.is_dir(follow_symlinks=False):
            _read_folder(tree, Path(entry.path), f"{path}/")
        elif entry.is_file(follow_symlinks=False):
            tree.files[path] = _read_content(tree, entry.path)
        else:
            tree.refused[path] = SPECIAL


def _read_content(tree: Tree, path: str) -> bytes:
    """Return the content of a file, counted in ``tree``; OSError for a link."""
    # The file may have become a link since the folder was listed.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        size = os.fstat(handle).st_size
        tree.count_bytes(size)
        return file.read(size)


def _read_zip(tree: Tree, place: Path) -> None:
    """Read the files of a zip file into ``tree``."""
    with zipfile.ZipFile(place) as archive:
        for entry in _members(archive, place):
            path = entry.filename
            mode = entry.external_attr >> 16
            if any(map(is_hidden, path.split("/"))):
                continue
            if stat.S_ISLNK(mode):
                tree.refused[path] = LINK
                continue
            # The size in the entry may be wrong; the file is never read further than that.
            tree.count_bytes(entry.file_size)
            with archive.open(entry) as file:
                tree.files[path] = file.read(entry.file_size)


def _members(archive: zipfile.ZipFile, place: Path) -> Iterator[zipfile.ZipInfo]:
    """Yield the files of an archive.

    Raises:
        SkillError: A path leads out of the archive, or two files have the same path.
    """
    seen_paths: set[str] = set()
    for entry in archive.infolist():
        if entry.is_dir():
            continue
        path = entry.filename
        parts = path.split("/")
        if path.startswith("/") or "\\" in path or ":" in parts[0] or not {"", ".", ".."}.isdisjoint(parts):
            raise SkillError(
                "a zip file of skills has a path that leads out of it",
                expected=f"paths below the folders of {place}",
                found=repr(entry.orig_filename),
                fix="create the file again from the folder of the skills",
            )
        if path in seen_paths:
            raise SkillError(
                "a zip file of skills has a path twice", found=repr(path), fix="create the file again"
            )
        seen_paths.add(path)
        yield entry
