"""`Client`: blocking calls, one at a time, for scripts and threaded servers. One client per thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from mmcached.client import forks
from mmcached.client.conversation import STREAM_WINDOW, Ask, Conversation, Options, checked_image_ids, expect
from mmcached.client.fail_open import FailOpen, StoreCounters
from mmcached.client.hits import Hit, Reading
from mmcached.client.results import Generation, ImageLike, Piece, embeddings_from, generation_from, read_images
from mmcached.client.store_verbs import StoreVerbs
from mmcached.client.sync_link import SyncLink
from mmcached.client.verb_steps import Compute, Exchange, Greet, Step, Tell, Verb, drive
from mmcached.shm.codec import Library, Record
from mmcached.wire.channels import Frame
from mmcached.wire.errors import DeadlineExceeded, MmcachedError, RequestAborted, ServiceUnavailable
from mmcached.wire.messages.client import Encoded, Flushed, Generated, Probed, Stats, ToClient, Welcome
from mmcached.wire.messages.frontend import Generate
from mmcached.wire.messages.parts import RowsWanted
from mmcached.wire.paths import RunDir, default_run_dir
from mmcached.wire.stats import ServiceStats

if TYPE_CHECKING:
    import torch

GRACE_S = 2.0
"""How much longer than the request's own deadline a client waits, so that the service can report it first."""

T = TypeVar("T")


class Client:
    """Talk to the service of a run directory.

    >>> with Client("/run/mmcached") as client:                      # doctest: +SKIP
    ...     answer = client.generate("What is this? <image>", ["cat.png"], max_tokens=16)
    ...     features = client.get_or_compute("cat.png@v1", lambda: {"embeds": tower(pixels)})["embeds"]

    The store's verbs (`get` … `drop`) treat a service that is gone, full or late as a miss, unless `fail_open` is
    False. After a restart of the service, and in a forked child, the next call connects anew.

    Args:
        run_dir: the service's run directory; default as `mmcached serve` has it.
        timeout_s: deadline of each call that names none.
        connect_timeout_s: how long a contact may take.
        tenant: name under which items are cached; other tenants never hit them.
        fail_open: also, a client can be made while no service is there.
    Raises:
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
        self._directory = RunDir(Path(run_dir) if run_dir is not None else default_run_dir())
        self._options = Options(timeout_s, connect_timeout_s, tenant, fail_open)
        self._guard = FailOpen(is_open=fail_open)
        self._is_closed = False
        self._link: SyncLink | None = None
        self._begin()
        forks.abandon_in_children(self)
        try:
            self._contact(connect_timeout_s, is_patient=not fail_open)
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
        self._contact(self._options.connect_timeout_s, is_patient=True)
        if self._verbs.welcome is None:
            raise ServiceUnavailable("the service has just gone; try again")
        return self._verbs.welcome

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
        ids = checked_image_ids(image_ids, len(images))
        request = self._talk.generate(
            prompt,
            image_ids=ids,
            max_tokens=max_tokens,
            hidden_states=hidden_states,
            priority=priority,
            timeout_s=timeout_s,
        )
        message, payload = self._call(request, read_images(images, ids), request.timeout_s)
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
        ids = checked_image_ids(image_ids, len(images))
        limit_s = self._talk.timeout(timeout_s)
        return self._stream(
            lambda: self._talk.generate(
                prompt,
                image_ids=ids,
                max_tokens=max_tokens,
                hidden_states=hidden_states,
                priority=priority,
                timeout_s=limit_s,
                stream_window=STREAM_WINDOW,
            ),
            read_images(images, ids),
            limit_s,
        )

    def encode(
        self,
        images: Sequence[ImageLike | None],
        *,
        image_ids: Sequence[str | None] = (),
        timeout_s: float | None = None,
    ) -> list[torch.Tensor]:
        """Return the embeddings of each image: int32 `(num_embeds, hidden_size)`, cpu, owned. Errors as `generate`."""
        ids = checked_image_ids(image_ids, len(images))
        request = self._talk.encode(image_ids=ids, timeout_s=timeout_s)
        message, payload = self._call(request, read_images(images, ids), request.timeout_s)
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
        return self.get_many([key], view=view, tensors=tensors, timeout_s=timeout_s)[0]

    def get_many(
        self, keys: Sequence[str], *, view: bool = False, tensors: Library = "torch", timeout_s: float | None = None
    ) -> list[Hit | None]:
        """As `get` for up to 4096 keys in one round trip; in their order."""
        return self._run(self._verbs.get_many(keys, Reading(tensors, view), timeout_s))

    def contains_many(self, keys: Sequence[str], *, timeout_s: float | None = None) -> list[bool]:
        """Return which keys have a record, without a round trip if the store's memory can be seen from here.

        A hint: a record may come or go before it is asked for.
        """
        return self._run(self._verbs.contains_many(keys, timeout_s))

    def put(self, key: str, record: Record, *, timeout_s: float | None = None) -> bool:
        """Offer a record; return whether the key has one now. The first writer wins: a key that has one keeps it.

        A record that was computed before `invalidate` is not kept, as far as this client could know of it.

        Args:
            record: nested dicts and lists of CPU tensors, arrays, numbers, strings, bytes and None.
        Raises:
            InvalidRequest: something else is in it; names the path.
            MmcachedError: with `fail_open=False`: why the service did not answer.
        """
        return self._run(self._verbs.put(key, record, timeout_s))

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
        return self._run(self._verbs.get_or_compute(key, fn, Reading(tensors, view), timeout_s))

    def drop(self, key: str, *, timeout_s: float | None = None) -> bool:
        """Forget the record of a key; return whether that is certain. Who reads it goes on."""
        return self._run(self._verbs.drop(key, timeout_s))

    def store_counters(self) -> StoreCounters:
        """Return what this client has seen of the store so far."""
        return self._guard.counters

    # ---- the service

    def invalidate(self, *, timeout_s: float = 30.0) -> None:
        """Begin a new epoch, because weights or a processor have changed: nothing that was computed before is found.

        As `flush`, but what is being computed now is not kept either, and generations that run go on. Never fails open.
        """
        message, _ = self._call(self._talk.flush(new_epoch=True), (), timeout_s)
        expect(message, Flushed)
        self._verbs.expect_new_epoch()

    def flush(self, *, timeout_s: float = 30.0) -> None:
        """Make the whole service forget what it has cached; requests that run start over, and end as they would
        have.
        """
        message, _ = self._call(self._talk.flush(), (), timeout_s)
        expect(message, Flushed)

    def stats(self, *, timeout_s: float = 10.0) -> ServiceStats:
        """Return what all roles have counted since they started."""
        message, _ = self._call(self._talk.get_stats(), (), timeout_s)
        return expect(message, Stats).stats

    def probe(self, *, timeout_s: float = 1.0) -> Probed:
        """Return how many engines and workers the data path reaches: a small item goes through all of them.

        Raises:
            DeadlineExceeded, ServiceUnavailable: it does not work; the text says where.
        """
        message, _ = self._call(self._talk.probe(timeout_s=timeout_s), (), timeout_s)
        return expect(message, Probed)

    def close(self) -> None:
        """Tell the service that this client goes, and let go of everything but views. A second call does nothing."""
        self._is_closed = True
        self._verbs.close()
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's. Called by itself; the next call connects anew."""
        self._verbs.abandon()
        if self._link is not None:
            self._link.abandon()
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- how

    def _begin(self) -> None:
        """Be a new client, not yet connected."""
        self._talk = Conversation(self._options)
        self._verbs = StoreVerbs(self._talk, self._guard)
        self._link = None

    def _connection(self) -> SyncLink:
        if self._is_closed:
            raise RequestAborted("the client is closed")
        if self._link is None:
            verbs = self._verbs
            self._link = SyncLink(self._directory, self._talk.client_id, hear=verbs.hear, lost=verbs.lose_contact)
        return self._link

    def _contact(self, timeout_s: float, *, is_patient: bool) -> None:
        deadline = time.monotonic() + timeout_s
        drive(self._verbs.connect(deadline, is_patient=is_patient), self._perform)

    def _call(self, request: Ask, payload: Sequence[Frame], timeout_s: float) -> tuple[ToClient, list[Frame]]:
        """Exchange a request that does not fail open."""
        if self._link is not None:
            self._link.catch_up()
        deadline = time.monotonic() + timeout_s + GRACE_S
        self._contact(timeout_s, is_patient=True)
        link = self._connection()
        try:
            return link.exchange(request, payload, deadline=deadline, timeout_s=timeout_s)
        except DeadlineExceeded:
            link.tell(self._talk.cancel(request.request_id))
            raise

    def _stream(self, ask: Callable[[], Generate], payload: Sequence[Frame], timeout_s: float) -> Generator[Piece]:
        """Exchange a request whose tokens come as they commit. A forked child is another client: it must ask anew."""
        if self._link is not None:
            self._link.catch_up()
        deadline = time.monotonic() + timeout_s + GRACE_S
        self._contact(timeout_s, is_patient=True)
        link = self._connection()
        stream = link.open_stream(ask(), payload)
        try:
            while True:
                link.wait_for_news(stream, deadline=deadline, timeout_s=timeout_s)
                piece = stream.take()
                if (receipt := stream.take_receipt()) is not None:
                    link.tell(receipt)
                yield piece
                if isinstance(piece, Generation):
                    return
        finally:
            link.end_stream(stream)

    def _run(self, verb: Verb[T]) -> T:
        if self._is_closed:
            raise RequestAborted("the client is closed")
        if self._link is not None:
            self._link.catch_up()
        return drive(verb, self._perform)

    def _perform(self, step: Step) -> Any:
        match step:
            case Compute():
                return step.fn()
            case Greet():
                return self._connection().greet(step.deadline, is_patient=step.is_patient)
            case Exchange():
                return self._connection().exchange(
                    step.request, step.payload, deadline=step.deadline, timeout_s=step.timeout_s
                )
            case Tell():
                return None if self._link is None else self._link.tell(step.message)
