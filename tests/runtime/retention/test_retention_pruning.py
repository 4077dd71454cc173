"""Records are pruned when no checkpoint can ask for them any more, and never before."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoint_tools import Flink
from pruning_tools import JOB, KEY, OTHER, Pruned

from flink_agents.api.action_state import JournalKey
from flink_agents.api.durable import Prune
from flink_agents.api.settings.options import Configuration
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.retention import pruning
from flink_agents.runtime.retention.checkpoints import CheckpointView
from flink_agents.runtime.retention.pruning import DISABLED_ANSWERS, FAILURES, pruner_of


def test_a_commit_is_pruned_when_all_checkpoints_have_it() -> None:
    world = Pruned()
    world.checkpoint()
    world.commit(4)
    world.poll()
    assert (world.gauge("journals_unpruned"), world.gauge("runs_unpruned")) == (1, 1)
    assert world.gauge("rest_reachable") == 1
    for _ in range(3):
        assert world.through == {}
        world.checkpoint()
    assert world.through == {KEY: 4}
    assert world.gauge("journals_unpruned") == 0


def test_nothing_is_pruned_without_checkpoints() -> None:
    world = Pruned()
    world.commit(4)
    for _ in range(20):
        world.poll()
        world.flink.fail(world.flink.trigger())
    assert world.through == {}


def test_savepoints_do_not_count() -> None:
    world = Pruned()
    world.checkpoint()
    world.commit(4)
    for _ in range(10):
        savepoint = world.flink.trigger(savepoint=True)
        world.poll()
        world.flink.complete(savepoint)
        world.poll()
    assert world.through == {}


def test_a_checkpoint_that_was_under_way_does_not_count() -> None:
    world = Pruned()
    world.checkpoint()
    slow = world.flink.trigger()  # its barrier has passed the subtask
    world.commit(4)
    world.poll()
    world.flink.fail(world.flink.trigger())
    world.poll()
    world.flink.fail(world.flink.trigger())
    world.poll()
    world.flink.complete(slow)
    world.poll()
    world.poll()
    assert world.flink.retained[0].id == slow.id
    assert world.through == {}
    world.checkpoint()
    assert world.through == {}, "it is not certain yet that this one was triggered later"
    world.checkpoint()
    world.checkpoint()
    assert world.through == {KEY: 4}


def test_the_oldest_that_is_retained_counts() -> None:
    world = Pruned(Flink(retained_number=3))
    world.checkpoint()
    world.commit(4)
    world.poll()
    for _ in range(5):
        assert world.through == {}
        world.checkpoint()
    assert world.through == {KEY: 4}
    # The bound is 3; 4, 5 and 6 are retained.
    assert [entry.id for entry in world.flink.retained] == [4, 5, 6]


def test_an_answer_from_the_cache_is_no_evidence() -> None:
    world = Pruned()
    world.checkpoint()  # and what is cached knows of nothing later
    unseen = world.flink.trigger()
    world.commit(4)  # not in the checkpoint that is under way
    world.poll(cache=True)
    world.flink.complete(unseen)
    world.flink.fail(world.flink.trigger())
    world.poll(cache=True)
    assert world.through == {}
    world.poll()
    world.poll()
    assert world.through == {}


def test_a_snapshot_from_before_is_no_evidence() -> None:
    world = Pruned()
    flink = world.flink
    world.checkpoint()
    flink.complete(flink.trigger())
    flink.take_snapshot()  # somebody else asked; what is cached is older
    unseen = flink.trigger()
    world.commit(4)  # not in the checkpoint that is under way
    world.poll(cache=True)
    world.poll(stale=True)  # fetched after the commit, and new, but made before it
    flink.complete(unseen)
    world.poll()
    assert [entry.id for entry in flink.retained] == [unseen.id]
    assert world.through == {}
    for _ in range(2):
        world.checkpoint()
    assert world.through == {KEY: 4}


class Proxied:
    """Two JobManagers behind a proxy: each has a cache, and all answers come by one connection."""

    def __init__(self) -> None:
        self.world = Pruned()
        self.caches: list[tuple[Any, ...] | None] = [None, None]

    def ask(self, manager: int, **how: bool) -> CheckpointView:
        """What one of them answers."""
        flink = self.world.flink
        flink.cached = self.caches[manager]
        view = CheckpointView.from_answer(flink.answer(**how), 1)
        self.caches[manager] = flink.cached
        return view

    def poll(self, manager: int, **how: bool) -> None:
        view = self.ask(manager, **how)
        self.world.pruner.asking()
        self.world.pruner.answered(view)


@pytest.mark.parametrize("turns", [[0, 1], [1, 0], [0, 1, 1, 0], [1, 1, 0]])
def test_answers_out_of_two_caches_in_turn_are_no_evidence(
    turns: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    proxied = Proxied()
    world = proxied.world
    flink = proxied.world.flink
    flink.complete(flink.trigger())
    proxied.ask(0)
    flink.complete(flink.trigger())
    proxied.ask(1)
    unseen = flink.trigger()  # its barrier has passed the subtask
    world.commit(4)
    for manager in turns * 5:
        proxied.poll(manager, cache=True)
    assert world.gauge("rest_answers_older") > 0
    assert caplog.text.count("go back in time") == 1
    flink.complete(unseen)
    proxied.poll(0)
    proxied.poll(1)
    assert [entry.id for entry in flink.retained] == [unseen.id]
    assert world.through == {}
    for _ in range(4):
        entry = flink.trigger()
        proxied.poll(0)
        flink.complete(entry)
        proxied.poll(0)
    assert world.through == {KEY: 4}


def test_answers_out_of_two_caches_that_only_go_forward_are_no_evidence() -> None:
    proxied = Proxied()
    world = proxied.world
    flink = proxied.world.flink
    for manager in (0, 1):
        flink.complete(flink.trigger())
        proxied.ask(manager)
    flink.complete(flink.trigger())
    flink.take_snapshot()  # somebody else asked
    unseen = flink.trigger()  # its barrier has passed the subtask
    world.commit(4)
    proxied.poll(0, cache=True)
    proxied.poll(1, cache=True)
    proxied.poll(0, stale=True)  # fetched after the commit, but made before it
    flink.complete(unseen)
    proxied.poll(0)
    assert [entry.id for entry in flink.retained] == [unseen.id]
    assert world.through == {}


def test_what_changes_in_place_is_no_evidence() -> None:
    world = Pruned()
    flink = world.flink
    world.checkpoint()
    entry = flink.trigger()
    world.poll()
    unseen = flink.trigger()
    world.commit(4)
    for _ in range(4):
        world.poll(cache=True)
        entry.acknowledged += 1
    flink.complete(entry)
    flink.complete(unseen)
    world.poll()
    assert [entry.id for entry in flink.retained] == [unseen.id]
    assert world.through == {}


def test_a_commit_while_the_answer_is_under_way_has_to_wait() -> None:
    world = Pruned()
    flink = world.flink
    world.checkpoint()
    world.pruner.asking()
    answer = flink.answer()
    world.commit(4)
    world.pruner.answered(CheckpointView.from_answer(answer, 1))
    assert world.gauge("journals_unpruned") == 0, "it takes part from the next question on"
    for _ in range(4):
        world.checkpoint()
    assert world.through == {KEY: 4}


def test_another_connection_begins_anew() -> None:
    world = Pruned()
    world.checkpoint()
    world.commit(4)
    for connection in range(2, 30):
        entry = world.flink.trigger()
        world.poll(connection)
        world.flink.complete(entry)
    assert world.through == {}
    for _ in range(4):
        world.checkpoint()
    assert world.through == {KEY: 4}


def test_ids_from_before_a_restart_do_not_count() -> None:
    flink = Flink()
    for _ in range(5):
        flink.complete(flink.trigger())
    world = Pruned(flink)  # the history still shows that checkpoints 1 to 4 were discarded
    world.commit(4)
    for _ in range(10):
        world.poll()
        flink.fail(flink.trigger())
    assert world.through == {}


def test_a_new_jobmanager_shows_no_history() -> None:
    world = Pruned()
    for _ in range(5):
        world.checkpoint()
    fresh = Pruned(Flink(next_id=6, restored=5))
    fresh.commit(4)
    fresh.poll()
    fresh.checkpoint()
    assert fresh.through == {}
    for _ in range(3):
        fresh.checkpoint()
    assert fresh.through == {KEY: 4}


def test_many_commits_of_a_key_become_one() -> None:
    world = Pruned()
    for seq in range(1000):
        world.commit(seq)
        if seq % 100 == 0:
            world.checkpoint()
    world.commit(3, OTHER)
    for _ in range(4):
        world.checkpoint()
    assert world.through == {KEY: 999, OTHER: 3}
    assert len(world.delays) < 25


def test_retention_keeps_records_longer() -> None:
    world = Pruned(retention=60)
    world.commit(4)
    for _ in range(10):
        world.checkpoint()
    assert world.through == {}
    world.now = 59.0
    world.poll()
    assert world.through == {}
    world.now = 60.0
    world.poll()
    assert world.through == {KEY: 4}


def test_too_many_notes_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "MAX_WAITING", 10)
    world = Pruned()
    for number in range(50):
        world.commit(1, JournalKey("job/agent", f"s{number}"))
    world.poll()
    assert world.gauge("journals_unpruned") == 10


# -- without Flink's answers ----------------------------------------------------------


def test_a_job_without_checkpoints_keeps_everything() -> None:
    world = Pruned()
    world.pruner.restored(KEY, 2)
    for _ in range(DISABLED_ANSWERS):
        world.commit(4)
        world.pruner.asking()
        world.pruner.answered(CheckpointView(1, None, enabled=False))
    world.fail()
    world.commit(5)
    world.pruner.restored(OTHER, 2)
    world.poll()
    assert (world.through, world.gauge("journals_unpruned"), world.gauge("rest_reachable")) == ({}, 0, 1)


def test_a_job_that_restarts_may_seem_to_have_no_checkpoints() -> None:
    world = Pruned()
    world.checkpoint()
    world.commit(4)
    for _ in range(2 * DISABLED_ANSWERS):
        world.pruner.asking()
        world.pruner.answered(CheckpointView(1, None, enabled=False))
    for _ in range(4):
        world.checkpoint()
    assert world.through == {KEY: 4}


def test_where_flink_is_not_reached_restored_keys_are_pruned(caplog: pytest.LogCaptureFixture) -> None:
    world = Pruned()
    world.pruner.restored(KEY, 6)
    world.commit(7)
    world.fail(FAILURES - 1)
    assert world.through == {}
    world.fail(3 * FAILURES)
    assert world.through == {KEY: 6}
    world.pruner.restored(KEY, 8)  # not those of the checkpoint any more
    world.pruner.restored(OTHER, -1)
    world.pruner.restored(OTHER, 3)
    assert world.through == {KEY: 6, OTHER: 3}
    assert len([record for record in caplog.records if "rest-address" in record.message]) == 1
    assert (world.gauge("rest_reachable"), world.gauge("journals_unpruned")) == (0, 1)


def test_what_began_in_this_attempt_is_no_restored_key() -> None:
    world = Pruned()
    world.commit(3)
    world.fail()
    world.pruner.restored(KEY, 3)
    assert world.through == {}


def test_where_several_are_retained_nothing_is_pruned_without_flink() -> None:
    world = Pruned(one_retained=False)
    world.pruner.restored(KEY, 6)
    world.fail()
    world.pruner.restored(OTHER, 6)
    assert world.through == {}


def test_flink_is_reached_late() -> None:
    world = Pruned()
    world.fail()
    world.commit(3)
    for _ in range(4):
        world.checkpoint()
    assert (world.through, world.gauge("rest_reachable")) == ({KEY: 3}, 1)
    world.fail()
    world.pruner.restored(OTHER, 5)
    assert world.through == {KEY: 3}, "what restores asked for is not known any more"
    for _ in range(4):
        world.checkpoint()
    assert world.through == {KEY: 3, OTHER: 5}


def test_a_restored_key_waits_for_checkpoints() -> None:
    world = Pruned()
    world.pruner.restored(KEY, 6)
    world.checkpoint()
    assert world.through == {}
    for _ in range(3):
        world.checkpoint()
    assert world.through == {KEY: 6}


def test_restore_only_asks_nobody() -> None:
    world = Pruned(policy=Prune.RESTORE_ONLY, retention=7)
    world.pruner.restored(KEY, 6)
    world.commit(7)
    assert (world.through, world.delays) == ({KEY: 6}, [7])


def test_more_retained_than_shown_is_said(caplog: pytest.LogCaptureFixture) -> None:
    world = Pruned(Flink(retained_number=20))
    world.commit(1)
    for _ in range(40):
        world.checkpoint()
    assert world.through == {}
    assert caplog.text.count("web.checkpoints.history") == 1


# -- which ----------------------------------------------------------------------------

TASKMANAGER = {"rest.address": "jm", "rest.port": "1234"}


@pytest.mark.parametrize(
    ("options", "flink", "reachable", "restored"),
    [
        ({}, TASKMANAGER, None, {}),
        ({}, {}, False, {}),
        ({}, {"some": "option"}, False, {KEY: 1}),
        ({"action-state.rest-address": "jm:1"}, {}, None, {}),
        ({"action-state.prune": "restore-only"}, TASKMANAGER, False, {KEY: 1}),
        ({"action-state.prune": "restore-only"}, {}, False, {}),
        ({"action-state.prune": "restore-only"}, {"state.checkpoints.num-retained": "1"}, False, {KEY: 1}),
        ({"action-state.prune": "restore-only"}, {"state.checkpoints.num-retained": "2"}, False, {}),
        ({"action-state.prune": "restore-only"}, {"execution.checkpointing.num-retained": "2"}, False, {}),
    ],
)
def test_what_the_options_say(
    options: dict[str, str], flink: dict[str, str], reachable: bool | None, restored: dict[JournalKey, int]
) -> None:
    pruner = pruner_of(Configuration.load(options), flink, JOB, RunMetrics(()))
    assert pruner is not None
    pruned: dict[JournalKey, int] = {}
    pruner.schedule = lambda journals, delay: pruned.update(
        {key: bounds[0] for key, bounds in journals.items()}
    )
    pruner.restored(KEY, 1)
    assert pruned == restored


def test_never() -> None:
    assert pruner_of(Configuration({"action-state.prune": "never"}), TASKMANAGER, JOB, RunMetrics(())) is None
