"""Keeps a role's loop fair and alive: a share of a turn for each source, and a guard around each handler.

    for _ in share:                                     a number of messages, or a time, whichever is used up first
        raw = channel.receive_raw()
        if raw is None:
            break
        error = guard.call("message", handle, *raw)     an unexpected exception ends this message, not the role
    wait(longest_rest_s(limits))                        while idle; a longer wait would look dead

A source with more than its share waits for the next turn, after deadlines, deaths and all other sources.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ParamSpec, Self

from mmcached.wire.errors import InvariantError
from mmcached.wire.limits import LimitsConfig

_logger = logging.getLogger(__name__)
P = ParamSpec("P")
MAX_PLACES = 6
REST_S = 2.0


def longest_rest_s(limits: LimitsConfig) -> float:
    """Return how long an idle loop may wait: short enough to look alive to the supervisor.

    >>> longest_rest_s(LimitsConfig(silence_timeout_s=2.0))
    0.5
    """
    return min(REST_S, limits.silence_timeout_s / 4)


@dataclass(frozen=True, slots=True)
class TurnShare:
    """The share of one source in one turn: iterate over it, once per message.

    >>> [number for number, _ in enumerate(TurnShare(num_messages=3, seconds=60.0))]
    [0, 1, 2]
    """

    num_messages: int
    seconds: float

    @classmethod
    def of(cls, limits: LimitsConfig) -> Self:
        return cls(limits.messages_per_turn, limits.turn_s)

    def __iter__(self) -> Iterator[None]:
        end = time.monotonic() + self.seconds
        for _ in range(self.num_messages):
            yield
            if time.monotonic() >= end:
                return


class Guard:
    """Calls the handlers of one loop, so that an unexpected exception ends neither the loop nor the role.

    The caller fails the request or the peer whose handler may have stopped half-way.

    Attributes:
        num_faults: Number of failed handlers; it only rises.
    """

    def __init__(self, ends: tuple[type[Exception], ...] = ()) -> None:
        self._ends = ends
        self.num_faults = 0

    def call(
        self, what: str, handler: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> InvariantError | None:
        """Call a handler; return None, or the error for its peer if it raised. `what` is for the log."""
        try:
            handler(*args, **kwargs)
        except self._ends:
            raise
        except Exception as error:
            self.num_faults += 1
            # The text of an unexpected exception may hold a user's data: only its class and places are logged.
            fields = {"peer": what, "error": type(error).__name__, "where": places(error)}
            _logger.error("a handler failed", extra=fields)
            return InvariantError(
                f"{what}: unexpected {type(error).__name__}; see the service's log, and report it",
                what=what,
                error=type(error).__name__,
            )
        return None


def places(error: BaseException) -> str:
    """Return the source lines through which an exception came, innermost first; safe to log."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_PLACES:]
    return " < ".join(f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}" for frame in reversed(frames))
