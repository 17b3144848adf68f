"""Bridges where our scheduler and cache managers differ from vLLM's: how they are made, and what a request is.

Everything else has the same names and the same first parameters on both sides, and is called directly. The two
schedulers differ in what a step is and in what comes back from it: see `Steps`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from mmcached.cache.hashing.block_hash import extend_block_hashes
from mmcached.compat.kv_cache_manager import KVCacheManager
from mmcached.engine.encoder.shared_encoder_cache_manager import SharedEncoderCacheManager
from mmcached.engine.kv.config import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.engine.steps.request import Request
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.parts import Feature, Inline
from scripts.bench.harness import Unavailable
from scripts.bench.peers import load_vllm

BLOCK_SIZE = 16
WINDOW = 1_024
LONGEST_TEXT = 1 << 20
"""Of a KV manager alone, in tokens."""
NUM_KV_BLOCKS = 16_384
MAX_MODEL_LEN = 8_192
MAX_TOKENS = 1_024
MAX_NUM_BATCHED_TOKENS = 8_192
SAMPLED_TOKEN_ID = 100_000


@dataclass(frozen=True, slots=True)
class Kind:
    """What a manager is made for.

    Attributes:
        groups: one group of layers for each spec.
        has_events: whether it tells what it stores and removes.
        num_encoder_tokens: outputs of the encoder for each request, with cross-attention, which switches caching off.
    """

    groups: tuple[KVCacheSpec, ...] = (FullAttentionSpec(BLOCK_SIZE),)
    has_events: bool = False
    num_encoder_tokens: int = 0

    @property
    def block_sizes(self) -> list[int]:
        return [spec.block_size for spec in self.groups]

    @property
    def chunk_grain(self) -> int:
        """Multiples of which chunks end at, so that layers with states can be shared; 1 without such layers."""
        has_states = any(isinstance(spec, MambaSpec) for spec in self.groups)
        return math.lcm(*self.block_sizes) if has_states else 1


PLAIN = Kind()
FOUR_GROUPS = Kind((FullAttentionSpec(BLOCK_SIZE), *[SlidingWindowSpec(BLOCK_SIZE, WINDOW)] * 3))


class Steps(Protocol):
    """A scheduler, and a worker that gives the same token to everybody.

    Attributes:
        schedule: decides a step: the scheduler's own method, as nothing else may be in a figure.
        commit: the same of what books a step, from it and its `results`.
    """

    schedule: Callable[[], Any]
    commit: Callable[[Any, Any], object]

    def add(self, token_ids: Sequence[int]) -> None:
        """Let a request wait that generates from a prompt of text."""

    def results(self, step: Any) -> Any:
        """Return what the worker has made of a step."""

    def size(self, step: Any) -> tuple[int, int]:
        """Return how many requests take part in a step, and with how many tokens altogether."""

    def num_held_blocks(self) -> int: ...

    def end_all(self) -> None:
        """End all requests, none of which takes part in a step."""


class Side(Protocol):
    """The managers of one side and their requests; prefixes are cached, and encoder entries go by content."""

    name: str

    def kv_manager(self, num_blocks: int, kind: Kind) -> Any: ...

    def start_step(self, manager: Any) -> None:
        """Let what was computed until now be read: states of Mamba can be shared from the next step on."""

    def request(self, token_ids: Sequence[int], block_hashes: Sequence[bytes]) -> Any:
        """Return a request that waits, with the digests of its full blocks."""

    def reserve(self, manager: Any, request: Any) -> None:
        """Hand out the slots of all its tokens, and publish none."""

    def hasher(self, token_ids: Sequence[int]) -> Callable[[], object]:
        """Return a call that hashes all full blocks of a prompt anew, by SHA-256."""

    def encoder_manager(self, cache_size: int) -> Any: ...

    def request_of_items(self, mm_hashes: Sequence[str], num_embeds: int) -> Any:
        """Return a request with one item of `num_embeds` embeddings for each content key, one behind the other."""

    def steps(self, max_num_seqs: int) -> Steps:
        """Return a scheduler."""


class Ours:
    """This repository's."""

    name = "ours"

    def __init__(self) -> None:
        self._ids = count()

    def kv_manager(self, num_blocks: int, kind: Kind) -> KVCacheManager:
        groups = [KVCacheGroupSpec([f"layer {index}"], spec) for index, spec in enumerate(kind.groups)]
        return KVCacheManager(
            KVCacheConfig(num_blocks, groups),
            LONGEST_TEXT,
            enable_caching=not kind.num_encoder_tokens,
            enable_kv_cache_events=kind.has_events,
        )

    def start_step(self, manager: KVCacheManager) -> None:
        """Do nothing: without steps, the caller says that content is computed."""

    def request(self, token_ids: Sequence[int], block_hashes: Sequence[bytes]) -> Request:
        made = Request(next(self._ids), "generate", token_ids, [], max_tokens=1)
        made.block_hashes = list(block_hashes)
        return made

    def reserve(self, manager: KVCacheManager, request: Request) -> None:
        manager.begin_step(0)
        manager.allocate_slots(request, request.num_tokens)
        manager.withdraw(0)

    def hasher(self, token_ids: Sequence[int]) -> Callable[[], object]:
        request = self.request(token_ids, ())

        def run() -> None:
            request.block_hashes.clear()
            extend_block_hashes(request, BLOCK_SIZE)

        return run

    def encoder_manager(self, cache_size: int) -> SharedEncoderCacheManager:
        return SharedEncoderCacheManager(cache_size)

    def request_of_items(self, mm_hashes: Sequence[str], num_embeds: int) -> Request:
        features = [
            Feature(mm_hash, "image", index * num_embeds, num_embeds, num_embeds, 0, Inline(0, 0))
            for index, mm_hash in enumerate(mm_hashes)
        ]
        return Request(next(self._ids), "encode", (), features, max_tokens=0)

    def steps(self, max_num_seqs: int) -> OurSteps:
        return OurSteps(our_config(max_num_seqs))


class Vllm:
    """vLLM's, as its scheduler makes them. Raises `Unavailable`."""

    name = "vLLM"

    def __init__(self) -> None:
        _, self._inputs = load_vllm()
        self._kv_manager = importlib.import_module("vllm.v1.core.kv_cache_manager").KVCacheManager
        self._encoder_manager = importlib.import_module("vllm.v1.core.encoder_cache_manager").EncoderCacheManager
        self._utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        self._config = importlib.import_module("vllm.v1.kv_cache_interface")
        self._request = importlib.import_module("vllm.v1.request").Request
        self._sampling = importlib.import_module("vllm.sampling_params").SamplingParams(max_tokens=1)
        self._sha256 = importlib.import_module("vllm.utils.hashing").sha256
        self._utils.init_none_hash(self._sha256)
        importlib.import_module("vllm.v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(None)
        self._ids = count()

    def kv_manager(self, num_blocks: int, kind: Kind) -> Any:
        groups = [
            self._config.KVCacheGroupSpec([f"layer {index}"], vllm_spec(self._config, spec))
            for index, spec in enumerate(kind.groups)
        ]
        config = self._config.KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        return self._kv_manager(
            config,
            LONGEST_TEXT,
            scheduler_block_size=math.lcm(*kind.block_sizes),
            hash_block_size=math.gcd(*kind.block_sizes),
            enable_caching=not kind.num_encoder_tokens,
            enable_kv_cache_events=kind.has_events,
        )

    def start_step(self, manager: Any) -> None:
        manager.new_step_starts()

    def request(self, token_ids: Sequence[int], block_hashes: Sequence[bytes]) -> Any:
        made = self._request(str(next(self._ids)), list(token_ids), self._sampling, None)
        made.block_hashes = list(block_hashes)
        return made

    def reserve(self, manager: Any, request: Any) -> None:
        manager.allocate_slots(request, request.num_tokens, delay_cache_blocks=True)

    def hasher(self, token_ids: Sequence[int]) -> Callable[[], object]:
        hash_blocks = self._utils.get_request_block_hasher(BLOCK_SIZE, self._sha256)
        request = self.request(token_ids, ())
        return lambda: hash_blocks(request)

    def encoder_manager(self, cache_size: int) -> Any:
        return self._encoder_manager(cache_size)

    def request_of_items(self, mm_hashes: Sequence[str], num_embeds: int) -> Any:
        features = [
            self._inputs.MultiModalFeatureSpec(
                None, "image", mm_hash, self._inputs.PlaceholderRange(index * num_embeds, num_embeds), mm_hash
            )
            for index, mm_hash in enumerate(mm_hashes)
        ]
        return self._request(str(next(self._ids)), [0], self._sampling, None, mm_features=features)

    def steps(self, max_num_seqs: int) -> VllmSteps:
        """Raises:
        Unavailable: its scheduler cannot be imported, although its managers can.
        """
        try:
            return VllmSteps(max_num_seqs)
        except ImportError as error:
            raise Unavailable(f"vLLM's scheduler cannot be imported: {error}") from error


def vllm_spec(specs: Any, spec: KVCacheSpec, name: str = "", **options: object) -> Any:
    """Return vLLM's spec for ours.

    Args:
        specs: vLLM's module of specs.
        name: vLLM's class, if it is not named as ours.
        options: more arguments of this class.
    """
    make: Callable[..., Any] = getattr(specs, name or type(spec).__name__)
    if isinstance(spec, MambaSpec):
        return make(
            spec.block_size,
            shapes=((1,),),
            dtypes=(torch.float16,),
            mamba_cache_mode=spec.mamba_cache_mode,
            num_speculative_blocks=spec.num_speculative_blocks,
        )
    layer = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float16, **options}
    match spec:
        case SlidingWindowSpec():
            layer["sliding_window"] = spec.sliding_window
        case ChunkedLocalAttentionSpec():
            layer["attention_chunk_size"] = spec.attention_chunk_size
    return make(spec.block_size, **layer)


def our_config(max_num_seqs: int) -> ServiceConfig:
    """Return what our scheduler is measured with."""
    return ServiceConfig(
        num_kv_blocks=NUM_KV_BLOCKS,
        block_size=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        world_size=1,
    )


class OurSteps:
    """This repository's scheduler.

    Attributes:
        added: all requests that have not ended.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.scheduler = Scheduler(config)
        self.schedule: Callable[[], Any] = self.scheduler.schedule
        self.commit: Callable[[Any, Any], object] = self.scheduler.commit
        self._ids = count()
        self.added: list[Request] = []

    def add(self, token_ids: Sequence[int]) -> None:
        self.added.append(Request(next(self._ids), "generate", token_ids, (), max_tokens=MAX_TOKENS))
        self.scheduler.add_request(self.added[-1])

    def results(self, step: ScheduledStep) -> dict[int, int]:
        return {chunk.request.request_id: SAMPLED_TOKEN_ID for chunk in step.chunks if chunk.sample}

    def size(self, step: ScheduledStep) -> tuple[int, int]:
        return len(step.chunks), sum(chunk.num_tokens for chunk in step.chunks)

    def num_held_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.num_held

    def end_all(self) -> None:
        for request in self.added:
            self.scheduler.abort(request.request_id)
        self.added.clear()


class VllmSteps:
    """vLLM's scheduler: one group of layers with full attention, no connector, no statistics, no drafter.

    Its configuration consists of vLLM's own parts, as far as they can be had without a model and a GPU; the rest says
    what they would for a model of text. What it never asks of a request without a grammar is not there.
    """

    def __init__(self, max_num_seqs: int) -> None:
        scheduler = importlib.import_module("vllm.v1.core.sched.scheduler")
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        kv_config = importlib.import_module("vllm.v1.kv_cache_interface")
        request = importlib.import_module("vllm.v1.request")
        sampling = importlib.import_module("vllm.sampling_params")
        sha256 = importlib.import_module("vllm.utils.hashing").sha256
        utils.init_none_hash(sha256)
        spec = kv_config.FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float16)
        layers = kv_config.KVCacheGroupSpec(["layer"], spec)
        self._scheduler = scheduler.Scheduler(
            _vllm_config(max_num_seqs),
            kv_config.KVCacheConfig(num_blocks=NUM_KV_BLOCKS, kv_cache_tensors=[], kv_cache_groups=[layers]),
            SimpleNamespace(accept_tokens=lambda request, token_ids: True),
            block_size=BLOCK_SIZE,
        )
        self.schedule = self._scheduler.schedule
        self.commit = self._scheduler.update_from_output
        self._request = request.Request
        self._aborted = request.RequestStatus.FINISHED_ABORTED
        self._results = importlib.import_module("vllm.v1.outputs").ModelRunnerOutput
        self._sampling = sampling.SamplingParams(max_tokens=MAX_TOKENS)
        self._hash_blocks = utils.get_request_block_hasher(BLOCK_SIZE, sha256)
        self._ids = count()

    def add(self, token_ids: Sequence[int]) -> None:
        self._scheduler.add_request(
            self._request(str(next(self._ids)), list(token_ids), self._sampling, None, block_hasher=self._hash_blocks)
        )

    def results(self, step: Any) -> Any:
        req_ids = list(step.num_scheduled_tokens)
        by_id = {req_id: index for index, req_id in enumerate(req_ids)}
        return self._results(req_ids, by_id, [[SAMPLED_TOKEN_ID] for _ in req_ids])

    def size(self, step: Any) -> tuple[int, int]:
        return len(step.num_scheduled_tokens), step.total_num_scheduled_tokens

    def num_held_blocks(self) -> int:
        num_free: int = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return NUM_KV_BLOCKS - 1 - num_free

    def end_all(self) -> None:
        self._scheduler.finish_requests(None, self._aborted)


def _vllm_config(max_num_seqs: int) -> Any:
    config = importlib.import_module("vllm.config")
    encoder_config = importlib.import_module("vllm.config.ec_manager_config")
    cache_config = config.CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    cache_config.num_gpu_blocks = NUM_KV_BLOCKS
    return SimpleNamespace(
        scheduler_config=config.SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
        ),
        cache_config=cache_config,
        parallel_config=config.ParallelConfig(),
        observability_config=config.ObservabilityConfig(),
        ec_manager_config=encoder_config.EncoderCacheManagerConfig(),
        model_config=SimpleNamespace(
            max_model_len=MAX_MODEL_LEN,
            runner_type="generate",
            uses_mrope=False,
            is_encoder_decoder=False,
            is_diffusion=False,
            supports_multimodal_inputs=False,
            return_sampling_mask=False,
        ),
        aux_output_config=SimpleNamespace(enabled=False),
        lora_config=None,
        kv_events_config=None,
        kv_transfer_config=None,
        ec_transfer_config=None,
        speculative_config=None,
        is_mm_encoder_only=False,
        use_v2_model_runner=True,  # as on a GPU
        max_concurrent_batches=1,
        max_in_flight_tokens=MAX_NUM_BATCHED_TOKENS,
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
    )
