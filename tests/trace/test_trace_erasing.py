"""Trace files from which a key is erased: of each kind, and by each name of a key."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents.api.errors import TraceNotFoundError
from flink_agents.cli.keys import key_texts, key_value, shown_key
from flink_agents.cli.main import app
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.trace.erasing import erase_files
from tests.suite.tables import each_case
from tests.trace.test_trace_sinks import record

pytestmark = pytest.mark.own_conditions

KEYS: list[Any] = [
    *("", "a", "1", "s1", "i1", "x61", " 1", "1.0", "true", "null", "NaN", "[1]", '["a", 1]', '"a"'),
    *("\ud800", "é", "a\nb", "\x00", "***", "-1", "1e5", "Infinity", "9" * 5000, "[" * 5000, '{"a": 1}'),
    *(1, -1, True, None, 1.0, 1e300, float("inf"), b"a", ("a", 1), ("a", (1, "b")), (1,), (), (b"a",)),
    10**700,
]  # fmt: skip


@each_case("key", KEYS)
def test_commands_take_a_key_as_they_show_it(key: Any) -> None:
    canonical = encode_key(key)
    shown = shown_key(canonical)
    assert canonical in key_texts(shown)
    # What is no JSON is shown in its canonical form, which only readers take.
    assert encode_key(key_value(shown)) == canonical or shown == canonical
    assert not isinstance(key, str) or shown != canonical


def test_no_reader_takes_the_canonical_text_of_another_key() -> None:
    assert key_texts("1") == {"1", "i1", "s1"}
    assert key_texts("s1") == {"ss1"}
    assert key_texts("x61") == {"sx61", "x61"}


def lines(*keys: str) -> bytes:
    records = [record(number) for number, _ in enumerate(keys)]
    for new_record, key in zip(records, keys, strict=True):
        new_record.key = key
    return b"".join(keyed_record.to_bytes() + b"\n" for keyed_record in records)


def keys_of(file: Path) -> list[str]:
    return [json.loads(line)["key"] for line in file.read_bytes().split(b"\n") if line]


@each_case("kind", ["symbolic", "hard", "plain"])
def test_a_key_is_gone_under_all_names_of_a_file(kind: str, tmp_path: Path) -> None:
    tmp_path = tmp_path / kind
    (tmp_path / "traces").mkdir(parents=True)
    data = tmp_path / "data"
    name = tmp_path / "traces" / "a.trace.jsonl"
    (name if kind == "plain" else data).write_bytes(lines("i1", "s1"))
    (name if kind == "plain" else data).chmod(0o640)
    if kind == "symbolic":
        name.symlink_to(data)
    elif kind == "hard":
        name.hardlink_to(data)
    assert erase_files(tmp_path / "traces", {"i1"}).records == 1
    assert keys_of(name) == ["s1"] and (kind == "plain" or keys_of(data) == ["s1"])
    # Who could read it can do so.
    assert name.stat().st_mode & 0o777 == 0o640
    assert name.is_symlink() == (kind == "symbolic")


def test_files_that_are_none_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "b.trace.jsonl").mkdir()
    (tmp_path / "c.trace.jsonl").symlink_to("nowhere")
    os.mkfifo(tmp_path / "d.trace.jsonl")
    (tmp_path / "a.trace.jsonl").write_bytes(lines("i1"))
    assert erase_files(tmp_path, {"i1"}).records == 1
    listed = CliRunner().invoke(app, ["runs", "--path", str(tmp_path)])
    assert listed.exit_code == 1 and "no run" in listed.output


def test_a_place_without_a_trace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFoundError, match="there is no trace"):
        erase_files(tmp_path / "typo", {"i1"})
    result = CliRunner().invoke(app, ["erase", "1", "--yes", "--path", str(tmp_path / "typo")])
    assert result.exit_code == 2 and "FA6103" in result.output


def test_a_file_that_cannot_be_used_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.trace.jsonl").write_bytes(lines("i1"))
    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(TraceNotFoundError, match="PermissionError"):
        erase_files(tmp_path, {"i1"})


def denied(*_: Any, **__: Any) -> Any:
    raise PermissionError(13, "Permission denied")


def test_records_of_a_newer_version_are_compared_by_their_whole_key(tmp_path: Path) -> None:
    file = tmp_path / "a.trace.jsonl"
    newer = b'{"version":99,"key":"%s","new":"i1"}\n'
    file.write_bytes(newer % b"i12" + newer % b"i1" + b'{"version":99,"key":"i1')
    assert erase_files(tmp_path, {"i1"}).records == 2
    assert keys_of(file) == ["i12"]


@each_case(
    "argument, removed", [("1", ["i1"]), ('"1"', ["s1"]), ("s1", []), ("x61", ["x61", "sx61"]), ("[1]", [])]
)
def test_erase_removes_the_one_key_that_is_named(argument: str, removed: list[str], tmp_path: Path) -> None:
    file = tmp_path / "a.trace.jsonl"
    keys = ["i1", "s1", "b1", "x61", "sx61"]
    file.write_bytes(lines(*keys))
    assert CliRunner().invoke(app, ["erase", argument, "--yes", "--path", str(file)]).exit_code == 0
    assert keys_of(file) == [key for key in keys if key not in removed]
