"""Plays the process of the second level by hand, as a client of one real Frontend."""

from __future__ import annotations

from itertools import count
from typing import Literal

from mmcached.frontend.store.save_queue import SAVES_WAIT_S
from mmcached.shm import encode
from mmcached.shm.store.codec import Record
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import second_level as of_level
from mmcached.wire.messages.second_level import Fetch, FetchEnd, Save
from tests.clock import Clock
from tests.frontend.fake_peers import Bench, FakeClient

Outcome = Literal["hit", "miss", "elsewhere", "late", "failed"]


class FakeSecondLevel:
    """A client that takes orders; it holds one poll wherever it can."""

    def __init__(self, bench: Bench) -> None:
        self.client: FakeClient = bench.connect_client(is_reader=False)
        self._bench = bench
        self._polls = count(1000)
        self._came: list[of_level.Orders] = []
        self.poll()

    def poll(self, timeout_s: float = 60.0) -> None:
        """Ask for orders, and see that the frontend has heard it."""
        self.client.channel.send(of_level.TakeOrders(self.client.client_id, next(self._polls), timeout_s))
        self._is_heard()

    def orders(self) -> of_level.Orders:
        """Return the next orders, and ask for more."""
        orders = self._came.pop(0) if self._came else self.client.answer(of_level.Orders)
        self.poll()
        return orders

    def _is_heard(self) -> None:
        """Wait until the frontend has had all that was said so far: this is its last word."""
        self.client.channel.send(to_frontend.HaveRecords(0, ["?"]))
        while not isinstance(answer := self.client.answer(object), to_client.Present):
            assert isinstance(answer, of_level.Orders)
            self._came.append(answer)

    def fetch(self) -> Fetch:
        """Return the next order to fetch; it must be one."""
        while not (fetches := self.orders().fetches):
            pass
        (fetch,) = fetches
        return fetch

    def saves(self, clock: Clock) -> list[Save]:
        """Return what is to be saved, when that is due."""
        self._bench.stats(after=object)
        clock.now += SAVES_WAIT_S
        return self.orders().saves

    def put(self, fetch: Fetch, record: Record) -> to_client.Stored:
        """Put what was found."""
        message = to_frontend.PutRecord(
            self.client.client_id, next(self._polls), fetch.key, fetch.store_epoch, fetch.tenant
        )
        self.client.channel.send(message, encode(record).frames())
        return self.client.answer(to_client.Stored)

    def end(self, fetch: Fetch, outcome: Outcome) -> None:
        """Say what became of a fetch, and see that the frontend has heard it."""
        ended = of_level.FetchesEnded(self.client.client_id, [FetchEnd(fetch.number, outcome)])
        self.client.channel.send(ended)
        self._is_heard()

    def flushed(self, token: int, error: str = "") -> None:
        self.client.channel.send(of_level.SecondLevelFlushed(self.client.client_id, token, error))
        self._is_heard()

    def another_host_flushed(self) -> None:
        self.client.channel.send(of_level.AnotherHostFlushed(self.client.client_id, "another host"))
        self._is_heard()

    def die(self) -> None:
        """End as a process does, and see that the frontend knows."""
        self.client.channel.close()
        self.client.presence.close()
        self._bench.pump(lambda: not self._bench.frontend.store.second_level.is_peer(self.client.client_id))
