"""Measures how 4.7 MiB of an embedding, or of rows, come to a client: through the store, in place or owned, or inline.

through the store   the answer names the record, or the client finds it by itself
inline              a service without a store: its engine has the embedding in its encoder cache, and answers with it
store hit           `client.get` of a record as large, in place

The client hashes the file of the picture in each but the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from mmcached.client import Client, Generation
from mmcached.client.known_outputs import contents_of, output_keys
from mmcached.wire.model_config import ModelConfig
from scripts.bench.harness import Bound, Row, compare, row

SIDE = 280
MODEL = ModelConfig(
    hidden_size=1024,
    num_layers=1,
    encoder_width=64,
    encoder_layers=1,
    patch_size=8,
    max_patches_per_image=(SIDE // 8) ** 2,
)
SETTINGS: dict[str, object] = {
    "model": MODEL,
    "max_num_encoder_input_tokens": MODEL.max_patches_per_image,
    "encoder_cache_size": 3 * MODEL.max_patches_per_image,
    "max_model_len": 2048,
    "num_kv_blocks": 130,
}
NUM_CALLS = 5
PARAMS = "4.7 MiB"
FROM_ENGINE = "embedding that an engine has, through shared memory"
FROM_STORE = "embedding that the store has, to its owner"
IN_PLACE = "embedding that the store has, in place"
ROWS = "hidden states of a prefix hit, through shared memory"
PROMPT = list(range(1, 1 + 200)) * 6
BOUNDS = [
    Bound("try", FROM_ENGINE, PARAMS, "inline", 0.35),
    Bound("reach", FROM_STORE, PARAMS, "inline", 0.35),
    Bound("reach", IN_PLACE, PARAMS, "inline", 0.35),
    Bound("try", ROWS, PARAMS, "inline", 0.9),
    Bound("reach", FROM_STORE, PARAMS, "store hit, owned", 1.5),
    Bound("try", IN_PLACE, PARAMS, "store hit", 1.5),
]
Prepare = Callable[[], object]


def _time(call: Callable[[], object], prepare: Prepare = lambda: None) -> float:
    """Return the microseconds of a call, each after what prepares it."""
    taken = 0.0
    for _ in range(NUM_CALLS):
        prepare()
        began = time.perf_counter()
        result = call()
        taken += time.perf_counter() - began
        del result
    return taken / NUM_CALLS * 1e6


def _rows(client: Client) -> Generation:
    return client.generate(PROMPT, max_tokens=1, hidden_states=True)


def travel(shared: Path, inline: Path, picture: bytes, num_rounds: int) -> Iterator[Row]:
    """Yield the rows; both services have encoded nothing yet.

    Args:
        shared, inline: run directories of a service with a store, and of one without.
    """
    with Client(shared) as client, Client(inline) as other:
        (embedding,) = client.encode([picture])
        if embedding.nbytes != 1024 * 4 * MODEL.max_patches_per_image or not bool(
            (other.encode([picture])[0] == embedding).all()
        ):
            raise AssertionError("the services differ")
        (key,) = output_keys(client.service, contents_of(client.service, [picture]), [], "").values()
        samplers = {
            "from engine": partial(_time, partial(client.encode, [picture]), partial(client.drop, key)),
            "owned": partial(_time, partial(client.encode, [picture])),
            "view": partial(_time, partial(client.encode, [picture], view=True)),
            "inline": partial(_time, partial(other.encode, [picture])),
            "rows": partial(_time, partial(_rows, client)),
            "rows inline": partial(_time, partial(_rows, other)),
            "store hit, owned": partial(_time, partial(client.get, key)),
            "store hit": partial(_time, partial(client.get, key, view=True)),
        }
        taken = compare(samplers, num_rounds)
    yield row(FROM_ENGINE, PARAMS, taken["from engine"], "µs", peer="inline", peer_value=taken["inline"])
    yield row(FROM_STORE, PARAMS, taken["owned"], "µs", peer="inline", peer_value=taken["inline"])
    yield row(IN_PLACE, PARAMS, taken["view"], "µs", peer="inline", peer_value=taken["inline"])
    yield row(ROWS, PARAMS, taken["rows"], "µs", peer="inline", peer_value=taken["rows inline"])
    yield row(FROM_STORE, PARAMS, taken["owned"], "µs", peer="store hit, owned", peer_value=taken["store hit, owned"])
    yield row(IN_PLACE, PARAMS, taken["view"], "µs", peer="store hit", peer_value=taken["store hit"])
