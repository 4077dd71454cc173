"""Recovery markers of a store ``kafka``: from which offset a partition is needed, and invalid markers."""

from __future__ import annotations

from collections.abc import Mapping

from flink_agents.api.action_state import JournalKey, Owner
from flink_agents.api.errors import RecordsPrunedError, StoreMismatchError
from flink_agents.connectors.action_state.kafka.layout import Marker, pack_marker, unpack_marker
from flink_agents.connectors.action_state.kafka.topics import Topic

TOKEN_BYTES = 8
"""Number of bytes of an owner's token, and of a topic's id, in a marker."""


class Markers:
    """Creates recovery markers, and interprets those in Flink's state.

    Args:
        topic: The journal topic.
        owner: The owner that reads; None for a reader without a claim.

    Attributes:
        ends: End offset of each partition when the owner took over.
    """

    def __init__(self, topic: Topic, owner: Owner | None) -> None:
        self._topic = topic
        self._topic_bytes = topic.id.bytes[:TOKEN_BYTES]
        self._owner = owner
        self._writer = (owner.token if owner is not None else "")[:TOKEN_BYTES].encode()
        self._floors: dict[int, int] = {}
        self._cached_markers: dict[int, tuple[int, bytes]] = {}
        self.ends: dict[int, int] = {}

    def create_marker(self, partition: int, offset: int) -> bytes:
        """Return a packed marker: records that are appended later are at or after ``offset``."""
        # Between two batches of a partition, runs of many keys end at the same offset.
        cached_marker = self._cached_markers.get(partition)
        if cached_marker is not None and cached_marker[0] == offset:
            return cached_marker[1]
        subtask, parallelism = (self._owner.subtask, self._owner.parallelism) if self._owner else (0, 0)
        marker = Marker(self._topic_bytes, partition, offset, self._writer, subtask, parallelism)
        packed = pack_marker(marker)
        self._cached_markers[partition] = (offset, packed)
        return packed

    def start_offset(self, marker: bytes | None, partition: int, pending: bool) -> int | None:
        """Return the offset from which a key needs the records of its partition.

        Args:
            marker: The key's marker; None if its state has none.
            partition: The key's partition.
            pending: True if the key has inputs that have not ended.

        Returns:
            None if the marker is of another topic, or beyond the end of the partition.
        """
        if marker is None:
            return 0 if pending else self._floors.get(partition, 0)
        parsed_marker = unpack_marker(marker)
        if (
            parsed_marker is None
            or not self._fits_partition(parsed_marker, partition)
            or self._is_beyond_end(parsed_marker)
        ):
            return None
        return parsed_marker.offset if pending else max(parsed_marker.offset, self._floors.get(partition, 0))

    def note_bound(self, marker: bytes | None, partition: int) -> None:
        """Raise the start offset of the partition's keys without pending inputs to that of a key's marker.

        Only a marker from an earlier attempt of the same subtask is used: it is older than the checkpoint.
        """
        read = None if marker is None else unpack_marker(marker)
        if read is None or self._owner is None or read.writer == self._writer:
            return
        if (read.subtask, read.parallelism) == (self._owner.subtask, self._owner.parallelism):
            self._floors[partition] = max(read.offset, self._floors.get(partition, 0))

    def check_marker(self, journal: JournalKey, marker: bytes | None, partition: int) -> None:
        """Check that a marker is of this topic, and that its partition has not lost its last records.

        Raises:
            StoreMismatchError: The marker is of another store.
            RecordsPrunedError: The partition ended before the marker when this attempt started.
        """
        if marker is None:
            return
        parsed_marker = unpack_marker(marker)
        if parsed_marker is None or not self._fits_partition(parsed_marker, partition):
            raise StoreMismatchError(
                f"the state to restore belongs to another store than topic {self._topic.name!r}",
                expected=f"markers of the topic with the id {self._topic.id}",
                found=str(parsed_marker or f"a marker of {len(marker)} bytes"),
                fix="configure the topic that the job used before",
            )
        if self._is_beyond_end(parsed_marker):
            raise self._lost_records_error(
                partition, parsed_marker.offset, f"runs of key {journal.key[:200]!r}"
            )

    def check_offsets(self, offsets: Mapping[int, int], begins: Mapping[int, int]) -> None:
        """Check that the topic still has all records from each of some offsets on.

        Args:
            offsets: The end of each partition, from state.
            begins: The first offset of each partition now.

        Raises:
            RecordsPrunedError: Records were lost at the end of a partition, or removed at its beginning.
        """
        for partition, offset in offsets.items():
            if offset > self.ends.get(partition, offset):
                raise self._lost_records_error(partition, offset, "runs after the checkpoint")
            if begins[partition] > offset:
                raise self._removed_records_error(partition, offset, begins[partition], "the journals")

    def check_begin(self, journal: JournalKey, partition: int, wanted: int, begin: int) -> None:
        """Check that a partition still has all records from offset ``wanted`` on.

        Args:
            journal: The journal of a key with pending inputs, for the error.
            partition: Number of its partition.
            wanted: The first offset that the key needs.
            begin: The first offset that the partition has.

        Raises:
            RecordsPrunedError: ``begin`` is later than ``wanted``.
        """
        if begin > wanted:
            what = f"key {journal.key[:200]!r}, which has waiting inputs,"
            raise self._removed_records_error(partition, wanted, begin, what)

    def _lost_records_error(self, partition: int, expected: int, what: str) -> RecordsPrunedError:
        return RecordsPrunedError(
            f"the last records of partition {partition} of {self._topic.name!r} were lost: it is "
            f"unknown what {what} did",
            expected=f"a partition that ends at offset {expected} or later, according to Flink's state",
            found=f"it ended at offset {self.ends[partition]} when this attempt started",
            fix="recover the records, or restore from a checkpoint that is older than the loss; let no "
            "replica out of sync lead (unclean.leader.election.enable), and restore no old copies",
        )

    def _removed_records_error(
        self, partition: int, expected: int, begin: int, what: str
    ) -> RecordsPrunedError:
        return RecordsPrunedError(
            f"records of {what} were removed from the topic",
            expected=f"partition {partition} of {self._topic.name!r} from offset {expected} on",
            found=f"it starts at offset {begin}",
            fix="only the store may remove records of this topic: no retention, no DeleteRecords; to do "
            "without them, start without that state, under another job-identifier",
        )

    def _fits_partition(self, marker: Marker, partition: int) -> bool:
        return marker.partition == partition and marker.topic == self._topic_bytes

    def _is_beyond_end(self, marker: Marker) -> bool:
        """Return True if the partition ended before the marker when this attempt started: it lost records."""
        end = self.ends.get(marker.partition, marker.offset)
        return marker.writer != self._writer and marker.offset > end
