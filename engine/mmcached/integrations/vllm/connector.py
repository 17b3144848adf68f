"""Connects vLLM's calls to the scheduler's or the worker's half, and catches errors of the store.

    in the scheduler    MmcachedECConnector ──> SchedulerSide ──plan, with each step──┐
    in each worker      MmcachedECConnector ──> WorkerSide    <───────────────────────┘ ──report──> SchedulerSide

An error that reached vLLM would end the engine. It is logged once per method, and the call returns as if the store were
empty. Two methods raise: `__init__`, so that an engine with a wrong setting does not start, and `build_connector_meta`,
which only reads the scheduler half's own tables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from vllm import __version__ as vllm_version
from vllm.distributed.ec_transfer.ec_connector.base import (
    ECConnectorBase,
    ECConnectorMetadata,
    ECConnectorRole,
    ECConnectorWorkerMetadata,
)
from vllm.distributed.ec_transfer.ec_connector.utils import PlaceholderMetadataResolver, collect_ec_item_metadata
from vllm.logger import init_logger
from vllm.model_executor.layers import utils as layer_utils
from vllm.platforms import current_platform

from mmcached.client import Client
from mmcached.client.device.devices import device_of
from mmcached.integrations.embedding_width import embedding_width
from mmcached.integrations.ranks import failed_in_any
from mmcached.integrations.vllm.claims import EngineClaims
from mmcached.integrations.vllm.contact import ReconnectingClient
from mmcached.integrations.vllm.keys import KeyNamespace, Sharing
from mmcached.integrations.vllm.leases import Leases
from mmcached.integrations.vllm.messages import StepOrders, StepReport
from mmcached.integrations.vllm.packed import watch_packing
from mmcached.integrations.vllm.scheduler_side import SchedulerSide
from mmcached.integrations.vllm.settings import ConnectorSettings
from mmcached.integrations.vllm.weights import tower_of, watch
from mmcached.integrations.vllm.worker_side import WorkerSide
from mmcached.integrations.watched_writes import is_written

if TYPE_CHECKING:
    from vllm.config import VllmConfig

ECConnectorMetadata.register(StepOrders)
ECConnectorWorkerMetadata.register(StepReport)

logger = init_logger("vllm.mmcached")
CONNECT_S = 1.0
CallT = TypeVar("CallT", bound=Callable[..., Any])


def _guarded(otherwise: Any) -> Callable[[CallT], CallT]:
    """Decorate a method to return `otherwise` (or its result, if callable) instead of raising."""

    def guard(method: CallT) -> CallT:
        @functools.wraps(method)
        def guarded(self: MmcachedECConnector, *values: Any, **named: Any) -> Any:
            try:
                return method(self, *values, **named)
            except Exception:
                self.note_failure(method.__name__)
                return otherwise() if callable(otherwise) else otherwise

        return guarded  # type: ignore[return-value]

    return guard


class MmcachedECConnector(ECConnectorBase):
    """vLLM's encoder-cache connector for one engine; `ConnectorSettings` are its `ec_connector_extra_config`."""

    def __init__(self, vllm_config: VllmConfig, role: ECConnectorRole) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        settings = ConnectorSettings.of(vllm_config.ec_transfer_config.ec_connector_extra_config)
        self._failed: set[str] = set()
        self._resolver = PlaceholderMetadataResolver(vllm_config.model_config)
        self._is_encode_only = self.is_producer and not self.is_consumer
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role is ECConnectorRole.SCHEDULER:
            self._scheduler = self._scheduler_side(vllm_config, settings)
        else:
            self._worker = self._worker_side(vllm_config, settings)

    # ---- scheduler

    @property
    def is_sharing(self) -> bool:
        """Whether this is the scheduler's connector and the service is connected."""
        return self._scheduler is not None and self._scheduler.is_sharing

    @_guarded(True)
    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        return self._scheduler is None or self._scheduler.ensure_available(request, num_computed_tokens)

    @_guarded(False)
    def has_cache_item(self, identifier: str) -> bool:
        return self._scheduler is not None and self._scheduler.has_item(identifier)

    @_guarded(None)
    def update_state_after_alloc(self, request: Any, index: int) -> None:
        if self._scheduler is not None:
            self._scheduler.allocated(request, index)

    def build_connector_meta(self, scheduler_output: Any) -> StepOrders:
        if self._scheduler is None:
            return StepOrders(0)
        # announced claims and saves must reach the workers even if `_end_pass` fails
        plan = self._scheduler.plan(scheduler_output)
        self._end_pass(plan, scheduler_output)
        return plan

    @_guarded(None)
    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.ec_connector_worker_meta
        if self._scheduler is not None and isinstance(report, StepReport):
            self._scheduler.reported(report)

    @_guarded(set)
    def take_unavailable_requests(self) -> set[str]:
        return set() if self._scheduler is None else self._scheduler.take_unavailable()

    @_guarded(lambda: (False, None))
    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Return the items' metadata, for a proxy to pass on, if this engine only encodes for others."""
        if not self._is_encode_only:
            return False, None
        return False, collect_ec_item_metadata(request.mm_features, self._resolver) or None

    # ---- worker

    @_guarded(None)
    def start_save_caches(self, **kwargs: Any) -> None:
        """Load and save before the encoder runs, in an encode-only engine: vLLM lets it load nothing."""
        if self._worker is not None and self._is_encode_only:
            plan, cache = self._plan(), kwargs["encoder_cache"]
            self._worker.load(plan, cache)
            self._worker.publish(plan, cache)
            self._worker.begin_encoding(plan)

    @_guarded(None)
    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        if self._worker is not None:
            plan = self._plan()
            self._worker.load(plan, encoder_cache)
            self._worker.begin_encoding(plan)

    @_guarded(None)
    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any) -> None:
        if self._worker is not None and self.is_producer:
            self._worker.save(self._plan(), encoder_cache, mm_hash)

    @_guarded(None)
    def build_connector_worker_meta(self) -> StepReport | None:
        return None if self._worker is None else self._worker.end_step(self._plan())

    # ---- both

    @_guarded(None)
    def get_ec_connector_stats(self) -> Any:
        """Return the engine's figures in the scheduler; those of workers arrive in their reports."""
        if self._scheduler is None or not any(self._scheduler.counts.values()):
            return None
        from mmcached.integrations.vllm.metrics import MmcachedStats  # needs a later vLLM than the rest

        stats = MmcachedStats(data=dict(self._scheduler.counts))
        self._scheduler.counts.clear()
        return stats

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        from mmcached.integrations.vllm.metrics import MmcachedStats

        return MmcachedStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *values: Any, **named: Any) -> Any:
        from mmcached.integrations.vllm.metrics import MmcachedPromMetrics

        return MmcachedPromMetrics(*values, **named)

    @_guarded(None)
    def shutdown(self) -> None:
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()

    def note_failure(self, where: str) -> None:
        """Log an error that was kept from vLLM, once for each method."""
        if where not in self._failed:
            self._failed.add(where)
            logger.exception("mmcached: %s failed; the engine goes on as if the store were empty (logged once)", where)

    # ---- how

    @_guarded(None)
    def _end_pass(self, plan: StepOrders, scheduler_output: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.end_pass(plan, scheduler_output)

    def _scheduler_side(self, vllm_config: VllmConfig, settings: ConnectorSettings) -> SchedulerSide:
        engine_id = vllm_config.ec_transfer_config.engine_id
        _watch_weights(vllm_config)
        namespace = KeyNamespace(vllm_config, settings, vllm_version, tower_of(engine_id).rows)
        contact = ReconnectingClient(
            functools.partial(_client, settings, fail_open=False, counts_hits=True),
            namespace.prepare,
            call_timeout_s=settings.call_timeout_s,
        )
        is_claiming = settings.single_flight and self.is_producer
        parallel = vllm_config.parallel_config
        num_ranks = parallel.tensor_parallel_size * getattr(parallel, "prefill_context_parallel_size", 1)
        num_drafted = getattr(vllm_config.speculative_config, "num_speculative_tokens", None) or 0
        return SchedulerSide(
            contact,
            namespace.prefix,
            Sharing.of(vllm_config, settings),
            Leases(num_ranks, settings.lease_steps),
            EngineClaims(contact, settings.claim_wait_s) if is_claiming else None,
            is_exact=lambda: namespace.is_exact,
            forget_tower=tower_of(engine_id).forget,
            can_save=self.is_producer,
            is_encode_only=self._is_encode_only,
            window=vllm_config.scheduler_config.max_num_batched_tokens + num_drafted,
            can_be_encoded=self._can_be_encoded,
            width_of=functools.cache(functools.partial(_width, vllm_config)),
            dtype=vllm_config.model_config.dtype,
            wait_s=settings.claim_wait_s,
        )

    def _worker_side(self, vllm_config: VllmConfig, settings: ConnectorSettings) -> WorkerSide:
        watch_packing(layer_utils)  # this connector is made before the model is loaded
        device = current_platform.device_type
        if device == "cuda":
            device = f"cuda:{torch.cuda.current_device()}"
        num_ranks = vllm_config.parallel_config.tensor_parallel_size
        saves = self.is_producer and (num_ranks == 1 or _rank() == 0)
        return WorkerSide(
            _client(settings, fail_open=True, counts_hits=False),  # hits are counted by the scheduler's client
            device_of(device, max_pinned_bytes=settings.max_pinned_bytes),
            vllm_config.model_config.dtype,
            max_waiting_bytes=settings.max_waiting_bytes if saves else 0,
            agree=_agree if num_ranks > 1 else list,
            is_written=functools.partial(is_written, vllm_config.ec_transfer_config.engine_id),
            is_encode_only=self._is_encode_only,
            call_timeout_s=settings.call_timeout_s,
        )

    def _plan(self) -> StepOrders:
        plan = self._get_connector_metadata()
        assert isinstance(plan, StepOrders)
        return plan

    def _can_be_encoded(self, feature: Any) -> bool:
        """Return whether a feature has data beyond the sizes of its placeholder: pixels, or an embedding."""
        if feature.data is None:
            return True  # vLLM has dropped the data, because it is not needed
        sizes = self._resolver.fields_for(feature.modality)
        return any(each.data is not None for name, each in feature.data.items() if name not in sizes)


def _watch_weights(vllm_config: VllmConfig) -> None:
    try:
        from vllm.v1.executor.abstract import Executor

        watch(Executor.get_class(vllm_config))
    except (ImportError, AttributeError) as error:
        logger.warning("mmcached: nothing is shared, because calls cannot be watched in this vLLM: %s", error)


def _width(vllm_config: VllmConfig, modality: str) -> int:
    """Return the width of an output row: as vLLM has measured it (in encoding engines), or as computed."""
    measured = getattr(vllm_config.ec_transfer_config, "mm_encoder_output_widths", {})
    model = vllm_config.model_config
    if modality in measured:
        return int(measured[modality])
    return embedding_width(model.get_inputs_embeds_size(), model.hf_config.to_dict(), modality)


def _client(settings: ConnectorSettings, *, fail_open: bool, counts_hits: bool) -> Client:
    return Client(
        settings.run_dir,
        timeout_s=CONNECT_S,
        connect_timeout_s=CONNECT_S,
        tenant=settings.tenant,
        fail_open=fail_open,
        counts_hits=counts_hits,
        name="vllm",
    )


def _rank() -> int:
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def _agree(failures: list[bool]) -> list[bool]:
    from vllm.distributed.parallel_state import get_tp_group

    return failed_in_any(failures, get_tp_group().cpu_group)
