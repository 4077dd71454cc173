"""The delayed events of a key in state, ordered by time.

Each event is a separate entry under its number. An *agenda* has the times and numbers of the first events.
Later times are in pages, which the agenda lists. So firing an event reads the agenda, the event, and
sometimes one page, however many events the key has.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flink_agents.api.errors import StateFormatError
from flink_agents.runtime.state.slots import MapSlot, pack, unpack

MOST_IN_PAGE = 128
"""The most times in the agenda, and in each of its pages."""

_VERSION = b"\x01"
_AGENDA = -1

_WHAT = "the list of delayed events of a key"
"""The name of agenda and pages in messages."""

Time = tuple[int, int]
"""The time of an event in milliseconds since the epoch, and its number."""


@dataclass(frozen=True)
class DelayedInput:
    """A delayed event as the input of the run that it starts.

    Its name and its fields are part of every savepoint that has one.

    Attributes:
        event: The event in the form of ``EventRecords.packed``, encoded.
        action: Name of the action that sent it.
        upstream: Id of the event that this action handled.
        run_id: Id of the run that sent it.
        sequence_number: Number of that run within the key.
    """

    event: bytes
    action: str
    upstream: str
    run_id: str
    sequence_number: int


class _Page(NamedTuple):
    """A page in the agenda.

    Attributes:
        due: The first time of the page, in milliseconds since the epoch.
        number: The number of the event with that time.
        page: The number of the page.
    """

    due: int
    number: int
    page: int


@dataclass
class _Agenda:
    """The times of the events of a key.

    Attributes:
        following: The number that the next event gets.
        following_page: The number that the next page gets.
        first: Times of the earliest events, in order.
        pages: The pages with the times of all other events, in order.
    """

    following: int = 0
    following_page: int = 0
    first: list[Time] = field(default_factory=list[Time])
    pages: list[_Page] = field(default_factory=list[_Page])

    def pack(self) -> bytes:
        return _VERSION + pack((self.following, self.following_page, self.first, self.pages))

    @classmethod
    def from_fields(cls, fields: Any) -> _Agenda:
        following, following_page, first, pages = fields[:4]
        return cls(following, following_page, _times(first), [_Page(*page) for page in pages])


class DelayedEvents:
    """The delayed events of the current key.

    Args:
        entries: The entries in state.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: MapSlot[int]) -> None:
        self._entries = entries

    def add(self, due: int, packed: bytes) -> int:
        """Store an event until its time; return the time of the key's first event in milliseconds.

        Args:
            due: Its time, in milliseconds since the epoch.
            packed: The bytes of the input that the event becomes then.
        """
        agenda = self._read_agenda() or _Agenda()
        time = due, agenda.following
        agenda.following += 1
        self._entries.put(time[1], packed)
        page = bisect_right(agenda.pages, (*time, 0)) - 1
        if page >= 0:
            self._add_to_page(agenda, page, time)
        else:
            insort(agenda.first, time)
            if len(agenda.first) > MOST_IN_PAGE:
                half = MOST_IN_PAGE // 2
                self._put_page(agenda, 0, agenda.first[half:])
                del agenda.first[half:]
        self._entries.put(_AGENDA, agenda.pack())
        return agenda.first[0][0]

    def pop(self, most: int | None, until: int | None) -> tuple[list[bytes], int | None]:
        """Remove the first events, in order.

        Args:
            most: The most events; None for any number.
            until: The last time, in milliseconds, at which an event may be due; None for any time.

        Returns:
            The bytes of the removed events, and the time of the next one; None if no event is left.

        Raises:
            StateFormatError: State lacks an event or a page that the agenda lists.
        """
        agenda = self._read_agenda()
        packed_events: list[bytes] = []
        while agenda is not None and agenda.first and (most is None or len(packed_events) < most):
            due, number = agenda.first[0]
            if until is not None and due > until:
                break
            packed = self._entries.get(number)
            if packed is None:
                raise StateFormatError(
                    "state lacks a delayed event whose time it has",
                    expected=f"event {number} of the key",
                    found="nothing",
                    fix="restore from another checkpoint, and report this: state is never written so",
                )
            packed_events.append(packed)
            self._entries.remove(number)
            del agenda.first[0]
            if not agenda.first and agenda.pages:
                self._take_first_page(agenda)
        if agenda is None or not agenda.first:
            self._entries.remove(_AGENDA)
            return packed_events, None
        if packed_events:
            self._entries.put(_AGENDA, agenda.pack())
        return packed_events, agenda.first[0][0]

    def list_events(self) -> list[tuple[int, bytes]]:
        """Return time and bytes of all events of the key, in order."""
        agenda = self._read_agenda()
        if agenda is None:
            return []
        pages = [time for page in agenda.pages for time in self._read_page(page.page)]
        return [(due, self._entries.get(number) or b"") for due, number in (*agenda.first, *pages)]

    def times(self, until: int) -> list[int]:
        """Return the times of the events up to ``until`` (ms), in order; reads no page that begins later."""
        agenda = self._read_agenda()
        if agenda is None:
            return []
        times = list(agenda.first)
        for page in agenda.pages:
            if page.due > until:
                break
            times += self._read_page(page.page)
        return [due for due, _ in times if due <= until]

    # -- pages ------------------------------------------------------------------------

    def _add_to_page(self, agenda: _Agenda, place: int, time: Time) -> None:
        """Add a time to the page at a place in the agenda; split the page if it is full."""
        listed = agenda.pages[place]
        times = self._read_page(listed.page)
        insort(times, time)
        if len(times) <= MOST_IN_PAGE:
            self._entries.put(_entry_of(listed.page), _VERSION + pack(times))
            return
        half = MOST_IN_PAGE // 2
        self._entries.put(_entry_of(listed.page), _VERSION + pack(times[:half]))
        self._put_page(agenda, place + 1, times[half:])

    def _put_page(self, agenda: _Agenda, place: int, times: list[Time]) -> None:
        """Write a new page with these times, and list it at a place in the agenda."""
        page = agenda.following_page
        agenda.following_page += 1
        agenda.pages.insert(place, _Page(*times[0], page))
        self._entries.put(_entry_of(page), _VERSION + pack(times))

    def _take_first_page(self, agenda: _Agenda) -> None:
        """Move the times of the first page into the agenda, which has no other times left."""
        page = agenda.pages.pop(0).page
        agenda.first = self._read_page(page)
        self._entries.remove(_entry_of(page))

    def _read_page(self, page: int) -> list[Time]:
        """Return the times of the page with a number."""
        packed = self._entries.get(_entry_of(page))
        if packed is None:
            raise StateFormatError("state lacks times of delayed events", found=f"no page {page}")
        return unpack(_WHAT, packed, _times, _VERSION)

    def _read_agenda(self) -> _Agenda | None:
        packed = self._entries.get(_AGENDA)
        return None if packed is None else unpack(_WHAT, packed, _Agenda.from_fields, _VERSION)


def _entry_of(page: int) -> int:
    """Return the key of a page in the map: below that of the agenda. Those of events are not negative."""
    return _AGENDA - 1 - page


def _times(pairs: list[list[int]]) -> list[Time]:
    return [(due, number) for due, number in pairs]
