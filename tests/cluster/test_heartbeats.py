"""The check of heartbeats finds what it is there for."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.heartbeats import Beat, Heartbeats, attempts_of, late_beats, read_beats


def beats(text: str) -> list[Beat]:
    return [Beat(word[0], "wait", word[1]) for word in text.split()]


def test_attempts_one_after_the_other() -> None:
    assert late_beats(beats("a1 b2 a1 b2 c1 c1 d2")) == []


def test_an_attempt_that_goes_on_after_its_successor_began() -> None:
    assert late_beats(beats("a1 c1 a1 c1")) == beats("a1")
    # Key 3 was not taken over yet, but the subtask was.
    assert late_beats(beats("a1 a3 c1 a3")) == beats("a3")


def test_lines_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "beats"
    assert read_beats(path) == []
    first = Heartbeats(str(path))
    second = Heartbeats(str(path))
    first.write("wait", 1)
    second.write("call", 2)
    written_beats = read_beats(path)
    assert [(beat.kind, beat.key) for beat in written_beats] == [("wait", "1"), ("call", "2")]
    assert len(attempts_of(written_beats)) == 2
