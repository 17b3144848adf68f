"""Lists the requests that the frontend has accepted and not yet answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mmcached.cache.checkpoints.answer_text import AnswerText
from mmcached.cache.checkpoints.language import Language
from mmcached.gateway.caches.item_cache import OutgoingItem
from mmcached.gateway.engines.engine_connections import EngineConnection
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.requests.open_stream import OpenStream
from mmcached.gateway.requests.waits import Verb, Wait
from mmcached.wire.messages.client import Encoded, Failed, Generated
from mmcached.wire.messages.frontend import Encode, Generate
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.vocabulary import TOKEN_IDS, Modality

if TYPE_CHECKING:
    from mmcached.wire.tracing import RequestSpan

Answer = tuple[Encoded | Generated | Failed, Sequence[Frame]]
"""The answer to a client, and its frames."""


@dataclass(slots=True, eq=False)
class Sent:
    """The share of an engine's resources that a sent request uses, until the engine has answered.

    Attributes:
        num_prompt_tokens: Tokens of the prompt with all placeholders.
        num_waiting: Prompt tokens that the engine has not computed yet; 0 from its first token on.
        pinned: Items in the store that are pinned for it.
        inline_bytes: Bytes of its items that travelled as frames.
        loaded_bytes: Bytes of encoder outputs that the engine leases for it.
    """

    engine: EngineConnection
    num_prompt_tokens: int
    num_waiting: int
    pinned: Sequence[OutgoingItem]
    inline_bytes: int
    loaded_bytes: int

    def __post_init__(self) -> None:
        self.engine.num_open += 1
        self.engine.num_waiting += self.num_waiting
        self.engine.loaded_bytes += self.loaded_bytes

    def prompt_computed(self) -> None:
        """Record that the engine has computed the prompt."""
        self.engine.num_waiting -= self.num_waiting
        self.num_waiting = 0

    def end(self) -> None:
        """Take the request off the engine's figures; to be called once."""
        self.prompt_computed()
        self.engine.num_open -= 1
        self.engine.loaded_bytes -= self.loaded_bytes


@dataclass(slots=True, eq=False)
class OpenRequest:
    """One accepted request.

    Attributes:
        number: Identifies it for the engines; unique for the life of this frontend.
        media: Its files, kept so that the items can be sent again after a miss; in prompt order once `token_ids` are
            known.
        deadline: In seconds on the frontend's clock.
        came_at: Time at which it was read, on the same clock.
        token_ids: The prompt with one token per medium; empty until known.
        marks: The tokens that stand for media, by modality.
        language: The checkpoint that continues it; None for the reference model, and if it is only encoded.
        verb: The generator that serves it; None before it is accepted.
        wait: Its present wait.
        sent: Its share of its engine; None while no engine has it.
        stream: Its tokens on their way to a client that takes them as they are computed.
        has_to_be_inline: Whether its answer must not name records: some that were named are missing from the store.
        text: Text of its tokens, if there is a tokenizer.
        span: Span of this process's part, if spans are made.
    """

    number: int
    peer: bytes
    message: Generate | Encode
    media: list[Medium]
    deadline: float
    came_at: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    marks: Mapping[Modality, int] = field(default_factory=lambda: TOKEN_IDS)
    language: Language | None = None
    verb: Verb[Answer] | None = None
    wait: Wait = field(default_factory=Wait)
    sent: Sent | None = None
    stream: OpenStream | None = None
    num_resends: int = 0
    has_to_be_inline: bool = False
    text: AnswerText | None = None
    span: RequestSpan | None = None

    @property
    def takes_keys(self) -> bool:
        """Whether its answer may name results by their keys in the store."""
        return self.message.takes_keys and not self.has_to_be_inline and not self.num_resends

    @property
    def keys(self) -> list[str]:
        """Known keys of its items in prompt order, each of an image or of a clip's slice."""
        return [key for medium in self.media for key in medium.keys]

    @property
    def items(self) -> list[tuple[Medium, str]]:
        """Medium and key of each item, in prompt order."""
        return [(medium, key) for medium in self.media for key in medium.keys]

    @property
    def has_names(self) -> bool:
        """Whether its client has given an image an id."""
        return any(medium.name is not None for medium in self.media)

    @property
    def file_bytes(self) -> int:
        return sum(len(medium.data) for medium in self.media)

    def ids_of(self, keys: Iterable[str]) -> list[str]:
        """Return the client's ids, or digests, of the items with these keys, each once, in prompt order."""
        wanted = set(keys)
        ids = [each.content or each.name for each, key in self.items if key in wanted]
        return list(dict.fromkeys(each for each in ids if each is not None))


class RequestTable:
    """All open requests, by number; also found by client, by engine and by deadline.

    A client uses each of its request ids for one open request at a time.
    """

    def __init__(self) -> None:
        self._by_number: dict[int, OpenRequest] = {}
        self._by_client: dict[tuple[str, int], OpenRequest] = {}
        self._num_of_client: Counter[str] = Counter()
        self._file_bytes_of_client: Counter[str] = Counter()
        self._last_number = 0

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

    def get(self, number: int) -> OpenRequest | None:
        return self._by_number.get(number)

    def take(self, number: int) -> OpenRequest | None:
        """Remove and return a request; None if it is not open."""
        request = self._by_number.pop(number, None)
        if request is not None:
            client_id = request.message.client_id
            del self._by_client[client_id, request.message.request_id]
            self._num_of_client[client_id] -= 1
            self._file_bytes_of_client[client_id] -= request.file_bytes
            if not self._num_of_client[client_id]:
                del self._num_of_client[client_id], self._file_bytes_of_client[client_id]
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

    def on_engine(self, engine: EngineConnection) -> list[OpenRequest]:
        return [request for request in self if request.sent is not None and request.sent.engine is engine]

    def expired(self, now: float) -> list[OpenRequest]:
        return [request for request in self if request.deadline <= now]
