"""Skills as files: folders, zip files, packages; what is no skill, and what leads out of one."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelRetry
from skill_folders import REFUND, refund, skill, skill_set, write

from flink_agents import Skills
from flink_agents.api.errors import AgentDefinitionError, DuplicateNameError, SkillError
from flink_agents.api.models.skills import SkillsSpec
from flink_agents.models.tools.skills.library import SkillLibrary
from flink_agents.models.tools.skills.resource import SkillSet, open_skills
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

LOADED = {
    "instructions": "# Refunds\n\nRun `scripts/share.py` with the sum. `references/rules.txt` has the rules.",
    "files": ["references/rules.txt"],
    "scripts": ["scripts/share.py"],
}


def zipped(folder: Path, to: Path) -> Path:
    with zipfile.ZipFile(to, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder.parent))
    return to


def refused(skills: SkillSet, path: str, name: str = "refund") -> str:
    """What the model is told that asks for a file, and the same for a script."""
    with pytest.raises(ModelRetry) as of_file:
        asyncio.run(skills.read_skill_file(name, path))
    with pytest.raises(ModelRetry) as of_script:
        asyncio.run(skills.run_script(name, path))
    for caught in (of_file, of_script):
        assert repr(path) in str(caught.value)
        assert "is not available" in str(caught.value)
    return str(of_script.value)


@pytest.mark.parametrize("form", ["folder", "one", "zip", "package", "zipped package", "zip in a package"])
def test_skills_come_from(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = refund(tmp_path / "shop_manuals" / "skills")
    monkeypatch.syspath_prepend(str(tmp_path / "shop.zip" if form == "zipped package" else tmp_path))
    write(tmp_path / "shop_manuals", {"__init__.py": ""})
    if form == "zip in a package":
        zipped(folder, tmp_path / "shop_manuals" / "all.zip")
    zipped(tmp_path / "shop_manuals", tmp_path / "shop.zip")
    zipped(folder, tmp_path / "skills.zip")
    specs: dict[str, Any] = {
        "folder": {"path": folder},
        "one": {"path": folder / "refund"},
        "zip": {"path": tmp_path / "skills.zip"},
        "package": {"package": "shop_manuals.skills"},
        "zipped package": {"package": "shop_manuals", "path": "skills"},
        "zip in a package": {"package": "shop_manuals", "path": "all.zip"},
    }[form]
    skills = SkillSet(
        [open_skills("ours", SkillsSpec.model_validate({name: str(value) for name, value in specs.items()}))]
    )
    sys.modules.pop("shop_manuals", None)
    assert asyncio.run(skills.load_skill("refund")) == LOADED
    assert asyncio.run(skills.read_skill_file("refund", "references/rules.txt")) == "0.5"
    assert skills.instructions.endswith(
        "- refund: Says how much of an order is paid back. Use it for complaints."
    )


def test_an_installed_package_that_ships_skills() -> None:
    library = SkillLibrary(SkillsSpec(package="pydantic_ai", path=".agents/skills"))
    assert "building-pydantic-ai-agents" in library


def test_nothing_leads_out_of_a_skill(tmp_path: Path) -> None:
    secret = write(tmp_path, {"secret.py": "print('secret')"}) / "secret.py"
    folder = refund(tmp_path / "skills")
    for link in ("scripts/link.py", "references/link.txt"):
        (folder / "refund" / link).symlink_to(secret)
    (folder / "refund" / "scripts" / "outside").symlink_to(tmp_path)
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "refund" / "scripts" / "pipe.py")
    write(folder, {"refund/.env": "TOKEN=1", "refund/scripts/__pycache__/share.pyc": "x"})
    skills = skill_set(folder)
    assert asyncio.run(skills.load_skill("refund")) == LOADED
    assert "leads out" in refused(skills, "../../secret.py")
    assert "leads out" in refused(skills, "scripts/../../../secret.py")
    assert "absolute path" in refused(skills, str(secret))
    assert "absolute path" in refused(skills, "C:\\secret.py")
    assert "'scripts/link.py' is a symbolic link" in refused(skills, "scripts/link.py")
    assert "'scripts/outside' is a symbolic link" in refused(skills, "scripts/outside/secret.py")
    assert "not a regular file" in refused(skills, "scripts/pipe.py")
    for hidden in (".env", "scripts/__pycache__/share.pyc", "scripts/absent.py", "./scripts/share.py", ""):
        assert "it is not listed. There is 'scripts/share.py'" in refused(skills, hidden)
    with pytest.raises(ModelRetry, match="'references/rules.txt' .* is not listed"):
        asyncio.run(skills.run_script("refund", "references/rules.txt"))
    with pytest.raises(ModelRetry, match="no skill 'linked'. There is 'refund'"):
        asyncio.run(skills.load_skill("linked"))


def test_what_changes_behind_the_first_look_is_not_seen(tmp_path: Path) -> None:
    """A script cannot be exchanged between a check and its use, nor by another script."""
    folder = write(tmp_path, skill("count", run="open('scripts/run.py', 'w').write('print(2)'); print(1)"))
    skills = skill_set(folder)
    write(folder, {"count/scripts/run.py": "print(3)", "count/scripts/new.py": "print(4)"})
    for _ in range(2):
        assert asyncio.run(skills.run_script("count", "scripts/run.py"))["stdout"] == "1\n"
    assert "not listed" in refused(skills, "scripts/new.py", "count")


def bad_zip(to: Path, name: str, mode: int = 0o644) -> Path:
    with zipfile.ZipFile(to, "w") as archive:
        archive.writestr("refund/SKILL.md", REFUND)
        entry = zipfile.ZipInfo("placeholder")
        entry.filename = name
        entry.external_attr = mode << 16
        archive.writestr(entry, "/etc/passwd")
    return to


@pytest.mark.parametrize(
    "name",
    ["../evil.py", "refund/../../evil.py", "/evil.py", "refund\\..\\evil.py", "C:/evil.py", "refund//x.py"],
)
def test_a_zip_file_with_a_path_that_leads_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(SkillError, match="leads out of it") as caught:
        skill_set(bad_zip(tmp_path / "bad.zip", name))
    assert repr(name) in str(caught.value)


def test_a_link_in_a_zip_file(tmp_path: Path) -> None:
    skills = skill_set(bad_zip(tmp_path / "bad.zip", "refund/scripts/link.py", stat.S_IFLNK | 0o777))
    assert "'scripts/link.py' is a symbolic link" in refused(skills, "scripts/link.py")


def test_a_zip_file_that_unpacks_to_too_much(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("refund/SKILL.md", REFUND)
        archive.writestr("refund/zeros", b"\0" * 20_000_000)
    with pytest.raises(SkillError, match="too large"):
        skill_set(tmp_path / "bomb.zip")


FRONT = "---\nname: {name}\ndescription: {text}\n---\n"
MALFORMED = {
    "no front matter": "# Refund",
    "none": "",
    "YAML between two lines": "---\nname: [\n---\n",
    "name of its folder": FRONT.format(name="other", text="x"),
    "lower-case letters": FRONT.format(name="Re_Fund", text="x"),
    "a description": FRONT.format(name="refund", text=""),
    "at most 1024 characters": FRONT.format(name="refund", text="x" * 1025),
    "ParserError": "---\nname: {a\n---\n",
}


@pytest.mark.parametrize("found", MALFORMED)
def test_what_is_no_skill_is_named(tmp_path: Path, found: str) -> None:
    write(tmp_path, {"refund/SKILL.md": MALFORMED[found]})
    with pytest.raises(SkillError) as caught:
        skill_set(tmp_path)
    text = str(caught.value)
    assert "refund/SKILL.md: invalid file of a skill" in text
    assert found in text or found == "no front matter"


@each_case(
    ("front", "line"),
    [
        ("name: refund\ndescription: x\nname: other", 4),
        ("name: refund\nname: refund\ndescription: x", 3),
        ("name: refund\ndescription: x\nmetadata:\n  a: 1\n  a: 2", 6),
    ],
)
def test_a_skill_with_a_key_twice(tmp_path: Path, front: str, line: int) -> None:
    write(tmp_path, {"refund/SKILL.md": f"---\n{front}\n---\nText"})
    with pytest.raises(SkillError, match="appears twice") as caught:
        skill_set(tmp_path)
    assert (caught.value.where or "").endswith(f"refund/SKILL.md:{line}")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match="were not found"):
        skill_set(tmp_path / "nothing")
    with pytest.raises(SkillError, match="there are no skills"):
        skill_set(tmp_path)
    with pytest.raises(SkillError, match="no package 'nobody_has_this'"):
        SkillLibrary(SkillsSpec(package="nobody_has_this"))
    with pytest.raises(SkillError, match="leads out of their package"):
        SkillLibrary(SkillsSpec(package="pydantic_ai", path="../flink_agents"))
    write(tmp_path, {"no.zip": "no zip"})
    with pytest.raises(SkillError, match="cannot be read"):
        skill_set(tmp_path / "no.zip")
    with pytest.raises(SkillError, match="no skill 'pay'"):
        skill_set(refund(tmp_path / "skills"), only=("pay",))


def test_some_of_the_skills_and_those_of_several_sources(tmp_path: Path) -> None:
    folder = write(tmp_path, {**skill("a"), **skill("b")})
    assert list(SkillLibrary(SkillsSpec(path=str(folder), only=("b",)))) == ["b"]
    source = open_skills("ours", SkillsSpec(path=str(folder)))
    with pytest.raises(DuplicateNameError, match="two skills 'a'"):
        SkillSet([source, source])


def test_the_digest_is_that_of_all_content(tmp_path: Path) -> None:
    folder = refund(tmp_path)
    first, again = (SkillLibrary(SkillsSpec(path=str(folder))).digest for _ in range(2))
    write(folder, {"refund/references/rules.txt": "0.6"})
    assert first == again != SkillLibrary(SkillsSpec(path=str(folder))).digest


@pytest.mark.parametrize("said", [{}, {"path": "x", "timeout": 0}, {"pth": "x"}, {"package": "../x"}])
def test_a_description_is_checked_when_it_is_written(said: dict[str, Any]) -> None:
    with pytest.raises(
        AgentDefinitionError, match="a resource of skills has an invalid description"
    ) as caught:
        Skills(**said)
    assert "test_skills_files.py" in str(caught.value)
