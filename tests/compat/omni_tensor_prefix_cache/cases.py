"""What the small tests of this folder share: one cache, two requests, their step."""

from __future__ import annotations

from typing import Any

import torch

from mmcached.compat.omni_tensor_prefix_cache import InputBatch
from mmcached.worker import OmniTensorPrefixCache
from mmcached.worker.hidden_states.device_copy import Transfer

NUM_BLOCKS, BLOCK, HIDDEN = 10, 4, 2
SLOTS = torch.arange(8, 16)
"""Those of blocks 2 and 3: the first eight positions of `req1`."""
TABLE = [[2, 3, 4, 5], [6, 7, 8, 9]]
STARTS = [0, 3]
SCHEDULED = {"req1": 3, "req2": 2}
Features = dict[str, int]


def make_cache(**options: Any) -> OmniTensorPrefixCache:
    return OmniTensorPrefixCache(NUM_BLOCKS, BLOCK, HIDDEN, torch.float32, **options)


def with_keys(
    features: Features, dtype: torch.dtype = torch.float16, *, device: Transfer | None = None
) -> OmniTensorPrefixCache:
    """Return a cache that knows these keys; with a device, whose copies it makes of all rows."""
    cache = make_cache(transfer_for=lambda *_: device)
    for key, width in features.items():
        cache.declare(key, width, dtype)
    return cache


def outputs(features: Features, num_rows: int) -> dict[str, torch.Tensor]:
    return {key: torch.rand((num_rows, width)).to(torch.float16) for key, width in features.items()}


def batch(computed: list[int], table: list[list[int]], req_ids: list[str] | None = None) -> InputBatch:
    ids = req_ids or [f"req{index + 1}" for index in range(len(computed))]
    index_of = {req_id: index for index, req_id in enumerate(ids)}
    blocks = torch.tensor(table, dtype=torch.int64) if table else torch.empty((0, 4), dtype=torch.int64)
    return InputBatch(ids, index_of, computed, blocks)


HIT_AND_MISS = batch([8, 0], TABLE)


def hit(cache: OmniTensorPrefixCache, *req_ids: str) -> None:
    """Begin a step in which these requests are hits."""
    cache.reset_prefix_cached_new_req_ids()
    for req_id in req_ids or ("req1",):
        cache.add_prefix_cached_new_req_id(req_id)


def rows_at(cache: OmniTensorPrefixCache, key: str, slots: torch.Tensor = SLOTS) -> torch.Tensor:
    kept = cache.mm_outputs_cache[key]
    return kept.view(-1, kept.shape[-1])[slots]
