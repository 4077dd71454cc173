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
"""The file of a skill with its name, description and instructions."""
SCRIPTS = "scripts/"
"""The folder of a skill in which its scripts are."""

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LONGEST_NAME = 64
_LONGEST_DESCRIPTION = 1024
_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*\r?$\n?(.*)\Z", re.DOTALL | re.MULTILINE)
"""YAML between two lines ``---``, and the text after them."""


class SkillRefusal(Exception):
    """A model requests a missing or blocked file or script. The model gets the message."""


@dataclass(frozen=True)
class Skill:
    """A folder with a ``SKILL.md``.

    Attributes:
        name: Name of the skill.
        description: Purpose of the skill, and when to use it.
        text: Instructions for a model that loads the skill.
        tree: All files of the folder.
    """

    name: str
    description: str
    text: str
    tree: Tree

    @property
    def scripts(self) -> list[str]:
        """The paths of its scripts, sorted."""
        return sorted(path for path in self.tree.files if path.startswith(SCRIPTS))

    @property
    def files(self) -> list[str]:
        """The paths of its other files without ``SKILL.md``, sorted."""
        return sorted({*self.tree.files} - {FILE} - {*self.scripts})

    @cached_property
    def digest(self) -> str:
        """A digest of all its files: 16 hexadecimal digits."""
        digest = hashlib.blake2b(digest_size=8)
        for path, content in sorted(self.tree.files.items()):
            name = path.encode("utf-8", "surrogatepass")
            digest.update(b"%d:%b%d:%b" % (len(name), name, len(content), content))
        return digest.hexdigest()

    def find_file(self, path: str, listed: list[str]) -> bytes:
        """Return the content of a file.

        Args:
            path: The path in the model's request, from the folder of the skill.
            listed: Paths of the files that the model may request.

        Raises:
            SkillRefusal: The path is not one of them.
        """
        if path in listed:
            return self.tree.files[path]
        raise SkillRefusal(
            f"{path!r} of the skill {self.name!r} is not available: {self._reason(path, listed)}"
        )

    def _reason(self, path: str, listed: list[str]) -> str:
        """Return a sentence for the model about why a path is not available."""
        parts = path.replace("\\", "/").split("/")
        if path.startswith(("/", "\\", "~")) or re.match(r"[A-Za-z]:", path):
            return "it is an absolute path. Paths begin in the folder of the skill."
        if ".." in parts:
            return "it leads out of the folder of the skill."
        for length in range(1, len(parts) + 1):
            outer_path = "/".join(parts[:length])
            reason = self.tree.refused.get(outer_path)
            if reason is not None:
                return f"{outer_path!r} is {reason}."
        return f"it is not listed. There is {', '.join(map(repr, listed)) or 'nothing'}."


class SkillLibrary(Mapping[str, Skill]):
    """The skills of one source by name, read at once.

    Args:
        spec: Description of the skills: their source, and the names to select.

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
        """A digest of all files of all skills: 16 hexadecimal digits."""
        digest = hashlib.blake2b(digest_size=8)
        for name, skill in sorted(self._skills.items()):
            digest.update(f"{name}:{skill.digest};".encode())
        return digest.hexdigest()


def _skills_in(tree: Tree) -> Iterator[Skill]:
    """Yield the skills of a source: itself, its folders, or the folders of its only folder."""
    if FILE in tree.files:
        yield _read_skill(tree, None)
        return
    folders = sorted({path.split("/")[0] for path in tree.files if "/" in path})
    skills = [folder for folder in folders if f"{folder}/{FILE}" in tree.files]
    if not skills and len(folders) == 1:
        yield from _skills_in(tree.subtree(folders[0]))
    for folder in skills:
        yield _read_skill(tree.subtree(folder), folder)


def _read_skill(tree: Tree, folder: str | None) -> Skill:
    """Return the skill in a tree.

    Args:
        tree: The files of the skill.
        folder: Name of its folder, which has to be that of the skill; None if the tree is the whole source.

    Raises:
        SkillError: Its ``SKILL.md`` is malformed.
    """
    where = f"{tree.place}/{FILE}"
    fields, text = _split_skill_file(tree.files[FILE], where)
    name = fields.get("name")
    description = fields.get("description")
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None:
        expected = f"a name of at most {_LONGEST_NAME} lower-case letters, digits and single hyphens"
        raise _malformed_error(where, expected, repr(name))
    if folder is not None and name != folder:
        raise _malformed_error(where, f"the name of its folder, {folder!r}", repr(name))
    purpose = description.strip() if isinstance(description, str) else ""
    if not 0 < len(purpose) <= _LONGEST_DESCRIPTION:
        expected = f"a description of at most {_LONGEST_DESCRIPTION} characters"
        raise _malformed_error(where, expected, f"{len(purpose)} characters" if purpose else "none")
    return Skill(name, purpose, text, tree)


def _split_skill_file(content: bytes, where: str) -> tuple[dict[str, Any], str]:
    """Return the fields at the beginning of a ``SKILL.md``, and the text after them.

    Raises:
        SkillError: It has another form; ``where`` is its place.
    """
    try:
        match = _FRONT.match(content.decode("utf-8-sig"))
        # The first line is '---'.
        fields: Any = YamlSource(match[1], first_line=2).value if match is not None else None
    except RepeatedKey as error:
        raise _malformed_error(f"{where}:{error.line}", "each key once", error.message) from None
    except (UnicodeDecodeError, YamlProblem) as error:
        cause = error.__cause__ or error
        raise _malformed_error(
            where, "YAML between two lines '---'", f"{type(cause).__name__}: {cause}"
        ) from None
    if match is None or not isinstance(fields, dict):
        raise _malformed_error(where, "name and description between two lines '---' at its beginning", "none")
    return cast("dict[str, Any]", fields), match[2].strip()


def _malformed_error(where: str, expected: str, found: str) -> SkillError:
    return SkillError(
        "invalid file of a skill",
        expected=expected,
        found=found[:500],
        fix="correct the file",
        where=where,
    )
