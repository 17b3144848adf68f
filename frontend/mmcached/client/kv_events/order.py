"""Puts live and replayed batches of KV events in order, and reports when earlier batches are void.

    live 7, 8 ──────────> delivered
    live 12 ── gap ──> held ── ask from 9 on ── replayed 9, 10, 11 ──> delivered, then 12
                                             └─ replayed 11 (9 and 10 are not kept) ──> `must_forget`, 11, then 12

Numbers of one publisher increase by one; after a restart they begin far above, so that its first number is a gap that
no
replay fills. Both kinds of loss end alike: the next batch is delivered with `must_forget`.

Sans I/O: `ask_from` is the number to ask for; the caller asks, and reports when it has asked, each answer, and the end
of the answers. Does not read the contents of batches. Invariant: between a batch without `must_forget` and the batch
delivered before it, no batch is missing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mmcached.wire.messages.kv_events import KVEvent, KVEventBatch

MAX_HELD = 10_000
"""Maximum number of live batches that wait for a replay; beyond that, missing batches are given up."""


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """A batch in order, and whether batches before it are void.

    Attributes:
        must_forget: Whether to forget all earlier events first: batches before this one are lost, or the publisher was
            restarted, or this is the first.
    """

    number: int
    batch: KVEventBatch
    must_forget: bool

    @property
    def events(self) -> list[KVEvent]:
        return self.batch.events


class BatchOrder:
    """The next, the held and the missing batches.

    Args:
        can_ask: Whether missing batches can be asked for.

    Attributes:
        ask_from: First number to ask for; None if no batch is missing, or the question was sent.
        is_asking: Whether an answer is awaited.
        num_lost_track: How often missing batches could not be obtained.
    """

    def __init__(self, *, can_ask: bool) -> None:
        self.ask_from: int | None = 0 if can_ask else None  # the first question: everything that is kept
        self.is_asking = False
        self.num_lost_track = 0
        self._can_ask = can_ask
        self._has_told = False
        self._has_lost = True
        self._next: int | None = None  # None: any number
        self._newest_live = -1
        self._newest_when_asked = -1
        self._held: deque[tuple[int, KVEventBatch | None]] = deque()
        self._told: deque[ReceivedBatch] = deque()

    def take(self) -> ReceivedBatch | None:
        """Return and remove the next batch in order; None without one."""
        return self._told.popleft() if self._told else None

    def live(self, number: int, batch: KVEventBatch | None) -> None:
        """Add a live batch; None: it is unreadable, and counts as lost."""
        if number <= self._newest_live:
            self._start_over()
        self._newest_live = number
        self._held.append((number, batch))
        if len(self._held) > MAX_HELD:
            self.is_asking, self.ask_from = False, None
            self._newest_when_asked = number  # as if the missing batches had been asked for in vain
        self._tell_held()

    def asked(self) -> None:
        """Record that `ask_from` was asked."""
        self.ask_from, self.is_asking = None, True
        self._newest_when_asked = self._newest_live

    def replayed(self, number: int, batch: KVEventBatch | None) -> None:
        """Add a batch of an answer."""
        if self.is_asking and (self._next is None or number >= self._next):
            self._tell(number, batch)

    def replay_ended(self) -> None:
        """Record that the answer is complete, or will not come."""
        if self.is_asking:
            self.is_asking = False
            self._tell_held()

    def check(self) -> None:
        """Ask whether batches are missing that no later live batch has revealed."""
        if self._can_ask and not self.is_asking and self.ask_from is None:
            self.ask_from = self._next or 0

    def _start_over(self) -> None:
        """Start anew after the publisher was restarted on a host whose clock was set back."""
        self._held.clear()
        self._next, self._newest_when_asked = None, -1
        self.is_asking, self.ask_from = False, 0 if self._can_ask else None

    def _tell_held(self) -> None:
        """Deliver held batches up to a gap that was not asked about: an answer would have filled it if possible."""
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
