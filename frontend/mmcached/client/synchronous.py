"""`Client`: blocking calls, one at a time, for scripts and threaded servers. One client per thread."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import zmq

from mmcached.client.conversation import Ask, Conversation, Options, answer_id, expect, failure_of, open_presence
from mmcached.client.results import Generation, ImageLike, embeddings_from, generation_from, read_images
from mmcached.wire.channels import DealerChannel, Frame
from mmcached.wire.errors import DeadlineExceeded, PeerGone, ServiceUnavailable
from mmcached.wire.messages.client import Encoded, Flushed, Generated, Probed, Stats, ToClient, Welcome
from mmcached.wire.messages.frontend import ClientBye
from mmcached.wire.paths import RunDir, default_run_dir
from mmcached.wire.stats import ServiceStats

if TYPE_CHECKING:
    import torch

GRACE_S = 2.0
"""How much longer than the request's own deadline a client waits, so that the service can report it first."""
LOOK_INTERVAL_S = 0.1
"""How often a waiting client looks whether the frontend is still there."""


class Client:
    """Talk to the service of a run directory.

    >>> with Client("/run/mmcached") as client:                      # doctest: +SKIP
    ...     answer = client.generate("What is this? <image>", ["cat.png"], max_tokens=16)
    ...     answer.tokens

    Args:
        run_dir: the service's run directory; default as `mmcached serve` has it.
        timeout_s: deadline of each call that names none.
        connect_timeout_s: how long the constructor may wait for the service.
        tenant: name under which items are cached; other tenants never hit them.
    Raises:
        ServiceUnavailable: nobody answers in that directory.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        *,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
        tenant: str = "",
    ) -> None:
        directory = RunDir(Path(run_dir) if run_dir is not None else default_run_dir())
        self._talk = Conversation(Options(timeout_s, connect_timeout_s, tenant))
        self._presence = open_presence(directory, self._talk.client_id)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._channel: DealerChannel[ToClient] = DealerChannel(self._context, directory.client_address, ToClient)
        try:
            self.service = self._handshake(connect_timeout_s)
        except BaseException:
            self.close()
            raise

    def generate(
        self,
        prompt: str | Sequence[int],
        images: Sequence[ImageLike] = (),
        max_tokens: int = 16,
        *,
        hidden_states: bool = False,
        timeout_s: float | None = None,
    ) -> Generation:
        """Continue a prompt greedily.

        Args:
            prompt: text with one `<image>` per image, or token ids with one image token per image.
            images: encoded image files, in the order of their markers.
            max_tokens: how many tokens to generate at most.
            hidden_states: also return the last layer's hidden states, cached prefix and new rows merged.
            timeout_s: deadline of this call.
        Raises:
            InvalidRequest: (and subclasses) the input is not acceptable; names field, value and limit.
            DeadlineExceeded, ServiceUnavailable, RequestAborted, PeerGone: retryable.
        """
        request = self._talk.generate(prompt, max_tokens=max_tokens, hidden_states=hidden_states, timeout_s=timeout_s)
        message, payload = self._call(request, read_images(images), request.timeout_s)
        return generation_from(expect(message, Generated), payload)

    def encode(self, images: Sequence[ImageLike], *, timeout_s: float | None = None) -> list[torch.Tensor]:
        """Return the embeddings of each image: int32 `(num_embeds, hidden_size)`, cpu, owned. Errors as `generate`."""
        request = self._talk.encode(timeout_s=timeout_s)
        message, payload = self._call(request, read_images(images), request.timeout_s)
        return embeddings_from(expect(message, Encoded), payload)

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

    def flush(self, *, timeout_s: float = 30.0) -> None:
        """Make the whole service forget what it has cached; requests that run start over, and end as they would
        have.
        """
        message, _ = self._call(self._talk.flush(), (), timeout_s)
        expect(message, Flushed)

    def close(self) -> None:
        """Tell the service that this client goes, and let go of everything. A second call does nothing."""
        if not self._context.closed:
            self._channel.send(ClientBye(self._talk.client_id))
            self._channel.close()
            self._context.term()
        self._presence.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _handshake(self, timeout_s: float) -> Welcome:
        self._channel.send(self._talk.hello())
        try:
            message, _ = self._channel.receive(timeout_s)
        except DeadlineExceeded:
            raise ServiceUnavailable(f"the service does not answer within {timeout_s} s") from None
        if isinstance(message, Welcome):
            return message
        raise failure_of(message) or ServiceUnavailable(f"unexpected greeting {type(message).__name__}")

    def _call(self, request: Ask, payload: Sequence[Frame], timeout_s: float) -> tuple[ToClient, list[Frame]]:
        """Send and wait for the answer to this request; late answers to earlier ones are dropped."""
        operation = type(request).__name__.lower()
        deadline = time.monotonic() + timeout_s + GRACE_S
        self._channel.take_disconnects()  # of former calls
        self._channel.send(request, payload)
        while True:
            try:
                message, frames = self._channel.receive(min(LOOK_INTERVAL_S, max(0.0, deadline - time.monotonic())))
            except DeadlineExceeded:
                if self._channel.take_disconnects():
                    raise PeerGone(f"{operation}: the frontend died while it was open; try again") from None
                if time.monotonic() < deadline:
                    continue
                self._channel.send(self._talk.cancel(request.request_id))
                raise DeadlineExceeded(operation, timeout_s) from None
            if answer_id(message) in (request.request_id, None) and not isinstance(message, Welcome):
                return message, frames
