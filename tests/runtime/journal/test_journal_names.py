"""Names of journals: no two pairs of job and agent have the same, and old ones stay."""

from __future__ import annotations

import itertools
import random
from typing import Any

from durable_tools import EFFECTS, effect, forget

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.journal.identity import journal_name, split_journal_name
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

ATOMS = ["", "a", "b", "/", "%", ":", "%2F", "%25", "2", "3:", "\x00", "é", "\ud800", "a" * 12, "0" * 5000]


def names() -> list[str]:
    """Texts that are made of what the encoding itself uses."""
    chance = random.Random(7)
    texts = {"".join(parts) for count in (1, 2) for parts in itertools.product(ATOMS[:-1], repeat=count)}
    texts |= {"".join(chance.choices(ATOMS, k=chance.randrange(3, 6))) for _ in range(150)}
    return sorted(texts)


def test_names_of_journals_are_unique_and_can_be_split() -> None:
    agents = [name for name in names() if name.strip()]
    seen: dict[str, tuple[str, str]] = {}
    for pair in itertools.product(names(), agents):
        name = journal_name(*pair)
        assert seen.setdefault(name, pair) == pair
        assert split_journal_name(name) == pair


@each_case("job", [name for name in names() if len(name) < 50])
def test_names_without_a_slash_are_what_they_always_were(job: str) -> None:
    assert journal_name(job, "Pay") == f"{job}/Pay"


@each_case("text", ["", "reset", "3:", "3:abc", "3:abc:", "99:a:b", "\x00plans", "1:a:b%2", "²:a:b"])
def test_any_text_can_be_split(text: str) -> None:
    assert split_journal_name(text) == (text, "")


def act(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=ctx.durable_execute(effect, event.input))


@each_case("parallelism", [1, 2])
def test_jobs_whose_names_join_to_one_text_share_nothing(parallelism: int) -> None:
    """Neither is fenced by the other, and neither takes its records."""
    forget()
    place = MemoryPlace()
    pairs = [("shop/eu", "Pay"), ("shop", "eu/Pay"), ("shop%2Feu", "Pay"), ("4:shop:eu", "Pay")]
    harnesses = [
        OperatorHarness(
            Agent(name=agent).add_action("act", [InputEvent], act),
            config={"job-identifier": job},
            store=lambda: MemoryStore(place),
            parallelism=parallelism,
            job_id=f"{number}" * 32,
        )
        for number, (job, agent) in enumerate(pairs)
    ]
    for _ in range(2):
        for harness in harnesses:
            assert harness.push("order") == ["order"]
    assert EFFECTS == ["order"] * 8
    for harness in harnesses:
        harness.close()
