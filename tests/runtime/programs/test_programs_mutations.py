"""Random programs find defects that are put back; ``python -m tests.mutations`` tries all of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from tests.mutations.command import try_all
from tests.mutations.mutation import TABLE, Mutation
from tests.random_programs import programs
from tests.suite.tables import each_case

QUICK = (
    "several-in-one-turn",
    "timers-not-recorded",
    "failure-before-earlier-success",
    "history-not-recorded",
    "given-before-recorded",
    "attempts-forget",
    "announced-late",
    "any-input",
    "memory-not-taken-back",
    "ends-not-sent-along",
    "store-forgotten",
)
"""Mutations that few programs find."""


@pytest.mark.nightly
@pytest.mark.executes_once
def test_random_programs_find_defects_that_are_put_back() -> None:
    findings = try_all(QUICK, programs=60, seed=1, jobs=2)
    assert [str(finding) for finding in findings if not finding.passed] == []


@each_case("mutation", TABLE.values(), ids=TABLE)
def test_what_a_mutation_replaces_is_there(mutation: Mutation) -> None:
    module, _, path = mutation.target.partition(":")
    target: Any = import_module(f"flink_agents.{module}")
    for name in path.split("."):
        target = getattr(target, name)
    assert callable(target)
    assert mutation.about.endswith(".")


def test_programs_can_do_without_kinds_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> str:
        return "".join(str(programs.program(seed)) for seed in range(60))

    assert "queue" in seen() and "call keyed" in seen()
    monkeypatch.setattr(programs, "LEFT_OUT", {"queue", "keyed"})
    assert "queue" not in seen() and "call keyed" not in seen()
