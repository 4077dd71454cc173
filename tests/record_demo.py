"""``scripts/record-demo``: records a command in a terminal as an animated SVG, without a network.

    python -m tests.record_demo docs/pictures/demo.svg -- scripts/demo --kill

The animation is CSS: one strip of frames that moves in steps, so that it also plays in an ``<img>``.
"""

from __future__ import annotations

import argparse
import codecs
import os
import pty
import re
import select
import time
from html import escape
from pathlib import Path

COLUMNS = 100
ROWS = 20
LONGEST_GAP = 1.2
SHORTEST_FRAME = 0.25
LAST_FRAME = 5.0
"""Seconds: waits are shortened to the first, frames that are shorter than the second are merged."""

WIDTH = 8.0
LINE = 18
LEFT = 12
TOP = 34
_CONTROL = re.compile(r"\x1b\[(?P<arguments>[\d;?]*)(?P<name>[A-Za-z])|\x1b\][^\x07]*\x07|\r|\n|[^\x1b\r\n]+")
_UNFINISHED = re.compile(r"(?:\x1b(?:\[[\d;?]*|\][^\x07]*)?)?$")
_BAR = re.compile("[\u2501\u2578\u257a]+")

STYLE = """
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d7dae0;white-space:pre}
.typed{fill:#7ee0c8;font-weight:600}
"""


class Screen:
    """The lines of a terminal, as far as logs and progress bars need it."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = self.column = 0
        self.unfinished = ""

    def feed(self, text: str) -> None:
        """Take what a program wrote; it may end inside a control sequence."""
        text = self.unfinished + text
        self.unfinished = _UNFINISHED.search(text)[0]  # pyright: ignore[reportOptionalSubscript]
        text = text.removesuffix(self.unfinished)
        for part in _CONTROL.finditer(text):
            control = part[0]
            if control == "\r":
                self.column = 0
            elif control == "\n":
                self.row = self.row + 1
                self.column = 0
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif part["name"] == "K":
                self.lines[self.row] = "" if part["arguments"] == "2" else self.lines[self.row][: self.column]
            elif part["name"] == "A":
                self.row = max(0, self.row - int(part["arguments"] or 1))
            elif not control.startswith("\x1b"):
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + control + line[self.column + len(control) :]
                self.column += len(control)

    def shown(self) -> tuple[str, ...]:
        """Return the last lines, cut to the width; of a bar that was drawn twice, the newer one."""
        lines: list[str] = []
        for line in self.lines:
            if lines and _BAR.search(line) and _label(line) == _label(lines[-1]):
                lines.pop()
            lines.append(line[:COLUMNS])
        return tuple(lines[-ROWS:])


def _label(line: str) -> str:
    return _BAR.split(line, maxsplit=1)[0]


Frame = tuple[float, tuple[str, ...]]


def record(command: list[str]) -> list[Frame]:
    """Run a command in a terminal; return when its screen changed, and what it showed."""
    screen = Screen()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    screen.feed(f"$ {' '.join(command)}\n")
    frames = [(0.0, screen.shown())]
    started = time.monotonic()
    process, terminal = pty.fork()
    if process == 0:  # in the child
        os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm"}
        os.execvp(command[0], command)
    while True:
        select.select([terminal], [], [])
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the program has ended
            break
        screen.feed(decoder.decode(data))
        frames.append((time.monotonic() - started, screen.shown()))
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    return frames


def paced(frames: list[Frame]) -> list[Frame]:
    """Return frames with their durations: waits are shortened, and quick changes become one frame."""
    paced_frames: list[Frame] = []
    for (at, shown), following in zip(frames, [*frames[1:], None], strict=True):
        lasts = LAST_FRAME if following is None else following[0] - at
        if paced_frames and (
            paced_frames[-1][0] < SHORTEST_FRAME or _still(paced_frames[-1][1]) == _still(shown)
        ):
            paced_frames[-1] = (paced_frames[-1][0] + lasts, shown)
        else:
            paced_frames.append((lasts, shown))
    return [
        *((min(lasts, LONGEST_GAP), shown) for lasts, shown in paced_frames[:-1]),
        (LAST_FRAME, paced_frames[-1][1]),
    ]


def _still(shown: tuple[str, ...]) -> list[str]:
    """Return the lines without their bars, which also move while nothing happens."""
    return [_BAR.sub("", line) for line in shown]


def svg(frames: list[Frame], title: str) -> str:
    """Return the animation."""
    width = int(COLUMNS * WIDTH) + 2 * LEFT
    height = ROWS * LINE + TOP + LEFT
    total = sum(lasts for lasts, _ in frames)
    at = 0.0
    steps = []
    strip = []
    for number, (lasts, lines) in enumerate(frames):
        steps.append(f"{100 * at / total:.3f}%{{transform:translateX({-number * width}px)}}")
        at += lasts
        for row, line in enumerate(lines):
            if line.strip():
                kind = ' class="typed"' if line.startswith("$ ") else ""
                x = number * width + LEFT
                y = TOP + (row + 1) * LINE - 4
                text = line.rstrip()
                # Any font is drawn at this width, so that no line reaches into the next frame.
                fit = f' textLength="{len(text) * WIDTH:g}" lengthAdjust="spacingAndGlyphs"'
                strip.append(f'<text x="{x}" y="{y}"{kind}{fit}>{escape(text)}</text>')
    last = f"100%{{transform:translateX({-(len(frames) - 1) * width}px)}}"
    moves = (
        f"@keyframes play{{{''.join(steps)}{last}}}#strip{{animation:play {total:.1f}s step-end infinite}}"
    )
    dots = "".join(f'<circle cx="{18 + 18 * n}" cy="17" r="5" fill="#4b5263"/>' for n in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{escape(title)}</title><style>{STYLE}{moves}</style>"
        f'<rect width="{width}" height="{height}" rx="8" fill="#21252b"/>{dots}'
        f'<g id="strip">{"".join(strip)}</g></svg>\n'
    )


def main() -> None:
    """Record, and write the file."""
    parser = argparse.ArgumentParser(description="Record a command as an animated SVG.")
    parser.add_argument("file", type=Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    frames = paced(record(options.command))
    options.file.write_text(svg(frames, f"A terminal that runs {' '.join(options.command)}"), "utf-8")
    print(f"{len(frames)} frames, {options.file.stat().st_size} bytes: {options.file}")


if __name__ == "__main__":
    main()
