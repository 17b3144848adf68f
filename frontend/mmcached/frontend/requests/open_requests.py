"""Lists the requests that the frontend has accepted and not yet answered.

Knows nothing of sockets, caches or the ring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mmcached.frontend.processing.media import Medium
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.client import Encoded, Generated
from mmcached.wire.messages.frontend import Encode, Generate
from mmcached.wire.sockets.frames import Frame

if TYPE_CHECKING:
    from mmcached.wire.tracing import RequestSpan


@dataclass(slots=True)
class OpenRequest:
    """One accepted request.

    Attributes:
        number: what the engine knows it by; unique for the life of this frontend.
        media: its files, kept so that the items can be sent again after a miss; in prompt order once `token_ids` are
            known.
        deadline: on the frontend's clock, seconds.
        came_at: when it was read, on the same clock.
        engine: incarnation of the engine that has it; 0 while it is being prepared.
        num_prompt_tokens: with all placeholders.
        num_waiting: of these, those that its engine has still to compute; 0 from its first token on.
        token_ids: the prompt with one token per medium.
        answer: its answer, and the frames of that, which names records that the store may not have yet.
        has_to_be_inline: records were named for it that are not in the store.
        span: of this process's part, if spans are made.
    """

    number: int
    peer: bytes
    message: Generate | Encode
    media: list[Medium]
    deadline: float
    engine: int = 0
    num_prompt_tokens: int = 0
    num_waiting: int = 0
    num_resends: int = 0
    came_at: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    answer: tuple[Encoded | Generated, Sequence[Frame]] | None = None
    has_to_be_inline: bool = False
    span: RequestSpan | None = None

    @property
    def takes_keys(self) -> bool:
        """Whether its results may be named by their keys in the store."""
        return self.message.takes_keys and not self.has_to_be_inline and not self.num_resends

    @property
    def keys(self) -> list[str]:
        """Keys of its items in prompt order, each of an image or of a clip's slice, as far as they are known."""
        return [key for medium in self.media for key in medium.keys]

    @property
    def items(self) -> list[tuple[Medium, str]]:
        """Medium and key of each item, in prompt order."""
        return [(medium, key) for medium in self.media for key in medium.keys]

    @property
    def has_names(self) -> bool:
        """Whether its client calls an image by an id."""
        return any(medium.name is not None for medium in self.media)

    @property
    def file_bytes(self) -> int:
        return sum(len(medium.data) for medium in self.media)

    def ids_of(self, keys: Iterable[str]) -> list[str]:
        """Return what the client calls the items with these keys, each id once, in prompt order."""
        wanted = set(keys)
        return list(dict.fromkeys(each.name for each, key in self.items if key in wanted and each.name is not None))


@dataclass(slots=True)
class OpenRequests:
    """All open requests, by number; also found by client, by engine and by deadline.

    A client uses each of its request ids for one open request at a time.
    """

    _by_number: dict[int, OpenRequest] = field(default_factory=dict)
    _by_client: dict[tuple[str, int], OpenRequest] = field(default_factory=dict)
    _num_of_client: Counter[str] = field(default_factory=Counter)
    _file_bytes_of_client: Counter[str] = field(default_factory=Counter)
    _num_on_engine: Counter[int] = field(default_factory=Counter)
    _tokens_on_engine: Counter[int] = field(default_factory=Counter)
    _last_number: int = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(list(self._by_number.values()))

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def add(self, request: OpenRequest) -> None:
        self._by_number[request.number] = request
        self._by_client[request.message.client_id, request.message.request_id] = request
        self._num_of_client[request.message.client_id] += 1
        self._file_bytes_of_client[request.message.client_id] += request.file_bytes
        self._join_engine(request)

    def get(self, number: int) -> OpenRequest | None:
        return self._by_number.get(number)

    def take(self, number: int) -> OpenRequest | None:
        """Remove and return a request; None if it is not open (any more)."""
        request = self._by_number.pop(number, None)
        if request is not None:
            client_id = request.message.client_id
            del self._by_client[client_id, request.message.request_id]
            self._num_of_client[client_id] -= 1
            self._file_bytes_of_client[client_id] -= request.file_bytes
            if not self._num_of_client[client_id]:
                del self._num_of_client[client_id], self._file_bytes_of_client[client_id]
            self._leave_engine(request)
        return request

    def find(self, client_id: str, request_id: int) -> OpenRequest | None:
        return self._by_client.get((client_id, request_id))

    def clients(self) -> set[str]:
        return set(self._num_of_client)

    def num_of_client(self, client_id: str) -> int:
        return self._num_of_client[client_id]

    @property
    def file_bytes(self) -> int:
        return self._file_bytes_of_client.total()

    def file_bytes_of_client(self, client_id: str) -> int:
        return self._file_bytes_of_client[client_id]

    def of_client(self, client_id: str) -> list[OpenRequest]:
        return [request for request in self if request.message.client_id == client_id]

    def move(self, request: OpenRequest, engine: int, num_waiting: int = 0) -> None:
        """Note that an engine has a request now, open already or not yet, and has so many tokens to compute for it."""
        is_open = request.number in self._by_number
        if is_open:
            self._leave_engine(request)
        request.engine, request.num_waiting = engine, num_waiting
        if is_open:
            self._join_engine(request)

    def prompt_computed(self, request: OpenRequest) -> None:
        """Note that an open request's engine has computed its prompt."""
        self._tokens_on_engine[request.engine] -= request.num_waiting
        request.num_waiting = 0

    def num_on_engine(self, engine: int) -> int:
        return self._num_on_engine[engine]

    def tokens_on_engine(self, engine: int) -> int:
        """Return how many prompt tokens an engine has still to compute for its requests."""
        return self._tokens_on_engine[engine]

    def on_engine(self, engine: int) -> list[OpenRequest]:
        return [request for request in self if request.engine == engine]

    def expired(self, now: float) -> list[OpenRequest]:
        return [request for request in self if request.deadline <= now]

    def check_integrity(self) -> None:
        """Raise `InvariantError` if requests are counted on an engine that does not have them."""
        tokens: Counter[int] = Counter()
        for request in self:
            tokens[request.engine] += request.num_waiting
        if self._num_on_engine != Counter(request.engine for request in self) or self._tokens_on_engine != tokens:
            counted = f"{dict(self._num_on_engine)} and {dict(self._tokens_on_engine)} tokens are counted"
            raise InvariantError(f"requests on engines: {counted}")

    def _join_engine(self, request: OpenRequest) -> None:
        self._num_on_engine[request.engine] += 1
        self._tokens_on_engine[request.engine] += request.num_waiting

    def _leave_engine(self, request: OpenRequest) -> None:
        self._num_on_engine[request.engine] -= 1
        self._tokens_on_engine[request.engine] -= request.num_waiting
        if not self._num_on_engine[request.engine]:
            del self._num_on_engine[request.engine], self._tokens_on_engine[request.engine]
