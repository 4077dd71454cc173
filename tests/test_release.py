"""The wheel as its readers install it, in an environment of its own; and the files of a release."""

from __future__ import annotations

import dataclasses
import os
import runpy
import zipfile
from pathlib import Path

import pytest

from flink_agents.api.errors.base import DOCS_URL
from tests.release import command
from tests.release.build import ROOT, Built, build
from tests.release.checks import metadata_of, notes, problems, unready
from tests.release.environment import InstalledWheel, closure
from tests.release.first_minutes import first_minutes
from tests.suite.tables import each_case

# All of them share an environment, which is as expensive as a start of Flink.
pytestmark = pytest.mark.minicluster


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    return InstalledWheel(tmp_path_factory.mktemp("installed") / "env", built.wheel, command.EXTRAS)


def test_the_files_have_what_git_knows_of_the_package(built: Built) -> None:
    assert problems(built) == []


def test_the_wheel_without_a_file_is_found(built: Built, tmp_path: Path) -> None:
    poor = tmp_path / built.wheel.name
    with zipfile.ZipFile(built.wheel) as wheel, zipfile.ZipFile(poor, "w") as copy:
        for name in wheel.namelist():
            if name != "flink_agents/plan/files/agents.schema.json":
                copy.writestr(name, wheel.read(name))
        copy.writestr("flink_agents/scratch.py", "")
    assert problems(dataclasses.replace(built, wheel=poor)) == [
        "The wheel lacks flink_agents/plan/files/agents.schema.json.",
        "The wheel has flink_agents/scratch.py, which git does not know.",
    ]


def test_the_metadata_says_what_the_package_is(built: Built) -> None:
    metadata = metadata_of(built)
    assert (metadata.name, str(metadata.requires_python)) == ("flink-agents-python", "<3.13,>=3.11")
    assert metadata.description_content_type == "text/markdown" and metadata.summary and metadata.keywords
    assert notes(built) == []


@each_case(
    "link, shown",
    [
        ("[a](docs/a.md)", "[a](SITE/a.html)"),
        ("[a](docs/design/a-b.md#c-d)", "[a](SITE/design/a-b.html#c-d)"),
        ("![a](docs/pictures/a.svg)", "![a](SITE/pictures/a.svg)"),
        ("[a](https://b.example/docs/c.md)", "[a](https://b.example/docs/c.md)"),
        ("[a](#b)", "[a](#b)"),
        ("[a](examples) or [b](AGENTS.md)", "a or b"),
        ("`items[0]` and [x]", "`items[0]` and [x]"),
    ],
)
def test_links_of_the_readme_lead_to_the_documentation(link: str, shown: str) -> None:
    to_index = runpy.run_path(str(ROOT / "setup.py"))["to_index"]
    assert to_index(link) == shown.replace("SITE/", DOCS_URL)


def test_a_version_without_a_section_of_the_changelog_is_not_ready(built: Built) -> None:
    version = metadata_of(built).version
    [*_, missing] = unready(built, "## [Unreleased]\n")
    assert missing.startswith(f"CHANGELOG.md has no section [{version}]")
    assert not any("CHANGELOG" in sentence for sentence in unready(built, f"## [{version}]\n"))


@pytest.mark.nightly
def test_what_a_newcomer_does_first(environment: InstalledWheel, tmp_path: Path) -> None:
    """Version, a new project, its tests, its plan, its job: by the commands of the environment."""
    assert [line.partition(":")[0] for line in first_minutes(environment, tmp_path)][
        -1
    ] == "the new project's job"


@pytest.mark.nightly
def test_the_environment_is_empty_but_for_the_wheel_and_what_it_requires(
    environment: InstalledWheel, tmp_path: Path
) -> None:
    code = (
        "import flink_agents; from importlib.util import find_spec;"
        "print(flink_agents.__file__, find_spec('ruff'), find_spec('openai'))"
    )
    file, *specs = environment.run("python", "-c", code, cwd=tmp_path).split()
    assert Path(file).is_relative_to(environment.site_packages)
    assert specs == ["None", "None"]


def test_entry_points_and_package_data_are_there(environment: InstalledWheel, tmp_path: Path) -> None:
    assert "agent_harness" in environment.run("python", "-m", "pytest", "--fixtures", "-q", cwd=tmp_path)
    code = (
        "import json; from importlib.resources import files; package = files('flink_agents');"
        "schemas = [package / 'plan' / 'files' / f'{name}.schema.json' for name in ('agents', 'plan')];"
        "print(*(json.loads(schema.read_text())['title'] for schema in schemas));"
        "print((package / 'py.typed').is_file())"
    )
    titles, typed = environment.run("python", "-c", code, cwd=tmp_path).splitlines()
    assert len(titles.split()) >= 2 and typed == "True"


def test_the_extra_of_the_examples_serves_them(environment: InstalledWheel, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r});"
        "from review_agents import ReviewAnalysisAgent; print(ReviewAnalysisAgent.sentiment('I love it'))"
    )
    assert float(environment.run("python", "-c", code, cwd=tmp_path)) > 0.5


def test_the_doctor_finds_nothing_that_fails(environment: InstalledWheel, tmp_path: Path) -> None:
    assert "fail" not in environment.run("flink-agents", "doctor", cwd=tmp_path)


def test_a_requirement_of_an_extra_is_not_given_without_it() -> None:
    requires = ["msgpack", 'ruff ; extra == "dev"']
    names = [
        sorted(distribution.name for distribution in closure(requires, extras)) for extras in ((), ("dev",))
    ]
    assert names == [["msgpack"], ["msgpack", "ruff"]]


def test_the_script_uploads_nothing_and_says_what_is_missing(
    built: Built,
    environment: InstalledWheel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "build", lambda directory: built)
    monkeypatch.setattr(command, "InstalledWheel", lambda *_, **__: environment)
    monkeypatch.setattr(command, "first_minutes", lambda *_: iter(["it runs"]))
    monkeypatch.setattr(command, "unready", lambda *_: ["It is not ready."])
    assert command.main(["--output", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "problem: It is not ready." in printed and "Nothing is to be uploaded" in printed
    monkeypatch.setattr(command, "unready", lambda *_: [])
    assert command.main(["--output", str(tmp_path)]) == 0
    assert f"Ready. To upload: twine upload {tmp_path / built.sdist.name}" in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path)) == sorted([built.sdist.name, built.wheel.name])
