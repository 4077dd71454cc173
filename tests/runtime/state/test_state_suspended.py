"""The bytes of suspended runs and of signals, as savepoints hold them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.errors import StateFormatError
from flink_agents.runtime.operator.interleaving.runs import wake_up
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.mailbox import Mailbox, StoredSignal
from flink_agents.runtime.state.pending import PendingKind, pack_input, unpack_input
from flink_agents.runtime.state.suspended import ReleasedRun, StoredSignalWait, Suspension, run_of, wait_id
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
    waits=[StoredSignalWait("nap", "0", 1, 1_700_000_001_000, "go", 1_700_000_000_500, b"r")],
    left={"nap": (1, 2)},
    failed={"nap": [[0.5], [1, "ValueError", "no", None]]},
    submission="s",
)
SUSPENDED_3 = bytes.fromhex(
    "039c0307cf0000018bcfe56800a170919406a36e617000c401779100c3c39197a36e6170a13001a2676fcf0000018bcf"
    "e56be8cf0000018bcfe569f4c4017281a36e617092010281a36e61709291cb3fe00000000000009401aa56616c756545"
    "72726f72a26e6fc0a173"
)
SUSPENDED_1 = bytes.fromhex(
    "019b0307cf0000018bcfe56800a170919406a36e617000c401779100c3c39195a36e6170a13001a2676fcf0000018bcf"
    "e56be881a36e617092010281a36e61709291cb3fe00000000000009401aa56616c75654572726f72a26e6fc0"
)
ASIDE = replace(
    SUSPENDED, unstored=[], bound=False, recorded=False, parts=(("nap", 1),), input=b"in", identity="job"
)
ASIDE_4 = bytes.fromhex(
    "049f0307cf0000018bcfe56800a170919406a36e617000c4017790c2c29197a36e6170a13001a2676fcf0000018bcfe5"
    "6be8cf0000018bcfe569f4c4017281a36e617092010281a36e61709291cb3fe00000000000009401aa56616c75654572"
    "726f72a26e6fc0a1739192a36e617001c402696ea36a6f62"
)
ASIDE_2 = bytes.fromhex(
    "029e0307cf0000018bcfe56800a170919406a36e617000c4017790c2c29195a36e6170a13001a2676fcf0000018bcfe5"
    "6be881a36e617092010281a36e61709291cb3fe00000000000009401aa56616c75654572726f72a26e6fc09192a36e61"
    "7001c402696ea36a6f62"
)
MAILBOX = Mailbox([StoredSignal("id a", "go", b"v", "a", None, 5)], {"b": 6}, [("id c", 7)])
MAILBOX_1 = bytes.fromhex("01939196a469642061a2676fc40176a161c00581a162069192a46964206307")
MEANT = Mailbox([MAILBOX.signals[0], MAILBOX.signals[0]._replace(run=7)], MAILBOX.seen, MAILBOX.owed)
MEANT_2 = bytes.fromhex(
    "02939297a469642061a2676fc40176a161c005c097a469642061a2676fc40176a161c0050781a162069192a46964206307"
)


def check_bytes(suspension: Suspension, packed: bytes, former: bytes) -> None:
    assert suspension.pack() == packed
    assert Suspension.unpack(packed) == suspension
    waits = [replace(wait, began=None, request=None) for wait in suspension.waits]
    assert Suspension.unpack(former) == replace(suspension, waits=waits, submission="")


def test_the_bytes_of_a_suspended_run_are_read() -> None:
    check_bytes(SUSPENDED, SUSPENDED_3, SUSPENDED_1)


def test_a_run_that_was_set_aside_is_of_another_version() -> None:
    check_bytes(ASIDE, ASIDE_4, ASIDE_2)


def test_a_mailbox_with_a_signal_for_a_run_is_of_another_version() -> None:
    assert MEANT.pack() == MEANT_2
    assert Mailbox.unpack(MEANT_2) == MEANT


def test_a_head_keeps_what_is_set_aside() -> None:
    head = Head("job", 7, 3, 9)
    assert not head.released
    released = [ReleasedRun(3, 5, 1, None, 8, ["go", "go"]), ReleasedRun(4, 6, 2, 99, None, [])]
    head.released = released
    again = Head.unpack(head.pack())
    assert list(again.released) == released
    again.released = []
    assert again.extra is None


def test_a_wake_up_is_no_input() -> None:
    codec = ValueCodec()
    packed = wake_up(codec, ReleasedRun(3, 5, 1, None, None, []))
    assert packed == wake_up(codec, ReleasedRun(4, 5, 1, 7, 9, ["go"]))
    assert packed.hex() == "0193a777616b652d75700501"
    assert pack_input(packed) != bytes((2, PendingKind.WAKE_UP)) + packed
    assert unpack_input(bytes((2, PendingKind.WAKE_UP)) + packed) == packed


def test_the_bytes_of_signals_are_read() -> None:
    assert MAILBOX.pack() == MAILBOX_1
    assert Mailbox.unpack(MAILBOX_1) == MAILBOX
    assert Mailbox().pack() is None
    assert Mailbox.unpack(None) == Mailbox()


@each_case("read", [Suspension.unpack, Mailbox.unpack])
@each_case("data", [b"\x02\x90", b"\x01\xc1", b"\x01\x90"])
def test_other_bytes_are_refused(read: object, data: bytes) -> None:
    with pytest.raises(StateFormatError):
        read(data)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]


def test_a_head_keeps_what_is_suspended() -> None:
    head = Head("job", 7, 3, 9)
    assert head.suspended is None and head.signals_expire is None
    head.suspended = (3, 7, None)
    head.signals_expire = 12
    again = Head.unpack(head.pack())
    assert again.suspended == (3, 7, None)
    assert again.signals_expire == 12
    again.suspended = None
    again.signals_expire = None
    assert again.extra is None


def test_the_id_of_a_wait_names_its_run() -> None:
    # Keys and names of actions may have any character.
    assert run_of(wait_id("s|1|x", 7, "a[0]/b", "0.1", 2), "s|1|x") == 7
    assert run_of(wait_id("s|1", 7, "nap", "", 0), "s") is None
    assert run_of("anything", "s") is None
