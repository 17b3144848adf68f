"""What a world is like: every size that is scarce or not, who wants what, and what goes wrong.

Knows nothing of how a world runs. `knobs_of(seed)` is the whole world: the same seed, the same knobs, the same events.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.model_config import ModelConfig

MAX_MODEL_LEN = 44
MAX_PATCHES = 6


@dataclass(frozen=True, slots=True)
class Knobs:
    """One world.

    Attributes:
        spare_blocks: KV blocks beyond those that the longest sequence needs.
        row_blocks: that the prefix store can keep; 0: there is none.
        num_layer_outputs: row keys beside the last layer's.
        delay: a copy is asked so often, at most, before it is done; 0: rows are there at once.
        p_arrival: of each request that is left, between two steps.
        p_rows, p_items: requests that want rows, that have items.
        p_repeat: prompts that are those of earlier requests, whole.
        p_accident: between two steps, and in a step, while `max_accidents` have not happened.
        blames: who was alone in a failed step, or when a rank died again, fails, as the server does it; else all try
            again.
        p_poison: of a request that kills a rank whenever one computes it; then nothing else kills or fails.
        has_store: encoder outputs are shared with other engines, where the books share them.
    """

    seed: int
    block_size: int
    spare_blocks: int
    max_num_seqs: int
    token_budget: int
    long_prefill: int
    watermark: float
    policy: Literal["fcfs", "priority"]
    has_prefix_caching: bool
    encoder_scope: Literal["shared", "request"]
    encoder_budget: int
    encoder_cache: int
    splits_items: bool
    row_blocks: int
    num_layers: int
    num_layer_outputs: int
    delay: int
    num_requests: int
    p_arrival: float
    p_rows: float
    p_items: float
    p_repeat: float
    p_abort: float
    p_accident: float
    max_accidents: int
    blames: bool
    p_poison: float = 0.0
    has_store: bool = False

    def config(self) -> ServiceConfig:
        model = ModelConfig(
            seed=self.seed % 7,
            hidden_size=8,
            num_layers=self.num_layers,
            num_heads=2,
            encoder_width=8,
            encoder_layers=1,
            patch_size=2,
            max_patches_per_image=MAX_PATCHES,
            audio_frame=3,
            audio_window=MAX_PATCHES,
            num_layer_outputs=self.num_layer_outputs,
        )
        block_bytes = self.block_size * len(model.row_keys) * model.hidden_size * 4
        return ServiceConfig(
            model=model,
            device="cpu",
            world_size=2,
            block_size=self.block_size,
            num_kv_blocks=-(-MAX_MODEL_LEN // self.block_size) + 1 + self.spare_blocks,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.token_budget,
            long_prefill_token_threshold=self.long_prefill,
            kv_watermark=self.watermark,
            scheduling_policy=self.policy,
            enable_prefix_caching=self.has_prefix_caching,
            encoder_cache_scope=self.encoder_scope,
            max_num_encoder_input_tokens=self.encoder_budget,
            encoder_cache_size=self.encoder_cache,
            disable_chunked_mm_input=not self.splits_items,
            tensor_prefix_cache_gb=(self.row_blocks + 0.5) * block_bytes / GIB if self.row_blocks else 0.0,
            debug_check_workers=True,
        )


def knobs_of(seed: int) -> Knobs:
    """Return the knobs of a world; every third one is without accidents."""
    rng = random.Random(seed)
    num_layers = rng.choice((1, 2, 2))
    splits_items = rng.random() < 0.7
    is_rough = seed % 3 != 0
    knobs = Knobs(
        seed=seed,
        block_size=rng.choice((1, 2, 4, 4, 5, 8)),
        spare_blocks=rng.choice((0, 0, 1, 4, 4, 12, 40)),
        max_num_seqs=rng.choice((2, 3, 4, 6, 8)),
        token_budget=rng.choice((3, 7, 16, 24, 64) if splits_items else (7, 16, 24, 64)),
        long_prefill=rng.choice((0, 0, 0, 4)),
        watermark=rng.choice((0.0, 0.01, 0.1)),
        policy=rng.choice(("fcfs", "priority")),
        has_prefix_caching=rng.random() < 0.92,
        encoder_scope=rng.choice(("shared", "shared", "request")),
        encoder_budget=rng.choice((0, 8, 40)),
        encoder_cache=rng.choice((0, 8, 14, 60)),
        splits_items=splits_items,
        row_blocks=rng.choice((0, 1, 3, 5, 8, 8, 14, 400)),
        num_layers=num_layers,
        num_layer_outputs=rng.randint(0, num_layers),
        delay=rng.choice((0, 0, 2, 20)),
        num_requests=rng.choice((6, 8, 10, 12)),
        p_arrival=rng.choice((0.1, 0.4, 0.9, 0.9)),
        p_rows=rng.choice((0.3, 0.7, 0.9)),
        p_items=rng.choice((0.2, 0.5)),
        p_repeat=0.15,
        p_abort=rng.choice((0.0, 0.03)),
        p_accident=rng.choice((0.03, 0.08)) if is_rough else 0.0,
        max_accidents=5 if is_rough else 0,
        blames=rng.random() < 0.5,
    )
    if seed % 4 == 3:
        return _crowded(knobs, rng)
    if seed % 12 in (4, 10):
        return replace(knobs, blames=True, p_poison=rng.choice((0.1, 0.3)), p_arrival=0.9)
    return _stormy(knobs, rng) if seed % 12 in (1, 5) else knobs


def _crowded(knobs: Knobs, rng: random.Random) -> Knobs:
    """Return a world in which many want the rows of the same prefixes in the same step, and few can be kept."""
    return replace(
        knobs,
        block_size=rng.choice((2, 4)),
        spare_blocks=rng.choice((4, 12, 40)),
        max_num_seqs=8,
        token_budget=rng.choice((24, 64)),
        long_prefill=0,
        watermark=0.0,
        has_prefix_caching=True,
        row_blocks=rng.choice((2, 3, 4, 6, 14)),
        num_requests=12,
        p_arrival=0.95,
        p_rows=0.9,
        p_repeat=0.3,
        encoder_scope="shared",
    )


def _stormy(knobs: Knobs, rng: random.Random) -> Knobs:
    """Return a world in which much is cached and found again, and something goes wrong all the time."""
    return replace(
        knobs,
        block_size=rng.choice((1, 2, 4)),
        spare_blocks=rng.choice((12, 40)),
        max_num_seqs=8,
        token_budget=rng.choice((3, 16)),
        long_prefill=rng.choice((0, 2)),
        splits_items=True,
        has_prefix_caching=True,
        p_items=0.5,
        row_blocks=rng.choice((14, 40, 400)),
        num_requests=14,
        p_arrival=0.3,
        p_rows=0.8,
        p_repeat=0.6,
        p_abort=0.0,
        p_accident=0.2,
        max_accidents=15,
        blames=False,
    )
