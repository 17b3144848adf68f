"""Keeps decoder processes alive for threads that need files decoded, and chooses the error of a file that ends one.

    file ──> decoded ──────────────────────────────────────> the result
         ├─> refused, more CPU time than the limit ────────> typed error
         ├─> its decoder died: once more, in another ──────> typed error the second time
         └─> no longer wanted: its decoder is killed ──────> NotWantedError

Decoders are processes because hostile files can cost unlimited CPU time and memory, or crash a codec. Each waiting
thread uses one decoder. The decoder that was used last is used next, and a process is started only when no idle one is
alive: a service without pictures, or without clips, has no processes for them.

Any thread may call, as many at a time as there are decoders.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from mmcached.gateway.processing.confined_decoder import ConfinedDecoder, DecoderDiedError
from mmcached.gateway.processing.pool import IsWanted, NotWantedError
from mmcached.wire.errors import InvalidRequest, MmcachedError, ServiceUnavailable

log = structlog.get_logger("mmcached.frontend")

MAX_DEATHS = 2
"""Decoders that may die of one file."""

_MAX_FAILED_STARTS = 3
_BACKOFF_S, _MAX_DOUBLINGS = 0.1, 6
_LOOK_S = 0.1

_Decoder = TypeVar("_Decoder", bound=ConfinedDecoder)
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Terms:
    """Limits of a decoder for one file, and the errors of a file that exceeds them.

    Attributes:
        what: The file's kind in error texts, such as `picture`.
        field: Field of the errors.
        needed_bytes: Expected memory of a file, from its number of pixels.
    """

    what: str
    field: str
    too_large: type[InvalidRequest]
    corrupt: type[InvalidRequest]
    cpu_s: float
    memory_bytes: int
    needed_bytes: Callable[[int], int]

    def blame(self, died: DecoderDiedError, num_deaths: int) -> MmcachedError | None:
        """Return the error of a file whose decoder has died; None if it may be tried once more."""
        log.warning("a decoder died", reason=died.reason, out_of_memory=died.was_out_of_memory)
        if died.was_cpu_limit:
            limit = f"at most {self.cpu_s} s of CPU time for a {self.what}"
            return self.too_large(self.field, "too much work", limit)
        if died.was_out_of_memory and self.needed_bytes(died.pixels) > self.memory_bytes:
            limit = f"at most {self.memory_bytes} bytes of memory for a {self.what}"
            return self.too_large(self.field, f"{died.pixels} pixels", limit)
        if num_deaths < MAX_DEATHS:
            return None
        if died.was_out_of_memory or died.status in (None, -signal.SIGKILL):
            # A decoder that was killed for lack of memory, or by hand, says nothing about the file.
            return ServiceUnavailable(f"the {self.what}'s decoders were killed ({died.reason}); try again later")
        return self.corrupt(self.field, died.reason, f"ended {num_deaths} decoders")


class DecoderSet(Generic[_Decoder]):
    """A fixed number of decoders, each restarted when it dies."""

    def __init__(self, decoders: Sequence[_Decoder]) -> None:
        self._decoders = decoders
        self._idle = list(decoders)  # the one used last at the end, those without a process at the beginning
        self._changed = threading.Condition()
        self._num_failed_starts = 0

    def use(self, call: Callable[[_Decoder], _Made], terms: Terms, is_wanted: IsWanted) -> _Made:
        """Return the result of a call with a decoder; call again with another decoder if the first dies.

        Raises:
            MmcachedError: The file is refused.
            NotWantedError: `is_wanted` returned False.
        """
        num_deaths = 0
        while True:
            with self.living(is_wanted) as decoder:
                made = _outcome(call, decoder)
            if not isinstance(made, DecoderDiedError):
                return made
            num_deaths += 1
            if (error := terms.blame(made, num_deaths)) is not None:
                raise error

    def close(self) -> None:
        """End all processes."""
        for decoder in self._decoders:
            decoder.close()

    @contextmanager
    def living(self, is_wanted: IsWanted) -> Iterator[_Decoder]:
        """Lend an idle decoder that is alive; raises as `_wait_after` does."""
        decoder = self._take(is_wanted)
        try:
            yield decoder
        finally:
            self._give_back(decoder)

    def _take(self, is_wanted: IsWanted) -> _Decoder:
        """Return an idle decoder that is alive; start one if none is, and retry as long as another decoder is alive."""
        while True:
            with self._changed:
                decoder = self._idle.pop()
            if decoder.is_alive:
                return decoder
            try:
                decoder.start(is_wanted)
            except NotWantedError:
                self._give_back(decoder)
                raise
            except Exception as error:
                self._give_back(decoder)
                self._wait_after(error, is_wanted)
            else:
                self._num_failed_starts = 0
                return decoder

    def _give_back(self, decoder: _Decoder) -> None:
        with self._changed:
            self._idle.insert(len(self._idle) if decoder.is_alive else 0, decoder)
            self._changed.notify_all()

    def _wait_after(self, error: Exception, is_wanted: IsWanted) -> None:
        """Wait after a failed start, or until another decoder is idle.

        Raises:
            ServiceUnavailable: `_MAX_FAILED_STARTS` starts have failed and no decoder is alive.
            NotWantedError: `is_wanted` returned False.
        """
        self._num_failed_starts += 1
        log.warning("a decoder does not start", reason=str(error), tries=self._num_failed_starts)
        if self._num_failed_starts >= _MAX_FAILED_STARTS and not any(one.is_alive for one in self._decoders):
            raise ServiceUnavailable(f"no decoder can be started ({error}); try again later")
        give_up = time.monotonic() + _BACKOFF_S * 2 ** min(self._num_failed_starts - 1, _MAX_DOUBLINGS)
        with self._changed:
            while time.monotonic() < give_up and not self._idle[-1].is_alive:
                if not is_wanted():
                    raise NotWantedError
                self._changed.wait(_LOOK_S)


def _outcome(call: Callable[[_Decoder], _Made], decoder: _Decoder) -> _Made | DecoderDiedError:
    try:
        return call(decoder)
    except DecoderDiedError as died:
        return died.with_traceback(None)
