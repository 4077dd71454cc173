"""The delayed events of a key in state: their order, their bytes, and how little of them is read."""

from __future__ import annotations

import random

import pytest

from flink_agents.api.errors import StateFormatError
from flink_agents.runtime.state.delayed import MOST_IN_PAGE, DelayedEvents, DelayedInput
from flink_agents.runtime.state.keyed_state import Head
from tests.suite.tables import each_case


class Entries(dict[int, bytes]):
    """A map of the current key, which counts what is read of it."""

    reads = 0

    def get(self, key: int, default: None = None) -> bytes | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.reads += 1
        return super().get(key, default)

    def put(self, key: int, value: bytes) -> None:
        assert type(value) is bytes
        self[key] = value

    def remove(self, key: int) -> None:
        self.pop(key, None)


AGENDA_1 = bytes.fromhex("01940301929205009205029193070100")
PAGE_1 = bytes.fromhex("0191920701")


def test_events_come_by_their_time_and_then_in_the_order_in_which_they_were_sent() -> None:
    entries = Entries()
    events = DelayedEvents(entries)
    assert events.add(5, b"a") == 5
    assert events.add(7, b"b") == 5
    assert events.add(5, b"c") == 5
    assert events.add(2, b"d") == 2
    assert events.list_events() == [(2, b"d"), (5, b"a"), (5, b"c"), (7, b"b")]
    assert events.pop(10, 1) == ([], 2)
    assert events.pop(1, 9) == ([b"d"], 5)
    assert events.pop(10, 5) == ([b"a", b"c"], 7)
    assert events.pop(10, None) == ([b"b"], None)
    assert entries == {}


@each_case("seed", range(12))
def test_random_events_come_in_order_and_leave_nothing(seed: int) -> None:
    chance = random.Random(seed)
    entries = Entries()
    model = list[tuple[int, int]]()
    sent = 0
    now = 0
    spread = chance.choice((1, 50, 10_000))
    for _ in range(chance.choice((20, 60))):
        if chance.random() < 0.6:
            for _ in range(chance.choice((1, 1, 1, 300))):
                due = now + chance.randrange(spread)
                first = DelayedEvents(entries).add(due, str(sent).encode())
                model.append((due, sent))
                sent += 1
                assert first == min(model)[0]
        else:
            now += chance.randrange(spread)
            most = chance.choice((1, 3, 500))
            events, following = DelayedEvents(entries).pop(most, now)
            model.sort()
            wanted = [event for event in model if event[0] <= now][:most]
            assert [int(packed) for packed in events] == [number for _, number in wanted]
            model = model[len(wanted) :]
            assert following == (model[0][0] if model else None)
    assert [(due, int(packed)) for due, packed in DelayedEvents(entries).list_events()] == sorted(model)
    events, following = DelayedEvents(entries).pop(None, None)
    assert (len(events), following, entries) == (len(model), None, {})


@each_case(("order", "count"), [("rising", 500), ("falling", 500), ("mixed", 3_000)])
def test_one_of_many_events_is_sent_and_comes_by_a_few_reads(order: str, count: int) -> None:
    times = list(range(count))
    if order == "mixed":
        random.Random(1).shuffle(times)
    elif order == "falling":
        times.reverse()
    entries = Entries()
    events = DelayedEvents(entries)
    for due in times:
        entries.reads = 0
        events.add(due, b"x" * 100)
        assert entries.reads <= 2
    index = {number: data for number, data in entries.items() if number < 0}
    assert max(map(len, index.values())) < 40 * MOST_IN_PAGE
    for due in range(count):
        entries.reads = 0
        assert events.pop(1, due) == ([b"x" * 100], due + 1 if due < count - 1 else None)
        assert entries.reads <= 3
    assert entries == {}


def test_the_bytes_of_an_agenda_are_read() -> None:
    entries = Entries({-1: AGENDA_1, -2: PAGE_1, 0: b"a", 1: b"b", 2: b"c"})
    assert DelayedEvents(entries).list_events() == [(5, b"a"), (5, b"c"), (7, b"b")]
    assert DelayedEvents(entries).pop(2, 5) == ([b"a", b"c"], 7)
    assert DelayedEvents(entries).add(6, b"d") == 6
    assert DelayedEvents(entries).pop(None, None) == ([b"d", b"b"], None)
    assert entries == {}


@each_case("data", [b"", b"\x02\x90", b"\x01\xc1"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(StateFormatError, match="delayed events of a key"):
        DelayedEvents(Entries({-1: data})).pop(1, 1)


@each_case("entries", [{-1: AGENDA_1, 1: b"b", 2: b"c", -2: PAGE_1}, {-1: AGENDA_1, 0: b"a"}])
def test_state_that_lacks_an_event_or_a_page_is_refused(entries: dict[int, bytes]) -> None:
    with pytest.raises(StateFormatError, match="state lacks"):
        DelayedEvents(Entries(entries)).pop(None, None)


def test_a_head_keeps_when_the_first_event_is_due() -> None:
    head = Head("job", 7)
    assert head.delayed_due is None and head.extra is None
    head.delayed_due = 12
    again = Head.unpack(head.pack())
    assert again.delayed_due == 12
    again.delayed_due = None
    assert again.extra is None


def test_the_input_that_an_event_will_be_has_the_name_and_fields_that_savepoints_hold() -> None:
    from flink_agents.runtime.serde.codec import ValueCodec

    sent = DelayedInput(b"e", "take", "up", "run", 3)
    data = ValueCodec().encode([sent, 5])
    assert ValueCodec().decode(data) == [sent, 5]
    assert b"flink_agents.runtime.state.delayed:DelayedInput" in data
    for name in (b"event", b"action", b"upstream", b"run_id", b"sequence_number"):
        assert name in data
