"""Where Flink's Kafka connector comes from: a file that is named, one that is there, or a download."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flink_agents.api.errors import KafkaConnectorError, MissingExtraError
from flink_agents.api.settings.options import KAFKA_JAR_VARIABLE
from flink_agents.cli import main
from flink_agents.cli.errors import ERROR_EXIT
from flink_agents.connectors import maven
from flink_agents.connectors.kafka import connector_jar as jars
from flink_agents.connectors.kafka.connector_jar import connector_jar, present_jar, zstd_jar


def make_jar(file: Path, *classes: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        for name in classes:
            archive.writestr(f"{name.replace('.', '/')}.class", b"")
    return file


@pytest.fixture
def needed() -> tuple[str, ...]:
    return jars._NEEDED


@pytest.fixture(autouse=True)
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(coordinates: str) -> Path:
        raise OSError(f"no route to fetch {coordinates}")

    monkeypatch.setattr(maven, "fetch_jar", fetch)


def test_a_named_file_comes_first(tmp_path: Path, needed: tuple[str, ...]) -> None:
    mine = make_jar(tmp_path / "mine.jar", *needed)
    environment_jar = make_jar(tmp_path / "other.jar", *needed)
    environ = {KAFKA_JAR_VARIABLE: str(environment_jar), "M2_REPO": str(tmp_path)}
    assert connector_jar(mine, environ) == mine
    assert connector_jar(None, environ) == environment_jar


def test_what_maven_or_jgo_have_is_taken_without_a_network(tmp_path: Path, needed: tuple[str, ...]) -> None:
    environ = {"M2_REPO": str(tmp_path)}
    assert present_jar(None, environ) is None
    place = tmp_path / "org/apache/flink/flink-sql-connector-kafka/5.0.0-2.2"
    jar = make_jar(place / "flink-sql-connector-kafka-5.0.0-2.2.jar", *needed)
    assert connector_jar(None, environ) == jar


def test_half_a_file_in_the_cache_is_not_taken(tmp_path: Path, needed: tuple[str, ...]) -> None:
    place = tmp_path / "org/apache/flink/flink-sql-connector-kafka/5.0.0-2.2"
    jar = make_jar(place / "flink-sql-connector-kafka-5.0.0-2.2.jar", *needed)
    jar.write_bytes(jar.read_bytes()[:-30])
    assert present_jar(None, {"M2_REPO": str(tmp_path)}) is None


def test_the_library_for_zstd_is_beside_a_named_connector_or_in_the_repository(tmp_path: Path) -> None:
    place = tmp_path / "own"
    repository = tmp_path / "repository"
    named = {KAFKA_JAR_VARIABLE: str(place / "c.jar")}
    elsewhere = {"M2_REPO": str(repository)}
    assert zstd_jar(None, named | elsewhere) is None, "nothing is downloaded for a connector from elsewhere"
    assert zstd_jar(None, elsewhere) is None, "the download failed, which is no reason to fail"
    folder = repository / "com/github/luben/zstd-jni/1.5.6-10"
    cached = make_jar(folder / "zstd-jni-1.5.6-10.jar", "com.github.luben.zstd.Zstd")
    assert zstd_jar(None, elsewhere) == zstd_jar(None, named | elsewhere) == cached
    beside = make_jar(place / "zstd-jni-1.5.7-6.jar", "com.github.luben.zstd.Zstd")
    assert zstd_jar(None, named | elsewhere) == zstd_jar(place / "c.jar", elsewhere) == beside
    assert zstd_jar(None, elsewhere) == cached


def test_a_named_file_that_is_not_the_connector_is_refused(tmp_path: Path, needed: tuple[str, ...]) -> None:
    for file, text in [
        (tmp_path / "gone.jar", "no such file"),
        (make_jar(tmp_path / "empty.jar"), "no class"),
        (make_jar(tmp_path / "without-client.jar", needed[0]), "no class"),
    ]:
        with pytest.raises(KafkaConnectorError, match=text):
            connector_jar(None, {KAFKA_JAR_VARIABLE: str(file)})


def test_a_download_that_fails_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KafkaConnectorError, match="no route to fetch") as caught:
        connector_jar(None, {"M2_REPO": str(tmp_path)})
    assert KAFKA_JAR_VARIABLE in str(caught.value)


def test_without_the_extra_nothing_can_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="extra kafka"):
        connector_jar(None, {"M2_REPO": str(tmp_path)})


def test_the_command_prints_where_the_file_is(
    tmp_path: Path, needed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = make_jar(tmp_path / "mine.jar", *needed)
    monkeypatch.setenv(KAFKA_JAR_VARIABLE, str(jar))
    done = CliRunner().invoke(main.app, ["kafka", "fetch-connector"])
    assert (done.exit_code, done.stdout.strip()) == (0, str(jar))
    monkeypatch.setenv(KAFKA_JAR_VARIABLE, str(tmp_path / "gone.jar"))
    assert CliRunner().invoke(main.app, ["kafka", "fetch-connector"]).exit_code == ERROR_EXIT
