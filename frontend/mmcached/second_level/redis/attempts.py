"""Makes connections in the background, so that a caller waits no longer than its deadline.

A slow name server or handshake cannot be cancelled. So the call ends by its deadline, and the connection, once made,
serves the next call. One attempt at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from mmcached.second_level.backend import BackendError, BackendLate
from mmcached.second_level.redis.link import RedisLink

Made = TypeVar("Made")


class Attempts(Generic[Made]):
    """The results of one function, made in a thread per attempt.

    Args:
        make: Returns a result, or raises BackendError.
        discard: Takes a result that came after `close`.
    """

    def __init__(
        self, make: Callable[[], Made], keep: Callable[[Made], object], discard: Callable[[Made], object]
    ) -> None:
        self.turn = threading.Condition()
        self.is_closed = False
        self._make = make
        self._keep = keep
        self._discard = discard
        self._is_making = False
        self._num_failed = 0
        self._last_error = BackendError("")

    def until(self, find: Callable[[], Made | None], deadline: float) -> Made:
        """Call `find`, holding `turn`, until it returns a value; start attempts meanwhile.

        Raises:
            BackendError: An attempt has failed, or there was none in time.
        """
        with self.turn:
            num_failed = self._num_failed
            while True:
                if self.is_closed:
                    raise BackendError("the second level is closed")
                found = find()
                if found is not None:
                    return found
                if self._num_failed != num_failed:
                    raise BackendError(str(self._last_error), self._last_error.trouble)
                if not self._is_making:
                    self._is_making = True
                    threading.Thread(target=self._attempt, name="mmc-l2-connect", daemon=True).start()
                if not self.turn.wait(max(0.0, deadline - time.monotonic())):
                    raise BackendLate("Redis was not reached in time")

    def close(self) -> None:
        """End all waits; an attempt under way is discarded."""
        with self.turn:
            self.is_closed = True
            self.turn.notify_all()

    def _attempt(self) -> None:
        made, error = None, BackendError("")
        try:
            made = self._make()
        except BackendError as known:
            error = known
        except Exception as strange:  # an invalid answer may make redis-py raise anything
            error = BackendError(f"Redis sent an invalid answer: {type(strange).__name__}: {strange}")
        with self.turn:
            self._is_making = False
            if made is None:
                self._num_failed += 1
                self._last_error = error
            elif not self.is_closed:
                self._keep(made)
                made = None
            self.turn.notify_all()
        if made is not None:
            self._discard(made)


class Connections:
    """The idle connections to one server."""

    def __init__(self, connect: Callable[[], RedisLink]) -> None:
        self._idle: list[RedisLink] = []
        self._attempts = Attempts(connect, self._idle.append, RedisLink.close)

    def take_connection(self, deadline: float) -> RedisLink:
        """Return a connection, to be given back or closed; BackendError if there is none in time."""
        return self._attempts.until(self._usable, deadline)

    def give_back(self, link: RedisLink) -> None:
        """Return a connection to the pool, unless replies are still owed on it."""
        with self._attempts.turn:
            if not self._attempts.is_closed and not link.is_owed:
                self._idle.append(link)
                self._attempts.turn.notify()
                return
        link.close()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they are given back."""
        self._attempts.close()
        while self._idle:
            self._idle.pop().close()

    def _usable(self) -> RedisLink | None:
        while self._idle:
            link = self._idle.pop()
            if link.is_usable():
                return link
            link.close()
        return None
