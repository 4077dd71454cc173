"""The conformance suite finds what is wrong: each defect, and with each of its cases something."""

from __future__ import annotations

import functools
from typing import Any

import broken_forgetting
import broken_owners
import broken_removals
import pytest
from broken_stores import BROKEN, Broken, kill_in_memory

from flink_agents.api.action_state import ActionStateStore
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.testing.store_conformance import ActionStateStoreSuite, Stores
from flink_agents.testing.store_conformance.power_loss import PowerLossCases
from tests.suite.tables import each_case

REMOVALS = 20


class Suite(ActionStateStoreSuite):
    # Most defects are found at once; a few show as a case that does not end.
    deadline_seconds = 3.0
    removals = REMOVALS

    async def kill(self, store: ActionStateStore) -> None:
        kill_in_memory(store)


CASES = [name for name in dir(Suite) if name.startswith("test_") and not hasattr(PowerLossCases, name)]
"""All cases but those of stores with files, see ``test_stores_power_loss.py``."""


def passes(store: type[MemoryStore], name: str) -> bool:
    case: Any = getattr(Suite(), name)
    place = MemoryPlace()

    def make() -> MemoryStore:
        new_store = store(place)
        new_store._removals = REMOVALS
        return new_store

    try:
        case(Stores(make))
    except (Exception, pytest.fail.Exception):
        return False
    return True


@functools.cache
def failed_cases(store: type[MemoryStore]) -> frozenset[str]:
    return frozenset(name for name in CASES if not passes(store, name))


def test_there_are_many_cases() -> None:
    assert len(CASES) >= 70
    assert {broken_owners.FencesNobody, broken_forgetting.ForgetsNothing} <= set(BROKEN)
    assert broken_removals.RemembersAll in BROKEN
    assert len(BROKEN) >= 80


def test_a_store_without_a_defect_passes_all() -> None:
    assert failed_cases(Broken) == set()


# The defects of some leave tasks and futures behind that nobody awaits.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.nightly
@each_case("store", BROKEN, ids=lambda store: store.__name__)
def test_a_defect_is_found(store: type[MemoryStore]) -> None:
    assert failed_cases(store)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_case_finds_a_defect() -> None:
    failing_cases: set[str] = set().union(*map(failed_cases, BROKEN))
    assert sorted(set(CASES) - failing_cases) == []
