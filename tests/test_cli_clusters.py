"""``run`` and ``stop``: which cluster is meant, and whether a savepoint is there, before anything begins."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flink_agents.api.errors import SubmissionError
from flink_agents.cli.cluster import directory
from flink_agents.cli.main import app
from flink_agents.runtime.flink.clusters.run import check_savepoint

LOCAL = "http://localhost:8081"


@pytest.fixture
def savepoints(tmp_path: Path) -> Path:
    place = tmp_path / "savepoints"
    for name in ("savepoint-1a", "savepoint-2b"):
        (place / name).mkdir(parents=True)
        (place / name / "_metadata").write_bytes(b"x")
    return place


def test_a_savepoint_that_is_there_passes(savepoints: Path) -> None:
    place = savepoints / "savepoint-1a"
    for text in (str(place), place.as_uri(), str(place / "_metadata")):
        for host in (LOCAL, "127.0.0.1:8081", f"http://{socket.gethostname()}:8081"):
            check_savepoint(text, host)


def test_what_another_machine_has_is_not_looked_at(tmp_path: Path) -> None:
    check_savepoint("s3://bucket/savepoint-1", LOCAL)
    check_savepoint(str(tmp_path / "none"), "http://flink.example.com:8081")


@pytest.mark.parametrize("as_url", [False, True])
def test_a_savepoint_that_is_not_there_is_named_at_once(savepoints: Path, as_url: bool) -> None:
    for wrong, text in (
        (savepoints / "savepoint-1", "did you mean 'savepoint-1a'?"),
        (savepoints, "name one of the savepoints in it, such as savepoint-2b"),
        (savepoints.parent / "saved" / "savepoint-1a", "correct --savepoint"),
    ):
        with pytest.raises(SubmissionError) as caught:
            check_savepoint(wrong.as_uri() if as_url else str(wrong), LOCAL)
        assert f"no savepoint was found at {wrong}" in str(caught.value)
        assert text in (caught.value.fix or "")


def test_commands_take_the_directory_of_a_cluster(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("")
    data = tmp_path / "cluster"
    for words in (["run", str(script)], ["stop"], ["cancel"], ["doctor"]):
        result = CliRunner().invoke(app, [*words, "--data", str(data)])
        assert result.exit_code == 2
        assert f"cluster start --data {data}" in result.output
        both = CliRunner().invoke(app, [*words, "--data", str(data), "--cluster", LOCAL])
        assert both.exit_code == 2 and "exclude each other" in both.output


def test_a_wrong_savepoint_is_refused_before_the_job_is_submitted(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("")
    words = ["run", str(script), "--cluster", "http://localhost:1", "--savepoint", str(tmp_path / "none")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "no savepoint was found at" in result.output


def test_a_savepoint_is_named_as_flink_prints_it(savepoints: Path) -> None:
    """``stop`` prints ``file:/directory``, with one slash."""
    place = savepoints / "savepoint-1a"
    for text in (f"file:{place}", place.as_uri(), str(place), "s3://bucket/savepoint-1", "s3:/bucket/one"):
        url = directory(text)
        assert url in (text, place.as_uri())
        check_savepoint(str(url), LOCAL)
    assert directory(None) is None
