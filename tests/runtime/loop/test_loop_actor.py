"""What an actor of a key knows about its own inputs, without a loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.agents.observers import Phase
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox
from flink_agents.runtime.journal.order import InputOrder, RecordedRuns
from flink_agents.runtime.journal.records import RunHeader
from flink_agents.runtime.loop.actor import KeyActor, KeyRecovery
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.runtime.loop.replays import Replays
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head


def no_mailbox() -> ActiveMailbox:
    raise AssertionError("no run waits")


def recovering(head: Head) -> tuple[KeyActor, KeyRecovery]:
    """Return the actor of a key whose records were not read yet."""
    actor = KeyActor("key", head, {}, no_mailbox)
    actor.recover(False, ())
    assert actor.recovery is not None
    return actor, actor.recovery


def test_an_actor_is_done_when_no_input_of_its_key_waits_in_state() -> None:
    head = Head("journal", next_seq=0, first_pending=0, next_pending=2)
    actor = KeyActor("key", head, {}, no_mailbox)
    actor.submitted = 1
    assert not actor.is_done
    actor.ended.append(cast(Any, "an ended run"))
    # The second input is not chosen yet.
    assert not actor.is_done
    actor.submitted = 2
    assert actor.is_done


def test_inputs_that_were_committed_are_no_longer_those_that_the_loop_works_on() -> None:
    head = Head("journal", next_seq=0, first_pending=0, next_pending=3)
    actor = KeyActor("key", head, {}, no_mailbox)
    actor.submitted = 1
    actor.pulled = 1
    assert actor.backlog == 1
    actor.committed = 1
    head.finish(0, is_gone=lambda number: False)
    assert actor.backlog == 1


def test_nothing_runs_behind_a_run_that_was_suspended() -> None:
    """Flink's thread puts what is left of it into state first. Without a loop, nothing could begin."""
    actor = KeyActor("key", Head("journal"), {}, no_mailbox)
    actor.suspended = cast(Any, ("the run", "what is left of it"))
    AgentLoop._begin(cast(Any, "no loop"), actor)
    assert not actor.running


def test_a_timer_of_an_earlier_wait_does_not_end_the_present_one() -> None:
    actor, recovery = recovering(Head("journal"))
    actor.state = cast(Any, SimpleNamespace(phase=Phase.INPUT, since=2.0))
    Replays._end_overdue_wait(cast(Any, "no replays"), actor, recovery, 1.0)
    assert actor.held == 2.0 and not recovery.overdue


def test_inputs_are_not_held_back_if_one_of_them_can_run() -> None:
    """It may be in state alone, so that the loop leaves it to Flink's thread."""
    codec = ValueCodec(False)
    recorded = Record(RecordKind.RUN, 0, "", 0, RunHeader(b"input", 1, "plan").pack(codec))
    actor, recovery = recovering(Head("journal", next_pending=1))
    recovery.order = InputOrder(RecordedRuns(codec, [recorded]), 0)
    recovery.order.examine_input(b"input")
    assert actor.backlog == 1
    Replays.hold(cast(Any, "no replays"), actor)
    assert actor.held is None
