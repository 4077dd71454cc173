"""A store of journals in one file, as short as possible: it shows the interface of a store.

It rewrites the file with each append and blocks the event loop, which a store for real jobs must not do.
``docs/stores.md`` says how a package offers its store. ``tests/stores/test_stores_example.py`` checks it.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import uuid
from contextlib import contextmanager
from pathlib import Path

from flink_agents.api.action_state import (
    ActionStateStore,
    JournalInfo,
    StoreStats,
    check_records,
    closed_error,
    encode_text,
    in_use_error,
    pruned_error,
    stale_error,
)
from flink_agents.api.errors import StoreMismatchError


class FileStore(ActionStateStore):
    def __init__(self, path):
        self.path = Path(path)
        self.owner = None
        self.lease = None

    @contextmanager
    def content(self, writes=False):
        """What the file holds, for one process at a time; written back where it changed."""
        if self.lease is None:
            raise closed_error()
        with open(f"{self.path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fresh = {"id": str(uuid.uuid4()), "owners": {}, "journals": {}}
            previous_content = self.path.read_bytes() if self.path.exists() else b""
            content = pickle.loads(previous_content) if previous_content else fresh
            if writes and self.owner and self.owner.token not in content["owners"]:
                raise stale_error(self.owner)
            yield content
            after = pickle.dumps(content)
            if after != previous_content:
                with open(f"{self.path}.new", "wb") as file:
                    file.write(after)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(f"{self.path}.new", self.path)

    def lease_of(self, owner):
        """The file that an owner keeps locked. The system unlocks it when the process dies."""
        return open(f"{self.path}.{owner.token if owner else uuid.uuid4()}", "w")

    async def open(self, owner):
        self.owner, self.lease = owner, self.lease_of(owner)
        fcntl.flock(self.lease, fcntl.LOCK_EX)
        try:
            with self.content() as content:
                content["owners"] = self.owners_with(owner, content["owners"])
                self.known = set(content["journals"]) if owner else None
        except BaseException:
            await self.close()
            raise

    def owners_with(self, owner, owners):
        for registered in owners.values():
            if owner and registered.group == owner.group and registered.job_id != owner.job_id:
                with self.lease_of(registered) as lease:
                    try:
                        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        raise in_use_error(owner, registered.job_id) from None
        remaining_owners = {
            token: claim for token, claim in owners.items() if not (owner and owner.outranks(claim))
        }
        return {**remaining_owners, owner.token: owner} if owner else remaining_owners

    async def close(self):
        if self.lease is not None:
            with self.content() as content:
                content["owners"].pop(self.owner and self.owner.token, None)
            self.lease.close()
            self.lease = None

    async def append(self, journal, records):
        with self.content(writes=True) as content:
            if self.owner is None:
                raise closed_error("the store was opened without an owner")
            check_records(records, self.max_record_bytes)
            through, stored_records = content["journals"].get(journal, (-1, []))
            for record in records:
                if record.seq <= through:
                    raise pruned_error(journal, record.seq, through)
            if records:
                content["journals"][journal] = through, [*stored_records, *records]

    async def read(self, journal, seq):
        return await self.scan(journal, seq, seq)

    async def scan(self, journal, from_seq=None, to_seq=None):
        with self.content() as content:
            through, stored_records = content["journals"].get(journal, (-1, []))
        if from_seq is not None and from_seq <= through:
            raise pruned_error(journal, from_seq, through)
        first = from_seq or 0
        last = 2**63 if to_seq is None else to_seq
        return sorted(
            (record for record in stored_records if first <= record.seq <= last),
            key=lambda record: record.seq,
        )

    async def prune(self, journal, through_seq):
        with self.content(writes=True) as content:
            if journal in content["journals"]:
                through, stored_records = content["journals"][journal]
                through = max(through, through_seq)
                content["journals"][journal] = (
                    through,
                    [record for record in stored_records if record.seq > through],
                )

    async def forget(self, journal_id):
        with self.content(writes=True) as content:
            if self.owner is None:
                raise closed_error("the store was opened without an owner")
            for journal in [
                candidate for candidate in content["journals"] if candidate.journal_id == journal_id
            ]:
                del content["journals"][journal]

    async def pruned_through(self, journal):
        with self.content() as content:
            return content["journals"].get(journal, (-1, []))[0]

    def may_have(self, journal, marker=None, pending=True):
        if self.lease is None:
            raise closed_error()
        return self.known is None or journal in self.known

    @property
    def store_id(self):
        with self.content() as content:
            return content["id"]

    async def rebuild(self, journal=None, marker=None, pending=True):
        if marker not in (None, self.store_id.encode()):
            raise StoreMismatchError("the state belongs to another file")

    def recovery_marker(self, journal):
        return self.store_id.encode()

    async def journals(self, journal_id=None, after=None, limit=1000):
        with self.content() as content:
            infos = [describe(name, *content["journals"][name]) for name in content["journals"]]
        infos.sort(key=order)
        matches = [info for info in infos if journal_id in (None, info.journal.journal_id)]
        return [info for info in matches if after is None or order(info) > order(describe(after))][:limit]

    async def stats(self):
        every = await self.journals(limit=2**62)
        counts = len(every), sum(info.records for info in every), sum(info.data_bytes for info in every)
        with self.content() as content:
            return StoreStats(*counts, self.path.stat().st_size, tuple(content["owners"].values()))


def describe(name, through=-1, kept=()):
    runs = sorted({record.seq for record in kept})
    size = sum(len(record.data) for record in kept)
    first, last = (runs[0], runs[-1]) if runs else (None, None)
    return JournalInfo(name, len(runs), len(kept), size, first, last, through)


def order(info):
    return [encode_text(text) for text in info.journal]
