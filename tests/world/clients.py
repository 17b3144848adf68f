"""Who asks a world for something: prompts that share prefixes, items and turns, and whether the answer is the truth.

Knows nothing of steps. A client is right or wrong by itself: what it was given is compared with a computation from
nothing, of its own tokens, under the weights that were in force.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from mmcached.engine import Request
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.engine import AddRequest
from mmcached.wire.messages.parts import Feature, Inline, Rows, RowsWanted, Tensor
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.row_pieces import RowPieces
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.vocabulary import END_TOKEN_ID, TOKEN_IDS
from tests.worker.oracle import (
    Item,
    modality_of,
    num_embeds_of,
    random_image,
    random_sound,
    random_video,
)
from tests.worker.rings import inline_frames
from tests.world.knobs import MAX_MODEL_LEN, Knobs
from tests.world.plainly import embeddings_of, plain_model

_RNG = np.random.default_rng(5)
_PATCH, _FRAME = 2, 3
_ITEMS: list[Item] = [
    random_image(_RNG, (1, 1), _PATCH),
    random_sound(_RNG, 2, _FRAME),
    random_video(_RNG, (1, 3), _PATCH),
    random_image(_RNG, (2, 2), _PATCH),
    random_sound(_RNG, 5, _FRAME),
    random_video(_RNG, (2, 3), _PATCH),
]
ITEMS = {f"{number:064d}": item for number, item in enumerate(_ITEMS)}
TWO_SIZES = "z" * 64
"""A name that some clients give to one image, and others to another of another size: one of them may be refused."""
OF_TWO_SIZES = (random_image(_RNG, (1, 2), _PATCH), random_image(_RNG, (1, 4), _PATCH))


@dataclass(slots=True)
class Client:
    """One request, from without.

    Attributes:
        items: of its features, in order.
        epochs: of the weights with which something was computed for it; of more than one, its answer is nobody's.
        streamed: by key, the rows that came before the answer.
        names: digests of its full blocks.
        truth: by key, its rows, once they were looked at.
        kills_at: a rank that computes this position of it dies; of an "encode" request, this item; None: none does.
    """

    message: AddRequest
    payload: list[Frame]
    items: list[Item]
    request: Request
    epochs: set[int] = field(default_factory=set)
    streamed: dict[str, RowPieces] = field(default_factory=dict)
    names: list[bytes] = field(default_factory=list)
    truth: Mapping[str, np.ndarray] = field(default_factory=dict)
    kills_at: int | None = None

    def most_steps(self, most_tokens: int) -> int:
        """Return in how many steps it is done if it is the first in order, and gets at least so many tokens in each.

        A chunk may end before an item, and behind it; tokens that were generated may have to be computed again.
        """
        num_tokens = len(self.message.prompt_token_ids) + self.message.max_tokens
        return -(-num_tokens // most_tokens) + self.message.max_tokens + 2 * len(self.items) + 1

    @property
    def most_progress(self) -> int:
        """How many positions of it are computed at least, or items."""
        return len(self.message.features) if self.message.kind == "encode" else len(self.message.prompt_token_ids)

    @property
    def names_two_sizes(self) -> bool:
        return any(feature.mm_hash == TWO_SIZES for feature in self.message.features)

    @property
    def streams_rows(self) -> bool:
        wanted = self.message.rows
        return self.message.is_streamed and wanted is not None and wanted.delivery == "delta"

    def take(self, rows: Rows, frames: Sequence[Frame]) -> None:
        """Take rows of a key as they come; each comes once."""
        assert self.message.rows is not None
        pieces = self.streamed.setdefault(rows.key, RowPieces(rows.key, self.message.rows.first_wanted))
        assert rows.first == pieces.end, f"{rows.key} of {rows.first} after those before {pieces.end}"
        pieces.put(rows, frames)

    def all_rows(self, rows: Sequence[Rows], frames: Sequence[Frame]) -> tuple[Sequence[Rows], Sequence[Frame]]:
        """Return the rows of the answer with those that came before it."""
        if not self.streams_rows:
            return rows, frames
        for part in rows:
            self.take(part, frames)
        pieces = [self.streamed[part.key] for part in rows]
        return [each.rows(index) for index, each in enumerate(pieces)], [each.data() for each in pieces]

    def check_generation(self, config: ServiceConfig, rows: Sequence[Rows], frames: Sequence[Frame]) -> None:
        """Compare tokens and rows with the truth, bit for bit, and the rows' range with what was asked for."""
        request, wanted, (epoch,) = self.request, self.message.rows, self.epochs
        model = plain_model(config, epoch)
        tokens, first_output = request.token_ids, request.num_prompt_tokens
        replaced = {}
        for feature, item in zip(self.message.features, self.items, strict=True):
            for index, row in enumerate(embeddings_of(config.model, epoch, item)):
                replaced[feature.offset + index] = row
        truth = self.truth = model.rows(tokens[:-1], replaced, num_prompt_tokens=first_output)
        assert tokens[first_output:] == model.next_tokens(truth["hidden_states"][first_output - 1 :])
        num_outputs = len(tokens) - first_output
        assert num_outputs == self.message.max_tokens or tokens[-1] == END_TOKEN_ID
        assert END_TOKEN_ID not in tokens[first_output:-1]
        assert [part.key for part in rows] == (wanted.keys if wanted is not None else [])
        for part in rows:
            first = wanted.first_wanted if wanted is not None else 0
            assert part.first == first
            assert np.array_equal(array_of(part.tensor, frames), truth[part.key][first:]), part.key

    def check_embeddings(self, model: ModelConfig, tensors: Sequence[Tensor], frames: Sequence[Frame]) -> None:
        (epoch,) = self.epochs
        for item, tensor in zip(self.items, tensors, strict=True):
            assert np.array_equal(array_of(tensor, frames), embeddings_of(model, epoch, item))

    def check_shape(self, rows: Sequence[Rows]) -> None:
        """Of an answer that belongs to no single epoch: it has what was asked for, of the range that was asked for."""
        wanted = self.message.rows
        assert [part.key for part in rows] == (wanted.keys if wanted is not None else [])
        for part in rows:
            assert wanted is not None
            assert part.first == wanted.first_wanted
            assert part.first + part.tensor.shape[0] == self.request.num_tokens - 1


def array_of(tensor: Tensor, frames: Sequence[Frame]) -> np.ndarray:
    return np.frombuffer(frames[tensor.frame], tensor.dtype).reshape(tensor.shape)


class Arrivals:
    """Makes the clients of a world, one after the other.

    Prompts repeat earlier ones, begin like them, go on where an answer ended, or are new; there are only two words.
    """

    def __init__(self, knobs: Knobs, config: ServiceConfig, rng: random.Random) -> None:
        self._knobs, self._config, self._rng = knobs, config, rng
        self._known: list[Client] = []

    def next(self) -> Client:
        rng, knobs = self._rng, self._knobs
        request_id = len(self._known) + 1
        kind = rng.random()
        if kind < 0.1 * knobs.p_items * 2:
            client = self._encode(request_id)
        elif kind < 0.22 and knobs.p_items > 0.3:
            client = self._of_two_sizes(request_id)
        else:
            client = self._generate(request_id)
        self._known.append(client)
        return client

    def _generate(self, request_id: int) -> Client:
        rng = self._rng
        tokens: list[int] = []
        named: list[tuple[int, str]] = []
        num_had = 0
        is_repeated = False
        tenant = rng.choice(("", "", "", "x"))
        earlier = [each for each in self._known if each.message.kind == "generate" and not each.names_two_sizes]
        if earlier and rng.random() < 0.8:
            base = rng.choice(earlier)
            tenant = base.message.tenant if rng.random() < 0.9 else tenant
            all_tokens, num_known = base.request.token_ids, base.request.num_prompt_tokens
            is_repeated = rng.random() < self._knobs.p_repeat
            cut = num_known if is_repeated else rng.choice((len(all_tokens), rng.randint(1, len(all_tokens))))
            spans = [(each.offset, each.mm_hash, each.offset + each.length) for each in base.message.features]
            cut = next((offset for offset, _, end in spans if offset < cut < end), cut)  # no item is cut in two
            tokens, named = all_tokens[:cut], [(offset, mm_hash) for offset, mm_hash, end in spans if end <= cut]
            num_had = max(0, cut - 1)
        if len(tokens) > MAX_MODEL_LEN - 4:
            tokens, named = [], []
        for _ in range(0 if is_repeated else rng.choice((0, 1, 1, 2))):
            if rng.random() < self._knobs.p_items:
                mm_hash = named[-1][1] if named and rng.random() < 0.3 else rng.choice(sorted(ITEMS))
                num_embeds = num_embeds_of(ITEMS[mm_hash])
                if len(tokens) + num_embeds < MAX_MODEL_LEN - 3:
                    named.append((len(tokens), mm_hash))
                    tokens = tokens + [TOKEN_IDS[modality_of(ITEMS[mm_hash])]] * num_embeds
            tokens = tokens + [rng.choice((1, 2))] * rng.choice((0, 1, 3, 9))
        tokens = (tokens or [rng.choice((1, 2))])[: MAX_MODEL_LEN - 2]
        named = [(at, mm_hash) for at, mm_hash in named if at + num_embeds_of(ITEMS[mm_hash]) <= len(tokens)]
        features = [_feature(mm_hash, at, ITEMS[mm_hash]) for at, mm_hash in named]
        max_tokens = rng.randint(1, min(rng.choice((4, 9, 20)), MAX_MODEL_LEN - len(tokens)))
        items = [ITEMS[mm_hash] for _, mm_hash in named]
        rows = self._rows(len(tokens), num_had)
        return _client(request_id, tokens, features, items, max_tokens=max_tokens, rows=rows, tenant=tenant, rng=rng)

    def _rows(self, num_tokens: int, num_had: int) -> RowsWanted | None:
        rng = self._rng
        if rng.random() >= self._knobs.p_rows:
            return None
        keys = list(self._config.model.row_keys)
        wanted = rng.sample(keys, rng.randint(1, len(keys)))
        if rng.random() < 0.5:
            return RowsWanted(wanted)
        first = num_had if rng.random() < 0.5 else rng.randrange(num_tokens)
        return RowsWanted(wanted, min(first, num_tokens - 1), "delta")

    def _encode(self, request_id: int) -> Client:
        names = self._rng.choices(sorted(ITEMS), k=self._rng.randint(1, 4))
        features = [_feature(mm_hash, 0, ITEMS[mm_hash]) for mm_hash in names]
        items = [ITEMS[mm_hash] for mm_hash in names]
        return _client(request_id, [], features, items, kind="encode", rng=self._rng)

    def _of_two_sizes(self, request_id: int) -> Client:
        """A prompt that shares its tenant only with those of the same image: KV must not be mixed, only refused."""
        which = self._rng.randrange(2)
        image = OF_TWO_SIZES[which]
        tokens = [1, *[TOKEN_IDS["image"]] * num_embeds_of(image), 2]
        features = [_feature(TWO_SIZES, 1, image)]
        tenant = f"two sizes, {which}"
        return _client(request_id, tokens, features, [image], max_tokens=3, tenant=tenant, rng=self._rng)


def last_client(request_id: int) -> Client:
    """Return one that wants next to nothing: what is left to be told to the workers is told with it."""
    return _client(request_id, [9], [], [], max_tokens=1, tenant="last", rng=random.Random(0))


def _feature(mm_hash: str, offset: int, item: Item) -> Feature:
    num_embeds = num_embeds_of(item)
    return Feature(mm_hash, modality_of(item), offset, num_embeds, num_embeds, 100, Inline(0, 0))


def _client(
    request_id: int,
    tokens: list[int],
    features: list[Feature],
    items: list[Item],
    *,
    rng: random.Random,
    kind: str = "generate",
    max_tokens: int = 0,
    rows: RowsWanted | None = None,
    tenant: str = "",
) -> Client:
    payload: list[Frame] = []
    placed = []
    for feature, item in zip(features, items, strict=True):
        frames = inline_frames(item)
        where = Inline(len(payload), len(frames))
        payload += frames
        placed.append(msgspec.structs.replace(feature, payload=where))
    message = AddRequest(
        request_id=request_id,
        kind="encode" if kind == "encode" else "generate",
        prompt_token_ids=tokens,
        features=placed,
        max_tokens=max_tokens,
        rows=rows,
        tenant=tenant,
        priority=rng.randrange(3),
        is_streamed=rng.random() < 0.5,
    )
    return Client(message, payload, items, request_of(message))


def request_of(message: AddRequest, outputs: Mapping[int, str] | None = None) -> Request:
    """Return the engine's request.

    Args:
        outputs: tokens of leases on encoder outputs, by item.
    """
    return Request(
        request_id=message.request_id,
        kind=message.kind,
        prompt_token_ids=message.prompt_token_ids,
        features=message.features,
        max_tokens=message.max_tokens,
        rows=message.rows,
        tenant=message.tenant,
        priority=message.priority,
        outputs=outputs,
        store_epoch=message.store_epoch,
    )
