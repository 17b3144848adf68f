"""Says what each call of a client takes, asks and returns: one verb per call, for both clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from mmcached.client.arguments import (
    MAX_TOKENS,
    Options,
    check_bool,
    check_function,
    checked_image_ids,
    checked_int,
    checked_key,
    checked_keys,
    checked_match,
    checked_prompt,
    checked_rows,
    checked_tenant,
    checked_ttl,
)
from mmcached.client.clips import AudioLike, VideoLike, checked_clips, read_clips
from mmcached.client.contact import Contact, MakeLink, Request
from mmcached.client.links.shared_socket import Received
from mmcached.client.media_files import ImageLike, read_images
from mmcached.client.model_verbs import ModelVerbs
from mmcached.client.piece_stream import PieceStream
from mmcached.client.results import Generation, expect
from mmcached.client.store.bare import TensorLike
from mmcached.client.store.claims import Claim, Pending, checked_claim
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.store.hits import Hit, reading_of
from mmcached.client.store.put_result import PutResult
from mmcached.client.store.sessions import StoreSessions
from mmcached.client.store.tokens import MAX_EPOCH, checked_token
from mmcached.client.store.verbs import StoreVerbs
from mmcached.client.verb import Call, Verb
from mmcached.shm.store.codec import DEFAULT_LIBRARY, Library, Record
from mmcached.wire.messages.client import Flushed, Present, Probed, ProcessorInfo, Stats, Welcome
from mmcached.wire.messages.frontend import Encode, Flush, Generate, GetProcessorInfo, GetStats, HaveRecords, Probe
from mmcached.wire.messages.parts import ClipOptions, EncoderForm, RowsWanted
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import ServiceStats

STREAM_WINDOW = 32
"""Tokens of a stream that may be on the way; a caller who takes them at once never waits for the receipt."""
MAX_PRIORITY = (1 << 31) - 1
ValueT = TypeVar("ValueT", bound=Record | TensorLike)
"""What a function computes for a key: a record, or one tensor."""


class Calls:
    """The calls of one client id; any thread may make any."""

    def __init__(self, directory: RunDir, options: Options, guard: FailOpen, make_link: MakeLink) -> None:
        sessions = StoreSessions(counts_hits=options.counts_hits)
        self.contact = Contact(directory, options, make_link, sessions)
        self._store = StoreVerbs(self.contact, sessions, guard)
        self._model = ModelVerbs(self.contact, self._store, self._note_known)

    # ---- what the model does

    def generate(
        self,
        prompt: str | Sequence[int],
        images: Sequence[ImageLike | None] = (),
        max_tokens: int = 16,
        *,
        image_ids: Sequence[str | None] = (),
        videos: Sequence[VideoLike] = (),
        audios: Sequence[AudioLike] = (),
        hidden_states: bool | RowsWanted = False,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Verb[Generation]:
        """Continue a prompt greedily.

        Args:
            prompt: text with one `<image>` per image, `<video>` per video and `<audio>` per sound, or token ids with a
                token of its kind for each.
            images: encoded image files, in the order of their markers; None for one that is named by its id only.
            image_ids: what to call each image, or None; 1 to 256 bytes. A named image is cached under its name, and
                found there without its file. A name stands for one content: a file that comes with a name which is
                cached is not looked at. For other content take another name, or `flush` before.
            videos, audios: encoded files, each in the order of their markers; a `Video` or an `Audio` says more.
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
        ids, clips = checked_image_ids(image_ids, images), checked_clips(videos, audios)
        request = self._generate(
            prompt,
            ids,
            clips,
            max_tokens=max_tokens,
            hidden_states=hidden_states,
            priority=priority,
            timeout_s=timeout_s,
        )
        files = _files(images, ids, videos, audios)
        return self._model.generate(request, files, self.contact.deadline(timeout_s))

    def generate_stream(
        self,
        prompt: str | Sequence[int],
        images: Sequence[ImageLike | None] = (),
        max_tokens: int = 16,
        *,
        image_ids: Sequence[str | None] = (),
        videos: Sequence[VideoLike] = (),
        audios: Sequence[AudioLike] = (),
        hidden_states: bool | RowsWanted = False,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> PieceStream:
        """As `generate`, and yield tokens as they are computed, in lists; at last the `Generation`.

        The first step asks the service. Each token comes once, in order; those that come while the caller is busy come
        in one list. Other calls may be made in between. Leaving the loop early, closing the iterator or cancelling its
        task ends the request in the service; `timeout_s` is the deadline of the whole generation.

        With `hidden_states=RowsWanted(delivery="delta")` rows too are yielded as they are computed, those of the prompt
        from its first chunk on: a `RowRange` of each key, then the tokens. Each row comes once, in order, and never
        after the token that it gave. `Generation.rows` has the rest, from where the last range ends: what came with the
        answer. With delivery "full" it has all rows, and none come before. Rows of which the service has lost track on
        the way end the stream with an error that may be tried again.

        >>> for piece in client.generate_stream("Tell me", max_tokens=64):       # doctest: +SKIP
        ...     if isinstance(piece, list):
        ...         print(piece)
        """
        ids, clips = checked_image_ids(image_ids, images), checked_clips(videos, audios)
        request = self._generate(
            prompt,
            ids,
            clips,
            max_tokens=max_tokens,
            hidden_states=hidden_states,
            priority=priority,
            timeout_s=timeout_s,
            stream_window=STREAM_WINDOW,
        )
        return self._stream(request, _files(images, ids, videos, audios))

    def encode(
        self,
        images: Sequence[ImageLike | None] = (),
        *,
        image_ids: Sequence[str | None] = (),
        videos: Sequence[VideoLike] = (),
        audios: Sequence[AudioLike] = (),
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
    ) -> Verb[list[Any]]:
        """Return the encoder's output for each image: a tensor, cpu, owned; by name in a dict if there are several.

        After those comes a `Clip` for each video, then for each sound: an output for each slice of it. The reference
        model's outputs are int32 `(num_embeds, hidden_size)`; `processor_info` says what another encoder's are.

        What was encoded before, for whomever on this host, is found in shared memory without asking the service; what
        is large comes through it.

        Args:
            images, image_ids, videos, audios: as for `generate`.
            view: what lies there in place, without a copy: see `get`. **Read it, never write.**
            tensors: as for `get`.
            timeout_s: deadline of this call.
        Raises:
            As `generate`.
        """
        ids, clips, reading = (
            checked_image_ids(image_ids, images),
            checked_clips(videos, audios),
            reading_of(tensors, view),
        )
        request = Encode(
            self.contact.client_id,
            self.contact.next_id(),
            self.contact.limit_s(timeout_s),
            self.contact.options.tenant,
            ids,
            clips=clips,
            traceparent=self._traceparent(),
        )
        files = _files(images, ids, videos, audios)
        return self._model.encode(request, files, reading, self.contact.deadline(timeout_s))

    # ---- the store

    def get(
        self,
        key: str,
        *,
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
        tenant: str | None = None,
        local: bool = False,
    ) -> Call[Hit | None]:
        """Return the record of a key, or None.

        What this host's store has is found without asking the service. Where that has a second level, it is asked for
        what is missing, and waits for `limits.l2_timeout_ms` at most.

        Args:
            view: tensors in place, without a copy, instead of owned ones. **Read them, never write**: an in-place
                operation on such a torch tensor ends this process (SIGSEGV). Their memory cannot be reused before the
                last of them has died, so do not keep many.
            tensors: of which library; by default torch's where torch is installed, else numpy's, which has no
                bfloat16 and no float8. "bytes": numpy arrays of their bytes.
            timeout_s: deadline of this call.
            tenant: whose record, if not this client's own tenant's.
            local: what this host's store has not is missing, whatever the second level may have.
        Raises:
            InvalidRequest: a key or deadline that cannot be, or a dtype that the wanted library does not have.
            MmcachedError: with `fail_open=False`: why the service did not answer.
        """
        reading = reading_of(tensors, view)
        return self._store.get(checked_key(key), reading, timeout_s, checked_tenant(tenant), local=local)

    def get_many(
        self,
        keys: Sequence[str],
        *,
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
        local: bool = False,
        counts: bool = True,
    ) -> Call[list[Hit | None]]:
        """As `get` for up to 4096 keys, in their order.

        Args:
            counts: False for a look that is repeated until something happens: what this client sees for itself is
                neither a hit nor a miss in any figure then, and no record stays for its sake.
        """
        return self._store.get_many(
            checked_keys(keys), reading_of(tensors, view), timeout_s, local=local, counts=counts
        )

    def open(
        self,
        token: str,
        *,
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
        counts: bool = True,
    ) -> Verb[Hit | None]:
        """Return the record that another process of this host has found with `view=True`, under a lease of one's own.

        While that hit, or a tensor of it, lives, this succeeds, also if the record has been dropped or flushed
        meanwhile. After that it is None, or still the same record.

        Args:
            token: `token` of that hit.
            view, tensors, timeout_s: as for `get`.
            counts: False if it is neither a hit nor a miss in any figure, because who has found it has counted it.
        Raises:
            InvalidRequest: that is no token.
            MmcachedError: with `fail_open=False`: why the service did not answer a client that it does not know yet.
        """
        return self._store.open(checked_token(token), reading_of(tensors, view), timeout_s, counts=counts)

    def contains_many(
        self, keys: Sequence[str], *, timeout_s: float | None = None, tenant: str | None = None
    ) -> Call[list[bool]]:
        """Return which keys have a record on this host; the service is not asked, unless its memory cannot be seen from
        here.

        A hint: a record may come or go before it is asked for, and a second level may have others.
        """
        return self._store.contains_many(checked_keys(keys), timeout_s, checked_tenant(tenant))

    def exists(self, key: str, *, timeout_s: float | None = None, tenant: str | None = None) -> Call[bool]:
        """Return whether a key has a record on this host: `contains_many` of one key. Also as `key in client`."""
        return self._store.exists(checked_key(key), timeout_s, checked_tenant(tenant))

    def keys(self, match: str = "*", *, timeout_s: float | None = None, tenant: str | None = None) -> Verb[list[str]]:
        """Return the keys of this host's store, the newest first; `len(client)` is the number of all.

        They are read out of shared memory, all of them for each call: this is for people and for cleaning up.

        Args:
            match: pattern of the whole key: `*` any characters, `?` one, `[ab]` one of these; `[*]` is a star.
            tenant: whose keys, if not this client's own tenant's.
        Raises:
            InvalidRequest: `match` is invalid.
            MmcachedError: with `fail_open=False`: the memory cannot be seen from here, or the service is not there;
                else it is an empty list.
        """
        return self._store.keys(checked_match(match), timeout_s, checked_tenant(tenant))

    def claim_many(
        self,
        keys: Sequence[str],
        *,
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
    ) -> Verb[list[Hit | Claim | Pending]]:
        """Return for each key its record, or a claim to compute it, or that somebody computes it; waits for nobody.

        For a scheduler: it claims what it will have computed. What a second level has is a record too: for that the
        answer waits for `limits.l2_timeout_ms` at most. The record may be put by another process, which ends the
        claim too. A claim passes on when this client drops it or dies, or after `limits.claim_timeout_s`. A pending key
        is asked for again later. It raises nothing for want of room or service: then it is a claim that is not
        exclusive, for who were told to wait would wait for nobody.

        Args:
            view, tensors, timeout_s: as for `get`.
        Raises:
            InvalidRequest: as `get_many`.
            MmcachedError: with `fail_open=False`: why the service did not answer; nothing has been claimed then.
        """
        return self._store.claim_many(checked_keys(keys), reading_of(tensors, view), timeout_s)

    def put(
        self,
        key: str,
        record: Record | TensorLike,
        *,
        overwrite: bool = False,
        ttl_s: float | None = None,
        claim: Claim | None = None,
        timeout_s: float | None = None,
        tenant: str | None = None,
        store_epoch: int | None = None,
    ) -> Verb[PutResult]:
        """Offer a record; return what has become of it, which is true if the key has one now.

        **The first writer wins: a key that has a record keeps it**, and the result says "exists", unless `overwrite`
        says to replace that record. A result that is "refused" says why, with size and limit; so does the log, now and
        then.

        A record that was computed before `invalidate` is not kept, as far as this client could know of it.

        Args:
            overwrite: replace the record that the key has. A call that begins after this one has returned finds the new
                record; one that runs at the same time finds the old one or the new one, never a part of either, and
                never a miss. Who has a view of the old one keeps its bytes. For a moment both take room; if the result
                is "refused", the key keeps the old one. With a second level other hosts may still find the old one: see
                its page.
            ttl_s: seconds from the moment that the service keeps the record until no call finds it any more, on a clock
                that nobody sets; None: it does not expire. A view that was taken before keeps its bytes. A key that has
                a record, and keeps it, keeps the expiry of that one. On other hosts of a second level it expires at the
                same time of day.
            record: nested dicts and lists of CPU tensors, arrays, numbers, strings, bytes and None; or one tensor or
                array, which `hit.tensor()` gives back. Its record is `{"__tensor__": …}`; no other one may have that
                name at its top.
            claim: of this key; it ends, whatever becomes of the record. A record that was computed before `invalidate`
                is certainly not kept then.
            tenant: as for `get`.
            store_epoch: in which it was computed, if another process knows: then it is certainly not kept, either.
        Raises:
            InvalidRequest: something else is in it; names the path.
            MmcachedError: with `fail_open=False`: why the service did not answer.
        """
        check_bool("overwrite", overwrite)
        return self._store.put(
            checked_key(key),
            record,
            checked_claim(claim, key),
            timeout_s,
            overwrites=overwrite,
            ttl_s=checked_ttl(ttl_s),
            tenant=checked_tenant(tenant),
            store_epoch=_checked_epoch(store_epoch),
        )

    def get_or_compute(
        self,
        key: str,
        fn: Callable[[], ValueT | Awaitable[ValueT]],
        *,
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        tenant: str | None = None,
        store_epoch: int | None = None,
    ) -> Verb[ValueT]:
        """Return the record of a key; if it has none, one caller on this host computes it while the others wait; with a
        second level, as a rule, one caller on all its hosts.

        A caller that dies is replaced by one that waits. Who has waited for `timeout_s`, or finds no service, calls
        `fn` itself and stores nothing; with `fail_open=False` the error is raised.

        Args:
            fn: returns the record, as for `put`; of one tensor a hit returns the tensor, too. What it raises is raised
                here, and the next who waits computes. `AsyncClient` also
                takes a coroutine function; a plain one keeps its event loop waiting.
            view, tensors: of a record that was found, as for `get`; what `fn` returns is returned as it is.
            timeout_s: how long to wait for another caller's `fn`, and, once `fn` has returned here, for the service to
                take its record. The time that `fn` takes here is limited by nothing.
            ttl_s: of what `fn` returns, as for `put`.
            tenant: as for `get`.
            store_epoch: in which `fn` computes, if another process knows: in another one nothing is found or stored.
        """
        check_function(fn)
        return self._store.get_or_compute(
            checked_key(key),
            fn,
            reading_of(tensors, view),
            timeout_s,
            ttl_s=checked_ttl(ttl_s),
            tenant=checked_tenant(tenant),
            store_epoch=_checked_epoch(store_epoch),
        )

    def drop(self, key: str, *, timeout_s: float | None = None, tenant: str | None = None) -> Verb[bool]:
        """Forget the record of a key on this host; return whether that is certain. Who reads it goes on."""
        return self._store.drop(checked_key(key), timeout_s, checked_tenant(tenant))

    def delete(self, *keys: str, timeout_s: float | None = None, tenant: str | None = None) -> Verb[int]:
        """Forget the records of up to 4096 keys on this host; return how many of them had one. Who reads them goes on.

        One message for each key. If the service does not answer, the rest stays and does not count.

        Raises:
            InvalidRequest: a key is invalid; nothing has been deleted.
            MmcachedError: with `fail_open=False`: why the service did not answer.
        """
        return self._store.delete(checked_keys(keys), timeout_s, checked_tenant(tenant))

    # ---- the service

    def ping(self, *, timeout_s: float = 1.0) -> Verb[bool]:
        """Return True once the service has answered a message; never fails open. `probe` also asks its engines.

        Raises:
            DeadlineExceeded, ServiceUnavailable: it has not answered.
        """
        message, _ = yield from self._ask(HaveRecords(self.contact.next_id(), []), timeout_s)
        expect(message, Present)
        return True

    def invalidate(self, *, timeout_s: float = 30.0) -> Verb[None]:
        """Begin a new epoch, because weights or a processor have changed; never fails open.

        As `flush`, but what is being computed now is not kept either, and generations that run go on.
        """
        try:
            message, _ = yield from self._ask(Flush(self.contact.next_id(), True), timeout_s)
            expect(message, Flushed)
        finally:
            self.contact.greet_again()  # which epoch it is, also where the second level has not been flushed

    def flush(self, *, timeout_s: float = 30.0) -> Verb[None]:
        """Make the whole service forget what it has cached; requests that run start over, and end as they would
        have.

        The second level forgets what it has from all hosts; what lies in the stores of other hosts stays there.

        Raises:
            SecondLevelNotFlushed: all is forgotten but what the second level has, of which nothing is found here until
                it has forgotten that too.
        """
        message, _ = yield from self._ask(Flush(self.contact.next_id()), timeout_s)
        expect(message, Flushed)

    def stats(self, *, timeout_s: float = 10.0) -> Verb[ServiceStats]:
        """Return what all roles have counted since they started."""
        message, _ = yield from self._ask(GetStats(self.contact.next_id()), timeout_s)
        return expect(message, Stats).stats

    def processor_info(self, *, timeout_s: float = 10.0) -> Verb[EncoderForm]:
        """Return what the service makes of an item: the tensors that its encoder takes, and those that it gives.

        Raises:
            ServiceUnavailable: no engine is ready; the service may be a store alone.
        """
        message, _ = yield from self._ask(GetProcessorInfo(self.contact.next_id()), timeout_s)
        return expect(message, ProcessorInfo).encoder

    def probe(self, *, timeout_s: float = 1.0) -> Verb[Probed]:
        """Return how many engines and workers the data path reaches: a small item goes through all of them.

        Raises:
            DeadlineExceeded, ServiceUnavailable: it does not work; the text says where.
        """
        # The service gets nine tenths of the time, so that it can still say where the probe is stuck.
        request = Probe(self.contact.next_id(), 0.9 * self.contact.limit_s(timeout_s))
        message, _ = yield from self._ask(request, timeout_s)
        return expect(message, Probed)

    def connect(self, *, is_patient: bool = True) -> Verb[Welcome]:
        """Greet the service unless in contact; return what it has said of itself."""
        deadline = self.contact.deadline(self.contact.options.connect_timeout_s)
        return self.contact.connect(deadline, is_patient=is_patient)

    # ---- how

    def _generate(
        self,
        prompt: str | Sequence[int],
        image_ids: list[str | None],
        clips: list[ClipOptions],
        *,
        max_tokens: int,
        hidden_states: bool | RowsWanted,
        priority: int,
        timeout_s: float | None,
        stream_window: int = 0,
    ) -> Generate:
        return Generate(
            client_id=self.contact.client_id,
            request_id=self.contact.next_id(),
            prompt=checked_prompt(prompt),
            max_tokens=checked_int("max_tokens", max_tokens, 1, MAX_TOKENS),
            timeout_s=self.contact.limit_s(timeout_s),
            rows=checked_rows(hidden_states),
            tenant=self.contact.options.tenant,
            image_ids=image_ids,
            stream_window=stream_window,
            priority=checked_int("priority", priority, -MAX_PRIORITY - 1, MAX_PRIORITY),
            clips=clips,
            traceparent=self._traceparent(),
        )

    def _traceparent(self) -> str:
        """Return the W3C `traceparent` of the span that a request belongs to; "": none."""
        return ""

    def _note_known(self, num_known: int, num_items: int) -> None:
        """Take note of how many items an `encode` has found without asking the service."""

    def _stream(self, request: Generate, files: Sequence[Frame]) -> PieceStream:
        return PieceStream(self.contact, request, files)

    def _ask(self, request: Request, timeout_s: float | None, payload: Sequence[Frame] = ()) -> Verb[Received]:
        """Exchange a request that does not fail open."""
        deadline = self.contact.deadline(timeout_s)
        yield from self.contact.connect(deadline)
        return (yield from self.contact.exchange(request, deadline, payload))


def _checked_epoch(store_epoch: int | None) -> int | None:
    return None if store_epoch is None else checked_int("store_epoch", store_epoch, 0, MAX_EPOCH)


def _files(
    images: Sequence[ImageLike | None],
    image_ids: Sequence[str | None],
    videos: Sequence[VideoLike],
    audios: Sequence[AudioLike],
) -> list[bytes]:
    """Return the files of a request in the order in which they travel."""
    files = read_images(images, image_ids)
    return files + read_clips(videos, audios) if videos or audios else files
