"""`Client`: blocking calls, for scripts and threaded servers. Any number of threads may share one."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from mmcached.client.arguments import (
    check_function,
    checked_image_ids,
    checked_key,
    checked_keys,
    run_dir_of,
)
from mmcached.client.image_files import ImageLike, read_images
from mmcached.client.links import forks
from mmcached.client.links.conversation import STREAM_WINDOW, Options, expect
from mmcached.client.links.incarnation import Incarnation
from mmcached.client.links.uninterrupted import uninterrupted
from mmcached.client.results import Generation, Piece, embeddings_from, generation_from
from mmcached.client.store.fail_open import FailOpen, StoreCounters
from mmcached.client.store.hits import Hit, Reading
from mmcached.shm.store.codec import Library, Record
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import MmcachedError, RequestAborted, ServiceUnavailable
from mmcached.wire.messages.client import Encoded, Flushed, Generated, Probed, Stats, Welcome
from mmcached.wire.messages.parts import RowsWanted
from mmcached.wire.stats import ServiceStats

if TYPE_CHECKING:
    import torch


MAX_CLOSE_S = 5.0
"""How long `close` waits for other uses of the connection to end; the longest is the copy of one large message."""


class Client(Closeable):
    """Talk to the service of a run directory.

    >>> with Client("/run/mmcached") as client:                      # doctest: +SKIP
    ...     answer = client.generate("What is this? <image>", [Path("cat.png")], max_tokens=16)
    ...     features = client.get_or_compute("cat.png@v1", lambda: {"embeds": tower(pixels)})["embeds"]

    The store's verbs (`get` … `drop`) treat a service that is gone, full or late as a miss, unless `fail_open` is
    False. After a restart of the service, and in a forked child, the next call connects anew.

    Threads may share a client: each waits for its own answers, over one connection. A call that is interrupted (Ctrl-C,
    or whatever a signal handler raises) is ended in the service too; if that leaves the connection in pieces, the other
    threads' open calls end with a retryable error, and the next call connects anew. A signal handler or finalizer that
    calls the client in the middle of a call of its own thread gets `LocalProtocolError`.

    Args:
        run_dir: the service's run directory; default as `mmcached serve` has it.
        timeout_s: deadline of each call that names none.
        connect_timeout_s: how long a contact may take.
        tenant: name under which items are cached; other tenants never hit them.
        fail_open: also, a client can be made while no service is there.
    Raises:
        InvalidRequest: an argument can't be.
        ServiceUnavailable: nobody answers in that directory, and `fail_open` is False.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        *,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
        tenant: str = "",
        fail_open: bool = True,
    ) -> None:
        self._directory = run_dir_of(run_dir)
        self._options = Options(timeout_s, connect_timeout_s, tenant, fail_open)
        self._guard = FailOpen(is_open=fail_open)
        self._lock = threading.RLock()
        self._is_closed = False
        self._incarnation = self._new_incarnation()
        forks.abandon_in_children(self)
        try:
            deadline = time.monotonic() + self._options.connect_timeout_s
            self._incarnation.contact(deadline, is_patient=not fail_open)
        except MmcachedError as error:
            if not self._guard.is_miss("the first contact", error):
                self.close()
                raise
        except BaseException:
            self.close()
            raise

    # ---- what the model does

    @property
    def service(self) -> Welcome:
        """What the service said of itself.

        Raises:
            ServiceUnavailable: it is not there.
        """
        now = self._now()
        now.contact(time.monotonic() + self._options.connect_timeout_s, is_patient=True)
        welcome = now.verbs.welcome
        if welcome is None:
            raise ServiceUnavailable("the service has just gone; try again")
        return welcome

    def generate(
        self,
        prompt: str | Sequence[int],
        images: Sequence[ImageLike | None] = (),
        max_tokens: int = 16,
        *,
        image_ids: Sequence[str | None] = (),
        hidden_states: bool | RowsWanted = False,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Generation:
        """Continue a prompt greedily.

        Args:
            prompt: text with one `<image>` per image, or token ids with one image token per image.
            images: encoded image files, in the order of their markers; None for one that is named by its id only.
            image_ids: what to call each image, or None; 1 to 256 bytes. A named image is cached under its name, and
                found there without its file. A name stands for one content: a file that comes with a name which is
                cached is not looked at. For other content take another name, or `flush` before.
            max_tokens: how many tokens to generate at most.
            hidden_states: also return hidden states, one row per computed token: True for all of the last layer, or say
                which ones, and from which position on.
            priority: the lower, the earlier it is served, in a service with `--scheduling-policy priority`.
            timeout_s: deadline of this call.
        Raises:
            InvalidRequest: (and subclasses) the input is not acceptable; names field, value and limit.
            CacheMiss: an image came without its file and is not cached; `mm_hashes` has the ids. Send the files.
            DeadlineExceeded, ServiceUnavailable, RequestAborted, PeerGone: retryable.
        """
        now, ids = self._now(), checked_image_ids(image_ids, images)
        request = now.talk.generate(
            prompt,
            image_ids=ids,
            max_tokens=max_tokens,
            hidden_states=hidden_states,
            priority=priority,
            timeout_s=timeout_s,
        )
        message, payload = now.call(request, read_images(images, ids), request.timeout_s)
        return generation_from(expect(message, Generated), payload)

    def generate_stream(
        self,
        prompt: str | Sequence[int],
        images: Sequence[ImageLike | None] = (),
        max_tokens: int = 16,
        *,
        image_ids: Sequence[str | None] = (),
        hidden_states: bool | RowsWanted = False,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Generator[Piece]:
        """As `generate`, and yield tokens as they are computed, in lists; at last the `Generation`.

        The first step asks the service. Each token comes once, in order; those that come while the caller is busy come
        in one list. Other calls may be made in between. Whoever stops early, or closes the iterator, ends the request
        in the service; `timeout_s` is the deadline of the whole generation.

        With `hidden_states=RowsWanted(delivery="delta")` rows too are yielded as they are computed, those of the prompt
        from its first chunk on: a `RowRange` of each key, then the tokens. Each row comes once, in order, and never
        after the token that it gave. `Generation.rows` has the rest, from where the last range ends: what came with the
        answer. With delivery "full" it has all rows, and none come before. Rows of which the service has lost track on
        the way end the stream with an error that may be tried again.

        >>> for piece in client.generate_stream("Tell me", max_tokens=64):       # doctest: +SKIP
        ...     if isinstance(piece, list):
        ...         print(piece)
        """
        now, ids = self._now(), checked_image_ids(image_ids, images)
        request = now.talk.generate(
            prompt,
            image_ids=ids,
            max_tokens=max_tokens,
            hidden_states=hidden_states,
            priority=priority,
            timeout_s=timeout_s,
            stream_window=STREAM_WINDOW,
        )
        return now.stream(request, read_images(images, ids))

    def encode(
        self,
        images: Sequence[ImageLike | None],
        *,
        image_ids: Sequence[str | None] = (),
        timeout_s: float | None = None,
    ) -> list[torch.Tensor]:
        """Return the embeddings of each image: int32 `(num_embeds, hidden_size)`, cpu, owned. Errors as `generate`."""
        now, ids = self._now(), checked_image_ids(image_ids, images)
        request = now.talk.encode(image_ids=ids, timeout_s=timeout_s)
        message, payload = now.call(request, read_images(images, ids), request.timeout_s)
        return embeddings_from(expect(message, Encoded), payload)

    # ---- the store

    def get(
        self, key: str, *, view: bool = False, tensors: Library = "torch", timeout_s: float | None = None
    ) -> Hit | None:
        """Return the record of a key, or None.

        Args:
            view: tensors in place, without a copy, instead of owned ones. **Read them, never write**: an in-place
                operation on such a torch tensor ends this process (SIGSEGV). Their memory cannot be reused before the
                last of them has died, so do not keep many.
            tensors: of which library; numpy has no bfloat16 and no float8.
            timeout_s: deadline of this call.
        Raises:
            InvalidRequest: a key or deadline that cannot be, or a dtype that the wanted library does not have.
            MmcachedError: with `fail_open=False`: why the service did not answer.
        """
        now = self._now()
        return now.run(now.verbs.get_many([checked_key(key)], Reading(tensors, view), timeout_s))[0]

    def get_many(
        self, keys: Sequence[str], *, view: bool = False, tensors: Library = "torch", timeout_s: float | None = None
    ) -> list[Hit | None]:
        """As `get` for up to 4096 keys in one round trip; in their order."""
        now = self._now()
        return now.run(now.verbs.get_many(checked_keys(keys), Reading(tensors, view), timeout_s))

    def contains_many(self, keys: Sequence[str], *, timeout_s: float | None = None) -> list[bool]:
        """Return which keys have a record, without a round trip if the store's memory can be seen from here.

        A hint: a record may come or go before it is asked for.
        """
        now = self._now()
        return now.run(now.verbs.contains_many(checked_keys(keys), timeout_s))

    def put(self, key: str, record: Record, *, timeout_s: float | None = None) -> bool:
        """Offer a record; return whether the key has one now. The first writer wins: a key that has one keeps it.

        A record that was computed before `invalidate` is not kept, as far as this client could know of it.

        Args:
            record: nested dicts and lists of CPU tensors, arrays, numbers, strings, bytes and None.
        Raises:
            InvalidRequest: something else is in it; names the path.
            MmcachedError: with `fail_open=False`: why the service did not answer.
        """
        now = self._now()
        return now.run(now.verbs.put(checked_key(key), record, timeout_s))

    def get_or_compute(
        self,
        key: str,
        fn: Callable[[], Record],
        *,
        view: bool = False,
        tensors: Library = "torch",
        timeout_s: float | None = None,
    ) -> Record:
        """Return the record of a key; if it has none, one caller on this host computes it while the others wait.

        A caller that dies is replaced by one that waits. Who has waited for `timeout_s`, or finds no service, calls
        `fn` itself and stores nothing.

        Args:
            fn: returns the record. What it raises is raised here, and the next who waits computes.
            view, tensors: of a record that was found, as for `get`; what `fn` returns is returned as it is.
        """
        check_function(fn)
        now = self._now()
        return now.run(now.verbs.get_or_compute(checked_key(key), fn, Reading(tensors, view), timeout_s))

    def drop(self, key: str, *, timeout_s: float | None = None) -> bool:
        """Forget the record of a key; return whether that is certain. Who reads it goes on."""
        now = self._now()
        return now.run(now.verbs.drop(checked_key(key), timeout_s))

    def store_counters(self) -> StoreCounters:
        """Return what this client has seen of the store so far."""
        return self._guard.counters

    # ---- the service

    def invalidate(self, *, timeout_s: float = 30.0) -> None:
        """Begin a new epoch, because weights or a processor have changed: nothing that was computed before is found.

        As `flush`, but what is being computed now is not kept either, and generations that run go on. Never fails open.
        """
        now = self._now()
        message, _ = now.call(now.talk.flush(new_epoch=True), (), now.talk.timeout(timeout_s))
        expect(message, Flushed)
        now.verbs.expect_new_epoch()

    def flush(self, *, timeout_s: float = 30.0) -> None:
        """Make the whole service forget what it has cached; requests that run start over, and end as they would
        have.
        """
        now = self._now()
        message, _ = now.call(now.talk.flush(), (), now.talk.timeout(timeout_s))
        expect(message, Flushed)

    def stats(self, *, timeout_s: float = 10.0) -> ServiceStats:
        """Return what all roles have counted since they started."""
        now = self._now()
        message, _ = now.call(now.talk.get_stats(), (), now.talk.timeout(timeout_s))
        return expect(message, Stats).stats

    def probe(self, *, timeout_s: float = 1.0) -> Probed:
        """Return how many engines and workers the data path reaches: a small item goes through all of them.

        Raises:
            DeadlineExceeded, ServiceUnavailable: it does not work; the text says where.
        """
        now = self._now()
        message, _ = now.call(now.talk.probe(timeout_s=timeout_s), (), now.talk.timeout(timeout_s))
        return expect(message, Probed)

    def close(self) -> None:
        """Tell the service that this client goes, and let go of everything but views; calls of other threads end with
        `RequestAborted`. A second call does nothing.
        """
        self._is_closed = True
        _close(self._incarnation)

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's. Called by itself; the next call connects anew."""
        self._lock = threading.RLock()  # the thread that held it may not exist here
        self._guard.abandon()
        self._incarnation.abandon()
        self._incarnation = self._new_incarnation()

    # ---- how

    def _new_incarnation(self) -> Incarnation:
        return Incarnation(self._directory, self._options, self._guard)

    def _now(self) -> Incarnation:
        """Return what to call with.

        Raises:
            RequestAborted: the client is closed.
        """
        if self._is_closed:
            raise RequestAborted("the client is closed")
        now = self._incarnation
        if not now.is_broken:
            return now
        with self._lock:
            if self._incarnation is now:
                self._incarnation = self._new_incarnation()
        _close(now)
        if self._is_closed:  # meanwhile
            _close(self._incarnation)
        return self._incarnation


def _close(incarnation: Incarnation) -> None:
    # A signal handler may close in the middle of its own thread's call; then the rest is done after that.
    with contextlib.suppress(TimeoutError):
        uninterrupted(incarnation.close, MAX_CLOSE_S)
