"""The manager of vllm-omni 0.30's prefix cache, with its calls, over `OmniTensorPrefixCache`.

    new_step_starts(scheduler's output) ──> save_outputs(step's outputs) ──> step id ──> materialize | discard_step

A step is merged when it is saved, on the engine's thread: later a slot may belong to another tenant.
MMCACHED_PREFIX_ROWS=1 makes vllm-omni's runners create this class: see `docs/from-vllm-omni.md`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from mmcached.compat.omni_tensor_prefix_cache import InputBatch, MissingPrefix, MissingRun, OmniTensorPrefixCache
from mmcached.compat.omni_tensor_prefix_cache.engine_batch import Step
from mmcached.compat.omni_tensor_prefix_cache.passthrough import split_per_request
from mmcached.wire.errors import InvalidRequest

ASKED = "MMCACHED_PREFIX_ROWS"

_LOG = logging.getLogger("mmcached.worker")


def register() -> None:
    """Make vllm-omni's runners in this process create this manager, if the environment asks for it."""
    if os.environ.get(ASKED, "") in ("", "0"):
        return
    from vllm_omni.core.prefix_cache import runner_mixin

    runner_mixin.OmniPrefixCacheManager = OmniPrefixCacheManager
    _LOG.info("mmcached: rows behind prefix hits are kept by mmcached's cache")


@dataclass(frozen=True, slots=True)
class _Saved:
    """A saved step, merged.

    Attributes:
        hidden: Request id -> its rows; None if the step has no hidden states, or the model wants none.
        outputs: Key -> request id -> its part.
        missing: The hidden rows that hits lack.
    """

    req_ids: frozenset[str]
    hidden: Mapping[str, torch.Tensor] | None
    outputs: Mapping[str, Mapping[str, object]]
    missing: Sequence[MissingRun]


class OmniPrefixCacheManager:
    """Keeps rows of hidden states and of other outputs by KV slot, and joins them with a step's rows.

    Args:
        config: vllm-omni's `PrefixCacheConfig`; its sizes of blocks count.
        view: Its view of the batch: `batch_req_ids` and `step_slots_cpu`.
        eager: Ignored: no thread writes.
    """

    def __init__(self, config: Any, view: Any, *, eager: bool | None = None) -> None:
        self._config = config
        self._view = view
        self._cache: OmniTensorPrefixCache | None = None
        self._wants_hidden, self._deferred = True, frozenset[str]()
        self._lock = threading.Lock()
        """Guards the saved steps, which another thread may take."""
        self._live: set[str] = set()
        self._hits: dict[str, tuple[int, list[int]]] = {}
        self._scheduled: dict[str, int] = {}
        self._saved: dict[int, _Saved] = {}
        self._next_id = 1

    def register_policy(self, policy: Any) -> None:
        """Take over whether the model wants whole hidden states, and its deferred keys."""
        self._wants_hidden, self._deferred = policy.needs_full_hidden_states, frozenset(policy.deferred_keys)

    def new_step_starts(self, scheduler_output: Any) -> None:
        """Begin a step: write the deferred rows of finished requests, and note the hits of new ones.

        Raises:
            OmniPrefixCacheUnmatchError: A hit has no blocks, or ends inside a block.
        """
        finished = set(getattr(scheduler_output, "finished_req_ids", None) or ())
        self._live -= finished
        if self._cache is not None:
            self._cache.commit_deferred_mm_outputs(finished, InputBatch([], {}, [], torch.empty(0, 0)))
        self._hits = {}
        for new in getattr(scheduler_output, "scheduled_new_reqs", None) or ():
            if new.req_id in self._live:  # its next chunk: it has had these rows
                continue
            self._live.add(new.req_id)
            if (num_computed := int(new.num_computed_tokens or 0)) > 0:
                self._hits[new.req_id] = num_computed, self._blocks_of_hit(new, num_computed)
        self._scheduled = dict(scheduler_output.num_scheduled_tokens)

    def save_outputs(
        self,
        hidden_states: torch.Tensor | None,
        mm_outputs: Mapping[str, Any] | None,
        *,
        num_tokens_unpadded: int,
        num_tokens_padded: int,
    ) -> int:
        """Write the rows of a step, merge them with the prefixes of its hits, and return the step's id.

        Waits for the copy of the rows to the host.

        Raises:
            OmniPrefixCacheUnmatchError: The outputs or the slots do not fit the step.
        """
        num_rows, outputs = num_tokens_unpadded, dict(mm_outputs or {})
        order = self._view.batch_req_ids()
        scheduled = {req_id: int(self._scheduled.get(req_id, 0)) for req_id in order}
        slots = self._view.step_slots_cpu(order, scheduled)
        if len(slots) != num_rows:
            raise _unmatched(f"slot mapping covers {len(slots)} of {num_rows} scheduled tokens")
        starts = [0, *accumulate(scheduled.values())]
        batch = self._batch(order, starts, slots)
        rows = {key: value[:num_rows] for key, value in outputs.items() if _is_rows(value, num_rows, num_tokens_padded)}
        try:
            step = Step(starts[:-1], batch, scheduled)
            rest = {key: split_per_request(key, value, step) for key, value in outputs.items() if key not in rows}
            merged = {key: parts for key, parts in rest.items() if parts}
            saved = _Saved(frozenset(order), None, merged, ())
            if num_rows:
                hidden = hidden_states if self._wants_hidden else None
                saved = self._write_and_merge(batch, starts[:-1], scheduled, slots, hidden, rows, merged)
        except InvalidRequest as error:
            raise _unmatched(str(error)) from error
        with self._lock:
            step_id, self._next_id = self._next_id, self._next_id + 1
            self._saved[step_id] = saved
        return step_id

    def materialize(self, step_id: int, req_ids: list[str]) -> Any:
        """Return vllm-omni's `StageCacheOutputs` of a saved step; any thread, once for each step.

        Raises:
            OmniPrefixCacheUnmatchError: The step or a request is unknown, or hidden states of a hit are missing.
        """
        from vllm_omni.core.prefix_cache.interface import StageCacheOutputs

        saved = self._take(step_id)
        if unknown := set(req_ids) - saved.req_ids:
            raise _unmatched(
                f"materialize(step {step_id}) got req ids outside the save snapshot: {sorted(unknown)[:8]}"
            )
        for run in saved.missing:
            if run.request_id in req_ids:
                where = f"{run.end - run.first} absent slots from position {run.first} on"
                raise _unmatched(f"hit span for req {run.request_id} key={run.key} is not readable ({where})")
        hidden = None if saved.hidden is None else {req_id: saved.hidden[req_id] for req_id in req_ids}
        # An empty list is what runners leave out of a request's payload.
        outputs = {key: {each: parts.get(each, []) for each in req_ids} for key, parts in saved.outputs.items()}
        return StageCacheOutputs(hidden_states=hidden, mm_outputs=outputs)

    def discard_step(self, step_id: int) -> None:
        """Forget the results of a saved step; its rows stay."""
        self._take(step_id)

    def shutdown(self) -> None:
        """Do nothing: there are no threads."""

    # ---- how

    def _blocks_of_hit(self, new: Any, num_computed: int) -> list[int]:
        blocks = new.block_ids
        if blocks and not isinstance(blocks[0], int):
            blocks = blocks[0]
        if not blocks:
            raise _unmatched(f"prefix hit for req {new.req_id} ({num_computed} tokens) carries no block_ids")
        size = self._config.block_size
        if num_computed % size:
            about = f"req={new.req_id}, hit_upto={num_computed}, block_size={size}"
            raise _unmatched(f"prefix hit not block aligned ({about})")
        return list(blocks[: num_computed // size])

    def _batch(self, order: list[str], starts: list[int], slots: torch.Tensor) -> InputBatch:
        """Return the batch with the blocks of each request's prefix and of its rows.

        The view has slots only, so the rows of a request without a hit count from the beginning of their first block.
        """
        size = self._config.block_size
        computed, tables = [], []
        for req_id, (start, end) in zip(order, pairwise(starts), strict=True):
            rows = slots[start:end]
            blocks = torch.unique_consecutive(rows // size).tolist()
            before, hit = self._hits.get(req_id, (int(rows[0]) % size if len(rows) else 0, []))
            computed.append(before)
            tables.append([*hit, *blocks])
        width = max(map(len, tables), default=0)
        table = torch.tensor([[*each, *[0] * (width - len(each))] for each in tables], dtype=torch.int64)
        places = {req_id: place for place, req_id in enumerate(order)}
        return InputBatch(order, places, computed, table.view(len(order), width))

    def _write_and_merge(  # noqa: PLR0917
        self,
        batch: InputBatch,
        starts: list[int],
        scheduled: dict[str, int],
        slots: torch.Tensor,
        hidden: torch.Tensor | None,
        rows: dict[str, torch.Tensor],
        rest: dict[str, dict[str, object]],
    ) -> _Saved:
        cache = self._made(hidden)
        cache.reset_prefix_cached_new_req_ids()
        for req_id in self._hits:
            cache.add_prefix_cached_new_req_id(req_id)
        for key, value in rows.items():
            cache.declare(key, value.shape[1], value.dtype)
        deferred = self._deferred & rows.keys()
        cache.update_omni_tensor_prefix_cache(hidden, rows, len(slots), slots, skip_mm_cache_keys=deferred)
        cache.stage_deferred_mm_outputs(starts, batch, rows, scheduled, deferred)
        missing: list[MissingRun] = []
        merged: Mapping[str, torch.Tensor] | None = None
        if hidden is not None:
            try:
                merged = cache.get_merged_hidden_states(starts, batch, hidden, scheduled)
            except MissingPrefix as error:
                merged, missing = error.merged, list(error.missing)
        try:
            outputs: Mapping[str, Any] = cache.get_merged_multimodal_states(starts, batch, rows, scheduled)
        except MissingPrefix as error:
            outputs = error.merged
            for run in error.missing:
                _LOG.warning("%s of request %s lacks rows of its prefix, and is left out", run.key, run.request_id)
        return _Saved(frozenset(batch.req_ids), merged, {**outputs, **rest}, missing)

    def _made(self, hidden: torch.Tensor | None) -> OmniTensorPrefixCache:
        """Return the cache; the first step with hidden states tells their width."""
        if self._cache is None:
            width, dtype = (1, torch.uint8) if hidden is None else (hidden.shape[-1], hidden.dtype)
            self._cache = OmniTensorPrefixCache(self._config.num_blocks, self._config.block_size, width, dtype)
        return self._cache

    def _take(self, step_id: int) -> _Saved:
        with self._lock:
            saved = self._saved.pop(step_id, None)
        if saved is None:
            raise _unmatched(f"step id {step_id} was consumed twice or never saved")
        return saved


def _is_rows(value: object, num_rows: int, padded: int) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 2 and num_rows > 0 and len(value) in (num_rows, padded)


def _unmatched(text: str) -> Exception:
    """Return vllm-omni's error for outputs and hits that contradict each other."""
    from vllm_omni.core.prefix_cache.interface import OmniPrefixCacheUnmatchError

    error: Exception = OmniPrefixCacheUnmatchError(text)
    return error
