"""Decoders that work for a loop: pictures go in, items come out through a mailbox that the loop polls.

    loop ──submit──> FairQueue: clients take turns ──> a thread ──> its decoder, a process ──> Mailbox ──> loop
                                                          │
                                                          └── PixelBudget: waits until there is room

Processes, because a codec that is fed by strangers must have an end: of CPU time, of memory, of crashes. Each has a
thread that waits for it. A process is started when a picture comes and no other is idle, and lives on; so a service
that sees no pictures has none.

    picture ──> made ─────────────────────────────────────────> item
            ├─> refused, more CPU time than the limit ────────> typed error
            ├─> its decoder died: once more, in a new one ────> typed error the second time
            └─> nobody wants it: `GRACE_S` later, killed ─────> Withdrawn

Knows nothing of requests or caches. `submit`, `join`, `withdraw`, `num_waiting_of` and `close` are for the loop's
thread alone.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from mmcached.frontend.processing.decoder_process import Decoder, DecoderDiedError, Pixels
from mmcached.frontend.processing.fair_queue import FairQueue
from mmcached.frontend.processing.pixel_budget import PixelBudget
from mmcached.frontend.processing.pool import Done, Mailbox, NotWantedError
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.errors import CorruptImage, ImageTooLarge, MmcachedError, ServiceUnavailable

log = structlog.get_logger("mmcached.frontend")

GRACE_S = 0.5
"""How long a picture that nobody wants any more goes on: to end is often cheaper than to start another decoder."""

MAX_DEATHS = 2
"""Of decoders with one picture in hand."""

BYTES_PER_PIXEL = 20
"""More than any codec takes for a picture, with its conversion to RGB: measured, see DECISIONS."""

_MAX_FAILED_STARTS = 3
_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 5.0
_CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The outcome of a picture whose decoder was killed, because nobody wanted it."""


@dataclass(slots=True, eq=False)
class _Job:
    token: str
    data: bytes
    generation: int = 0
    num_deaths: int = 0
    give_up_at: float | None = None


class _Worker:
    """One thread's decoder, and what wakes the thread."""

    def __init__(self, settings: PictureSettings, lock: threading.Lock) -> None:
        self.decoder = Decoder(settings)
        self.changed = threading.Condition(lock)
        self.num_failed_starts = 0


class DecoderPool:
    """A queue of pictures and the decoders that take them.

    Args:
        max_pixels: that are decoded at a time.
        finish: makes an item of the pixels, in a thread of this pool.
        mailbox: where outcomes go; closed by its owner, after this pool. An outcome is what `finish` has returned, an
            exception, or `Withdrawn`.
    Attributes:
        generation: set by the loop; each outcome tells the one in which its picture was begun.
    """

    def __init__(
        self,
        num_decoders: int,
        settings: PictureSettings,
        *,
        max_pixels: int,
        finish: Callable[[Pixels], object],
        mailbox: Mailbox,
    ) -> None:
        self._settings = settings
        self._finish = finish
        self._mailbox = mailbox
        self._budget = PixelBudget(max_pixels)
        self._jobs: dict[str, _Job] = {}  # that are not done
        self._queue: FairQueue[str] = FairQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self.generation = 0
        self._workers = [_Worker(settings, self._lock) for _ in range(num_decoders)]
        self._idle = list(self._workers)  # those with a living decoder at the end
        # Daemons: should the loop end without `close`, no thread may keep the process alive.
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"decoder {index}", daemon=True)
            for index, worker in enumerate(self._workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, token: str, data: bytes, client: str) -> None:
        with self._lock:
            self._jobs[token] = _Job(token, data)
            self._queue.add(token, client)
            self._wake_one()

    def join(self, token: str, client: str) -> None:
        """Another client waits for a picture, too, and lends it its turn; one that is done changes nothing."""
        with self._lock:
            job = self._jobs.get(token)
            if job is None:
                return
            job.give_up_at = None
            if token in self._queue:
                self._queue.add(token, client)

    def withdraw(self, token: str) -> bool:
        """Nobody wants a picture any more. Return whether that is all; else its outcome comes still, and soon."""
        with self._lock:
            if self._queue.discard(token):
                del self._jobs[token]
                return True
            if (job := self._jobs.get(token)) is not None:
                job.give_up_at = time.monotonic() + GRACE_S
            return False

    def num_waiting_of(self, client: str) -> int:
        """Return how many pictures of a client nobody has begun."""
        with self._lock:
            return self._queue.num_of(client)

    def close(self) -> None:
        """Drop all pictures and kill all decoders; takes a moment, whatever they are doing."""
        with self._lock:
            self._is_closed = True
            self._queue.clear()
            for worker in self._workers:
                worker.changed.notify()
        for worker in self._workers:
            worker.decoder.kill()
        give_up = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.monotonic()))

    # ---- the threads

    def _work(self, worker: _Worker) -> None:
        try:
            while self._has_work(worker):
                if worker.decoder.is_alive or self._start(worker):
                    self._do_next(worker)
        finally:
            worker.decoder.close()

    def _has_work(self, worker: _Worker) -> bool:
        """Wait for something in the queue; return False at the end."""
        is_warm = worker.decoder.is_alive
        with self._lock:
            while not self._queue and not self._is_closed:
                if worker not in self._idle:
                    self._idle.insert(len(self._idle) if is_warm else 0, worker)
                worker.changed.wait()
            if worker in self._idle:
                self._idle.remove(worker)
            return not self._is_closed

    def _wake_one(self) -> None:
        if self._idle:
            self._idle.pop().changed.notify()

    def _start(self, worker: _Worker) -> bool:
        """Start a decoder; if it cannot be, wait a while before the next try."""
        try:
            worker.decoder.start(lambda: not self._is_closed)
        except NotWantedError:
            return False
        except Exception as error:  # whatever it is, this thread goes on
            if self._is_closed:
                return False
            worker.num_failed_starts += 1
            log.warning("a decoder does not start", reason=str(error), tries=worker.num_failed_starts)
            if worker.num_failed_starts >= _MAX_FAILED_STARTS and not any(
                one.decoder.is_alive for one in self._workers
            ):
                self._fail_all(ServiceUnavailable(f"no decoder can be started ({error}); try again later"))
            backoff_s = min(_MAX_BACKOFF_S, _BACKOFF_S * 2 ** (worker.num_failed_starts - 1))
            with self._lock:
                worker.changed.wait_for(lambda: self._is_closed, backoff_s)
            return False
        worker.num_failed_starts = 0
        return True

    def _fail_all(self, error: MmcachedError) -> None:
        with self._lock:
            while (token := self._queue.take()) is not None:
                del self._jobs[token]
                self._mailbox.put(Done(token, self.generation, error))

    def _do_next(self, worker: _Worker) -> None:
        with self._lock:
            token = self._queue.take()
            if token is None:
                return
            job = self._jobs[token]
            job.generation = self.generation
        outcome = self._outcome(worker.decoder, job)
        with self._lock:
            if self._is_closed:
                return
            if outcome is None:
                self._queue.add_first(token)
                self._wake_one()
                return
            del self._jobs[token]
            if worker.decoder.is_alive:
                # Before the loop knows: the next picture must not start a decoder where this one is free.
                self._idle.append(worker)
        self._mailbox.put(Done(token, job.generation, outcome))

    def _outcome(self, decoder: Decoder, job: _Job) -> object:
        """Return what became of a picture; None if it has to be begun again."""
        is_wanted = partial(self._is_wanted, job)
        try:
            pixels = decoder.process(
                job.data, is_wanted=is_wanted, before_pixels=partial(self._budget.room_for, is_wanted=is_wanted)
            )
            return self._finish(pixels)
        except NotWantedError:
            return Withdrawn()
        except DecoderDiedError as died:
            log.warning("a decoder died", reason=died.reason, out_of_memory=died.was_out_of_memory)
            job.num_deaths += 1
            return self._blame(died, job.num_deaths)
        except Exception as error:
            # Its traceback would keep the frames of the work alive for as long as anybody has the error.
            return error.with_traceback(None)

    def _is_wanted(self, job: _Job) -> bool:
        give_up_at = job.give_up_at
        return not self._is_closed and (give_up_at is None or time.monotonic() < give_up_at)

    def _blame(self, died: DecoderDiedError, num_deaths: int) -> MmcachedError | None:
        """Return what a picture is refused with whose decoder has died; None if it may be tried once more."""
        if died.was_cpu_limit:
            return ImageTooLarge(
                "image", "too much work", f"at most {self._settings.cpu_s} s of CPU time for a picture"
            )
        if died.was_out_of_memory and died.pixels * BYTES_PER_PIXEL > self._settings.memory_bytes:
            limit = f"at most {self._settings.memory_bytes} bytes of memory for a picture"
            return ImageTooLarge("image", f"{died.pixels} pixels", limit)
        if num_deaths < MAX_DEATHS:
            return None
        if died.was_out_of_memory or died.status in (None, -signal.SIGKILL):
            # Whoever kills a decoder for want of memory, or by hand, says nothing about the file.
            return ServiceUnavailable(f"the picture's decoders were killed ({died.reason}); try again later")
        return CorruptImage("image", died.reason, f"ended {num_deaths} decoders")
