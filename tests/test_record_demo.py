"""The recorder of ``scripts/record-demo``: what a terminal shows, its pace, and the picture."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.record_demo import COLUMNS, LAST_FRAME, LONGEST_GAP, WIDTH, Screen, paced, record, svg
from tests.suite.tables import each_case

CASES = [
    (["a\nb"], ("a", "b")),
    (["50 %\r100 %"], ("100 %",)),
    (["abc\r\x1b[Kd"], ("d",)),
    (["one\ntwo\r\x1b[2K\x1b[1A\x1b[2Kthree\nfour"], ("three", "four")),
    (["one\ntwo\r\x1b[2K\x1b[", "1A\x1b[2Kthree\nfour"], ("three", "four")),
    (["\x1b[31mred\x1b[0m"], ("red",)),
    (["\x1b]0;title\x07text"], ("text",)),
    (["a \u2501\u2501 1\na \u2501\u2501 2\nb \u2501 0"], ("a \u2501\u2501 2", "b \u2501 0")),
    (["x" * (COLUMNS + 5)], ("x" * COLUMNS,)),
]


@each_case(("parts", "shown"), CASES)
def test_screen(parts: list[str], shown: tuple[str, ...]) -> None:
    screen = Screen()
    for part in parts:
        screen.feed(part)
    assert screen.shown() == shown


def test_waits_are_shortened_and_moving_bars_are_one_frame() -> None:
    bars = [(1.0 + number / 10, ("agent \u2501" + "\u2501" * number,)) for number in range(50)]
    frames = [(0.0, ("start",)), *bars, (60.0, ("end",))]
    paced_frames = paced(frames)
    assert [lines[0][:5] for _, lines in paced_frames] == ["start", "agent", "end"]
    assert [lasts for lasts, _ in paced_frames] == [1.0, LONGEST_GAP, LAST_FRAME]


def test_a_command_becomes_a_picture() -> None:
    frames = paced(record(["printf", "<a> & b\n"]))
    picture = ElementTree.fromstring(svg(frames, "A test"))
    lines = list(picture.iter("{http://www.w3.org/2000/svg}text"))
    assert all(
        float(line.attrib["textLength"]) == WIDTH * len(line.text or "") for line in lines
    )  # in any font
    texts = [line.text for line in lines]
    assert "<a> & b" in texts and texts[0] is not None and texts[0].startswith("$ printf")
