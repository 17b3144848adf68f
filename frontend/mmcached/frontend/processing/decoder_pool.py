"""Decodes files in processes, for threads that wait for them.

    picture ──> decoded ──────────────────────────────────────> pixels
            ├─> refused, more CPU time than the limit ────────> typed error
            ├─> its decoder died: once more, in another ──────> typed error the second time
            └─> not wanted any more: its decoder is killed ───> NotWantedError

Processes, because a codec that is fed by strangers must have an end: of CPU time, of memory, of crashes. Each waiting
thread has one decoder in hand. The one that was used last is used next, and a process is started only when no idle one
lives: a service that sees no pictures has none.

Knows nothing of requests, caches or queues. Any thread may call `decode`, as many at a time as there are decoders.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import structlog

from mmcached.frontend.processing.decoder_process import Decoder, DecoderDiedError, Pixels, Tensors
from mmcached.frontend.processing.pixel_budget import PixelBudget
from mmcached.frontend.processing.pool import IsWanted, NotWantedError
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.errors import CorruptImage, ImageTooLarge, MmcachedError, ServiceUnavailable

log = structlog.get_logger("mmcached.frontend")

MAX_DEATHS = 2
"""Of decoders with one picture in hand."""

BYTES_PER_PIXEL = 20
"""More than any codec takes for a picture, with its conversion to RGB: measured, see DECISIONS."""

PROCESSED_BYTES_PER_PIXEL = 70
"""More than the image processors of Transformers take for a picture that they do not enlarge; Qwen's: 64."""

_MAX_FAILED_STARTS = 3
_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 5.0
_LOOK_S = 0.1


class DecoderPool:
    """So many decoders, which live as long as their work lets them."""

    def __init__(self, num_decoders: int, settings: PictureSettings, budget: PixelBudget) -> None:
        self._settings = settings
        self._budget = budget
        self._decoders = [Decoder(settings) for _ in range(num_decoders)]
        self._idle = list(self._decoders)  # the one used last at the end, those without a process at the beginning
        self._changed = threading.Condition()
        self._num_failed_starts = 0

    def decode(self, data: bytes, is_wanted: IsWanted) -> Pixels | Tensors:
        """Return the scaled pixels of a file, or its tensors.

        Raises:
            MmcachedError: what the file is refused with; calls it "image".
            NotWantedError: see `is_wanted`.
        """
        num_deaths = 0
        while True:
            with self._living_decoder(is_wanted) as decoder:
                made = self._process(decoder, data, is_wanted)
            if not isinstance(made, DecoderDiedError):
                return made
            num_deaths += 1
            log.warning("a decoder died", reason=made.reason, out_of_memory=made.was_out_of_memory)
            if (error := self._blame(made, num_deaths)) is not None:
                raise error

    def close(self) -> None:
        """End all processes; nothing may be decoded any more."""
        for decoder in self._decoders:
            decoder.close()

    def _process(self, decoder: Decoder, data: bytes, is_wanted: IsWanted) -> Pixels | Tensors | DecoderDiedError:
        before_pixels = partial(self._budget.room_for, is_wanted=is_wanted)
        try:
            return decoder.process(data, is_wanted=is_wanted, before_pixels=before_pixels)
        except DecoderDiedError as died:
            return died.with_traceback(None)

    def _blame(self, died: DecoderDiedError, num_deaths: int) -> MmcachedError | None:
        """Return what a picture is refused with whose decoder has died; None if it may be tried once more."""
        memory_bytes = self._settings.memory_bytes
        if died.was_cpu_limit:
            limit = f"at most {self._settings.cpu_s} s of CPU time for a picture"
            return ImageTooLarge("image", "too much work", limit)
        per_pixel = PROCESSED_BYTES_PER_PIXEL if self._settings.processor_folder else BYTES_PER_PIXEL
        if died.was_out_of_memory and died.pixels * per_pixel > memory_bytes:
            limit = f"at most {memory_bytes} bytes of memory for a picture"
            return ImageTooLarge("image", f"{died.pixels} pixels", limit)
        if num_deaths < MAX_DEATHS:
            return None
        if died.was_out_of_memory or died.status in (None, -signal.SIGKILL):
            # Whoever kills a decoder for want of memory, or by hand, says nothing about the file.
            return ServiceUnavailable(f"the picture's decoders were killed ({died.reason}); try again later")
        return CorruptImage("image", died.reason, f"ended {num_deaths} decoders")

    # ---- decoders

    @contextmanager
    def _living_decoder(self, is_wanted: IsWanted) -> Iterator[Decoder]:
        decoder = self._take(is_wanted)
        try:
            yield decoder
        finally:
            self._give_back(decoder)

    def _take(self, is_wanted: IsWanted) -> Decoder:
        """Return an idle decoder that lives; start one if none does, again and again while another one lives."""
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

    def _give_back(self, decoder: Decoder) -> None:
        with self._changed:
            self._idle.insert(len(self._idle) if decoder.is_alive else 0, decoder)
            self._changed.notify_all()

    def _wait_after(self, error: Exception, is_wanted: IsWanted) -> None:
        """Wait a while after a start that has failed, or until another decoder is idle.

        Raises:
            ServiceUnavailable: it was not the first, and no decoder lives.
            NotWantedError: see `is_wanted`.
        """
        self._num_failed_starts += 1
        log.warning("a decoder does not start", reason=str(error), tries=self._num_failed_starts)
        if self._num_failed_starts >= _MAX_FAILED_STARTS and not any(one.is_alive for one in self._decoders):
            raise ServiceUnavailable(f"no decoder can be started ({error}); try again later")
        give_up = time.monotonic() + min(_MAX_BACKOFF_S, _BACKOFF_S * 2 ** (self._num_failed_starts - 1))
        with self._changed:
            while time.monotonic() < give_up and not self._idle[-1].is_alive:
                if not is_wanted():
                    raise NotWantedError
                self._changed.wait(_LOOK_S)
