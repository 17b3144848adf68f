"""Puts batches of KV events in order, out of live and repeated ones, and says when nothing old counts.

    live 7, 8 ──────────> told
    live 12 ── gap ──> held ── ask from 9 on ── replayed 9, 10, 11 ──> told, then 12
                                             └─ replayed 11 (9 and 10 are not kept) ──> told: forget, 11, then 12

Numbers of one publisher rise by one; another life of it begins far above, so its first number is a gap that no replay
fills. Both ways of losing track end alike: the next batch is told with `must_forget`.

Sans I/O: `ask_from` says what to ask for; the caller asks, and says when it has, what came, and that it is over. Knows
nothing of what the batches say. Invariant: after a batch without `must_forget`, nothing is missing between it and the
one that was told before it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mmcached.wire.messages.kv_events import KVEvent, KVEventBatch

MAX_HELD = 10_000
"""Live batches that may wait for a replay; beyond that, what is missing is given up."""


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """A batch, and what to make of what was told before it.

    Attributes:
        must_forget: forget everything first: batches before this one are lost, or the publisher was started again, or
            this is the first.
    """

    number: int
    batch: KVEventBatch
    must_forget: bool

    @property
    def events(self) -> list[KVEvent]:
        return self.batch.events


class BatchOrder:
    """What is next, what is held, and what is missing.

    Args:
        can_ask: whether there is anybody to ask for what was missed.

    Attributes:
        ask_from: the number from which on batches are to be asked for; None if nothing is missing, or it was asked.
        is_asking: whether an answer is awaited.
        num_lost_track: how often what was missing could not be had.
    """

    def __init__(self, *, can_ask: bool) -> None:
        self.ask_from: int | None = 0 if can_ask else None  # the first question: everything that is kept
        self.is_asking = False
        self.num_lost_track = 0
        self._can_ask = can_ask
        self._has_told = False
        self._has_lost = True
        self._next: int | None = None  # None: whatever comes
        self._newest_live = -1
        self._newest_when_asked = -1
        self._held: deque[tuple[int, KVEventBatch | None]] = deque()
        self._told: deque[ReceivedBatch] = deque()

    def take(self) -> ReceivedBatch | None:
        """Return the next batch in order, and forget it; None if there is none yet."""
        return self._told.popleft() if self._told else None

    def live(self, number: int, batch: KVEventBatch | None) -> None:
        """A batch has come as it was published; None: it cannot be read, and is lost."""
        if number <= self._newest_live:
            self._start_over()
        self._newest_live = number
        self._held.append((number, batch))
        if len(self._held) > MAX_HELD:
            self.is_asking, self.ask_from = False, None
            self._newest_when_asked = number  # as if what is missing had been asked for in vain
        self._tell_held()

    def asked(self) -> None:
        """`ask_from` was asked."""
        self.ask_from, self.is_asking = None, True
        self._newest_when_asked = self._newest_live

    def replayed(self, number: int, batch: KVEventBatch | None) -> None:
        """A batch has come as part of the answer."""
        if self.is_asking and (self._next is None or number >= self._next):
            self._tell(number, batch)

    def replay_ended(self) -> None:
        """The answer was complete, or will never be."""
        if self.is_asking:
            self.is_asking = False
            self._tell_held()

    def check(self) -> None:
        """Let it be asked whether something is missing that no later batch has shown yet."""
        if self._can_ask and not self.is_asking and self.ask_from is None:
            self.ask_from = self._next or 0

    def _start_over(self) -> None:
        """The publisher was started again, on a host whose clock was set back."""
        self._held.clear()
        self._next, self._newest_when_asked = None, -1
        self.is_asking, self.ask_from = False, 0 if self._can_ask else None

    def _tell_held(self) -> None:
        """Tell what is held, up to a gap that was not asked about: whoever was asked would have filled it."""
        if self.is_asking or self.ask_from is not None:
            return
        while self._held and self._next is not None and self._held[0][0] < self._next:
            self._held.popleft()
        while self._held:
            number, batch = self._held[0]
            if self._can_ask and number != self._next and number > self._newest_when_asked:
                self.ask_from = self._next or 0
                return
            self._held.popleft()
            self._tell(number, batch)

    def _tell(self, number: int, batch: KVEventBatch | None) -> None:
        self._has_lost |= number != self._next
        self._next = number + 1
        if batch is None:
            self._has_lost = True
            return
        self.num_lost_track += self._has_lost and self._has_told
        self._told.append(ReceivedBatch(number, batch, self._has_lost))
        self._has_lost, self._has_told = False, True
