"""The skills of one source: description, text and files of each, which are found by exact name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from flink_agents.api.errors import SkillError
from flink_agents.api.models.skills import SkillsSpec
from flink_agents.api.settings.yaml_source import RepeatedKey, YamlProblem, YamlSource
from flink_agents.models.tools.skills.sources import Tree, read_source

FILE = "SKILL.md"
SCRIPTS = "scripts/"
"""The folder of a skill in which its scripts are."""

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LONGEST_NAME = 64
_LONGEST_DESCRIPTION = 1024
_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*\r?$\n?(.*)\Z", re.DOTALL | re.MULTILINE)


class SkillRefusal(Exception):
    """A model requests a missing or blocked file or script. The model gets the message."""


@dataclass(frozen=True)
class Skill:
    """A folder with a ``SKILL.md``.

    Attributes:
        name: Its name.
        description: Purpose of the skill, and when to use it.
        text: Text for a model that loads the skill.
        tree: Its files.
    """

    name: str
    description: str
    text: str
    tree: Tree

    @property
    def scripts(self) -> list[str]:
        """Return the paths of its scripts."""
        return sorted(path for path in self.tree.files if path.startswith(SCRIPTS))

    @property
    def files(self) -> list[str]:
        """Return the paths of its other files, without ``SKILL.md``."""
        return sorted({*self.tree.files} - {FILE} - {*self.scripts})

    @cached_property
    def digest(self) -> str:
        """Return a digest of all its files: 16 hexadecimal digits."""
        digest = hashlib.blake2b(digest_size=8)
        for path, content in sorted(self.tree.files.items()):
            name = path.encode("utf-8", "surrogatepass")
            digest.update(b"%d:%b%d:%b" % (len(name), name, len(content), content))
        return digest.hexdigest()

    def find_file(self, path: str, listed: list[str]) -> bytes:
        """Return the content of a file.

        Args:
            path: The path in the model's request.
            listed: The files that it may request.

        Raises:
            SkillRefusal: The path is not one of them.
        """
        if path in listed:
            return self.tree.files[path]
        raise SkillRefusal(
            f"{path!r} of the skill {self.name!r} is not available: {self._reason(path, listed)}"
        )

    def _reason(self, path: str, listed: list[str]) -> str:
        parts = path.replace("\\", "/").split("/")
        if path.startswith(("/", "\\", "~")) or re.match(r"[A-Za-z]:", path):
            return "it is an absolute path. Paths begin in the folder of the skill."
        if ".." in parts:
            return "it leads out of the folder of the skill."
        for length in range(1, len(parts) + 1):
            why = self.tree.refused.get("/".join(parts[:length]))
            if why is not None:
                return f"{'/'.join(parts[:length])!r} is {why}."
        return f"it is not listed. There is {', '.join(map(repr, listed)) or 'nothing'}."


class SkillLibrary(Mapping[str, Skill]):
    """Skills by name.

    Args:
        spec: Their place, and the selected names.

    Raises:
        SkillError: They do not exist, or one of them is invalid.
    """

    def __init__(self, spec: SkillsSpec) -> None:
        self.spec = spec
        tree = read_source(spec)
        skills = {skill.name: skill for skill in _skills_in(tree)}
        unknown = [name for name in spec.only if name not in skills]
        if unknown or not skills:
            raise SkillError(
                f"there is no skill {unknown[0]!r}" if unknown else "there are no skills",
                expected=f"folders with a file {FILE} in {tree.place}",
                found=", ".join(skills) or "no such folder",
                fix="correct the path, or the names after 'only'",
            )
        self._skills = {name: skill for name, skill in skills.items() if not spec.only or name in spec.only}

    def __getitem__(self, name: str) -> Skill:
        return self._skills[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._skills)

    def __len__(self) -> int:
        return len(self._skills)

    @property
    def digest(self) -> str:
        """Return a digest of all files of all skills: 16 hexadecimal digits."""
        digest = hashlib.blake2b(digest_size=8)
        for name, skill in sorted(self._skills.items()):
            digest.update(f"{name}:{skill.digest};".encode())
        return digest.hexdigest()


def _skills_in(tree: Tree) -> Iterator[Skill]:
    """Yield the skills of a source: itself, its folders, or the folders of its only folder."""
    if FILE in tree.files:
        yield _skill(tree, None)
        return
    folders = sorted({path.split("/")[0] for path in tree.files if "/" in path})
    skills = [folder for folder in folders if f"{folder}/{FILE}" in tree.files]
    if not skills and len(folders) == 1:
        yield from _skills_in(tree.subtree(folders[0]))
    for folder in skills:
        yield _skill(tree.subtree(folder), folder)


def _skill(tree: Tree, folder: str | None) -> Skill:
    where = f"{tree.place}/{FILE}"
    try:
        match = _FRONT.match(tree.files[FILE].decode("utf-8-sig"))
        # The first line is '---'.
        front: Any = YamlSource(match[1], first_line=2).value if match is not None else None
    except RepeatedKey as error:
        raise _malformed_error(f"{where}:{error.line}", "each key once", error.message) from None
    except (UnicodeDecodeError, YamlProblem) as error:
        cause = error.__cause__ or error
        raise _malformed_error(
            where, "YAML between two lines '---'", f"{type(cause).__name__}: {cause}"
        ) from None
    if match is None or not isinstance(front, dict):
        raise _malformed_error(where, "name and description between two lines '---' at its beginning", "none")
    fields = cast("dict[str, Any]", front)
    name = fields.get("name")
    description = fields.get("description")
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None:
        expected = f"a name of at most {_LONGEST_NAME} lower-case letters, digits and single hyphens"
        raise _malformed_error(where, expected, repr(name))
    if folder is not None and name != folder:
        raise _malformed_error(where, f"the name of its folder, {folder!r}", repr(name))
    text = description.strip() if isinstance(description, str) else ""
    if not 0 < len(text) <= _LONGEST_DESCRIPTION:
        expected = f"a description of at most {_LONGEST_DESCRIPTION} characters"
        raise _malformed_error(where, expected, f"{len(text)} characters" if text else "none")
    return Skill(name, text, match[2].strip(), tree)


def _malformed_error(where: str, expected: str, found: str) -> SkillError:
    return SkillError(
        "invalid file of a skill",
        expected=expected,
        found=found[:500],
        fix="correct the file",
        where=where,
    )
