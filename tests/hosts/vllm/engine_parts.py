"""Makes vLLM's own scheduler and the wrappers of both its runners, with our connector in them; no model, no device.

    Engine      the real Scheduler, encoder cache manager and EC connector of one engine; and its worker
    Worker      does what a runner does in a step, inside vLLM's wrapper; what it has encoded is in `encoded`

What travels between the two is pickled, as by vLLM's executors.
"""

from __future__ import annotations

import json
import pickle  # noqa: TID251 (vLLM's executors send the step so)
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ECTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.ec_transfer import ec_transfer_state
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.ec_connector_model_runner_mixin import ECConnectorModelRunnerMixin

from mmcached.integrations.vllm.weights import tower_of
from mmcached.worker.encoders.computing import computing_rows

HAS_FIGURES = hasattr(ECConnectorBase, "build_prom_metrics")
"""Whether this vLLM shows a connector's figures; 0.30 does not."""
WIDTH = 64
TOWER = {"tower": "0", "words": None, "is_image_wordless": True} | computing_rows(torch.device("cpu"), ())
"""What the workers would say of the tower."""
ROWS = 100
ENCODER_CACHE_ROWS = 1024
DEADLINE_S = 30.0
MODEL = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": WIDTH,
    "ffn_dim": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 2048,
    "vocab_size": 512,
    "word_embed_proj_dim": WIDTH,
    "dtype": "float32",
    "do_layer_norm_before": True,
    "activation_function": "relu",
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}


def make_checkpoint(folder: Path) -> Path:
    """Write what vLLM's configuration needs of a model, and some weights that nobody reads."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    return folder


def item(number: int) -> str:
    """Return an identifier of the kind that vLLM makes of a picture's content."""
    return f"{number:064x}"


def encoded(name: str, num_rows: int = ROWS) -> torch.Tensor:
    """Return what the tower says of an item."""
    return torch.randn(num_rows, WIDTH, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


def request(request_id: str, *names: str, num_rows: int = ROWS, data: Any = None) -> Request:
    """Return a request with these items in a row, text around them."""
    features = [
        MultiModalFeatureSpec(
            data=data,
            modality="image",
            identifier=name,
            mm_position=PlaceholderRange(offset=10 + index * (num_rows + 5), length=num_rows),
            mm_hash=name,
        )
        for index, name in enumerate(names)
    ]
    return Request(
        request_id=request_id,
        prompt_token_ids=[1] * (len(names) * (num_rows + 5) + 50),
        sampling_params=SamplingParams(max_tokens=4, ignore_eos=True),
        pooling_params=None,
        mm_features=features,
    )


def vllm_config(checkpoint: Path, role: str, budget: int, extra: dict[str, Any]) -> Any:
    model = ModelConfig(
        model=str(checkpoint), tokenizer=str(checkpoint), skip_tokenizer_init=True, dtype="float32", seed=0
    )
    scheduler = SchedulerConfig(
        max_num_seqs=16,
        max_num_batched_tokens=budget,
        max_model_len=1024,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
    )
    transfer = ECTransferConfig(
        ec_connector="MmcachedECConnector",
        ec_role="ec_both",
        ec_connector_module_path="mmcached.integrations.vllm",
        ec_connector_extra_config=extra,
    )
    config = VllmConfig(
        model_config=model,
        scheduler_config=scheduler,
        cache_config=CacheConfig(block_size=16, gpu_memory_utilization=0.5, enable_prefix_caching=False),
        device_config=DeviceConfig(device="cpu"),
        ec_transfer_config=transfer,
    )
    transfer.ec_role = role  # vLLM refuses a producer whose model is of text, which does not matter here
    return config


class Worker:
    """A runner without a model."""

    def __init__(self, config: VllmConfig, runner: str) -> None:
        _be_worker_of(None)
        ec_transfer_state.ensure_ec_transfer_initialized(config)
        self.connector = ec_transfer_state.get_ec_transfer()
        self.cache: dict[str, torch.Tensor] = {}
        self.encoded: list[str] = []
        self._features: dict[str, list[Any]] = {}
        self._v2 = None
        if runner == "v2":
            from vllm.v1.worker.gpu.ec_connector import ActiveECConnector

            self._v2 = ActiveECConnector(config, self.cache)

    def step(self, output: Any) -> Any:
        """Do one step; return what the connector reports."""
        output = pickle.loads(pickle.dumps(output))  # noqa: S301
        _be_worker_of(self.connector)
        self._features |= {new.req_id: new.mm_features for new in output.scheduled_new_reqs}
        for name in output.free_encoder_mm_hashes:
            self.cache.pop(name, None)
        with self._wrapped(output) as reported:
            for request_id, items in output.scheduled_encoder_inputs.items():
                for index in items:
                    feature = self._features[request_id][index]
                    assert feature.data is None or any(each.data is not None for each in feature.data.values())
                    self._encode(feature.identifier, feature.mm_position.length)
            for request_id, end in self._ends(output):
                self._gather(request_id, *end)
        return reported

    def _wrapped(self, output: Any) -> Any:
        if self._v2 is not None:
            return self._v2.maybe_get_output(output)
        return ECConnectorModelRunnerMixin.maybe_get_ec_connector_output(output, encoder_cache=self.cache)

    def _encode(self, name: str, num_rows: int) -> None:
        if self._v2 is not None and name in self.cache:
            return
        self.encoded.append(name)
        self.cache[name] = encoded(name, num_rows)
        if self._v2 is None:
            ECConnectorModelRunnerMixin.maybe_save_ec_to_connector(self.cache, name)

    @staticmethod
    def _ends(output: Any) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield each scheduled request, and the positions that this step computes of it: first, end."""
        cached = output.scheduled_cached_reqs
        known = [(each.req_id, each.num_computed_tokens) for each in output.scheduled_new_reqs]
        for request_id, first in [*known, *zip(cached.req_ids, cached.num_computed_tokens, strict=True)]:
            yield request_id, (first, first + output.num_scheduled_tokens[request_id])

    def _gather(self, request_id: str, first: int, end: int) -> None:
        for feature in self._features[request_id]:
            place = feature.mm_position
            if place.offset < end and first < place.offset + place.length:
                found = self.cache.get(feature.identifier)
                assert found is not None, "Encoder cache miss: this ends an engine"
                assert torch.equal(found, encoded(feature.identifier, place.length)), "another item's output"


class Engine:
    """One engine without a model.

    Args:
        runner: "v1" or "v2", whose wrapper the worker uses.
        budget: tokens per step.
        extra: settings of the connector.
    """

    def __init__(
        self,
        checkpoint: Path,
        runner: str = "v1",
        *,
        role: str = "ec_both",
        budget: int = 1024,
        num_blocks: int = 1000,
        cache_rows: int = ENCODER_CACHE_ROWS,
        is_async: bool = False,
        **extra: Any,
    ) -> None:
        config = vllm_config(checkpoint, role, budget, extra)
        config.cache_config.num_gpu_blocks = num_blocks
        cache = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec(
                    ["l"], FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
                )
            ],
        )
        self.scheduler = (AsyncScheduler if is_async else Scheduler)(
            vllm_config=config,
            kv_cache_config=cache,
            log_stats=True,
            structured_output_manager=StructuredOutputManager(config),
            block_size=16,
        )
        tower_of(config.ec_transfer_config.engine_id).set_rows(TOWER)  # there is no executor that would read it
        # A model of text has no room for items; what else is of the model does not matter here.
        self.scheduler.max_num_encoder_input_tokens = cache_rows
        self.config, self._cache_rows, self._depth = config, cache_rows, 2 if is_async else 1
        self._make_cache()
        self.connector = self.scheduler.ec_connector
        self.worker = Worker(config, runner)
        self._under_way: deque[Any] = deque()
        self._sampling: dict[int, set[str]] = {}
        self._figures: Counter[str] = Counter()

    def schedule(self, *requests: Request) -> Any:
        """Add requests, and return the next step."""
        for each in requests:
            self.scheduler.add_request(each)
        output = self.scheduler.schedule()
        known = self.scheduler.requests
        self._sampling[id(output)] = {each for each in output.num_scheduled_tokens if not known[each].is_prefill_chunk}
        return output

    def schedule_when_known(self, *requests: Request) -> Any:
        """Add requests, and return the first step that computes something: it is known who encodes their items."""
        output = self.schedule(*requests)
        while not output.total_num_scheduled_tokens:  # the test's own deadline ends it
            self.run(output)
            output = self.schedule()
        return output

    def run(self, output: Any) -> Any:
        """Have the worker do a step, and the scheduler take its output; return what it makes of it."""
        reported = self.worker.step(output)
        ids, sampling = list(output.num_scheduled_tokens), self._sampling.pop(id(output))
        done = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={each: index for index, each in enumerate(ids)},
            sampled_token_ids=[[7] if each in sampling else [] for each in ids],
            ec_connector_output=reported,
        )
        outputs = self.scheduler.update_from_output(output, done)
        for each in outputs.values():
            stats = each.scheduler_stats
            self._figures.update(getattr(stats, "ec_connector_stats", None) or {})
        return outputs

    def answer(self, *requests: Request) -> list[str]:
        """Answer requests to their ends; return what was encoded for them, in order."""
        before = len(self.worker.encoded)
        for each in requests:
            self.scheduler.add_request(each)
        self.finish()
        return self.worker.encoded[before:]

    def finish(self) -> None:
        """Answer all requests to their ends."""
        while self.scheduler.has_requests():
            self.turn()
        while self._under_way:
            self.run(self._under_way.popleft())

    def turn(self) -> None:
        """Schedule a step, and do the oldest one, if as many are under way as may be."""
        self._under_way.append(self.schedule())
        if len(self._under_way) >= self._depth:
            self.run(self._under_way.popleft())

    def abort(self, *request_ids: str) -> None:
        self.scheduler.finish_requests(list(request_ids), RequestStatus.FINISHED_ABORTED)

    def forget(self) -> None:
        """Lose all items, and say so to nobody."""
        self._make_cache()
        self.worker.cache.clear()

    def figures(self) -> Counter[str]:
        """Return what vLLM has been told to show on its metrics page."""
        return self._figures

    def _make_cache(self) -> None:
        manager = type(self.scheduler.encoder_cache_manager)
        self.scheduler.encoder_cache_manager = manager.create_manager(
            cache_size=self._cache_rows, vllm_config=self.config
        )

    def close(self) -> None:
        self.worker.connector.shutdown()
        self.connector.shutdown()


def _be_worker_of(connector: Any) -> None:
    """Set the one connector that vLLM has in each worker's process; here several workers share one."""
    vars(ec_transfer_state)["_EC_CONNECTOR_AGENT"] = connector
