"""The error about a replay that makes another call than was recorded, and how the two requests differ."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import pairwise

from flink_agents import redaction
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import NonDeterminismError
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.journal.calls import Mismatch
from flink_agents.runtime.journal.records import CallIdentity

MAX_AWAITS = 5
"""The most foreign awaits that the error about a mismatch lists."""

CONTEXT = 40
"""Characters that are shown before and after a difference."""

MOST_CHARACTERS = 200
"""The most characters of one difference."""

MOST_PLACES = 4
"""The most differences that are shown."""

MOST_TOKENS = 600
"""With more tokens, the texts between the common start and end count as one difference."""

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_NAME = re.compile(r"(?:^|, )([A-Za-z_][\w.:/ -]*)=")
"""The name of an argument in the text of a request."""


def mismatch_error(step: ActionRun, mismatch: Mismatch) -> NonDeterminismError:
    """Return the error that shows the recorded call beside the one that the code made."""
    run = step.run
    number = mismatch.number
    what = "call" if number.kind is RecordKind.CALL else "wait"
    task = f" of its task {number.task}" if number.task else ""
    place = f"key {run.key!r}, sequence {run.sequence_number}, {what} {number.nth}{task}"
    recorded, requested = _call_texts(mismatch.recorded, mismatch.requested)
    return NonDeterminismError(
        f"a replay of action {step.action.name!r} does not make the calls that were recorded: {place}",
        expected=recorded,
        found=requested,
        fix=_fix(mismatch, list(step.delivery.awaits) if step.delivery is not None else []),
    )


_CHANGED = (
    "start the former code until these runs are done, or set action-state.on-mismatch to 'rerun' (recorded "
    "calls are made again) or 'dead-letter'"
)


def _fix(mismatch: Mismatch, awaits: list[str]) -> str:
    """Return advice for a mismatch. It lists foreign awaits of the action, which are not recorded."""
    advice = (
        "let calls and their arguments follow from the event, memory, recorded results, ctx.now(), "
        "ctx.uuid4() and ctx.random() only, not from clocks, chance, globals or the order of sets "
        "(asyncio.as_completed over coroutines makes one: use ctx.as_completed, or give it tasks)"
    )
    if awaits:
        awaits_text = "; ".join(awaits[:MAX_AWAITS])
        advice = (
            f"the action also awaits what is not recorded: {awaits_text}. Make that a durable call. "
            f"And {advice}"
        )
    recorded = mismatch.recorded
    requested = mismatch.requested
    if isinstance(recorded, CallIdentity) and isinstance(requested, CallIdentity):
        if recorded.function != requested.function and recorded.arguments == requested.arguments:
            renamed = f"if you renamed {recorded.function} to {requested.function}, {_CHANGED}"
            return f"{renamed}. Otherwise {advice}"
    return f"{advice}. If you changed the code, {_CHANGED}"


def _call_texts(recorded: CallIdentity | str | None, requested: CallIdentity | str | None) -> tuple[str, str]:
    """Return the texts of two calls. Of two calls of one function, they show how the requests differ."""
    if not (isinstance(recorded, CallIdentity) and isinstance(requested, CallIdentity)):
        return _call_text(recorded), _call_text(requested)
    if recorded.function != requested.function or recorded.request is None or requested.request is None:
        return _call_text(recorded), _call_text(requested)
    if recorded.request == requested.request:
        classes = _class_texts(recorded, requested)
        difference_text = classes or "they differ in what the record does not show"
        return _call_text(recorded), f"{_call_text(requested)}: {difference_text}"
    recorded_text, requested_text = difference(
        redaction.hide(recorded.request), redaction.hide(requested.request)
    )
    return f"{recorded.function}({recorded_text})", f"{requested.function}({requested_text})"


def _class_texts(recorded: CallIdentity, requested: CallIdentity) -> str:
    """Return the classes of arguments whose fields differ, as text."""
    recorded_fields = recorded.fields or {}
    requested_fields = requested.fields or {}
    texts = [f"no argument is a {name}" for name in recorded_fields if name not in requested_fields]
    for name, fields in recorded_fields.items():
        present_fields = requested_fields.get(name)
        if present_fields is not None and sorted(fields) != sorted(present_fields):
            texts.append(f"{name} had the fields {', '.join(fields)}, and has {', '.join(present_fields)}")
    return "; ".join(texts)


def _call_text(call: CallIdentity | str | None) -> str:
    """Return a recorded or requested call, or a wait, as text; None is the end of the action."""
    if call is None:
        return "the end of the action"
    if isinstance(call, str):
        return call
    request = f"({call.request[:300]})" if call.request is not None else ""
    return f"{call.function}{request}, arguments {call.arguments.hex()[:12]}"


def difference(recorded: str, requested: str) -> tuple[str, str]:
    """Return the parts of two texts in which they differ, each with its name and some context."""
    places = _places(recorded, requested)
    shown = places[:MOST_PLACES]
    more = [f"and {len(places) - len(shown)} more"] if len(places) > len(shown) else []
    recorded_parts = [_shown(recorded, start, end) for start, end, _, _ in shown]
    requested_parts = [_shown(requested, start, end) for _, _, start, end in shown]
    return "; ".join([*recorded_parts, *more]), "; ".join([*requested_parts, *more])


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
    # Of the tokens between the common start and end.
    offsets = _offsets(first_tokens)[start:]
    second_offsets = _offsets(second_tokens)[start:]
    places = [
        (offsets[begin], offsets[stop], second_offsets[second_begin], second_offsets[second_stop])
        for code, begin, stop, second_begin, second_stop in codes
        if code != "equal"
    ]
    return _join_close(places)


def _offsets(tokens: list[str]) -> list[int]:
    """Return the offset of each token, and that of the end."""
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return offsets


def _join_close(places: list[Place]) -> list[Place]:
    """Return differences in order, where neighbours with at most ``CONTEXT`` characters between are one."""
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
