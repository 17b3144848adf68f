"""What `Client` and `AsyncClient` say, without sockets: builds each message, and checks what comes back."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from mmcached.shm.lock_file import LockFile
from mmcached.wire.errors import InvalidRequest, MmcachedError, RemoteProtocolError, ServiceUnavailable, error_from_wire
from mmcached.wire.messages.client import Encoded, Failed, Flushed, Generated, Probed, Stats, ToClient, Welcome
from mmcached.wire.messages.frontend import Cancel, ClientHello, Encode, Flush, Generate, GetStats, Probe
from mmcached.wire.messages.parts import Barrier
from mmcached.wire.paths import RunDir

MAX_TIMEOUT_S = 86_400.0
AnswerT = TypeVar("AnswerT", Generated, Encoded, Stats, Probed, Flushed)
Ask = Generate | Encode | GetStats | Probe | Flush


@dataclass(slots=True)
class Options:
    """Settings of a client.

    Attributes:
        timeout_s: deadline of a call that names none.
        connect_timeout_s: how long the first contact may take.
        tenant: name under which items are cached; other tenants never hit them.
    """

    timeout_s: float = 60.0
    connect_timeout_s: float = 10.0
    tenant: str = ""


class Conversation:
    """Numbers the requests of one client and checks what comes back."""

    def __init__(self, options: Options) -> None:
        self.client_id = secrets.token_hex(16)
        self.options = options
        self._ids = count(1)

    def hello(self) -> ClientHello:
        return ClientHello(self.client_id)

    def generate(
        self, prompt: str | Sequence[int], *, max_tokens: int, hidden_states: bool, timeout_s: float | None
    ) -> Generate:
        return Generate(
            client_id=self.client_id,
            request_id=next(self._ids),
            prompt=prompt if isinstance(prompt, str) else list(prompt),
            max_tokens=max_tokens,
            want_hidden_states=hidden_states,
            timeout_s=self._timeout(timeout_s),
            tenant=self.options.tenant,
        )

    def encode(self, *, timeout_s: float | None) -> Encode:
        return Encode(self.client_id, next(self._ids), self._timeout(timeout_s), self.options.tenant)

    def probe(self, *, timeout_s: float) -> Probe:
        return Probe(next(self._ids), self._timeout(timeout_s))

    def flush(self) -> Flush:
        return Flush(next(self._ids))

    def get_stats(self) -> GetStats:
        return GetStats(next(self._ids))

    def cancel(self, request_id: int) -> Cancel:
        return Cancel(self.client_id, request_id)

    def _timeout(self, timeout_s: float | None) -> float:
        chosen = self.options.timeout_s if timeout_s is None else timeout_s
        if not 0 < chosen <= MAX_TIMEOUT_S:
            raise InvalidRequest("timeout_s", chosen, f"must be above 0 and at most {MAX_TIMEOUT_S}")
        return chosen


def open_presence(directory: RunDir, client_id: str) -> LockFile:
    """Take the lock that proves that this client lives; the frontend ends the requests of the dead.

    Raises:
        ServiceUnavailable: no service has ever run in that directory.
    """
    while True:
        try:
            return LockFile(directory.client_lock(client_id))
        except BlockingIOError:
            continue  # the frontend took the new file for a dead client's and holds it just to remove it
        except FileNotFoundError:
            break
    fix = f"start one: mmcached serve --run-dir {directory.path}"
    raise ServiceUnavailable(f"no service in {directory.path}; {fix}")


def answer_id(message: ToClient) -> int | None:
    """Return which request a message answers; None for one that answers no request in particular."""
    return None if isinstance(message, Welcome | Barrier) else message.request_id


def failure_of(message: ToClient) -> MmcachedError | None:
    """Return the error that a message reports, rebuilt as its class, or None."""
    return error_from_wire(message.error) if isinstance(message, Failed) else None


def expect(message: ToClient, kind: type[AnswerT]) -> AnswerT:
    """Return the message if it is of the wanted kind.

    Raises:
        MmcachedError: what the service reported.
        RemoteProtocolError: the service answered something else.
    """
    error = failure_of(message)
    if error is not None:
        raise error
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message
