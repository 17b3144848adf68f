"""Holds the keys that this engine encodes for the host, and those for which it waits while another engine does.

    wanted ──claimed──> held ──item allocated──> being encoded ──its save has ended──> over
               │          └──no request asks for it in a step──> dropped
               └──somebody else has it──> waited for, until a record is there, or `wait_s` have passed

Whoever must wait for one item of a request holds no claim for the others: two engines never wait for each other. A
claim that is not exclusive is none: without a service everybody encodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from mmcached.client import Claim, Hit, Pending
from mmcached.integrations.vllm.contact import Contact

ASK_AGAIN_S = 0.01
"""How often the service is asked about a key that somebody else encodes; the store itself is looked into each step."""
MAX_SAVE_S = 60.0
"""How long a claim is kept for a save of whose end nobody tells."""

PAUSE_S = 10.0
"""How long every engine encodes for itself after the store has not kept something: it is too small, or full."""


class _Wait(NamedTuple):
    until: float
    ask_at: float


class Claims:
    """The claims of one engine.

    Args:
        wait_s: how long it waits for another engine's encoder.
        clock: monotonic seconds.
    """

    def __init__(self, contact: Contact, wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._contact = contact
        self._wait_s = wait_s
        self._clock = clock
        self._held: dict[str, Claim] = {}
        self._wanted: set[str] = set()
        self._encoding: dict[str, tuple[Claim | None, float]] = {}
        self._waits: dict[str, _Wait] = {}
        self._pause_until = clock()

    @property
    def num_held(self) -> int:
        """Keys that are claimed, and not allocated yet."""
        return len(self._held)

    @property
    def num_encoding(self) -> int:
        """Keys whose save has not ended."""
        return len(self._encoding)

    def must_wait(self, keys: list[str]) -> tuple[bool, dict[str, Hit]]:
        """Claim what one request misses.

        Returns:
            whether somebody else encodes some of it, so that the request must wait; and what has come meanwhile.
        """
        now, hits = self._clock(), dict[str, Hit]()
        if now < self._pause_until:
            return False, hits
        self._wanted.update(keys)
        waits = {key: self._waits[key] for key in keys if key in self._waits and now < self._waits[key].until}
        if any(now < wait.ask_at for wait in waits.values()):
            return True, hits
        unclaimed = [
            key
            for key in keys
            if key not in self._held and key not in self._encoding and (key not in self._waits or key in waits)
        ]
        is_waiting = False
        for key, found in zip(unclaimed, self._contact.claim(unclaimed) if unclaimed else (), strict=True):
            match found:
                case Hit():
                    hits[key] = found
                case Claim():
                    self._waits.pop(key, None)
                    self._held[key] = found
                case Pending():
                    until = waits[key].until if key in waits else now + self._wait_s
                    self._waits[key] = _Wait(until, now + ASK_AGAIN_S)
                    is_waiting = True
        if is_waiting:
            for key in keys:
                _drop(self._held.pop(key, None))
        return is_waiting, hits

    def encode(self, key: str) -> None:
        """Take note that an item is encoded in this step, and will be saved."""
        self._waits.pop(key, None)
        former, _ = self._encoding.pop(key, (None, 0.0))
        self._encoding[key] = (self._held.pop(key, None) or former, self._clock())

    def not_saved(self, key: str, *, is_refused: bool = False) -> None:
        """Let others encode an item: this engine has not, or has not saved it.

        Args:
            is_refused: the store does not keep it. Then nobody need wait for anybody, for a while: it would be in vain.
        """
        claim, _ = self._encoding.pop(key, (None, 0.0))
        _drop(claim)
        if is_refused:
            self._pause_until = self._clock() + PAUSE_S

    def saved(self, key: str) -> None:
        """Take note that a key has a record, which has ended the claim."""
        self._encoding.pop(key, None)

    def end_pass(self) -> None:
        """Let go of what no request has asked for in this step, and of saves of whose end nobody has told."""
        for key in self._held.keys() - self._wanted:
            _drop(self._held.pop(key))
        for key in self._waits.keys() - self._wanted:
            del self._waits[key]
        self._wanted.clear()
        before = self._clock() - MAX_SAVE_S
        while self._encoding and next(iter(self._encoding.values()))[1] < before:
            self.not_saved(next(iter(self._encoding)))

    def clear(self) -> None:
        """Drop all claims."""
        self._wanted.clear()
        for claim in [*self._held.values(), *(claim for claim, _ in self._encoding.values())]:
            _drop(claim)
        self._held.clear()
        self._encoding.clear()
        self._waits.clear()


def _drop(claim: Claim | None) -> None:
    if claim is not None:
        claim.drop()
