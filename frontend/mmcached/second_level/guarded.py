"""Makes the calls to a backend: none while the circuit breaker is open, and none without time left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from mmcached.second_level.backend import Backend, BackendError, BackendLate, BackendRefused, Got, Value
from mmcached.second_level.breaker import FAIR_S, Breaker
from mmcached.wire.closeable import Closeable
from mmcached.wire.stats import Trouble

Result = TypeVar("Result")
Read = tuple[int, Sequence[Got]]
"""The epoch of the server, and values."""


class GuardedBackend(Closeable):
    """A backend behind a circuit breaker. Any number of threads may call; each call raises `BackendError`.

    Args:
        clock: Monotonic seconds.

    Attributes:
        breaker: The circuit breaker.
    """

    def __init__(self, backend: Backend, clock: Callable[[], float]) -> None:
        self.breaker = Breaker(clock())
        self._backend = backend
        self._clock = clock
        self._write_trouble: Trouble = ""
        self._last_trouble: Trouble = ""

    @property
    def trouble(self) -> Trouble:
        """Why the server is not called, or why it refuses writes; "" if no trouble is known."""
        return self._last_trouble if self.breaker.state != "closed" else self._write_trouble

    def values(self, names: Sequence[str], *, deadline: float, num_small: int = 0) -> Read:
        """Return the epoch and the values; raise if none of them was read.

        Args:
            num_small: Number of values at the beginning that do not count as read: they say nothing of the time that
                the others need.
        """

        def get() -> Read:
            epoch, values = self._backend.get_many(names, deadline=deadline)
            errors = [value for value in values[num_small:] if isinstance(value, BackendError)]
            if errors and len(errors) == len(values) - num_small:
                raise errors[0]
            return epoch, values

        return self._ask(get, deadline)

    def heads(
        self, names: Sequence[str], num_bytes: int, *, deadline: float, is_urgent: bool = False, num_small: int = 0
    ) -> Read:
        """Return the epoch and the first bytes of the values; `num_small` as for `values`, all heads are small."""
        read = lambda: self._backend.get_heads(names, num_bytes, deadline=deadline)  # noqa: E731
        return self._ask(read, deadline, is_urgent=is_urgent)

    def put(self, name: str, pieces: Sequence[Value], *, ttl_s: float, deadline: float) -> None:
        try:
            self._ask(lambda: self._backend.put(name, pieces, ttl_s=ttl_s, deadline=deadline), deadline)
        except BackendRefused as refused:
            self._write_trouble = refused.trouble
            raise
        self._write_trouble = ""

    def remove(self, names: Sequence[str], *, deadline: float) -> None:
        self._ask(lambda: self._backend.remove(names, deadline=deadline), deadline)

    def log_drop(self, name: str, entry: bytes, *, ttl_s: float, deadline: float) -> None:
        self._ask(lambda: self._backend.log_drop(name, entry, ttl_s=ttl_s, deadline=deadline), deadline)

    def claim(self, name: str, *, ttl_s: float, deadline: float) -> bool:
        return self._ask(lambda: self._backend.claim(name, ttl_s=ttl_s, deadline=deadline), deadline)

    def drop_claim(self, name: str, *, deadline: float) -> None:
        self._ask(lambda: self._backend.drop_claim(name, deadline=deadline), deadline)

    def raise_epoch(self, epoch: int, *, over: int, deadline: float, is_urgent: bool = False) -> int:
        call = lambda: self._backend.raise_epoch(epoch, over=over, deadline=deadline)  # noqa: E731
        return self._ask(call, deadline, is_urgent=is_urgent)

    def close(self) -> None:
        self._backend.close()

    def _ask(self, call: Callable[[], Result], deadline: float, *, is_urgent: bool = False) -> Result:
        """Make a call if the breaker allows it or it is urgent (an operator's); record its outcome."""
        began = self._clock()
        if began >= deadline:
            raise BackendLate("there was no time left to ask the second level")
        if not is_urgent:
            self.breaker.begin(began)
        try:
            result = call()
        except BackendRefused:
            self.breaker.succeeded(self._clock())
            raise
        except BaseException as error:
            reason = str(error) if isinstance(error, BackendError) else type(error).__name__
            self._last_trouble = error.trouble if isinstance(error, BackendError) else "unreached"
            is_unfair = isinstance(error, BackendLate) and deadline - began < FAIR_S
            self.breaker.failed(self._clock(), reason, is_fair=not is_unfair)
            raise
        self.breaker.succeeded(self._clock())
        return result
