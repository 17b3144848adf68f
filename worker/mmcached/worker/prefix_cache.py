"""The seed's tensor prefix cache: per-token outputs by KV slot, for requests that skip a prefix.

Knows nothing of models, engines or devices beyond what `InputBatch` and its arguments say; keeps everything on the
CPU. Its rows live and die with KV slots: whoever writes a slot replaces what stood there.

    hidden_states_cache          (num_blocks, block_size, hidden_size)         a RowStore
    mm_outputs_cache[key]        (num_blocks, block_size, width of the key)    a RowStore per key, made when first seen
    hits of this step            requests whose first chunk follows a prefix hit: merged with the cached rows
    deferred chunks              rows whose slots are written when the request ends

Invariant: no row is delivered that was not written for its slot. A row that is missing is `MissingRows`, never zeros.
A merged result is the step's own rows; for a hit of this step it starts at position 0.

Source: `OmniTensorPrefixCache` of vllm-omni 0.22, its ten methods. Deliberate differences:

* an occupancy bit per row and key, so that unwritten rows are `MissingRows`;
* a hit may end within a block: all its rows are delivered, none is dropped;
* a write replaces the slots' tenant: a known key that the step's outputs lack, or that is deferred, becomes missing
  there;
* slots, widths, dtypes and lengths are checked, nothing is broadcast, truncated or wrapped around, no slot is named
  twice; a call that fails has changed nothing;
* `num_computed_tokens_cpu` is the number before the step, for staging as well as for merging;
* staged rows are copies; what was staged later wins; positions beyond the block table are refused;
* every result is a copy, one for each request, and never a view of the step's buffers;
* a key is also recognised unpadded on a padded step; only `(tokens, width)` tensors become keys; a 0-d tensor passes
  through;
* outputs None are no outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmcached.wire.errors import InvalidRequest, InvariantError
from mmcached.worker.deferred_rows import DeferredRows
from mmcached.worker.input_batch import InputBatch
from mmcached.worker.passthrough import split_per_request
from mmcached.worker.row_store import RowStore, check_slots

HIDDEN_STATES = "hidden_states"
Starts = Sequence[int] | torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefixCacheStats:
    """`row_queries` and `row_hits` count rows asked for behind hits and delivered; the rest are gauges.

    `written_bytes` are the bytes of rows that can be delivered, `deferred_rows` those staged and not committed.
    """

    keys: int
    row_queries: int
    row_hits: int
    written_bytes: int
    deferred_rows: int


class OmniTensorPrefixCache:
    """Slot-addressed rows of hidden states and of other per-token outputs.

    Args:
        num_blocks, block_size: as of the KV pool: slots 0 … num_blocks * block_size - 1.
        hidden_size, hs_dtype: of the hidden states.
    """

    def __init__(self, num_blocks: int, block_size: int, hidden_size: int, hs_dtype: torch.dtype) -> None:
        for field, value in (("num_blocks", num_blocks), ("block_size", block_size), ("hidden_size", hidden_size)):
            if value < 1:
                raise InvalidRequest(field, value, "must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.default_hidden_size = hidden_size
        self._hidden = self._make_store(HIDDEN_STATES, hidden_size, hs_dtype)
        self._stores: dict[str, RowStore] = {}
        self._hits: set[str] = set()
        self._deferred = DeferredRows()
        self._row_queries = 0
        self._row_hits = 0

    @property
    def hidden_states_cache(self) -> torch.Tensor:
        """`(num_blocks, block_size, hidden_size)`; rows that were not written hold anything."""
        return self._hidden.rows

    @property
    def mm_outputs_cache(self) -> dict[str, torch.Tensor]:
        """Key -> `(num_blocks, block_size, width)`; rows that were not written hold anything."""
        return {key: store.rows for key, store in self._stores.items()}

    @property
    def mm_cache_keys(self) -> set[str]:
        return set(self._stores)

    # ---- which requests are hits of this step

    def add_prefix_cached_new_req_id(self, req_id: str) -> None:
        """Say that the request's first rows of this step follow a prefix hit."""
        self._hits.add(req_id)

    def reset_prefix_cached_new_req_ids(self) -> None:
        """Begin a step: no request is a hit."""
        self._hits.clear()

    def has_prefix_cached_new_req_ids(self) -> bool:
        return bool(self._hits)

    # ---- writing

    def maybe_init_missing_mm_cache_keys(self, multimodal_outputs: Mapping[str, Any], seq_len: int) -> None:
        """Make room for each tensor `(seq_len, width)` whose key is not known; known keys are not touched."""
        for key, value in multimodal_outputs.items():
            if key not in self._stores and _is_rows(value) and len(value) == seq_len:
                self._stores[key] = self._make_store(key, value.shape[1], value.dtype)

    def update_omni_tensor_prefix_cache(  # noqa: PLR0917 (the seed's signature)
        self,
        hidden_states: torch.Tensor | None,
        multimodal_outputs: Mapping[str, Any] | None,
        num_tokens_unpadded: int,
        slot_mapping: torch.Tensor,
        num_tokens_padded: int | None = None,
        skip_mm_cache_keys: Collection[str] | None = None,
        hidden_states_cpu: torch.Tensor | None = None,
    ) -> None:
        """Write a step's rows to their slots.

        Args:
            hidden_states: `(tokens, hidden_size)`, or None: then hidden states of the slots stay as they are.
            multimodal_outputs: each tensor `(tokens, width)` is a key; None: then all keys stay as they are.
            num_tokens_unpadded: rows that count; further ones are padding.
            slot_mapping: `(at least num_tokens_unpadded,)` integers on the CPU.
            num_tokens_padded: rows of a padded step; default: no padding.
            skip_mm_cache_keys: deferred keys: known, but not written now.
            hidden_states_cpu: the hidden states, already copied to the CPU; preferred.
        Raises:
            InvalidRequest: names what does not fit; nothing has changed.
        """
        num_rows, padded = num_tokens_unpadded, num_tokens_padded or num_tokens_unpadded
        slots = self._check_slots(slot_mapping, num_rows)
        writes: list[tuple[RowStore, torch.Tensor]] = []
        if hidden_states is not None:
            rows = self._hidden_rows(hidden_states, hidden_states_cpu, num_rows)
            writes.append((self._hidden, rows))
        new_stores: dict[str, RowStore] = {}
        absent: list[RowStore] = []
        if multimodal_outputs is not None:
            skipped = frozenset(skip_mm_cache_keys or ())
            for key, value in multimodal_outputs.items():
                if key not in self._stores and _is_rows(value) and len(value) in (num_rows, padded):
                    new_stores[key] = self._make_store(key, value.shape[1], value.dtype)
            for key, store in (self._stores | new_stores).items():
                if key in skipped or key not in multimodal_outputs:
                    absent.append(store)
                else:
                    writes.append((store, _checked_rows(store, multimodal_outputs[key], num_rows, padded)))
        self._stores |= new_stores
        for store in absent:
            store.forget(slots)
        for store, rows in writes:
            store.write(slots, rows[:num_rows].detach().cpu().contiguous())

    def stage_deferred_mm_outputs(
        self,
        query_start_loc: Starts,
        input_batch: InputBatch,
        multimodal_outputs: Mapping[str, Any] | None,
        num_scheduled_tokens: Mapping[str, int],
        deferred_mm_cache_keys: Collection[str],
    ) -> None:
        """Keep copies of a step's rows of the deferred keys, until their request is committed or discarded.

        Rows belong to positions `num_computed_tokens_cpu …` of their request. Copies stay on the rows' device.
        """
        for key in deferred_mm_cache_keys:
            value = (multimodal_outputs or {}).get(key)
            if isinstance(value, torch.Tensor) and _is_rows(value):
                self._deferred.stage(key, value, query_start_loc, input_batch, num_scheduled_tokens)

    def commit_deferred_mm_outputs(self, finished_req_ids: Iterable[str], input_batch: InputBatch) -> None:
        """Write the staged rows of requests that end; call it while they are still in the batch.

        A request without a block table any more is forgotten: its rows stay missing.

        Raises:
            InvalidRequest: rows do not fit their key or the block table; that request's rows stay staged.
        """
        for req_id in finished_req_ids:
            if req_id in input_batch.req_id_to_index:
                self._commit(req_id, input_batch)
            self._deferred.discard(req_id)

    def discard_deferred_mm_outputs(self, req_id: str) -> None:
        """Forget the staged rows of a request; an unknown one changes nothing."""
        self._deferred.discard(req_id)

    def forget_slots(self, slot_mapping: torch.Tensor) -> None:
        """Say that slots hold nothing for any key: the step that wrote them was withdrawn."""
        slots = self._check_slots(slot_mapping, len(slot_mapping))
        for store in (self._hidden, *self._stores.values()):
            store.forget(slots)

    def clear(self) -> None:
        """Forget all rows, hits and staged rows; keys stay known, counters go on."""
        for store in (self._hidden, *self._stores.values()):
            store.clear()
        self._hits.clear()
        self._deferred.clear()

    # ---- merging

    def get_merged_hidden_states(
        self,
        query_start_loc: Starts,
        input_batch: InputBatch,
        hidden_states: torch.Tensor,
        num_scheduled_tokens: Mapping[str, int],
        hidden_states_cpu: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return each request's rows of this step, with the cached prefix before them if it is a hit of this step.

        Args:
            query_start_loc: first packed row of each request.
            hidden_states: `(tokens, hidden_size)` of the step.
            num_scheduled_tokens: rows of each request.
        Returns:
            request id -> `(rows, hidden_size)` on the CPU, a copy.
        Raises:
            MissingRows: a row of a prefix was never written.
            InvalidRequest: the step's tensor is too short or of another shape.
        """
        ends = [
            int(query_start_loc[input_batch.req_id_to_index[req_id]]) + num_scheduled_tokens[req_id]
            for req_id in input_batch.req_ids
        ]
        rows = self._hidden_rows(hidden_states, hidden_states_cpu, max(ends, default=0)).cpu()
        return self._merge(self._hidden, rows, query_start_loc, input_batch, num_scheduled_tokens)

    def get_merged_multimodal_states(
        self,
        query_start_loc: Starts,
        input_batch: InputBatch,
        multimodal_outputs: Mapping[str, Any] | None,
        num_scheduled_tokens: Mapping[str, int],
    ) -> dict[str, dict[str, object]]:
        """Return key -> request id -> its part of the step's outputs; known keys are merged with the cached prefix.

        What is no known key follows `passthrough.split_per_request`.

        Raises:
            MissingRows, InvalidRequest: as `get_merged_hidden_states`.
        """
        merged: dict[str, dict[str, object]] = {}
        for key, value in (multimodal_outputs or {}).items():
            store = self._stores.get(key)
            if store is None:
                parts = split_per_request(value, query_start_loc, input_batch, num_scheduled_tokens)
                if parts:
                    merged[key] = parts
            else:
                if not isinstance(value, torch.Tensor):
                    raise InvalidRequest(key, type(value).__name__, "must be a tensor, as before")
                store.check_rows(value, key)
                merged[key] = {
                    **self._merge(store, value.detach().cpu(), query_start_loc, input_batch, num_scheduled_tokens)
                }
        return merged

    # ---- the state itself

    def stats(self) -> PrefixCacheStats:
        stores = (self._hidden, *self._stores.values())
        return PrefixCacheStats(
            len(self._stores),
            self._row_queries,
            self._row_hits,
            sum(store.written_bytes for store in stores),
            self._deferred.num_rows,
        )

    def check_integrity(self) -> None:
        for store in (self._hidden, *self._stores.values()):
            store.check_integrity()
        if self._row_hits > self._row_queries:
            raise InvariantError(f"{self._row_hits} rows were delivered, {self._row_queries} asked for")

    def _make_store(self, key: str, width: int, dtype: torch.dtype) -> RowStore:
        return RowStore(key, num_blocks=self.num_blocks, block_size=self.block_size, width=width, dtype=dtype)

    def _check_slots(self, slot_mapping: torch.Tensor, num_rows: int) -> torch.Tensor:
        return check_slots(slot_mapping, num_rows, self.num_blocks * self.block_size)

    def _hidden_rows(self, hidden_states: torch.Tensor, staged: torch.Tensor | None, num_rows: int) -> torch.Tensor:
        """Return the tensor to take hidden states from: `staged` if given, after it was compared with the other."""
        field, rows = "hidden_states", hidden_states
        self._hidden.check_rows(hidden_states, field)
        if staged is not None:
            field, rows = "hidden_states_cpu", staged
            self._hidden.check_rows(staged, field)
            if staged.device.type != "cpu" or not staged.is_contiguous():
                raise InvalidRequest(field, str(staged.device), "must be contiguous on the CPU")
        if len(rows) < num_rows:
            raise InvalidRequest(field, len(rows), f"must have at least {num_rows} rows")
        return rows.detach()

    def _commit(self, req_id: str, input_batch: InputBatch) -> None:
        writes: list[tuple[RowStore, torch.Tensor, torch.Tensor]] = []
        stores: dict[str, RowStore] = {}
        for key, chunk in self._deferred.chunks(req_id):
            store = stores.get(key) or self._stores.get(key)
            stores[key] = store = store or self._make_store(key, chunk.rows.shape[1], chunk.rows.dtype)
            store.check_rows(chunk.rows, key)
            end = chunk.first_position + len(chunk.rows)
            slots = input_batch.slots(req_id, chunk.first_position, end, self.block_size)
            writes.append((store, self._check_slots(slots, len(slots)), chunk.rows))
        self._stores |= stores
        for store, slots, rows in writes:
            store.write(slots, rows.cpu())

    def _merge(
        self,
        store: RowStore,
        rows: torch.Tensor,
        query_start_loc: Starts,
        input_batch: InputBatch,
        num_scheduled_tokens: Mapping[str, int],
    ) -> dict[str, torch.Tensor]:
        merged = {}
        for req_id in input_batch.req_ids:
            start = int(query_start_loc[input_batch.req_id_to_index[req_id]])
            end = start + num_scheduled_tokens[req_id]
            if not 0 <= start <= end <= len(rows):
                raise InvalidRequest(store.key, len(rows), f"must have rows [{start}, {end}) of {req_id}")
            own = rows[start:end]
            if req_id in self._hits:
                slots = input_batch.slots(req_id, 0, input_batch.num_computed(req_id), self.block_size)
                self._row_queries += len(slots)
                cached = store.read(self._check_slots(slots, len(slots)))
                self._row_hits += len(slots)
                merged[req_id] = torch.cat([cached, own])
            else:
                merged[req_id] = own.clone()
        return merged


def _is_rows(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 2


def _checked_rows(store: RowStore, value: object, num_rows: int, padded: int) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise InvalidRequest(store.key, type(value).__name__, "must be a tensor, as before")
    store.check_rows(value, store.key)
    if len(value) not in (num_rows, padded):
        raise InvalidRequest(store.key, len(value), f"must have {num_rows} or {padded} rows")
    return value
