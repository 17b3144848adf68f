"""Keeps what took longer than an operator wants: one line in the log, and the last few on the stats page.

As SLOWLOG of Redis. The rate of lines is bounded where all lines are (`mmcached.cli.logs.limit`); those left out
are on the page all the same. Knows nothing of loggers, which are passed in.
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
"""How many of a role are kept."""
_ROW_WORDS = 4
NS = 1_000_000_000


class SlowCall(msgspec.Struct, frozen=True):
    """One that took too long.

    Attributes:
        ended_ms: when it was over, in milliseconds of Unix time.
        took_ns: how long it took.
        number: the request's or step's, as the log has it; the size of a put in bytes.
    """

    ended_ms: int
    what: What
    took_ns: int
    number: int


class SlowLog(msgspec.Struct, frozen=True):
    """The last that took too long, the newest first."""

    num_words: ClassVar[int] = NUM_ROWS * _ROW_WORDS

    last: tuple[SlowCall, ...] = ()

    @classmethod
    def of_words(cls, words: Sequence[int]) -> Self:
        """Return what `words` has made; a row that is none is left out."""
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
        """Return the newest of these."""
        return cls(tuple(sorted(calls, key=lambda call: call.ended_ms, reverse=True)[:NUM_ROWS]))

    def words(self) -> tuple[int, ...]:
        rows = [(call.ended_ms, _WHATS.index(call.what) + 1, call.took_ns, call.number) for call in self.last]
        words = [word for row in rows for word in row]
        return *words, *(0,) * (self.num_words - len(words))


class SlowCalls:
    """What one part of a role has found slow.

    Args:
        slow_ms: what takes longer is slow; 0: nothing is.
        tell: writes a line: its text, and fields.
        now: Unix time in seconds.
    """

    def __init__(self, slow_ms: float, tell: Callable[..., object], *, now: Callable[[], float] = time.time) -> None:
        self._slow_s = slow_ms / 1000
        self._tell = tell
        self._now = now
        self.last: deque[SlowCall] = deque(maxlen=NUM_ROWS)

    def note(self, what: What, took_s: float, number: int, **about: Any) -> None:
        """Log and keep one if it was slow.

        Args:
            about: fields of the line beside its time.
        """
        if self._slow_s and took_s > self._slow_s:
            self.last.append(SlowCall(round(self._now() * 1000), what, round(took_s * NS), number))
            self._tell(f"slow {what}", took_ms=round(took_s * 1000, 3), **about)
