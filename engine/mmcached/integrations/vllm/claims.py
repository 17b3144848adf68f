"""Tracks the keys that this engine encodes for the host, and the keys that another engine encodes.

    wanted ──> asked ──claimed──> held ──item allocated──> being encoded ──its save has ended──> over
                 │                  └──no request asks for it in a step──> dropped
                 └──claimed by another engine──> waited for, until a record is there, or `wait_s` have passed

The service is asked in a thread beside the steps: a request with an *asked* item is left out of a step or two while
other requests go on. The answer is soon there (a non-exclusive claim if the service does not answer), so this is not
the wait for another engine.

A request that must wait for one item holds no claim on its other items, so two engines never wait for each other. A
non-exclusive claim keeps no other engine from encoding: without a service every engine encodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from mmcached.client import Claim, Hit, Pending
from mmcached.integrations.vllm.contact import ReconnectingClient

ASK_AGAIN_S = 0.01
"""Interval between questions to the service about a key that another engine encodes; the store is read each step."""
MAX_SAVE_S = 60.0
"""The longest time that a claim is kept for a save whose end is not reported."""

PAUSE_S = 10.0
"""Time in which every engine encodes for itself after the store has refused a record: it is too small, or full."""


class _Wait(NamedTuple):
    until: float
    ask_at: float


class EngineClaims:
    """The claims of one engine.

    Args:
        wait_s: How long to wait for another engine's encoder.
        clock: Monotonic seconds.
    """

    def __init__(self, contact: ReconnectingClient, wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._contact = contact
        self._wait_s = wait_s
        self._clock = clock
        self._asked: set[str] = set()
        self._held: dict[str, Claim] = {}
        self._found: dict[str, Hit] = {}
        self._wanted: set[str] = set()
        self._encoding: dict[str, tuple[Claim | None, float]] = {}
        self._waits: dict[str, _Wait] = {}
        self._pause_until = clock()

    @property
    def num_asked(self) -> int:
        """Keys about which the service was asked, without an answer yet."""
        return len(self._asked)

    @property
    def num_held(self) -> int:
        """Keys that are claimed, and not allocated yet."""
        return len(self._held)

    @property
    def num_encoding(self) -> int:
        """Keys whose save has not ended."""
        return len(self._encoding)

    def must_wait(self, keys: list[str]) -> tuple[bool, dict[str, Hit]]:
        """Claim the keys that one request misses.

        Returns:
            Whether the request must wait, because another engine encodes one of the items or the answer is not there
            yet; and the records that arrived meanwhile.
        """
        now = self._clock()
        if now < self._pause_until:
            return False, {}
        self._wanted.update(keys)
        self._take_answers(now)
        hits = {key: self._found.pop(key) for key in keys if key in self._found}
        waits = {key: self._waits[key] for key in keys if key in self._waits and now < self._waits[key].until}
        if waits:
            for key in keys:
                _drop(self._held.pop(key, None))
            due = [key for key, wait in waits.items() if now >= wait.ask_at]
            return self._ask(due), hits
        unknown = [
            key for key in keys if not (key in hits or key in self._held or key in self._encoding or key in self._waits)
        ]
        return bool(unknown) and self._ask(unknown), hits

    def encode(self, key: str) -> None:
        """Note that an item is encoded in this step, and will be saved."""
        self._waits.pop(key, None)
        former, _ = self._encoding.pop(key, (None, 0.0))
        self._encoding[key] = (self._held.pop(key, None) or former, self._clock())

    def not_saved(self, key: str, *, is_refused: bool = False) -> None:
        """Drop the claim on an item that this engine has not encoded or not saved, so that others may encode it.

        Args:
            is_refused: The store has refused the record. Waiting would be in vain, so no request waits for `PAUSE_S`.
        """
        claim, _ = self._encoding.pop(key, (None, 0.0))
        _drop(claim)
        if is_refused:
            self._pause_until = self._clock() + PAUSE_S

    def saved(self, key: str) -> None:
        self._encoding.pop(key, None)

    def end_pass(self) -> None:
        """Drop keys that no request has asked for in this step, and claims on saves older than `MAX_SAVE_S`."""
        self._take_answers(self._clock())
        for key in self._found.keys() - self._wanted:
            del self._found[key]
        if unwanted := self._asked - self._wanted:
            self._contact.forget(unwanted)
            self._asked -= unwanted
        for key in self._held.keys() - self._wanted:
            _drop(self._held.pop(key))
        for key in self._waits.keys() - self._wanted:
            del self._waits[key]
        self._wanted.clear()
        before = self._clock() - MAX_SAVE_S
        while self._encoding and next(iter(self._encoding.values()))[1] < before:
            self.not_saved(next(iter(self._encoding)))

    def clear(self) -> None:
        self._wanted.clear()
        for claim in [*self._held.values(), *(claim for claim, _ in self._encoding.values())]:
            _drop(claim)
        self._asked.clear()
        self._held.clear()
        self._found.clear()
        self._encoding.clear()
        self._waits.clear()

    # ---- how

    def _ask(self, keys: list[str]) -> bool:
        new = [key for key in keys if key not in self._asked]
        if new and not self._contact.ask(new):
            for key in new:
                self._waits.pop(key, None)
            return False
        self._asked.update(new)
        return True

    def _take_answers(self, now: float) -> None:
        for key, found in self._contact.take_answers():
            self._asked.discard(key)
            wait = self._waits.pop(key, None)
            match found:
                case Hit():
                    self._found[key] = found
                case Claim():
                    self._claimed(key, found)
                case Pending() if key not in self._encoding:
                    self._waits[key] = _Wait(now + self._wait_s if wait is None else wait.until, now + ASK_AGAIN_S)

    def _claimed(self, key: str, claim: Claim) -> None:
        if key not in self._encoding:
            self._held[key] = claim
        else:  # a request was scheduled before the answer came
            former, since = self._encoding[key]
            _drop(former)
            self._encoding[key] = (claim, since)


def _drop(claim: Claim | None) -> None:
    if claim is not None:
        claim.drop()
