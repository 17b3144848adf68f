"""Lists a store's records and the processes that lease them, from shared memory alone, without messages and locks.

The slot table and the note behind each record give tenant and key; the entries of readers give pids, which the locks in
`clients/` map to names. So it works whether the frontend answers, hangs or is dead, and costs the service nothing. Each
record is consistent by itself, but not with the others.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from mmcached.cache.name_files import name_in, read_name
from mmcached.cache.store_keys import store_key
from mmcached.cache.stored_names import FIRST_LOOK, newest_first, stored_names
from mmcached.cli.admin.client_locks import living_clients
from mmcached.shm.ring.key_index import key_digest
from mmcached.shm.ring.onlooker import RingOnlooker, Row, state_of
from mmcached.shm.ring.slot_table import EXPIRY, FIRST_KEY, GENERATION, NBYTES, SECOND_KEY, boot_ns
from mmcached.shm.segment.ring_notes import read_note
from mmcached.shm.store.codec import leaves_of
from mmcached.shm.store.record_head import MAX_HEAD_BYTES, PREAMBLE, Head, TensorRef, read_head, read_preamble
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import LayoutMismatch, RemoteProtocolError
from mmcached.wire.paths import RunDir
from mmcached.wire.version import PROTOCOL_VERSION


class Reader(msgspec.Struct, frozen=True):
    """A process that has leases on one record.

    Attributes:
        name: Names of its clients, joined by "/"; "" if it has none any more.
    """

    pid: int
    name: str
    leases: int


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """One record.

    Attributes:
        age: Rank by time of put; 1 is the newest record.
        age_s: Seconds since it was put, or fetched from a second level.
        ttl_s: Seconds until it expires; None: it does not.
        nbytes: Size of the record, without its names.
    """

    key: str
    tenant: str
    nbytes: int
    age: int
    age_s: float
    ttl_s: float | None
    readers: list[Reader]


class KeyList(msgspec.Struct, frozen=True):
    """The listed records, the newest first.

    Attributes:
        num_records: All records in the store.
        is_cut: More records match than are listed.
    """

    num_records: int
    is_cut: bool
    keys: list[StoredKey]


class StoredTensor(msgspec.Struct, frozen=True):
    """One tensor of a record; `path` leads to it: `embeds`, or `a.b[0]` in a dict in a list."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class FoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one key.

    Attributes:
        state: `valid`: a get finds it. `expired`: its time to live is over. `retired`, `sealed`: it was dropped, and
            stays for its readers.
        ttl_s: Seconds until it expires; None: it does not.
        num_values: Number of values that are not tensors.
        rows: What decides the bits of an encoder output besides its item, see `output_names.ROWS`; None if the key is
            another one, or its rows are not known in this run directory.
    """

    key: str
    tenant: str
    state: Literal["valid", "expired", "retired", "sealed", "absent"]
    slot: int | None = None
    generation: int | None = None
    nbytes: int = 0
    ttl_s: float | None = None
    tensors: list[StoredTensor] = []
    num_values: int = 0
    readers: list[Reader] = []
    rows: dict[str, Any] | None = None


class StoreOnlooker(Closeable):
    """The store of one run directory, with or without a running service.

    Raises:
        ConfigError, ServiceUnavailable: As `RunDir.check`.
        SegmentError, LayoutMismatch: Its ring is gone, or of another version.
        FileNotFoundError: There is no store.
    """

    def __init__(self, run_dir: Path) -> None:
        directory = RunDir(run_dir)
        directory.check()
        note = read_note(run_dir, "store")
        if note is None:
            raise FileNotFoundError(run_dir)
        LayoutMismatch.unless_equal("version", note.version, PROTOCOL_VERSION)
        self._run_dir = run_dir
        self._pid_to_names = _names(directory)
        self._ring = RingOnlooker(note.ring)
        self._readers = self._ring.attached()

    def list_keys(self, glob: str, tenant: str | None, limit: int) -> KeyList:
        """Return the records whose key matches, the newest first; of all tenants if `tenant` is None."""
        rows, now_ns = self._ring.rows(), boot_ns()
        slots = newest_first(rows)
        found: list[StoredKey] = []
        for age, slot, about in stored_names(self._ring, slots, rows, max(FIRST_LOOK, limit)):
            if tenant not in (None, about.tenant) or not fnmatchcase(about.key, glob):
                continue
            if len(found) == limit:
                return KeyList(len(slots), True, found)
            stored = StoredKey(
                key=about.key,
                tenant=about.tenant,
                nbytes=int(rows[slot, NBYTES]),
                age=age,
                age_s=max(0, now_ns - about.put_at) / 1e9,
                ttl_s=_ttl_s(rows[slot], now_ns),
                readers=self._holders(slot),
            )
            found.append(stored)
        return KeyList(len(slots), False, found)

    def inspect(self, key: str, tenant: str) -> FoundRecord:
        """Return the record of a key; if several match, the valid record that `get` finds."""
        name = name_in(key)
        known = None if name is None else read_name(self._run_dir, name)
        rows, digest = self._ring.rows(), key_digest(store_key(tenant, key))
        is_its = (rows[:, FIRST_KEY] == np.uint64(digest[0])) & (rows[:, SECOND_KEY] == np.uint64(digest[1]))
        slots = np.flatnonzero(is_its & (rows[:, GENERATION] != 0)).tolist()
        for slot in sorted(slots, key=lambda slot: state_of(rows[slot]) != "valid"):
            row = rows[slot]
            head = self._head(slot, row)
            if head is None:
                continue  # it was evicted meanwhile
            tree = list(leaves_of(head.tree))
            types = {path: head.tensors[leaf.index][0] for path, leaf in tree if isinstance(leaf, TensorRef)}
            return FoundRecord(
                key=key,
                tenant=tenant,
                state=state_of(row),  # type: ignore[arg-type]
                slot=slot,
                generation=(int(row[GENERATION]) & (1 << 63) - 1) >> 1,
                nbytes=int(row[NBYTES]),
                ttl_s=_ttl_s(row, boot_ns()),
                tensors=[StoredTensor(path, t.dtype, t.shape, t.nbytes) for path, t in types.items()],
                num_values=len(tree) - len(types),
                readers=self._holders(slot),
                rows=known,
            )
        return FoundRecord(key=key, tenant=tenant, state="absent", rows=known)

    def readers(self) -> list[Reader]:
        """Return the processes with leases, and the numbers of their leases on all records."""
        held: Counter[int] = Counter()
        for holder in self._ring.totals(self._readers):
            held[holder.pid] += holder.num_leases
        return [Reader(pid, self._name_of(pid), number) for pid, number in held.items()]

    def close(self) -> None:
        self._ring.close()

    def _head(self, slot: int, row: Row) -> Head | None:
        preamble = self._ring.read(slot, row, 0, PREAMBLE.size)
        if preamble is None:
            return None
        try:
            head_bytes, _ = read_preamble(memoryview(preamble))
            head = self._ring.read(slot, row, 0, min(head_bytes, MAX_HEAD_BYTES))
            return None if head is None else read_head(head)
        except RemoteProtocolError:
            return None

    def _holders(self, slot: int) -> list[Reader]:
        return [
            Reader(holder.pid, self._name_of(holder.pid), holder.num_leases)
            for holder in self._ring.holders(slot, self._readers)
        ]

    def _name_of(self, pid: int) -> str:
        return "/".join(sorted(self._pid_to_names.get(pid, ())))


def _ttl_s(row: Row, now_ns: int) -> float | None:
    expires_at = int(row[EXPIRY])
    return (expires_at - now_ns) / 1e9 if expires_at else None


def _names(directory: RunDir) -> dict[int, set[str]]:
    names: defaultdict[int, set[str]] = defaultdict(set)
    for pid, name in living_clients(directory):
        if name and os.path.exists(f"/proc/{pid}"):
            names[pid].add(name)
    return names
