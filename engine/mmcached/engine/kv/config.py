"""Configuration of a KV cache: the size of the pool, and the groups of layers that share a block table.

All groups allocate from one pool; a block belongs to one group while it is referenced. Another kind of layer is another
spec here and another module in `groups`. Kinds that differ in what lies in a block, and not in when it is needed, have
no spec: MLA, quantized caches and attention sinks are `FullAttentionSpec`.

>>> config = KVCacheConfig(100, [KVCacheGroupSpec(["0", "2"], FullAttentionSpec(32)),
...                              KVCacheGroupSpec(["1", "3"], SlidingWindowSpec(16, sliding_window=128))])
>>> config.hash_block_size, config.scheduler_block_size
(16, 32)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from mmcached.wire.errors import ConfigError

MambaCacheMode = Literal["none", "align", "all"]
_MAMBA_CACHE_MODES = get_args(MambaCacheMode)


@dataclass(frozen=True, slots=True)
class FullAttentionSpec:
    """Layers that attend to all earlier tokens. Raises `ConfigError` for sizes below 1."""

    block_size: int

    def __post_init__(self) -> None:
        _check_at_least_1("block_size", self.block_size, "token")


@dataclass(frozen=True, slots=True)
class SlidingWindowSpec:
    """Layers that attend to the last `sliding_window` tokens, current one included. Raises as `FullAttentionSpec`."""

    block_size: int
    sliding_window: int

    def __post_init__(self) -> None:
        _check_at_least_1("block_size", self.block_size, "token")
        _check_at_least_1("sliding_window", self.sliding_window, "token, the current token")


@dataclass(frozen=True, slots=True)
class ChunkedLocalAttentionSpec:
    """Layers that attend to the tokens of their chunk of `attention_chunk_size`. Raises as `FullAttentionSpec`."""

    block_size: int
    attention_chunk_size: int

    def __post_init__(self) -> None:
        _check_at_least_1("block_size", self.block_size, "token")
        _check_at_least_1("attention_chunk_size", self.attention_chunk_size, "token")


@dataclass(frozen=True, slots=True)
class MambaSpec:
    """Layers with a state instead of KV: Mamba, linear attention, short convolutions. Raises as `FullAttentionSpec`.

    Attributes:
        block_size: tokens between states that are kept; a block holds one state.
        mamba_cache_mode: "none": a running state, not shared (no prefix caching). "align": the state at the end of each
            chunk. "all": the states at the end of each block, which the kernel must write.
        num_speculative_blocks: blocks for the states after draft tokens.
    """

    block_size: int
    mamba_cache_mode: MambaCacheMode = "align"
    num_speculative_blocks: int = 0

    def __post_init__(self) -> None:
        _check_at_least_1("block_size", self.block_size, "token")
        if self.mamba_cache_mode not in _MAMBA_CACHE_MODES:
            raise ConfigError("mamba_cache_mode", self.mamba_cache_mode, f"one of {', '.join(_MAMBA_CACHE_MODES)}")
        if self.num_speculative_blocks < 0:
            raise ConfigError("num_speculative_blocks", self.num_speculative_blocks, "at least 0 blocks")


@dataclass(frozen=True, slots=True)
class CrossAttentionSpec:
    """Layers of a decoder that attend to encoder outputs, without prefix caching. Raises as `FullAttentionSpec`."""

    block_size: int

    def __post_init__(self) -> None:
        _check_at_least_1("block_size", self.block_size, "token of the encoder")


KVCacheSpec = FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec | MambaSpec | CrossAttentionSpec


@dataclass(frozen=True, slots=True)
class KVCacheGroupSpec:
    """Layers that share a block table; the layer names are used by the engine only.

    Attributes:
        is_replicated: whether each rank of decode context parallelism holds all tokens, as of a drafter's layers.
    """

    layer_names: Sequence[str]
    kv_cache_spec: KVCacheSpec
    is_replicated: bool = False


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """Size of the block pool, and its groups of layers. Raises `ConfigError` for a size below 1.

    Attributes:
        num_blocks: blocks of the pool, the null block included.
        kv_cache_groups: empty for a model without attention.
        decode_context_parallel_size: ranks over which the tokens of a block are spread. A block of `block_size` tokens
            per rank covers that many times as many; states (`MambaSpec`) and replicated groups are not spread. Prefill
            context parallelism changes no block count.
        block_sizes: tokens per block on all ranks together, by group.
        hash_block_size: tokens per block hash; the greatest common divisor of the groups' block sizes.
        scheduler_block_size: prefix hits are multiples of it; the least common multiple of the groups' block sizes.
    """

    num_blocks: int
    kv_cache_groups: Sequence[KVCacheGroupSpec] = field(default=())
    decode_context_parallel_size: int = 1

    def __post_init__(self) -> None:
        _check_at_least_1("num_blocks", self.num_blocks, "block, the null block")
        _check_at_least_1("decode_context_parallel_size", self.decode_context_parallel_size, "rank")

    @classmethod
    def of_one_group(cls, num_blocks: int, block_size: int) -> KVCacheConfig:
        return cls(num_blocks, (KVCacheGroupSpec((), FullAttentionSpec(block_size)),))

    @property
    def block_sizes(self) -> list[int]:
        return [group.kv_cache_spec.block_size * self._num_ranks(group) for group in self.kv_cache_groups]

    def _num_ranks(self, group: KVCacheGroupSpec) -> int:
        is_whole = group.is_replicated or isinstance(group.kv_cache_spec, MambaSpec)
        return 1 if is_whole else self.decode_context_parallel_size

    @property
    def is_cacheable(self) -> bool:
        """Whether prefixes can be shared: no cross-attention, and all states are kept at block ends."""
        specs = [group.kv_cache_spec for group in self.kv_cache_groups]
        return not any(
            isinstance(spec, CrossAttentionSpec) or (isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "none")
            for spec in specs
        )

    @property
    def hash_block_size(self) -> int:
        return math.gcd(*self.block_sizes) or 1

    @property
    def scheduler_block_size(self) -> int:
        return math.lcm(*self.block_sizes)


def _check_at_least_1(name: str, value: int, what: str) -> None:
    if value < 1:
        raise ConfigError(name, value, f"at least 1 {what}")
