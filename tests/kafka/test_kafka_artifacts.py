"""Kafka's files are fetched once, whole, and what prevents it is named. No network is used here."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jgo
import pytest

from flink_agents.api.errors import BrokerDownloadError, MissingExtraError
from flink_agents.testing.kafka import KafkaBroker, artifacts


class Served:
    """An artifact as jgo has them; each of ``contents`` is what one download leaves."""

    def __init__(self, path: Path, *contents: bytes | Exception) -> None:
        self.groupId = "org"
        self.artifactId = path.stem
        self.version = "1"
        self.cached_path = path
        self.contents = list(contents)

    def resolve(self) -> Path:
        if not self.cached_path.exists():
            content = self.contents.pop(0)
            if isinstance(content, Exception):
                self.cached_path.write_bytes(b"PK half")
                raise content
            self.cached_path.write_bytes(content)
        return self.cached_path


@pytest.fixture
def jar(tmp_path: Path) -> bytes:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("a", "a")
    return (tmp_path / "a.zip").read_bytes()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JGO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def serve(monkeypatch: pytest.MonkeyPatch, *found: Served) -> list[str]:
    """Let jgo resolve to these; returns what it is asked for."""
    endpoints: list[str] = []

    def resolve(endpoint: str, **_: Any) -> list[Any]:
        endpoints.append(endpoint)
        return list(found) if endpoint == artifacts.KAFKA else []

    monkeypatch.setattr(jgo, "resolve", resolve)
    return endpoints


def test_half_a_download_is_thrown_away(tmp_path: Path, jar: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = Served(tmp_path / "log4j-core.jar", OSError("reset"), jar)
    truncated = Served(tmp_path / "kafka.jar", jar[:-4], jar)
    endpoints = serve(monkeypatch, interrupted, truncated)
    paths = artifacts.class_path()
    assert paths == [tmp_path / "log4j-core.jar", tmp_path / "kafka.jar"]
    assert [path.read_bytes() for path in paths] == [jar, jar]
    assert endpoints == [artifacts.KAFKA, f"{artifacts.LOGGING}:1"]


def test_the_second_time_nothing_is_resolved(
    tmp_path: Path, jar: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints = serve(monkeypatch, Served(tmp_path / "log4j-core.jar", jar, jar))
    first = artifacts.class_path()
    endpoints.clear()
    assert artifacts.class_path() == first
    assert endpoints == []
    first[0].unlink()
    assert artifacts.class_path() == first
    assert endpoints != []


def test_a_failure_is_named(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, Served(tmp_path / "log4j-core.jar", *(OSError("no route") for _ in range(3))))
    with pytest.raises(BrokerDownloadError, match="no route"):
        KafkaBroker(tmp_path / "kafka").start()
    assert not (tmp_path / "log4j-core.jar").exists()
    assert list(cache.glob("*.json")) == []


def test_what_never_becomes_a_jar_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, Served(tmp_path / "log4j-core.jar", *(b"<html>" for _ in range(3))))
    with pytest.raises(BrokerDownloadError, match="not a jar file"):
        artifacts.class_path()


def test_a_listing_that_is_damaged_is_made_anew(
    tmp_path: Path, cache: Path, jar: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, Served(tmp_path / "log4j-core.jar", jar))
    cache.mkdir()
    listing = cache / f"flink-agents-kafka-{artifacts.KAFKA_VERSION}.json"
    listing.write_text("[")
    assert artifacts.class_path() == [tmp_path / "log4j-core.jar"]
    assert json.loads(listing.read_text()) == [str(tmp_path / "log4j-core.jar")]


def test_repositories_of_the_users_settings_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_repositories: list[Any] = []

    def resolve(endpoint: str, repositories: dict[str, str]) -> list[Any]:
        passed_repositories.append(repositories)
        raise RuntimeError("enough")

    monkeypatch.setattr(jgo, "resolve", resolve)
    monkeypatch.setattr(
        "jgo.config.GlobalSettings.load",
        lambda: SimpleNamespace(cache_dir=tmp_path, repositories={"mirror": "file:repository"}),
    )
    with pytest.raises(BrokerDownloadError, match="enough"):
        artifacts.class_path()
    assert passed_repositories == [{"mirror": "file:repository"}]


def test_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "find_spec", lambda name: None if name == "jgo" else name)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[kafka\]"):
        KafkaBroker(tmp_path)
