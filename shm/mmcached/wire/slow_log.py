"""Records calls slower than `slow_log_ms`: one line in the log, and the last few on the stats page.

Like Redis' SLOWLOG. The rate of lines is bounded with that of all lines (`mmcached.cli.logs.limit`); calls left out of
the log are still on the page.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, Self, get_args

import msgspec

What = Literal["request", "put", "step"]
_WHATS: tuple[What, ...] = get_args(What)
NUM_ROWS = 8
"""Number of calls that are kept per role."""
_ROW_WORDS = 4
NS = 1_000_000_000


class SlowCall(msgspec.Struct, frozen=True):
    """A call slower than `slow_log_ms`.

    Attributes:
        ended_ms: Time of its end, in milliseconds since 1970.
        took_ns: Duration in nanoseconds.
        number: Number of the request or step, as in the log; for a put its size in bytes.
    """

    ended_ms: int
    what: What
    took_ns: int
    number: int


class SlowLog(msgspec.Struct, frozen=True):
    """The last slow calls, the newest first."""

    num_words: ClassVar[int] = NUM_ROWS * _ROW_WORDS

    last: tuple[SlowCall, ...] = ()

    @classmethod
    def of_words(cls, words: Sequence[int]) -> Self:
        """Return the slow log from `words()`; unused and invalid rows are left out."""
        rows = [words[first : first + _ROW_WORDS] for first in range(0, len(words), _ROW_WORDS)]
        return cls(
            tuple(
                SlowCall(ended_ms, _WHATS[what - 1], took_ns, number)
                for ended_ms, what, took_ns, number in rows
                if 1 <= what <= len(_WHATS)
            )
        )

    @classmethod
    def of(cls, calls: Iterable[SlowCall]) -> Self:
        """Return a slow log of the newest of these calls."""
        return cls(tuple(sorted(calls, key=lambda call: call.ended_ms, reverse=True)[:NUM_ROWS]))

    def words(self) -> tuple[int, ...]:
        rows = [(call.ended_ms, _WHATS.index(call.what) + 1, call.took_ns, call.number) for call in self.last]
        words = [word for row in rows for word in row]
        return *words, *(0,) * (self.num_words - len(words))


class SlowCalls:
    """The slow calls of one part of a role.

    Args:
        slow_ms: Threshold in milliseconds; 0 disables the log.
        tell: Writes a log line: its text, and fields.
        now: Seconds since 1970.
    """

    def __init__(self, slow_ms: float, tell: Callable[..., object], *, now: Callable[[], float] = time.time) -> None:
        self._slow_s = slow_ms / 1000
        self._tell = tell
        self._now = now
        self.last: deque[SlowCall] = deque(maxlen=NUM_ROWS)

    def note(self, what: What, took_s: float, number: int, **about: Any) -> None:
        """Log and keep a call if it was slow."""
        if self._slow_s and took_s > self._slow_s:
            self.last.append(SlowCall(round(self._now() * 1000), what, round(took_s * NS), number))
            self._tell(f"slow {what}", took_ms=round(took_s * 1000, 3), **about)
