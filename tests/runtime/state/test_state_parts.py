"""Parts of the keyed state whose defects no whole run shows, or shows late."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from flink_agents.api.events.signals import Signal
from flink_agents.api.resources.memory import MemoryScope
from flink_agents.runtime.execution.sub_agents.sub_agent_run import ScopedTree
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.mailbox import UNDECIDED, Mailbox, StoredSignal, identity_of
from flink_agents.runtime.state.memory import MemoryTree, Undo, take_back
from flink_agents.runtime.state.pending import PendingInputs
from flink_agents.runtime.state.suspended import Suspension

K = TypeVar("K")


# -- the head of a key ------------------------------------------------------------------


def test_a_fork_waits_for_no_runs_of_its_origin() -> None:
    head = Head("first", next_seq=9, next_pending=2, skipped={4: 1, 7: 2}, marker=b"here")
    assert head.committed_through == 3
    head.fork("second")
    assert (head.journal_id, head.skipped, head.marker) == ("second", {}, None)
    assert list(head.origins) == [("first", b"here", 2)]
    assert head.committed_through == 8


def test_a_key_that_leaves_its_store_looks_for_no_records() -> None:
    head = Head("job", store="store", marker=b"here", origins=[("other", None, 1)])
    head.leave_store()
    assert (head.store, head.marker, tuple(head.origins)) == (None, None, ())


# -- signals ----------------------------------------------------------------------------


def mail(name: str, id: str, until: int = 9, run: int | None = None) -> StoredSignal:
    return StoredSignal(f"id {id}", name, b"", id, None, until, run)


def test_a_signal_that_was_taken_or_waits_is_known_when_it_comes_again() -> None:
    box = Mailbox([mail("paid", "a")])
    assert box.knows("a") and not box.knows("b")
    box.remove_taken(["id a"], until=20)
    assert (box.signals, box.seen, box.owed) == ([], {"a": 20}, [])
    assert box.knows("a")


def test_a_signal_that_a_replayed_run_took_is_dropped_once() -> None:
    box = Mailbox()
    box.remove_taken(["value 1"], until=20)
    assert not box.absorb("value 2")
    assert box.absorb("value 1")
    assert not box.absorb("value 1")


def test_what_expires_now_goes() -> None:
    box = Mailbox([mail("paid", "a", until=5), mail("paid", "b", until=6)], {"c": 5, "d": 6}, [("e", 5)])
    assert box.expires == 5
    assert [signal.id for signal in box.expire(5)] == ["a"]
    assert ([signal.id for signal in box.signals], box.seen, box.owed) == (["b"], {"d": 6}, [])


def test_an_undecided_signal_counts_what_runs_took_behind_it() -> None:
    box = Mailbox([mail("paid", "a", run=UNDECIDED), mail("paid", "b"), mail("sent", "c"), mail("paid", "d")])
    taken_ids = ["id b", "id c", "id later", "id other"]
    recorded = [("id b", "paid"), ("id later", "paid"), ("id other", "sent")]
    # One that is here, and one that only the store knows of.
    assert box.undecided(taken_ids, recorded) == [(box.signals[0], 2)]


def test_equal_signals_for_two_waits_are_two() -> None:
    signals = [Signal("paid", 1, wait=wait) for wait in ("first", "second", None)]
    assert len({identity_of(signal, b"1") for signal in signals}) == 3
    assert identity_of(signals[0], b"1") == identity_of(Signal("paid", 1, wait="first"), b"1")


# -- what waits -------------------------------------------------------------------------


class Slot(Generic[K]):
    """Entries as Flink keeps them."""

    def __init__(self, entries: dict[K, bytes] | None = None) -> None:
        self.entries = entries or {}

    def get(self, key: K) -> bytes | None:
        return self.entries.get(key)

    def put(self, key: K, value: bytes) -> None:
        self.entries[key] = value

    def remove(self, key: K) -> None:
        self.entries.pop(key, None)

    def clear(self) -> None:
        raise NotImplementedError

    def items(self) -> Iterable[tuple[K, bytes]]:
        return self.entries.items()


def test_suspended_runs_and_signals_are_no_inputs() -> None:
    slot = Slot[int]()
    pending = PendingInputs(slot)
    pending.put_input(3, b"input")
    pending.put_wake_up(4, b"wake")
    pending.suspend(Suspension(0, 7, 5))
    pending.put_mailbox(Mailbox(seen={"a": 20}))
    assert (pending.suspension(0), pending.mailbox().seen) == (
        Suspension(0, 7, 5, "", [], [], waits=[]),
        {"a": 20},
    )
    assert list(pending.items()) == [(3, b"input"), (4, b"wake")]
    pending.put_mailbox(Mailbox())
    pending.end_suspension(0)
    assert sorted(slot.entries) == [3, 4]


# -- memory -----------------------------------------------------------------------------


def tree(nodes: Slot[str] | None = None, known: dict[str, bytes | None] | None = None) -> MemoryTree:
    return MemoryTree(MemoryScope.SHORT_TERM, ValueCodec(), nodes, [], cached=known)


def guard() -> None:
    pass


def test_what_was_read_or_committed_stays_when_all_nodes_are_loaded() -> None:
    codec = ValueCodec()
    # State of Flink is written later than what runs of the key have left here.
    memory = tree(Slot({"count": codec.encode(1), "other": codec.encode(2)}), {"count": codec.encode(5)})
    assert memory.load() == {"count": codec.encode(5), "other": codec.encode(2)}


def test_a_fork_of_memory_keeps_its_writes_to_itself() -> None:
    memory = tree()
    memory.set("count", 1)
    twin = memory.fork([])
    twin.set("count", 2)
    twin.set("more", 3)
    assert (memory.get("count", None, guard), memory.get("more", None, guard)) == (1, None)
    assert (twin.get("count", None, guard), twin.get("more", None, guard)) == (2, 3)


def test_a_write_that_is_taken_back_leaves_no_node() -> None:
    undo: Undo = []
    memory = MemoryTree(MemoryScope.SHORT_TERM, ValueCodec(), None, undo)
    memory.set("count", 1)
    memory.set("count", 2)
    take_back(undo, 0)
    assert (memory.get("count", None, guard), memory.changes(), memory._written) == (None, {}, {})


def test_what_a_scoped_tree_hands_over_has_parents() -> None:
    outer = tree()
    scoped = ScopedTree(outer, "agents.asked", [])
    scoped.set("total.sum", 3)
    scoped.hand_over()
    assert outer.paths_below("") == ["agents", "agents.asked", "agents.asked.total", "agents.asked.total.sum"]
    assert outer.get("agents.asked.total.sum", None, guard) == 3
