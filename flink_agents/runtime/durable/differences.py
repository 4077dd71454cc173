"""Shows how the text of a recorded request differs from that of the request that a replay makes."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import pairwise

CONTEXT = 40
"""Characters that are shown before and after a difference."""

MOST_CHARACTERS = 200
"""The most characters of one difference."""

MOST_PLACES = 4
MOST_TOKENS = 600
"""With more tokens, the texts between the common start and end count as one difference."""

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_NAME = re.compile(r"(?:^|, )([A-Za-z_][\w.:/ -]*)=")


def difference(recorded: str, requested: str) -> tuple[str, str]:
    """Return the parts of two texts in which they differ, each with its name and some context."""
    places = _places(recorded, requested)
    shown = places[:MOST_PLACES]
    more = [f"and {len(places) - len(shown)} more"] if len(places) > len(shown) else []
    recorded_parts = [_shown(recorded, start, end) for start, end, _, _ in shown]
    after = [_shown(requested, start, end) for _, _, start, end in shown]
    return "; ".join([*recorded_parts, *more]), "; ".join([*after, *more])


Place = tuple[int, int, int, int]
"""Start and end of a difference in the first text, and in the second one."""


def _places(first: str, second: str) -> list[Place]:
    """Find the differences of two texts; those that are close together are one."""
    first_tokens = _TOKEN.findall(first)
    second_tokens = _TOKEN.findall(second)
    start = 0
    while start < min(len(first_tokens), len(second_tokens)) and first_tokens[start] == second_tokens[start]:
        start += 1
    end = 0
    while (
        end < min(len(first_tokens), len(second_tokens)) - start
        and first_tokens[-1 - end] == second_tokens[-1 - end]
    ):
        end += 1
    middles = first_tokens[start : len(first_tokens) - end], second_tokens[start : len(second_tokens) - end]
    codes = [("replace", 0, len(middles[0]), 0, len(middles[1]))]
    if max(map(len, middles)) <= MOST_TOKENS:
        codes = SequenceMatcher(None, *middles, autojunk=False).get_opcodes()
    starts = [_offsets(tokens) for tokens in (first_tokens, second_tokens)]
    places = [
        (starts[0][start + a], starts[0][start + b], starts[1][start + c], starts[1][start + d])
        for code, a, b, c, d in codes
        if code != "equal"
    ]
    return _joined(places)


def _offsets(tokens: list[str]) -> list[int]:
    """Return the offset of each token, and that of the end."""
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return offsets


def _joined(places: list[Place]) -> list[Place]:
    joined_places = places[:1]
    for (_, end, _, _), place in pairwise(places):
        if place[0] - end <= CONTEXT:
            joined_places[-1] = (joined_places[-1][0], place[1], joined_places[-1][2], place[3])
        else:
            joined_places.append(place)
    return joined_places


def _shown(text: str, start: int, end: int) -> str:
    """Return a part of a text with its context, and the name of the value that it belongs to."""
    name = ""
    begin = max(0, start - CONTEXT)
    names = [match for match in _NAME.finditer(text[: start + 1]) if match.end() <= start + 1]
    if names:
        if names[-1].start(1) >= begin:
            begin = names[-1].start(1)
        else:
            name = f"{names[-1][1]}="
    stop = min(len(text), end + CONTEXT)
    changed = text[start:end]
    if len(changed) > MOST_CHARACTERS:
        half = MOST_CHARACTERS // 2
        changed = f"{changed[:half]} ... {changed[-half:]}"
    head = "..." if begin and (name or not names or begin != names[-1].start(1)) else ""
    tail = "..." if stop < len(text) else ""
    return f"{name}{head}{text[begin:start]}{changed}{text[end:stop]}{tail}"
