"""The upgrade drill: runs in every phase, an edit of the code, and what becomes of each run.

It makes the table of ``docs/upgrades.md``. Whether a job fails or lets runs end as dead letters is up to its
policies. Either way, no key suffers from what another key waits for: with dead letters, the job continues; if
the policy is to fail, it fails at the start.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import upgrade_edits
from suite.tables import each_case
from suite.written_tables import write_or_check
from upgrade_edits import CALLS, EDITS, PHASES, STOPPED, Order, agent

from flink_agents.api.errors import StateError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.runtime.serde.typenames import resolve_type
from flink_agents.testing import OperatorHarness
from flink_agents.testing.fakes.state import Snapshot

pytestmark = pytest.mark.own_conditions

PAGE = Path(__file__).parents[3] / "docs" / "upgrades.md"
HEADER = "| edit | what cannot continue |"
MISMATCHES = (
    "no longer call a sub-agent",
    "add a field without a default to an argument's class",
    "remove a field of an argument's class",
    "rename an argument's class, with `@upgrades` above a function",
)
"""What a replay notes: no recorded call may be left out."""

LATER_FAILURES = ("remove a resource that actions use", *MISMATCHES)
"""What shows only when the action asks for it, or is replayed."""

CONTINUES = "continues"
LETTER = "dead letter"


@dataclass
class NewOrder:
    """An input that comes after the edit."""

    phase: str


@pytest.fixture(scope="module")
def stopped() -> Iterator[tuple[Snapshot, MemoryPlace]]:
    """The state of the job and its store, with a run in every phase."""
    CALLS.clear()
    place = MemoryPlace()
    STOPPED[0] = False
    with harness_of(agent(), place) as job:
        for phase in PHASES:
            job.push(Order(phase))
        until(job, lambda: is_in_every_phase(job))
        job.signal("signalled", "more")
        checkpoint = job.checkpoint()
    STOPPED[0] = True
    yield checkpoint, place


def harness_of(changed: Any, place: MemoryPlace) -> OperatorHarness:
    return OperatorHarness(
        changed,
        config={"action-state.on-mismatch": "fail" if changed.on_error == "fail" else "dead-letter"},
        key_selector=key_of,
        store=lambda: MemoryStore(place),
        auto_run=False,
        crash=None,
        forced_replay=False,
        forced_restart=False,
    )


def key_of(order: Any) -> str:
    return order.phase


def until(job: OperatorHarness, holds: Any) -> None:
    """Let timers fire until something holds."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "the former job did not come to where it is to be stopped"
        job.advance_time(1)
        time.sleep(0.002)


def is_in_every_phase(job: OperatorHarness) -> bool:
    waits = job.waits("suspended") and job.waits("signalled") and job.delayed("delayed event")
    return bool(waits) and len(CALLS) == 2 * len(PHASES)


def copied(place: MemoryPlace) -> MemoryPlace:
    """The same records, for one edit."""
    copy = MemoryPlace()
    copy.store_id, copy.journals = place.store_id, deepcopy(place.journals)
    return copy


@contextmanager
def go_on(
    edit: str, stopped: tuple[Snapshot, MemoryPlace], policy: str, phases: Sequence[str] = PHASES
) -> Iterator[OperatorHarness]:
    """The job with changed code and the state of some of its keys."""
    snapshot, place = stopped
    keys = {encode_key(phase): snapshot.keys[encode_key(phase)] for phase in phases}
    changes = dict(EDITS[edit])
    with pytest.MonkeyPatch.context() as patch:
        if (removed_name := changes.pop("gone", None)) is not None:
            patch.delattr(upgrade_edits, removed_name)
        for name, successor in changes.pop("became", {}).items():
            patch.setattr(upgrade_edits, name, getattr(upgrade_edits, successor))
        resolve_type.cache_clear()
        CALLS.clear()
        with harness_of(agent(**changes, policy=policy), copied(place)) as job:
            job.restore(replace(snapshot, keys=keys))
            yield job
    resolve_type.cache_clear()


def results(job: OperatorHarness) -> dict[str, str]:
    """What became of the run of each phase."""
    outcomes = {output[0]: CONTINUES for output in job.outputs}
    for letter in job.dead_letters:
        assert letter.key not in outcomes, "a run has put out something, and is a dead letter"
        outcomes[letter.key] = LETTER
    return outcomes


def run_all(job: OperatorHarness) -> None:
    job.run_until_idle()
    for key, name in (("suspended", "more"), ("suspended", "go"), ("signalled", "go")):
        job.signal(key, name)
        job.run_until_idle()
    job.advance_time(timedelta(hours=2))
    job.run_until_idle()


def test_the_page_tells_what_becomes_of_each_run(stopped: tuple[Snapshot, MemoryPlace]) -> None:
    rows: list[str] = []
    for edit in EDITS:
        with go_on(edit, stopped, "dead-letter") as job:
            run_all(job)
            outcomes = results(job)
            assert not any(job.pending(phase) or job.waits(phase) for phase in PHASES), edit
        assert outcomes.keys() == set(PHASES), edit
        assert not [call for call in CALLS if call.startswith("charge")], f"{edit}: a call was repeated"
        rows.append(
            f"| {edit} | {', '.join(phase for phase in PHASES if outcomes[phase] == LETTER) or 'none'} |"
        )
    wanted = "\n".join([HEADER, "|---|---|", *rows])
    write_or_check(PAGE, HEADER, wanted)


@each_case("edit", [edit for edit in EDITS if edit not in LATER_FAILURES])
def test_what_cannot_continue_fails_the_job_at_once_if_the_policy_is_to_fail(
    edit: str, stopped: tuple[Snapshot, MemoryPlace]
) -> None:
    with go_on(edit, stopped, "dead-letter") as job:
        run_all(job)
        outcomes = results(job)
    continuing_phases = [phase for phase in PHASES if outcomes[phase] == CONTINUES]
    with go_on(edit, stopped, "fail", continuing_phases) as job:
        run_all(job)
        assert results(job) == dict.fromkeys(continuing_phases, CONTINUES)
    for phase in set(PHASES) - set(continuing_phases):
        # No time passes, and no signal comes.
        with pytest.raises(StateError), go_on(edit, stopped, "fail", [phase]) as job:
            job.run_until_idle()


@each_case("edit", EDITS)
def test_other_keys_do_not_suffer(edit: str, stopped: tuple[Snapshot, MemoryPlace]) -> None:
    with go_on(edit, stopped, "ignore") as job:
        run_all(job)
        assert not job.dead_letters or edit in MISMATCHES
        job.push(NewOrder("new"))
        job.run_until_idle()
        assert [output[:2] for output in job.outputs if output[0] == "new"] in ([("new", "charged new")], [])
