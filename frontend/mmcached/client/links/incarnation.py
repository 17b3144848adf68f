"""Holds what a `Client` has until it is forked or its connection breaks: one client id, its verbs and its link.

    Client ──now──> incarnation 1 ──forked, or a link in pieces──> incarnation 2 …

A call stays with the incarnation that it began with, so what it has claimed or taken is never said under another's id;
in a forked child, or over a broken link, the rest of it fails with `RequestAborted`, which may be tried again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, TypeVar

from mmcached.client.links.conversation import Ask, Conversation, Options
from mmcached.client.links.shared_socket import Received
from mmcached.client.links.sync_link import SyncLink
from mmcached.client.links.uninterrupted import uninterrupted
from mmcached.client.results import Generation, Piece
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.store.steps import Compute, Exchange, Greet, Step, Verb, drive
from mmcached.client.store.verbs import StoreVerbs
from mmcached.wire.errors import RequestAborted
from mmcached.wire.messages.frontend import Generate
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.channels import Frame

T = TypeVar("T")


class Incarnation:
    """One client id. It connects with its first call; any thread may call anything."""

    def __init__(self, directory: RunDir, options: Options, guard: FailOpen) -> None:
        self.talk = Conversation(options)
        self.verbs = StoreVerbs(self.talk, guard, tell=self._tell)
        self._directory = directory
        self._lock = threading.RLock()
        self._link: SyncLink | None = None
        self._is_closed = self._is_abandoned = False

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be said any more, though nobody has closed it."""
        link = self._link
        return link is not None and link.is_broken

    def contact(self, deadline: float, *, is_patient: bool) -> None:
        """Greet the service unless in contact. Raises as `StoreVerbs.connect`."""
        drive(self.verbs.connect(deadline, is_patient=is_patient), self._perform)

    def call(self, request: Ask, payload: Sequence[Frame], timeout_s: float) -> Received:
        """Exchange a request that does not fail open; whatever ends the wait for it ends it in the service too."""
        deadline = time.monotonic() + timeout_s
        self._catch_up()
        self.contact(deadline, is_patient=True)
        try:
            return self._connection().exchange(request, payload, deadline=deadline, timeout_s=timeout_s)
        except BaseException:
            self._tell(self.talk.cancel(request.request_id))
            raise

    def stream(self, request: Generate, payload: Sequence[Frame]) -> Generator[Piece]:
        """Exchange a request whose tokens come as they commit; nothing is asked before the first step."""
        deadline = time.monotonic() + request.timeout_s
        self._catch_up()
        self.contact(deadline, is_patient=True)
        link = self._connection()
        stream = link.open_stream(request, payload)
        try:
            while True:
                link.wait_for_news(stream, deadline=deadline, timeout_s=request.timeout_s)
                piece = stream.take()
                if (receipt := stream.take_receipt()) is not None:
                    link.tell(receipt)
                yield piece
                if isinstance(piece, Generation):
                    return
        finally:
            link.end_stream(stream)

    def run(self, verb: Verb[T]) -> T:
        """Run a verb of the store to its end."""
        self._catch_up()
        result = drive(verb, self._perform)
        if self._is_closed:
            raise RequestAborted("the client was closed")  # what became of the call is not a miss
        return result

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's; what goes on here ends with `RequestAborted`."""
        self._is_abandoned = True
        self._lock = threading.RLock()  # the thread that held it may not exist here
        self.verbs.abandon()
        if self._link is not None:
            self._link.abandon()

    def close(self) -> None:
        """Let go of everything but views; open calls end with `RequestAborted`. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            link, self._link = self._link, None
        self.verbs.close()
        if link is not None:
            link.close()

    def _connection(self) -> SyncLink:
        link = self._link
        if link is not None:
            return link
        with self._lock:
            if self._is_closed or self._is_abandoned:
                raise RequestAborted("the client was closed, or is the parent's")
            if self._link is None:
                verbs = self.verbs
                make = partial(SyncLink, arrived=verbs.arrived, hear=verbs.hear, lost=verbs.lose_contact)
                self._link = uninterrupted(partial(make, self._directory, self.talk.client_id))
            return self._link

    def _catch_up(self) -> None:
        if (link := self._link) is not None:
            link.catch_up()

    def _tell(self, message: object) -> None:
        if (link := self._link) is not None:
            link.tell(message)

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
