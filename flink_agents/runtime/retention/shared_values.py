"""Results that many runs share: the store has each of them once, and records refer to it.

For example, the list of tools of a server is large and the same in each run. All shared results are read when
the store is opened. So a replay waits for nothing that the run did not wait for.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any, cast

from flink_agents.api.action_state import ActionStateStore
from flink_agents.api.errors import RecordsPrunedError, StoreError
from flink_agents.runtime.serde.codec import ValueCodec

_PREFIX = "\x00value "
"""Prefix of the names of shared results among the plans of a store. No fingerprint has it."""

_DIGEST = "digest of a shared result"
"""Key of the object that replaces a shared result in a record."""

_SMALL = 1000
"""Results up to this number of bytes are stored in the record itself."""

_FRAME = 8
"""More bytes than the version, the map and the length before the first key of a reference."""

MOST = 1000
"""The most results that are shared.

Results that always differ belong into the records of runs, which are pruned.
"""


class SharedValues:
    """The shared results of one store.

    Args:
        store: The store.
        codec: Encodes references to shared results.
    """

    def __init__(self, store: ActionStateStore, codec: ValueCodec) -> None:
        self._store = store
        self._codec = codec
        self._known: dict[str, bytes] = {}

    def open(self, plans: Mapping[str, bytes]) -> None:
        """Load the shared results from the plans of a store."""
        self._known = {
            name.removeprefix(_PREFIX): data for name, data in plans.items() if name.startswith(_PREFIX)
        }

    async def packed(self, data: bytes) -> bytes:
        """Return a reference to an encoded result once the store has it; else ``data`` itself."""
        if len(data) <= _SMALL:
            return data
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        if not await self._keep(digest, data):
            return data
        return self._codec.encode({_DIGEST: digest, "bytes": len(data)})

    def unpacked(self, data: bytes) -> bytes:
        """Return the encoded result from the form that :meth:`packed` returned.

        Raises:
            RecordsPrunedError: The store does not have it any longer.
        """
        # A result may have classes that only its declared type gives, so only references are decoded.
        if len(data) > _SMALL or _DIGEST.encode() not in data[: len(_DIGEST) + _FRAME]:
            return data
        held: Any = self._codec.decode(data)
        if not isinstance(held, dict) or _DIGEST not in held:
            return data
        digest = str(cast("dict[str, Any]", held)[_DIGEST])
        compressed = self._known.get(digest)
        if compressed is None:
            raise RecordsPrunedError(
                "a record names a result that it shares with other runs, and the store does not have it",
                expected="the whole store, with the plans and shared results that all runs have in common",
                found=f"no shared result {digest}",
                fix="restore the store as a whole; 'flink-agents journal copy' copies them, too",
            )
        return zlib.decompress(compressed)

    async def _keep(self, digest: str, data: bytes) -> bool:
        """Store a result; returns False if that is impossible, so that the record has to contain it."""
        if digest in self._known:
            return True
        if len(self._known) >= MOST:
            return False
        small = zlib.compress(data)
        try:
            await self._store.remember_plan(_PREFIX + digest, small)
        except StoreError:
            # The record is stored next. If the store is gone, that append ends the attempt.
            return False
        self._known[digest] = small
        return True
