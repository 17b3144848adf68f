"""Parameters, request and result of each call of a client: one verb per call, for both clients.

The calls on the store are in `store.reads` and `store.verbs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mmcached.client.arguments import MAX_TOKENS, Options, checked_int, checked_rows, checked_version
from mmcached.client.chat import Messages
from mmcached.client.clips import AudioLike, VideoLike
from mmcached.client.contact import Contact, MakeLink
from mmcached.client.links.shared_socket import Received
from mmcached.client.media_files import ImageLike
from mmcached.client.media_names import MediaName
from mmcached.client.model_verbs import ModelVerbs
from mmcached.client.piece_stream import Attempt, PieceStream
from mmcached.client.request_files import RequestFiles
from mmcached.client.results import Generation, Piece, expect, stats_from
from mmcached.client.sampling import checked_num_answers, checked_sampling, further_requests
from mmcached.client.store.aliases import NameVerbs
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.store.hits import reading_of
from mmcached.client.store.sessions import StoreSessions
from mmcached.client.verb import Verb
from mmcached.shm.store.codec import DEFAULT_LIBRARY, Library
from mmcached.wire.messages.client import Flushed, Present, Probed, ProcessorInfo, Stats, Welcome
from mmcached.wire.messages.frontend import (
    Encode,
    Flush,
    Generate,
    GetProcessorInfo,
    GetStats,
    HaveRecords,
    Probe,
    Request,
)
from mmcached.wire.messages.parts import RowsWanted, Sampling, ServiceForms
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import ServiceStats

STREAM_WINDOW = 32
"""Maximum number of unacknowledged tokens of a stream; a caller that takes them at once never waits for a receipt."""
MAX_PRIORITY = (1 << 31) - 1


class Calls(NameVerbs):
    """The calls of one client id on the store, the model and the service; any thread may make any call."""

    def __init__(self, directory: RunDir, options: Options, guard: FailOpen, make_link: MakeLink) -> None:
        sessions = StoreSessions(counts_hits=options.counts_hits)
        super().__init__(Contact(directory, options, make_link, sessions), sessions, guard)
        self._model = ModelVerbs(self.contact, self, self._note_known)

    # ---- the model

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        images: Sequence[ImageLike | None] = (),
        max_tokens: int = 16,
        *,
        messages: Messages | None = None,
        image_ids: Sequence[str | None] = (),
        videos: Sequence[VideoLike | None] = (),
        audios: Sequence[AudioLike | None] = (),
        names: Sequence[MediaName | None] = (),
        sampling: Sampling | None = None,
        n: int = 1,
        hidden_states: bool | RowsWanted = False,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Verb[Generation]:
        """Continue a prompt, or answer the messages of a chat.

        Args:
            prompt: Text with one `<image>` per image, `<video>` per video and `<audio>` per sound, or token ids with a
                token of that kind for each.
            images: Encoded image files, in the order of their markers; None for an image that is named by its id only.
            max_tokens: Maximum number of tokens to generate.
            messages: A chat instead of prompt and images, for a checkpoint with a chat template: see `Messages`.
            image_ids: Names of the images, or None; 1 to 256 bytes. A named image is cached under its name, and found
                there without its file. A name stands for one content: a file that comes with a cached name is not read.
                For other content use another name, or `flush` first.
            videos, audios: Encoded files, each in the order of their markers; a `Video` or an `Audio` adds options.
            names: A name or None for each image, then each video, then each sound; not beside `image_ids`. The file of
                a name that is bound (see `bind`) may be None, and is read only if the service needs it. A name that
                comes with a file is not bound by that.
            sampling: How tokens are chosen, with a checkpoint behind `generate`; None for the most likely ones.
            n: Number of answers, with the seeds `sampling.seed`, `seed + 1` …; `others` has the further ones.
            hidden_states: Also return hidden states, one row per computed token: True for all of the last layer, or
                `RowsWanted` for other keys, and a first position.
            priority: Requests with a lower value are served earlier, in a service with `--scheduling-policy priority`.
            timeout_s: Deadline of this call.

        Raises:
            InvalidRequest: (and subclasses) the input is not acceptable; names field, value and limit.
            CacheMiss: A file that came by id or by name only is needed; `mm_hashes` has the ids, or the texts of the
                names. Send the files.
            DeadlineExceeded, ServiceUnavailable, RequestAborted, PeerGone: Retryable.
        """
        files = RequestFiles.of(images, image_ids, videos, audios, messages, names=names)
        request = self._generate(
            prompt,
            files,
            max_tokens=max_tokens,
            sampling=sampling,
            hidden_states=hidden_states,
            priority=priority,
            timeout_s=timeout_s,
        )
        num_answers = checked_num_answers(n, request.sampling)
        return self._model.generate(request, files, self.contact.deadline(timeout_s), num_answers)

    def generate_stream(
        self,
        prompt: str | Sequence[int] | None = None,
        images: Sequence[ImageLike | None] = (),
        max_tokens: int = 16,
        *,
        messages: Messages | None = None,
        image_ids: Sequence[str | None] = (),
        videos: Sequence[VideoLike | None] = (),
        audios: Sequence[AudioLike | None] = (),
        names: Sequence[MediaName | None] = (),
        sampling: Sampling | None = None,
        n: int = 1,
        hidden_states: bool | RowsWanted = False,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> PieceStream:
        """Continue a prompt as `generate`, and yield lists of tokens as they are computed, then the `Generation`.

        The first step sends the request. Each token comes once, in order; tokens that arrive while the caller is busy
        come in one list. Other calls may be made in between. Leaving the loop early, closing the iterator or cancelling
        its task ends the request in the service; `timeout_s` is the deadline of the whole generation.

        With `hidden_states=RowsWanted(delivery="delta")` rows are also yielded as they are computed, those of the
        prompt from its first chunk on: a `RowRange` of each key, then the tokens. Each row comes once, in order, and
        never after the token that it gave. `Generation.rows` has the rows after the last range, which came with the
        answer. With delivery "full" it has all rows, and no range is yielded. If the service loses rows on the way, the
        stream ends with a retryable error.

        With `n` each piece has the number of its answer, `answer_index`. The first answer begins alone, the others with
        its first token; each ends with its `Generation`.

        >>> for piece in client.generate_stream("Tell me", max_tokens=64):       # doctest: +SKIP
        ...     if isinstance(piece, list):
        ...         print(piece)
        """
        files = RequestFiles.of(images, image_ids, videos, audios, messages, names=names)
        request = self._generate(
            prompt,
            files,
            max_tokens=max_tokens,
            sampling=sampling,
            hidden_states=hidden_states,
            priority=priority,
            timeout_s=timeout_s,
            stream_window=STREAM_WINDOW,
        )
        num_answers = checked_num_answers(n, request.sampling)
        requests = [request, *further_requests(request, num_answers, self.contact.next_id)]
        if files.names:
            return self._stream(requests, (), lambda attempt: self._model.by_name(files, attempt))
        return self._stream(requests, files.read())

    def encode(
        self,
        images: Sequence[ImageLike | None] = (),
        *,
        image_ids: Sequence[str | None] = (),
        videos: Sequence[VideoLike | None] = (),
        audios: Sequence[AudioLike | None] = (),
        names: Sequence[MediaName | None] = (),
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
    ) -> Verb[list[Any]]:
        """Return the encoder's output for each image: an owned CPU tensor, or a dict of tensors by name.

        After those comes a `Clip` for each video, then for each sound, with an output for each of its slices. The
        reference model's outputs are int32 `(num_embeds, hidden_size)`; `processor_info` describes those of other
        encoders, which may have several outputs per image.

        Outputs that were encoded before, for any client on this host, are found in shared memory without a message to
        the service; large outputs are returned through shared memory.

        Args:
            images, image_ids, videos, audios, names: As for `generate`.
            view: Return tensors in shared memory in place, without a copy: see `get`. **Read them, never write.**
            tensors: As for `get`.
            timeout_s: Deadline of this call.

        Raises:
            MmcachedError: As `generate`.
        """
        files = RequestFiles.of(images, image_ids, videos, audios, names=names)
        reading = reading_of(tensors, view)
        request = Encode(
            self.contact.client_id,
            self.contact.next_id(),
            self.contact.limit_s(timeout_s),
            self.contact.options.tenant,
            files.image_ids,
            clips=files.clips,
            traceparent=self._traceparent(),
        )
        return self._model.encode(request, files, reading, self.contact.deadline(timeout_s))

    # ---- the service

    def ping(self, *, timeout_s: float = 1.0) -> Verb[bool]:
        """Return True once the service has answered a message; never fails open. `probe` also asks its engines.

        Raises:
            DeadlineExceeded, ServiceUnavailable: The service has not answered.
        """
        message, _ = yield from self._ask(HaveRecords(self.contact.next_id(), []), timeout_s)
        expect(message, Present)
        return True

    def invalidate(self, *, timeout_s: float = 30.0, version: str = "") -> Verb[None]:
        """Begin a new epoch, because weights or a processor have changed; never fails open.

        Drops all cached content as `flush` does; results being computed now are not kept either, and running
        generations go on.

        Args:
            version: Name of what is computed from now on, such as "v2": with a second level this host then shares with
                hosts of the same version only. Up to 64 letters, digits and `._+-`.
        """
        name = checked_version(version)
        try:
            message, _ = yield from self._ask(Flush(self.contact.next_id(), True, name), timeout_s)
            expect(message, Flushed)
        finally:
            self.contact.greet_again()  # learns the new epoch, also if the second level has not been flushed

    def flush(self, *, timeout_s: float = 30.0) -> Verb[None]:
        """Drop all cached content of the service; running requests start over, with the same results.

        The second level drops the records of all hosts; records in the stores of other hosts stay there.

        Raises:
            SecondLevelNotFlushed: All content is dropped except that of the second level, in which no record is found
                from here until it has been flushed too.
        """
        message, _ = yield from self._ask(Flush(self.contact.next_id()), timeout_s)
        expect(message, Flushed)

    def stats(self, *, timeout_s: float = 10.0) -> Verb[ServiceStats]:
        """Return the statistics of all roles since they started."""
        message, _ = yield from self._ask(GetStats(self.contact.next_id()), timeout_s)
        return stats_from(expect(message, Stats))

    def processor_info(self, *, timeout_s: float = 10.0) -> Verb[ServiceForms]:
        """Return names, dtypes and shapes of tensors: those the encoder takes and returns, and the rows of `generate`.

        Raises:
            ServiceUnavailable: No engine is ready; the service may be a store alone.
        """
        message, _ = yield from self._ask(GetProcessorInfo(self.contact.next_id()), timeout_s)
        return expect(message, ProcessorInfo).forms

    def probe(self, *, timeout_s: float = 1.0) -> Verb[Probed]:
        """Return how many engines and workers the data path reaches: a small item goes through all of them.

        Raises:
            DeadlineExceeded, ServiceUnavailable: The data path does not work; the text names the place.
        """
        # The service gets nine tenths of the time, so that it can still report where the probe is stuck.
        request = Probe(self.contact.next_id(), 0.9 * self.contact.limit_s(timeout_s))
        message, _ = yield from self._ask(request, timeout_s)
        return expect(message, Probed)

    def connect(self, *, is_patient: bool = True) -> Verb[Welcome]:
        """Greet the service unless in contact; return its description of itself."""
        deadline = self.contact.deadline(self.contact.options.connect_timeout_s)
        return self.contact.connect(deadline, is_patient=is_patient)

    # ---- internals

    def _generate(
        self,
        prompt: str | Sequence[int] | None,
        files: RequestFiles,
        *,
        max_tokens: int,
        sampling: Sampling | None,
        hidden_states: bool | RowsWanted,
        priority: int,
        timeout_s: float | None,
        stream_window: int = 0,
    ) -> Generate:
        return Generate(
            client_id=self.contact.client_id,
            request_id=self.contact.next_id(),
            prompt=files.checked_prompt(prompt),
            max_tokens=checked_int("max_tokens", max_tokens, 1, MAX_TOKENS),
            timeout_s=self.contact.limit_s(timeout_s),
            rows=checked_rows(hidden_states),
            tenant=self.contact.options.tenant,
            image_ids=files.image_ids,
            stream_window=stream_window,
            priority=checked_int("priority", priority, -MAX_PRIORITY - 1, MAX_PRIORITY),
            clips=files.clips,
            traceparent=self._traceparent(),
            sampling=checked_sampling(sampling),
            messages=files.messages,
        )

    def _traceparent(self) -> str:
        """Return the W3C `traceparent` of the request's span; "" without one."""
        return ""

    def _note_known(self, num_known: int, num_items: int) -> None:
        """Record how many items of an `encode` were found without a message; overridden by `TracedCalls`."""

    def _stream(
        self,
        requests: Sequence[Generate],
        files: Sequence[Frame],
        by_name: Callable[[Attempt], Verb[Piece]] | None = None,
    ) -> PieceStream:
        return PieceStream(self.contact, requests, files, by_name)

    def _ask(self, request: Request, timeout_s: float | None, payload: Sequence[Frame] = ()) -> Verb[Received]:
        """Exchange a request that does not fail open."""
        deadline = self.contact.deadline(timeout_s)
        yield from self.contact.connect(deadline)
        return (yield from self.contact.exchange(request, deadline, payload))
