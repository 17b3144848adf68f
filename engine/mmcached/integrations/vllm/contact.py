"""Keeps the scheduler's client in contact with the service, in a thread beside the steps.

    away ──contact made, `prepare` has run──> there ──a call failed──> away … once a second
                                                └──look up, claim: in the step, with a short deadline

A look-up asks nobody. A claim asks the service; after one that was not answered none is made for a while. Without a
service every look-up is a miss, at the price of one comparison. Nothing here raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mmcached.client import Claim, Client, Hit, MmcachedError, Pending
from mmcached.wire.closeable import Closeable

_LOG = logging.getLogger("vllm.mmcached")
RETRY_S = 1.0
MAX_RETRY_S = 30.0
CLAIM_S = 0.25
"""The longest that a step waits for the answer to a claim: where encoders have all processors it takes a while, and is
still little beside the encoder run that it may save."""
CLAIM_AGAIN_S = 0.1
"""How long no claim is made after one that was not answered; twice as long after each further one."""
_CONTACT_S = 5.0


class Contact(Closeable):
    """A client that is there or not.

    Args:
        connect: returns a client that does not fail open, or raises.
        prepare: does with a client what must be done before it can be used; runs once, in the thread.
        call_timeout_s: of a look-up that must ask, because the service has been restarted.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        prepare: Callable[[Client], None],
        *,
        call_timeout_s: float,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._prepare = prepare
        self._call_timeout_s = call_timeout_s
        self._retry_s = retry_s
        self._clock = clock
        self._client: Client | None = None
        self._is_prepared = self._is_there = self._is_closed = False
        self._said: set[str] = set()
        self._no_claims_before = self._claim_pause_s = 0.0
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._keep, name="mmcached contact", daemon=True)
        self._thread.start()

    @property
    def is_there(self) -> bool:
        """Whether look-ups make sense."""
        return self._is_there

    @property
    def is_starting(self) -> bool:
        """Whether the service has not been reached yet since the engine started."""
        return not self._is_prepared

    def wait(self, timeout_s: float) -> bool:
        """Wait until the service is there; return whether it is."""
        with self._news:
            return self._news.wait_for(lambda: self._is_there, timeout_s)

    def look_up(self, keys: list[str]) -> list[Hit | None]:
        """Return what is there of some records, in place and under leases."""
        client = self._client
        if self._is_there and client is not None:
            try:
                return client.get_many(keys, view=True, timeout_s=self._call_timeout_s)
            except MmcachedError as error:
                if error.retryable:
                    self._lose(error)
                else:
                    self._say("look-up", f"some encoder outputs in the store cannot be read: {error}")
        return [None] * len(keys)

    def claim(self, keys: list[str]) -> list[Hit | Claim | Pending]:
        """Ask who encodes some items; without an answer it is everybody."""
        client, now = self._client, self._clock()
        if self._is_there and client is not None and now >= self._no_claims_before:
            try:
                found = client.claim_many(keys, view=True, timeout_s=CLAIM_S)
                self._claim_pause_s = 0.0
                return found
            except MmcachedError as error:
                self._claim_pause_s = min(MAX_RETRY_S, 2 * self._claim_pause_s or CLAIM_AGAIN_S)
                self._no_claims_before = self._clock() + self._claim_pause_s
                self._say("no claims", f"new items are encoded by every engine that needs them: {error}")
        return [Claim(key) for key in keys]

    def close(self) -> None:
        """End the thread and the client. A second call does nothing."""
        with self._news:
            self._is_closed, self._is_there = True, False
            self._news.notify_all()
        self._thread.join()

    # ---- how

    def _lose(self, error: MmcachedError) -> None:
        self._say("lost", f"encoder outputs are not shared until the service is back: {error}")
        with self._news:
            self._is_there = False
            self._news.notify_all()

    def _say(self, cause: str, text: str) -> None:
        """Say each cause once; what goes on is in the figures."""
        if cause not in self._said:
            self._said.add(cause)
            _LOG.warning("mmcached: %s", text)

    def _keep(self) -> None:
        pause_s = self._retry_s
        while True:
            with self._news:
                self._news.wait_for(lambda: self._is_closed or not self._is_there)
                if self._is_closed:
                    break
            try:
                self._make()
                pause_s = self._retry_s
                continue
            except MmcachedError as error:
                self._say(error.code, f"encoder outputs are not shared: {error}; it is tried again")
            except Exception as error:  # of reading a checkpoint: files, a hub that is not there, and what they raise
                self._say("prepare", f"encoder outputs are not shared: {type(error).__name__}: {error}")
                pause_s = min(MAX_RETRY_S, 2 * pause_s)
            with self._news:
                self._news.wait_for(lambda: self._is_closed, pause_s)
        if self._client is not None:
            self._client.close()

    def _make(self) -> None:
        if self._client is None:
            self._client = self._connect()
        self._client.contains_many(["contact"], timeout_s=_CONTACT_S)
        if not self._is_prepared:
            self._prepare(self._client)
            self._is_prepared = True
        with self._news:
            self._is_there = not self._is_closed
            self._news.notify_all()
        if self._said:
            self._said.clear()
            _LOG.info("mmcached: encoder outputs are shared again")
