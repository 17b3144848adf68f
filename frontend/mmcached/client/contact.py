"""Contact of one client id with the service: greets it, numbers requests, and returns their answers.

    not greeted ──ClientHello──> Welcome: in contact ──connection lost, or a new epoch asked for──> not greeted
                      └── failed: not tried again for a second, except by patient calls

Every call begins with `connect`, so contact is restored after any restart. A request whose caller has stopped waiting,
for any reason, is cancelled in the service too.

    Contact ──makes when first needed──> Link      closed: raises `ClientClosed`; in a forked child `RequestAborted`

Any thread may call any method. Invariant: all messages of a call carry the client id that it began with.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from mmcached.client.arguments import Options, checked_timeout
from mmcached.client.links.link import Link
from mmcached.client.links.shared_socket import CLOSED, PARENTS, Received
from mmcached.client.store.sessions import StoreSessions
from mmcached.client.verb import Verb
from mmcached.wire.errors import DeadlineExceeded, MmcachedError, ServiceUnavailable, copy_of, error_from_wire
from mmcached.wire.messages.client import Failed, ToClient, Welcome
from mmcached.wire.messages.frontend import Cancel, Request
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import Frame

_LOG = logging.getLogger("mmcached.client")
RETRY_INTERVAL_S = 1.0
"""Seconds after a failed contact until the next attempt."""

MakeLink = Callable[..., Link[Any]]
"""`ThreadLink`, `LoopLink`, or a function with their arguments that makes one."""


class Deadline(NamedTuple):
    """The end of a call.

    Attributes:
        at: Time of the monotonic clock in seconds.
        timeout_s: Seconds from the begin of the call to `at`.
    """

    at: float
    timeout_s: float


class Contact:
    """The connection and requests of one client id.

    Args:
        sessions: Handles messages for the store that are not answers.

    Attributes:
        welcome: Greeting of the current frontend; None without contact.
    """

    def __init__(self, directory: RunDir, options: Options, make_link: MakeLink, sessions: StoreSessions) -> None:
        self.client_id = secrets.token_hex(16)
        self.directory = directory
        self.options = options
        self.welcome: Welcome | None = None
        self._sessions = sessions
        self._make_link = partial(make_link, directory, self.client_id)
        self._ids = count(1)
        self._lock = threading.RLock()
        self._link: Link[Any] | None = None
        self._refusal: MmcachedError | None = None
        self._was_away = False
        self._retry_at = time.monotonic()

    @property
    def is_closed(self) -> bool:
        return self._refusal is CLOSED

    @property
    def is_over(self) -> bool:
        """Whether no message may be sent any more: closed, or the parent's in a forked child."""
        return self._refusal is not None

    def refusal(self) -> MmcachedError:
        """Return the error to raise for a call after the end."""
        return copy_of(self._refusal or PARENTS)

    def next_id(self) -> int:
        """Return the number of the next request."""
        return next(self._ids)

    def limit_s(self, timeout_s: float | None) -> float:
        """Return the time limit of a call in seconds: `timeout_s`, or the client's default."""
        return self.options.timeout_s if timeout_s is None else checked_timeout("timeout_s", timeout_s)

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Return the deadline of a call that begins now."""
        limit_s = self.limit_s(timeout_s)
        return Deadline(time.monotonic() + limit_s, limit_s)

    # ---- verbs

    def connect(self, deadline: Deadline, *, is_patient: bool = True) -> Verb[Welcome]:
        """Greet the service unless in contact; return its greeting.

        Raises:
            ServiceUnavailable: The service is missing; or it was missing less than `RETRY_INTERVAL_S` ago.
        """
        if self.catch_up() is None:
            now = time.monotonic()
            if now < self._retry_at and not is_patient:
                raise ServiceUnavailable("the service was not there a moment ago; it is looked for once a second")
            until = min(deadline.at, now + self.options.connect_timeout_s)
            try:
                yield from self.link().greet(until, is_patient=is_patient)
            except MmcachedError:
                self._retry_at = time.monotonic() + RETRY_INTERVAL_S
                self._was_away = True
                raise
            if self._was_away:
                self._was_away = False
                _LOG.info("the service is there again")
        welcome = self.welcome
        if welcome is None:
            raise ServiceUnavailable("the service has just gone; try again")
        return welcome

    def exchange(self, request: Request, deadline: Deadline, payload: Sequence[Frame] = ()) -> Verb[Received]:
        """Send a request and return its answer; requires contact.

        Raises:
            DeadlineExceeded, PeerGone, ChannelFull, RequestAborted: Retryable.
            RemoteProtocolError: The answer is invalid.
        """
        link = self.link()
        try:
            found = yield from link.ask(request.request_id, link.new_waiter(), request, payload, deadline.at)
            if found is None:
                raise DeadlineExceeded(type(request).__name__.lower(), deadline.timeout_s)
        except BaseException:
            link.tell(Cancel(self.client_id, request.request_id))
            raise
        return found

    def exchange_all(
        self, requests: Sequence[Request], deadline: Deadline, payload: Sequence[Frame] = ()
    ) -> Verb[list[Received]]:
        """Send requests, each with the payload, and return their answers in order; the first error cancels all."""
        link, found = self.link(), list[Received]()
        waiters = [link.open(request.request_id) for request in requests]
        try:
            for request in requests:
                link.send(request, payload)
            for waiter in waiters:
                if not waiter.news:
                    yield partial(link.wait, waiter, deadline.at)
                if not waiter.news:
                    raise DeadlineExceeded(type(requests[0]).__name__.lower(), deadline.timeout_s)
                news = waiter.news.popleft()
                if isinstance(news, MmcachedError):
                    raise news
                if isinstance(news[0], Failed):
                    raise error_from_wire(news[0].error)
                found.append(news)
        except BaseException:
            for request in requests:
                link.tell(Cancel(self.client_id, request.request_id))
            raise
        finally:
            for request in requests:
                link.leave(request.request_id)
        return found

    # ---- without waiting

    def catch_up(self) -> Welcome | None:
        """Handle received messages; return the greeting, or None if the service has to be greeted."""
        if (link := self._link) is not None:
            link.catch_up()
        return self.welcome

    def tell(self, message: object) -> None:
        """Send a message that has no answer, or drop it."""
        if (link := self._link) is not None:
            link.tell(message)

    def greet_again(self) -> None:
        """Make the next call greet the service again, to learn its new state."""
        self.welcome = None

    def lose(self) -> None:
        """Record the loss of the connection; the frontend may be another one by now."""
        self._was_away = True
        self.welcome = None
        self._sessions.lose_contact()

    def link(self) -> Link[Any]:
        """Return the connection, made on first use; other errors as for `Link`.

        Raises:
            ClientClosed: The client was closed.
            RequestAborted: It is the parent's, in a forked child.
        """
        link = self._link
        if link is not None:
            return link
        with self._lock:
            if self.is_over:
                raise self.refusal()
            if self._link is None:
                self._link = self._make_link(
                    name=self.options.name,
                    on_arrival=self._sessions.arrived,
                    on_unsolicited=self._unsolicited,
                    on_loss=self.lose,
                )
            return self._link

    def abandon(self) -> None:
        """In a forked child: release the parent's connection; calls in progress here end with `RequestAborted`."""
        self._refusal = self._refusal or PARENTS
        self._lock = threading.RLock()  # the thread that held it may not exist here
        self._sessions.abandon()
        if self._link is not None:
            self._link.abandon()

    def close(self) -> None:
        """Release all resources except views; open and later calls end with `ClientClosed`."""
        with self._lock:
            self._refusal = self._refusal or CLOSED
            link, self._link = self._link, None
        self._sessions.close()
        if link is not None:
            link.close()

    def _unsolicited(self, message: ToClient) -> object | None:
        if isinstance(message, Welcome):
            self.welcome = message
            return None
        return self._sessions.unsolicited(message, self.client_id)
