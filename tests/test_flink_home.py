"""The Flink distribution that is made from PyFlink: its files, its options, its environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flink_agents.api.errors import SetupError
from flink_agents.runtime.flink.launch import flink_home
from flink_agents.runtime.flink.launch.flink_home import (
    PARENT_FIRST,
    FlinkHome,
    flatten_options,
    pyflink_directory,
)


def options_in(path: Path) -> dict[str, Any]:
    return dict(flatten_options(yaml.safe_load(path.read_text(encoding="utf-8"))))


def files_below(directory: Path) -> dict[Path, tuple[int, int]]:
    statuses = {path: path.lstat() for path in directory.rglob("*") if "__pycache__" not in path.parts}
    return {path: (status.st_mtime_ns, status.st_size) for path, status in statuses.items()}


def test_pyflinks_jar_lies_beside_flinks_own(tmp_path: Path) -> None:
    home = FlinkHome.create(tmp_path / "flink")
    jars = {path.name for path in (home.root / "lib").iterdir()}
    packaged = {path.name for path in (pyflink_directory() / "lib").iterdir()}
    assert jars == packaged | {home.python_jar.name}
    assert all(path.resolve().is_file() for path in (home.root / "lib").iterdir())
    # The client looks for it there.
    assert home.python_jar.parent == home.root / "opt"
    for command in (home.command("jobmanager"), home.command("taskmanager"), home.flink("run")):
        assert Path(command[0]).stat().st_mode & 0o111


def test_the_package_stays_as_it_is(tmp_path: Path) -> None:
    previous_files = files_below(pyflink_directory())
    FlinkHome.create(tmp_path / "flink", {"rest.port": 1})
    FlinkHome.create(tmp_path / "flink", {"rest.port": 2})
    assert files_below(pyflink_directory()) == previous_files


@pytest.mark.parametrize(
    ("given", "patterns"),
    [
        ({}, "pemja.;py4j."),
        ({PARENT_FIRST: "org.mine."}, "org.mine.;pemja.;py4j."),
        ({PARENT_FIRST: "py4j.;org.mine."}, "py4j.;org.mine.;pemja."),
        ({PARENT_FIRST: ""}, "pemja.;py4j."),
        ({"classloader": {"parent-first-patterns": {"additional": "org.mine."}}}, "org.mine.;pemja.;py4j."),
    ],
)
def test_the_classes_of_all_jobs_are_named_beside_the_authors(
    tmp_path: Path, given: dict[str, Any], patterns: str
) -> None:
    home = FlinkHome.create(tmp_path / "flink", given)
    assert options_in(home.conf / "config.yaml")[PARENT_FIRST] == patterns


def test_options_go_over_those_of_the_package(tmp_path: Path) -> None:
    home = FlinkHome.create(
        tmp_path, {"rest": {"port": 8099}, "jobmanager.rpc.port": 7, "taskmanager.host": None}
    )
    written = options_in(home.conf / "config.yaml")
    assert (written["rest.port"], written["jobmanager.rpc.port"]) == (8099, 7)
    assert "taskmanager.host" not in written
    assert "--add-opens" in written["env.java.opts.all"]


def test_made_anew_it_keeps_what_the_author_put_there(tmp_path: Path) -> None:
    home = FlinkHome.create(tmp_path / "flink")
    connector_jar = home.root / "lib" / "connector.jar"
    stale_link = home.root / "lib" / "flink-dist-1.0.jar"
    connector_jar.write_bytes(b"jar")
    stale_link.symlink_to(tmp_path / "an old pyflink" / stale_link.name)
    python_jar = home.root / "lib" / home.python_jar.name
    python_jar.unlink()
    python_jar.symlink_to(connector_jar)
    FlinkHome.create(tmp_path / "flink")
    assert connector_jar.read_bytes() == b"jar"
    assert not stale_link.is_symlink()
    assert python_jar.resolve() == home.python_jar.resolve()


def test_without_options_a_configuration_stays(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    home = FlinkHome.create(tmp_path / "flink", {"rest.port": 8099}, conf=conf)
    (conf / "log4j-console.properties").write_text("# mine", encoding="utf-8")
    FlinkHome.create(tmp_path / "flink", conf=conf)
    assert options_in(home.conf / "config.yaml")["rest.port"] == 8099
    FlinkHome.create(tmp_path / "flink", {"rest.port": 8100}, conf=conf)
    assert options_in(home.conf / "config.yaml")["rest.port"] == 8100
    assert (conf / "log4j-console.properties").read_text(encoding="utf-8") == "# mine"


def test_the_environment_knows_no_other_flink(tmp_path: Path) -> None:
    home = FlinkHome.create(tmp_path / "flink", log=tmp_path / "logs")
    variables = {
        "FLINK_LIB_DIR": "/other",
        "FLINK_CONF_DIR": "/other",
        "PYTHONHASHSEED": "1",
        "PATH": "/bin",
        "X": "1",
    }
    environment = home.environment(variables)
    assert environment["FLINK_LIB_DIR"] == str(home.root / "lib")
    assert environment["FLINK_CONF_DIR"] == str(home.conf)
    assert environment["FLINK_LOG_DIR"] == str(tmp_path / "logs")
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/bin"
    assert environment["X"] == "1" and "PYTHONHASHSEED" not in environment


@pytest.mark.parametrize("missing", ["opt/flink-python-2.3.0.jar", "lib/flink-dist-2.3.0.jar"])
def test_half_a_pyflink_is_named(tmp_path: Path, missing: str) -> None:
    source = tmp_path / "pyflink"
    for name in ("bin", "conf", "lib", "opt", "plugins"):
        (source / name).mkdir(parents=True)
    for name in ("opt/flink-python-2.3.0.jar", "lib/flink-dist-2.3.0.jar", "conf/config.yaml", "bin/flink"):
        if name != missing:
            (source / name).write_text("", encoding="utf-8")
    with pytest.raises(SetupError, match=Path(missing).name.partition("-2")[0]):
        FlinkHome.create(tmp_path / "flink", pyflink=source)


def test_a_shell_gets_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLINK_PROPERTIES", "rest.port: 8123\njobmanager.rpc.address: there\n")
    monkeypatch.setenv("FLINK_CONF_DIR", str(tmp_path / "conf"))
    command = [sys.executable, "-m", flink_home.__name__, str(tmp_path / "flink")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "flink")
    written = options_in(tmp_path / "conf" / "config.yaml")
    assert (written["rest.port"], written["jobmanager.rpc.address"]) == (8123, "there")
    assert written[PARENT_FIRST] == "pemja.;py4j."
    assert "taskmanager.host" not in written
