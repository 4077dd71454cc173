"""What is noted of commits that wait for a checkpoint."""

from __future__ import annotations

from pruning_tools import KEY, Pruned

from flink_agents.api.action_state import JournalKey
from flink_agents.runtime.retention.checkpoints import CheckpointView
from flink_agents.runtime.retention.executor import add_note
from flink_agents.runtime.retention.pruning import DISABLED_ANSWERS, PendingCommits

JOURNAL = JournalKey("job", "key")
OTHER = JournalKey("job", "other")


def test_the_note_of_a_journal_does_not_go_back() -> None:
    notes: dict[JournalKey, tuple[int, int]] = {}
    for through, runs in ((4, 1), (2, 1), (7, 2), (5, 1)):
        add_note(notes, JOURNAL, through, runs)
    assert notes == {JOURNAL: (7, 5)}


def test_merged_notes_are_as_young_as_the_youngest() -> None:
    notes = PendingCommits({JOURNAL: (4, 1)}, at=10.0)
    notes.merge(PendingCommits({JOURNAL: (3, 2), OTHER: (9, 1)}, at=20.0))
    notes.merge(PendingCommits({OTHER: (8, 1)}, at=15.0))
    assert (notes.journals, notes.at) == ({JOURNAL: (4, 3), OTHER: (9, 2)}, 20.0)


def test_what_a_manager_that_lags_says_lowers_no_bound() -> None:
    world = Pruned()
    world.commit(4)
    for highest in (10, 3, 4, 5, 6):  # checkpoint 10 was triggered before the commit, for all we know
        world.pruner.asking()
        world.pruner.answered(CheckpointView(1, highest, highest, discarded=6, progress=(highest,)))
    assert world.through == {}
    world.pruner.asking()
    world.pruner.answered(CheckpointView(1, 12, 12, discarded=10, progress=(12,)))
    assert world.through == {KEY: 4}


def test_what_is_noted_while_a_job_proves_to_take_no_checkpoints_goes() -> None:
    world = Pruned()
    for _ in range(DISABLED_ANSWERS):
        world.pruner.asking()
        world.commit(4)
        world.pruner.answered(CheckpointView(1, None, enabled=False))
    world.poll()
    assert world.gauge("journals_unpruned") == 0
