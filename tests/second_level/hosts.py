"""One host of a test: its store in a thread, and the second level's view of it; the server may be others' too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from mmcached.client import Client
from mmcached.second_level.claims import HostClaims
from mmcached.second_level.counts import Counts
from mmcached.second_level.epoch_note import EpochNote
from mmcached.second_level.fetching import Fetching
from mmcached.second_level.first_level import FirstLevel
from mmcached.second_level.saving import Saving
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.tenant_quota import TenantQuota
from mmcached.second_level.versions import Scope
from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.handle import Handle
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.second_level import Fetch, FetchesEnded, Save
from mmcached.wire.stats import SecondLevelStats
from tests.client.services import StoreService
from tests.integration.processes import DEADLINE_S, eventually
from tests.second_level.plain_server import PlainBackend, PlainServer

LONG_MS = 20_000
"""Of a fetch that nothing disturbs; no test waits for it to pass."""


class Host:
    """One host; its threads run while the test does."""

    def __init__(self, service: StoreService, server: PlainServer, stack: ExitStack, **limits: Any) -> None:
        self.service = service
        self.directory = service.directory
        self.first = stack.enter_context(FirstLevel(service.directory))
        with suppress(RemoteProtocolError):  # the desk has no orders; but now there is contact
            self.first.take_orders(1.0)
        self.client = stack.enter_context(Client(service.directory.path))
        server.epoch = server.epoch or 1
        note = EpochNote(service.directory.second_level_epoch)
        note.write(Scope(server.epoch))
        self.records = SharedRecords(PlainBackend(server), max_bytes=1 << 30, ttl_s=60.0, note=note)
        self.counts = Counts()
        claim_wait_s = limits.pop("claim_wait_s", 60.0)
        max_wait_s = limits.pop("max_wait_s", 60.0)
        quota = TenantQuota(limits.pop("quota_bytes", None), ttl_s=60.0)
        limit = LimitsConfig(**limits)
        claims = HostClaims(self.records, self.counts, ttl_s=claim_wait_s)
        self.fetching = Fetching(
            self.first,
            self.records,
            claims,
            self.counts,
            claim_wait_s=claim_wait_s,
            max_wait_s=max_wait_s,
            num_threads=2,
        )
        self.saving = Saving(self.first, self.records, claims, self.counts, limit, quota=quota)
        self._threads = [
            threading.Thread(target=run) for run in (self.fetching.run, self.fetching.run, self.saving.run)
        ]
        for thread in self._threads:
            thread.start()
        stack.callback(self._join)
        stack.callback(self.fetching.close)
        stack.callback(self.saving.close)

    @property
    def ends(self) -> list[tuple[int, str]]:
        """What has become of fetches, as the frontend was told it."""
        told = [message for message in self.service.received if isinstance(message, FetchesEnded)]
        return [(end.number, end.outcome) for message in told for end in message.fetches]

    def await_ends(self, *expected: tuple[int, str]) -> None:
        eventually(lambda: self.ends, lambda ends: ends == list(expected), f"ends {expected}")

    def await_stats(self, has_come: Callable[[SecondLevelStats], bool], what: str) -> SecondLevelStats:
        return eventually(self.stats, has_come, what)

    def stats(self) -> SecondLevelStats:
        waiting = self.saving.waiting
        is_open = self.records.breaker.state != "closed"
        return self.counts.stats(
            circuit_open=is_open, waiting_saves=waiting.num_records, waiting_bytes=waiting.num_bytes
        )

    def place_of(self, key: str, tenant: str = "") -> Handle:
        found: list[Handle | None] = []
        self.service.call(lambda: found.append(self.service.desk.records.find(tenant, key)))
        (place,) = found
        assert place is not None
        return place

    def fetch(
        self, number: int, key: str = "k", *, claims: bool = False, timeout_ms: int = LONG_MS, is_ahead: bool = False
    ) -> Fetch:
        return Fetch(number, "t", key, self.service.desk.records.epoch, claims, timeout_ms, is_ahead)

    def put(self, key: str, record: dict[str, Any]) -> Save:
        """Have a client put a record; return the order to save it."""
        assert self.client.put(key, record, tenant="t")
        return Save("t", key, self.place_of(key, "t"))

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


@contextmanager
def a_host(run_dir: Path, server: PlainServer, **limits: Any) -> Iterator[Host]:
    with ExitStack() as stack:
        service = stack.enter_context(StoreService(run_dir, store_gb=1 / 8))
        yield Host(service, server, stack, **limits)
        assert service.leases == 0
