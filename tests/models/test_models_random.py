"""Random conversations with crashes; ``python -m tests.random_chats`` runs any number of them."""

from __future__ import annotations

import pytest

from tests import random_chats
from tests.mutations.command import try_all

pytestmark = pytest.mark.executes_once

QUICK = ("tools-of-agents-unrecorded", "told-by-the-end")
"""Mutations that few conversations find."""


def test_random_conversations_survive_crashes() -> None:
    assert random_chats.run(programs=12, seed=1) > 20


def test_programs_have_conversations_of_each_kind() -> None:
    talks = [talk for seed in range(60) for talk in random_chats.program(seed).talks.values()]
    for kind in ("whole", "typed", "remembered", "refused"):
        assert {getattr(talk, kind) for talk in talks} == {True, False}
    assert {name for talk in talks for turn in talk.turns for name in turn} == set(random_chats.OF_CHATS)


@pytest.mark.nightly
def test_random_conversations_find_defects_that_are_put_back() -> None:
    findings = try_all(QUICK, programs=20, seed=1, jobs=2)
    assert [str(finding) for finding in findings if not finding.passed] == []
