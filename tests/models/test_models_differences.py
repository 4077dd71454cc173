"""What the error about a changed request to a model shows."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent

from flink_agents import Agent, redaction
from flink_agents.api.errors import AgentsError, NonDeterminismError
from flink_agents.models.chat.messages.request_text import MOST_CHARACTERS, request_text
from tests.models.test_models_edits import conversation_of, go_on, price_of_many, shop, whole
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

LONG = "word " * 3000
PICTURES = [BinaryContent(bytes([number]) * 60_000, media_type="image/png") for number in (1, 2)]


def mismatch(former: Agent, changed: Agent) -> NonDeterminismError:
    with pytest.raises(AgentsError) as caught:
        go_on(former, changed)
    error = caught.value.__cause__
    assert isinstance(error, NonDeterminismError)
    return error


@each_case(
    ("former", "changed", "expected", "found"),
    [
        (shop(said="tea?"), shop(said="rice?"), "user='tea?'", "user='rice?'"),
        (shop(), shop(prompt="You judge {what} strictly."), "judge orders.", "judge orders strictly."),
        (shop(said=["a?", "b?"]), shop(said=["a?", "c?"]), "user='b?'", "user='c?'"),
        (shop(said="tea?"), shop(said=["tea?", "salt?"]), "user='tea?'", "user='salt?'"),
        (shop(said=f"{LONG}tea?"), shop(said=f"{LONG}rice?"), "tea?", "rice?"),
        (shop(said=f"tea? {LONG}"), shop(said=f"rice? {LONG}"), "user='tea?", "user='rice?"),
        (
            shop(said=f"{LONG}tea?{LONG}"),
            shop(said=f"{LONG}rice?{LONG}"),
            "30004 characters",
            "30005 characters",
        ),
        (
            shop(said=conversation_of("tea?")),
            shop(said=conversation_of("rice?")),
            "user='tea?'",
            "user='rice?'",
        ),
        (
            shop(said=[*conversation_of("x")[:1], *conversation_of("x")[1:]]),
            shop(said=conversation_of("x")[2:]),
            "earlier=",
            "(user='You",
        ),
        (shop(said=["?", PICTURES[0]]), shop(said=["?", PICTURES[1]]), "user=", "characters, "),
        (whole(), whole(price_of_many), "tool price_of=", "items"),
        (whole(), whole(instructions="Be brief."), "user='tea?'", "instructions='Be brief.'"),
        (whole(), whole(system_prompt="You judge."), "user='tea?'", "system='You judge.'"),
        (whole(), whole(model_settings={"max_tokens": 5}), "user='tea?'", "max_tokens"),
        (
            whole(model_settings={"max_tokens": 5}),
            whole(model_settings={"max_tokens": 6}),
            '"max_tokens": 5',
            '"max_tokens": 6',
        ),
    ],
)
def test_what_changed(former: Agent, changed: Agent, expected: str, found: str) -> None:
    error = mismatch(former, changed)
    assert expected in (error.expected or "") and found in (error.found or ""), (error.expected, error.found)
    assert len(str(error)) < 4000


def test_secrets_are_hidden() -> None:
    redaction.add_secrets("open-sesame-123")
    error = mismatch(shop(said="open-sesame-123 tea?"), shop(said="open-sesame-123 rice?"))
    assert "tea?" in str(error) and "rice?" in str(error) and "sesame" not in str(error)


def part(text: Any, kind: str = "user-prompt") -> dict[str, Any]:
    return {"kind": "request", "parts": [{"part_kind": kind, "content": text}]}


@each_case("count", [1, 3, 40])
def test_the_text_is_bounded(count: int) -> None:
    text = request_text([part(f"{number} {LONG}") for number in range(count)])
    assert len(text) < MOST_CHARACTERS + 100 * count
    assert all(f"user='{number} " in text for number in range(count))


def test_short_parts_are_shown_whole_beside_a_long_one() -> None:
    text = request_text([part("rules " * 50, "system-prompt"), part(LONG)], settings={"max_tokens": 5})
    assert text.startswith(f"system={'rules ' * 50!r}, user='word") and text.endswith(
        "settings='{\"max_tokens\": 5}'"
    )
