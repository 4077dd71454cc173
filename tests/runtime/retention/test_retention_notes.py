"""What is noted of commits that wait for a checkpoint."""

from __future__ import annotations

from flink_agents.api.action_state import JournalKey
from flink_agents.runtime.retention.executor import add_note
from flink_agents.runtime.retention.pruning import Notes

JOURNAL, OTHER = JournalKey("job", "key"), JournalKey("job", "other")


def test_the_note_of_a_journal_does_not_go_back() -> None:
    notes: dict[JournalKey, tuple[int, int]] = {}
    for through, runs in ((4, 1), (2, 1), (7, 2), (5, 1)):
        add_note(notes, JOURNAL, through, runs)
    assert notes == {JOURNAL: (7, 5)}


def test_merged_notes_are_as_young_as_the_youngest() -> None:
    notes = Notes({JOURNAL: (4, 1)}, at=10.0)
    notes.merge(Notes({JOURNAL: (3, 2), OTHER: (9, 1)}, at=20.0))
    notes.merge(Notes({OTHER: (8, 1)}, at=15.0))
    assert (notes.journals, notes.at) == ({JOURNAL: (4, 3), OTHER: (9, 2)}, 20.0)
