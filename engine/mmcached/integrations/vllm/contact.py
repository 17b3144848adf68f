"""Keeps the scheduler's client connected to the service, in a thread beside the steps.

    away ──connected, `prepare` has run──> there ──a look-up failed──> away … once a second
                                             ├──look up: in the step; without a message
                                             └──ask: in the thread; a later step takes the answers

Only the service knows which engine encodes an item. No step waits for its answer; after an unanswered question none is
sent for a while. Without a service every look-up is a miss, at the price of one comparison. Nothing here raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from mmcached.client import Claim, Client, Hit, MmcachedError, Pending
from mmcached.wire.closeable import Closeable

_LOG = logging.getLogger("vllm.mmcached")
RETRY_S = 1.0
MAX_RETRY_S = 30.0
CLAIM_S = 1.0
"""The longest that a request waits for the service's answer, which takes a while where encoders use all processors."""
CLAIM_AGAIN_S = 0.1
"""Pause after an unanswered question; it doubles after each further one, up to `MAX_RETRY_S`."""
_CONTACT_S = 5.0
_NO_CLAIMS = "no claims"


class ReconnectingClient(Closeable):
    """A client that connects, and reconnects, in a thread.

    Args:
        connect: Returns a client that does not fail open, or raises.
        prepare: Prepares the first client for use; runs once, in the thread.
        call_timeout_s: Timeout of a look-up that must ask the service, because it was restarted.
        clock: Monotonic seconds.
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
        self._questions: dict[str, bool] = {}  # by key: is the answer still wanted?
        self._answers: deque[tuple[str, Hit | Claim | Pending]] = deque()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._keep, name="mmcached contact", daemon=True)
        self._thread.start()

    @property
    def is_there(self) -> bool:
        """Whether the service is connected and prepared."""
        return self._is_there

    @property
    def is_starting(self) -> bool:
        """Whether the service was never reached since the engine started."""
        return not self._is_prepared

    def wait(self, timeout_s: float) -> bool:
        with self._news:
            return self._news.wait_for(lambda: self._is_there, timeout_s)

    def look_up(self, keys: list[str]) -> list[Hit | None]:
        """Return the records that this host has, in place and under leases; `ask` brings those of other hosts.

        Counts no hit and no miss: a waiting request is looked up in each step. `count` counts.
        """
        return self._get(keys, counts=False)

    def count(self, keys: list[str]) -> None:
        """Have the service count one look-up of each key, and keep the records that are there for a while longer."""
        self._get(keys, counts=True)

    def sampled(self, keys: list[str]) -> frozenset[str]:
        """Return those keys whose hits are to be recomputed now: see `Client.sampled`."""
        client = self._client
        return client.sampled(keys) if keys and self._is_there and client is not None else frozenset()

    def ask(self, keys: Iterable[str]) -> bool:
        """Ask in the thread which engine encodes some items; return False if it is not asked: then every engine
        encodes.

        The answers come together, after `CLAIM_S` at the latest; without an answer they are non-exclusive claims.
        """
        if not self._is_there or self._clock() < self._no_claims_before:
            return False
        with self._news:
            self._questions.update(dict.fromkeys(keys, True))
            self._news.notify_all()
        return True

    def forget(self, keys: Iterable[str]) -> None:
        """Drop the questions about some items, and the claims that they may still bring."""
        with self._news:
            self._questions.update((key, False) for key in keys if key in self._questions)

    def take_answers(self) -> list[tuple[str, Hit | Claim | Pending]]:
        """Return the answers since the last call."""
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def close(self) -> None:
        with self._news:
            self._is_closed, self._is_there = True, False
            self._news.notify_all()
        self._thread.join()
        self._answers.clear()

    # ---- how

    def _get(self, keys: list[str], *, counts: bool) -> list[Hit | None]:
        client = self._client
        if self._is_there and client is not None:
            try:
                return client.get_many(keys, view=True, timeout_s=self._call_timeout_s, local=True, counts=counts)
            except MmcachedError as error:
                if error.retryable:
                    self._lose(error)
                else:
                    self._say("look-up", f"some encoder outputs in the store cannot be read: {error}")
        return [None] * len(keys)

    def _lose(self, error: MmcachedError) -> None:
        self._say("lost", f"encoder outputs are not shared until the service is back: {error}")
        with self._news:
            self._is_there = False
            self._news.notify_all()

    def _say(self, cause: str, text: str) -> None:
        """Log each cause once; the figures show the rest."""
        if cause not in self._said:
            self._said.add(cause)
            _LOG.warning("mmcached: %s", text)

    def _keep(self) -> None:
        pause_s = self._retry_s
        while True:
            with self._news:
                self._news.wait_for(lambda: self._is_closed or not self._is_there or self._questions)
                if self._is_closed:
                    break
            if self._questions:
                self._answer()
                continue
            try:
                self._make()
                pause_s = self._retry_s
                continue
            except MmcachedError as error:
                self._say(error.code, f"encoder outputs are not shared: {error}; it is tried again")
            except Exception as error:  # from reading a checkpoint: file errors, and whatever a hub client raises
                self._say("prepare", f"encoder outputs are not shared: {type(error).__name__}: {error}")
                pause_s = min(MAX_RETRY_S, 2 * pause_s)
            with self._news:
                self._news.wait_for(lambda: self._is_closed, pause_s)
        if self._client is not None:
            self._client.close()

    def _answer(self) -> None:
        """Send all questions to the service, and keep its answers for the next step."""
        with self._news:
            self._questions = {key: True for key, is_wanted in self._questions.items() if is_wanted}
            keys = list(self._questions)
        found = self._claim(keys) if keys else []
        with self._news:
            for key, answer in zip(keys, found, strict=True):
                if self._questions.pop(key):
                    self._answers.append((key, answer))
                elif isinstance(answer, Claim):
                    answer.drop()

    def _claim(self, keys: list[str]) -> list[Hit | Claim | Pending]:
        client = self._client
        if self._is_there and client is not None:
            try:
                found = client.claim_many(keys, view=True, timeout_s=CLAIM_S)
                self._claim_pause_s = 0.0
                if _NO_CLAIMS in self._said:
                    self._said.remove(_NO_CLAIMS)
                    _LOG.info("mmcached: new items are encoded by one engine again")
                return found
            except MmcachedError as error:
                self._claim_pause_s = min(MAX_RETRY_S, 2 * self._claim_pause_s or CLAIM_AGAIN_S)
                self._no_claims_before = self._clock() + self._claim_pause_s
                self._say(_NO_CLAIMS, f"new items are encoded by every engine that needs them: {error}")
        return [Claim(key) for key in keys]

    def _make(self) -> None:
        if self._client is None:
            self._client = self._connect()
        self._client.contains_many(["contact"], timeout_s=_CONTACT_S)
        is_first = not self._is_prepared
        if is_first:
            self._prepare(self._client)
            self._is_prepared = True
        with self._news:
            self._is_there = not self._is_closed
            self._news.notify_all()
        self._said.clear()
        _LOG.info("mmcached: encoder outputs are shared%s", " with the engines of this host" if is_first else " again")
