"""Results that many runs have in common: their records name them, and the store has each of them once.

The list of tools of a server is the same in run after run, and large. All such results are read when the
store is opened, so that a replay waits for nothing that the run did not wait for.
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
"""Begin of the names under which a store has them among its plans; no fingerprint has it."""

_DIGEST = "digest of a shared result"
"""Key of what a record holds in place of a result."""

_SMALL = 1000
"""Bytes up to which a record holds the result itself."""

MOST = 1000
"""How many results are shared. What always differs belongs into the records of runs, which are pruned."""


class SharedValues:
    """The shared results of one store.

    Args:
        store: The store.
        codec: Encodes what records hold in their place.
    """

    def __init__(self, store: ActionStateStore, codec: ValueCodec) -> None:
        self._store = store
        self._codec = codec
        self._known: dict[str, bytes] = {}

    def open(self, plans: Mapping[str, bytes]) -> None:
        """Take over what a store has among its plans."""
        self._known = {
            name.removeprefix(_PREFIX): data for name, data in plans.items() if name.startswith(_PREFIX)
        }

    async def packed(self, data: bytes) -> bytes:
        """What a record holds of an encoded result: its digest, once the store has it; else ``data``."""
        if len(data) <= _SMALL:
            return data
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        if not await self._keep(digest, data):
            return data
        return self._codec.encode({_DIGEST: digest, "bytes": len(data)})

    def unpacked(self, data: bytes) -> bytes:
        """The encoded result of which :meth:`packed` gave what the record holds.

        Raises:
            RecordsPrunedError: The store does not have it any more.
        """
        if len(data) > _SMALL:
            return data
        held: Any = self._codec.decode(data)
        if not isinstance(held, dict) or _DIGEST not in held:
            return data
        digest = str(cast("dict[str, Any]", held)[_DIGEST])
        kept = self._known.get(digest)
        if kept is None:
            raise RecordsPrunedError(
                "a record names a result that it shares with other runs, and the store does not have it",
                expected="the whole store, with the plans and shared results that all runs have in common",
                found=f"no shared result {digest}",
                fix="restore the store as a whole; 'flink-agents journal copy' copies them, too",
            )
        return zlib.decompress(kept)

    async def _keep(self, digest: str, data: bytes) -> bool:
        """Let the store have a result; False if it cannot, so that the record has to hold it."""
        if digest in self._known:
            return True
        if len(self._known) >= MOST:
            return False
        small = zlib.compress(data)
        try:
            await self._store.remember_plan(_PREFIX + digest, small)
        except StoreError:
            # The record goes the same way next, and ends the attempt if the store is gone.
            return False
        self._known[digest] = small
        return True
