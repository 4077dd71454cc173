"""The bytes of suspended runs and of signals, as savepoints hold them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.errors import StateFormatError
from flink_agents.runtime.operator.services.suspension import wake_up
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.mailbox import Mailbox, StoredSignal
from flink_agents.runtime.state.pending import PendingKind, pack_input, unpack_input
from flink_agents.runtime.state.suspended import (
    ListedRun,
    StoredPause,
    StoredSignalWait,
    Suspension,
    run_of,
    wait_id,
)
from tests.suite.tables import each_case

SUSPENDED = Suspension(
    number=3,
    seq=7,
    started_at=1_700_000_000_000,
    plan="p",
    records=[Record(RecordKind.WAIT, 7, "nap", 0, b"w")],
    unstored=[0],
    bound=True,
    recorded=True,
    waits=[
        StoredSignalWait("nap", "0", 1, 1_700_000_001_000, "go", 1_700_000_000_500, b"r"),
        StoredPause("nap", "1", 1, 1_700_000_001_000, None, 1_700_000_000_500),
    ],
    left={"nap": (1, 2)},
    failed={"nap": [[0.5], [1, "ValueError", "no", None]]},
    submission="s",
)
FREES_KEY = replace(
    SUSPENDED, unstored=[], bound=False, recorded=False, parts=(("nap", 1),), input=b"in", identity="job"
)
MAILBOX = Mailbox([StoredSignal("id a", "go", b"v", "a", None, 5)], {"b": 6}, [("id c", 7)])
MAILBOX_BYTES = bytes.fromhex("01939197a469642061a2676fc40176a161c005c081a162069192a46964206307")
RESERVED = Mailbox([MAILBOX.signals[0], MAILBOX.signals[0]._replace(run=7)], MAILBOX.seen, MAILBOX.owed)


@each_case("suspension", [SUSPENDED, FREES_KEY])
def test_the_bytes_of_a_suspended_run_are_read(suspension: Suspension) -> None:
    assert Suspension.unpack(suspension.pack()) == suspension
    assert suspension.frees_key == (suspension is FREES_KEY)


def test_a_mailbox_says_for_which_run_a_signal_is() -> None:
    assert Mailbox.unpack(RESERVED.pack()) == RESERVED


def test_a_wake_up_is_no_input() -> None:
    codec = ValueCodec()
    packed = wake_up(codec, ListedRun(3, 5, False, 1, None, None, []))
    assert packed == wake_up(codec, ListedRun(4, 5, False, 1, 7, 9, ["go"]))
    assert packed.hex() == "0193a777616b652d75700501"
    assert pack_input(packed) != bytes((2, PendingKind.WAKE_UP)) + packed
    assert unpack_input(bytes((2, PendingKind.WAKE_UP)) + packed) == packed


def test_the_bytes_of_signals_are_read() -> None:
    assert MAILBOX.pack() == MAILBOX_BYTES
    assert Mailbox.unpack(MAILBOX_BYTES) == MAILBOX
    assert Mailbox().pack() is None
    assert Mailbox.unpack(None) == Mailbox()


@each_case("read", [Suspension.unpack, Mailbox.unpack])
@each_case("data", [b"\x02\x90", b"\x01\xc1", b"\x01\x90"])
def test_other_bytes_are_refused(read: object, data: bytes) -> None:
    with pytest.raises(StateFormatError):
        read(data)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]


def test_a_head_keeps_what_is_suspended() -> None:
    head = Head("job", 7, 3, 9)
    assert not head.suspended and head.blocking is None and head.signals_expire is None
    frees_key = ListedRun(3, 5, False, 1, None, 8, ["go", "go"])
    blocks = ListedRun(4, 6, True, 0, 99, None, [])
    head.suspended = [frees_key, blocks]
    head.signals_expire = 12
    again = Head.unpack(head.pack())
    assert list(again.suspended) == [frees_key, blocks]
    assert again.blocking == blocks and blocks.is_due(99) and not blocks.is_due(98)
    assert again.signals_expire == 12
    again.suspended = []
    again.signals_expire = None
    assert again.extra is None


def test_the_id_of_a_wait_names_its_run() -> None:
    # Keys and names of actions may have any character.
    assert run_of(wait_id("s|1|x", 7, "a[0]/b", "0.1", 2), "s|1|x") == 7
    assert run_of(wait_id("s|1", 7, "nap", "", 0), "s") is None
    assert run_of("anything", "s") is None
