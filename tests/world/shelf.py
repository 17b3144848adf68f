"""The host's store, as one engine and its ranks see it: encoder outputs that they, or another engine, have put there.

    look ──> lease: the engine's ──> open: a rank's
       └── evicted, flushed, or the service was away: nothing is found any more, but under a lease the bytes stay
    claim ──> made, and kept; or not: no room, another epoch, the service was away

What nobody leases any more and nobody can find is overwritten, so whoever keeps a view of it has nonsense in it.

Knows nothing of requests. What another engine puts is right for the weights of the store's epoch.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from mmcached.cache.store_keys import EMBEDDINGS, output_key, store_key
from mmcached.wire.config import ServiceConfig
from tests.world.clients import ITEMS
from tests.world.plainly import embeddings_of


class _Record:
    """An output, and how many hold a lease on it."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows
        self.num_leases = 0
        self.is_listed = True

    def overwrite_if_free(self) -> None:
        if not self.num_leases and not self.is_listed:
            self.rows.fill_(-9)


class Lease:
    """What the engine holds of a record; given back when nothing refers to it any more."""

    def __init__(self, shelf: Shelf, token: str, record: _Record) -> None:
        self.token = token
        self._shelf = shelf
        self._record = record
        record.num_leases += 1
        shelf.leased[token] = record

    def __del__(self) -> None:
        self._record.num_leases -= 1
        del self._shelf.leased[self.token]
        self._record.overwrite_if_free()


class Shelf:
    """The store; also the client of it that the engine and each rank have.

    Args:
        seen: counts what happens here.
    Attributes:
        epoch: rises when all was made unreachable.
        leased: by token.
        is_calm: nothing goes wrong any more.
        fingerprint: of the ranks' encoder.
    """

    def __init__(self, config: ServiceConfig, rng: random.Random, seen: Counter[str]) -> None:
        self.epoch = 1
        self.leased: dict[str, _Record] = {}
        self.is_calm = False
        self.fingerprint = ""
        self._model = config.model
        self._rng = rng
        self._seen = seen
        self._records: dict[str, _Record] = {}
        self._num_tokens = 0

    # ---- the frontend's part

    def look(self, tenant: str, mm_hash: str) -> bool:
        """Return whether there is an output; takes no lease."""
        return store_key(tenant, output_key(self.fingerprint, mm_hash)) in self._records

    def flush(self) -> None:
        self.epoch += 1
        for name in list(self._records):
            self._evict(name)

    def happen(self) -> None:
        """Let another engine put an output, or something be evicted for its sake."""
        if self._may("evictions", 0.1) and self._records:
            self._evict(self._rng.choice(list(self._records)))
        if self._may("outputs of another engine", 0.5):
            mm_hash = self._rng.choice(sorted(ITEMS))
            embeddings = embeddings_of(self._model, self.epoch - 1, ITEMS[mm_hash])
            rows = torch.from_numpy(embeddings).to(torch.int32)
            self._put(store_key("", output_key(self.fingerprint, mm_hash)), rows)

    # ---- as a client

    def get(self, key: str, *, tenant: str, **options: object) -> Lease | None:
        record = self._records.get(store_key(tenant, key))
        if record is None or self._may("gone before the lease", 0.1):
            return None
        self._num_tokens += 1
        return Lease(self, f"token {self._num_tokens}", record)

    def is_verifying(self) -> bool:
        return False

    def open(self, token: str, **options: object) -> SimpleNamespace | None:
        record = self.leased.get(token)
        if record is None or self._may("gone before the load", 0.1):
            return None
        self._seen["loads"] += 1
        return SimpleNamespace(record={EMBEDDINGS: record.rows})

    def get_or_compute(
        self,
        key: str,
        fn: Callable[[], Mapping[str, torch.Tensor]],
        *,
        tenant: str,
        store_epoch: int,
        **options: object,
    ) -> Mapping[str, Any]:
        name = store_key(tenant, key)
        if self._may("away", 0.1):
            return fn()
        self.happen()
        if store_epoch != self.epoch:
            self._seen["outputs of a former epoch"] += 1
            return fn()
        if name in self._records:
            self._seen["outputs of another rank"] += 1
            return {EMBEDDINGS: self._records[name].rows}
        made = fn()
        if not self._may("no room", 0.1):
            self._put(name, made[EMBEDDINGS].clone())
        return made

    def drop(self, key: str, *, tenant: str, local: bool) -> bool:
        self._evict(store_key(tenant, key))
        return True

    def close(self) -> None:
        pass

    def _put(self, name: str, rows: torch.Tensor) -> None:
        self._records.setdefault(name, _Record(rows))

    def _evict(self, name: str) -> None:
        record = self._records.pop(name, None)
        if record is not None:
            record.is_listed = False
            record.overwrite_if_free()

    def _may(self, what: str, probability: float) -> bool:
        if self.is_calm or self._rng.random() >= probability:
            return False
        self._seen[what] += 1
        return True
