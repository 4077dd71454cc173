"""What an actor of a key knows about its own inputs, without a loop."""

from __future__ import annotations

from typing import Any, cast

from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.state.keyed_state import Head


def test_an_actor_is_done_when_no_input_of_its_key_waits_in_state() -> None:
    head = Head("journal", next_seq=0, first_pending=0, next_pending=2)
    actor = KeyActor("key", head, {}, pending=False)
    actor.submitted = 1
    assert not actor.is_done
    actor.finished.append(cast(Any, "an ended run"))
    # The second input is not chosen yet.
    assert not actor.is_done
    actor.submitted = 2
    assert actor.is_done
