"""The methods of vllm-omni's tensor prefix cache, over rows by KV slot.

The order of one step's calls:

    commit_deferred_mm_outputs(finished)
    reset_prefix_cached_new_req_ids()               the step begins
    discard_deferred_mm_outputs(each finished)
    add_prefix_cached_new_req_id(each new hit)
    … forward …
    update_omni_tensor_prefix_cache(…)              before merging: a hit may be on rows of this very step
    stage_deferred_mm_outputs(…)
    get_merged_hidden_states(…), get_merged_multimodal_states(…)

Invariant: a delivered row was written for its slot by the step that wrote the slot last.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from mmcached.compat.omni_tensor_prefix_cache.engine_batch import EngineBatch, Starts, Step, as_outputs
from mmcached.compat.omni_tensor_prefix_cache.merging import Merger, MissingPrefix, MissingRun, Prefixes
from mmcached.compat.omni_tensor_prefix_cache.output_keys import Discover, OutputKeys, key_spec
from mmcached.compat.omni_tensor_prefix_cache.passthrough import split_per_request
from mmcached.compat.omni_tensor_prefix_cache.slots import BlockTable, SlotChecker
from mmcached.compat.omni_tensor_prefix_cache.staging import Staging
from mmcached.compat.omni_tensor_prefix_cache.stats import TensorPrefixCacheStats
from mmcached.compat.omni_tensor_prefix_cache.step_writer import SlotStepWriter, at_least, hidden_rows
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.hidden_states.device_copy import TransferFor, transfer_for
from mmcached.worker.hidden_states.pending_rows import DEFAULT_BYTE_LIMIT, PendingRows
from mmcached.worker.hidden_states.row_arena import RowArena
from mmcached.worker.hidden_states.schema import KeySpec
from mmcached.worker.integers import as_integer

HIDDEN_STATES = "hidden_states"
log = logging.getLogger("mmcached.worker")


class OmniTensorPrefixCache:
    """Rows of hidden states and of other per-token outputs, in host memory.

    Merging waits for the step's copy, because it returns rows on the CPU; `TensorPrefixStore` waits for readers only.

    Args:
        num_blocks, block_size: Sizes of the KV pool: slots 0 … num_blocks * block_size - 1.
        hidden_size, hs_dtype: Of the hidden states. Their memory is not touched before they are written.
        discover: When an output that was not declared becomes a key; see `output_keys`.
        transfer_for: Creates the object that copies the rows of a device.

    Raises:
        InvalidRequest: A size is below 1.
        ConfigError: There is no memory for the rows.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        hidden_size: int,
        hs_dtype: torch.dtype,
        *,
        discover: Discover = "two_lengths",
        transfer_for: TransferFor = transfer_for,
    ) -> None:
        for field, value in (("num_blocks", num_blocks), ("block_size", block_size), ("hidden_size", hidden_size)):
            if as_integer(field, value) < 1:
                raise InvalidRequest(field, value, "must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.default_hidden_size = hidden_size
        num_slots = num_blocks * block_size
        self._slots = SlotChecker(num_slots)
        self._pending = PendingRows(byte_limit=DEFAULT_BYTE_LIMIT, transfer_for=transfer_for)
        self._hidden = self._make_arena(key_spec(HIDDEN_STATES, hidden_size, hs_dtype))
        self._keys = OutputKeys(self._make_arena, discover)
        self._staging = Staging(self._keys, self._pending, num_slots)
        self._merger = Merger(self._pending)
        self._writer = SlotStepWriter(self._hidden, self._keys, self._pending, self._staging.rows, num_slots)
        self._has_warned = False

    @property
    def hidden_states_cache(self) -> torch.Tensor:
        """`(num_blocks, block_size, hidden_size)`; the content of rows that were not written is undefined."""
        self._pending.settle_all()
        return self._hidden.tensor

    @property
    def mm_outputs_cache(self) -> dict[str, torch.Tensor]:
        """Key -> `(num_blocks, block_size, width)`; rows that were not written, or are staged, are undefined."""
        self._pending.settle_all()
        return {key: arena.tensor for key, arena in self._keys.known.items()}

    @property
    def mm_cache_keys(self) -> set[str]:
        return set(self._keys.known)

    # ---- which requests are hits of this step

    def add_prefix_cached_new_req_id(self, req_id: str) -> None:
        """Mark a request, new or resumed, whose first rows of this step follow a prefix hit."""
        self._merger.hits.add(req_id)

    def reset_prefix_cached_new_req_ids(self) -> None:
        """Begin a step: no request is marked as a hit."""
        self._merger.hits.clear()
        self._writer.begin_step()

    def has_prefix_cached_new_req_ids(self) -> bool:
        return bool(self._merger.hits)

    # ---- keys

    def declare(self, key: str, width: int, dtype: torch.dtype) -> None:
        """Make an output a key: `(tokens, width)` of `dtype` in each step that has it.

        Raises:
            InvalidRequest: It is known with another width or dtype.
        """
        self._keys.declare(key, width, dtype)

    def maybe_init_missing_mm_cache_keys(self, multimodal_outputs: Mapping[str, Any], seq_len: int) -> None:
        """Discover keys among the outputs of a step of `seq_len` tokens.

        Raises:
            ConfigError: There is no memory for a key's rows.
        """
        _raise_first(self._keys.observe(as_outputs(multimodal_outputs), (seq_len,)))

    # ---- writing

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

        Rows that the step does not have are missing in these slots from now on. For a None argument, rows that another
        call has written in the same step stay.

        Args:
            hidden_states: `(tokens, hidden_size)`, or None: the model has none.
            multimodal_outputs: by name; which are keys, see `output_keys`.
            num_tokens_unpadded: rows that count.
            slot_mapping: `(at least num_tokens_unpadded,)` integers on the CPU.
            num_tokens_padded: rows of a padded step; default: no padding.
            skip_mm_cache_keys: deferred keys: known, but not written now.
            hidden_states_cpu: the hidden states, already copied to the CPU: contiguous; preferred.

        Raises:
            InvalidRequest: Names the invalid argument. If it is a key, its rows are missing in these slots, and all
                others are written. If it is the slots or the number of tokens, nothing has changed: forget the slots.
            Exception: Any other error, of a device or for lack of memory: rows that were not written yet are missing.
        """
        num_rows = as_integer("num_tokens_unpadded", num_tokens_unpadded)
        padded = as_integer("num_tokens_padded", num_tokens_padded) if num_tokens_padded else num_rows
        if padded < num_rows:
            raise InvalidRequest("num_tokens_padded", padded, f"must be at least {num_rows}")
        outputs = None if multimodal_outputs is None else as_outputs(multimodal_outputs)
        slots = self._slots.check(slot_mapping, num_rows)
        skipped = skip_mm_cache_keys or ()
        _raise_first(
            self._writer.write(
                slots, hidden_states, outputs, hidden_states_cpu=hidden_states_cpu, skipped=skipped, padded=padded
            )
        )

    def stage_deferred_mm_outputs(
        self,
        query_start_loc: Starts,
        input_batch: EngineBatch,
        multimodal_outputs: Mapping[str, Any] | None,
        num_scheduled_tokens: Mapping[str, int],
        deferred_mm_cache_keys: Collection[str],
    ) -> None:
        """Keep copies of a step's rows of the deferred keys, on their device, until they are needed.

        Rows belong to the slots of positions `num_computed_tokens_cpu …` of their request, the number BEFORE the step,
        until the slots are written again; how this is checked: `staging`. A deferred key needs no discovery. Hits find
        staged rows like written ones; when they are written: `staged_rows`.

        Raises:
            InvalidRequest: Names the request whose positions contradict, or the key whose rows do not fit: of these
                nothing is staged, of all others everything.
        """
        slots = self._writer.outputs.take_slots()
        if not deferred_mm_cache_keys:
            return
        # Requests without rows need not be named here.
        scheduled = {req_id: num_scheduled_tokens.get(req_id, 0) for req_id in input_batch.req_ids}
        step = Step(query_start_loc, input_batch, scheduled)
        refused = self._staging.stage(
            as_outputs(multimodal_outputs or {}),
            deferred_mm_cache_keys,
            step,
            input_batch,
            self._block_table(input_batch),
            written=slots if slots is not None and step.num_rows <= len(slots) else None,
            hits=self._merger.hits,
        )
        _raise_first(refused)

    def commit_deferred_mm_outputs(self, finished_req_ids: Iterable[str], input_batch: EngineBatch) -> None:
        """Write the staged rows of requests that end, except those whose slot a later step has written.

        Args:
            input_batch: Ignored: rows have their slots since they were staged.
        """
        self._staging.commit(finished_req_ids)

    def discard_deferred_mm_outputs(self, req_id: str) -> None:
        """Remove a request's rows that are still staged; an unknown request changes nothing."""
        self._staging.discard(req_id)

    def forget_slots(self, slot_mapping: torch.Tensor) -> None:
        """Remove all rows of slots, written and staged: the step that wrote them was withdrawn."""
        self._writer.forget(self._slots.check(slot_mapping))

    def clear(self) -> None:
        """Remove all rows, hits and staged rows; keys stay known, and counters continue."""
        self._pending.clear()
        for arena in (self._hidden, *self._keys.arenas):
            arena.clear()
        self._merger.hits.clear()
        self._staging.clear()
        self._writer.outputs.clear()

    # ---- merging

    def get_merged_hidden_states(
        self,
        query_start_loc: Starts,
        input_batch: EngineBatch,
        hidden_states: torch.Tensor,
        num_scheduled_tokens: Mapping[str, int],
        hidden_states_cpu: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return each request's rows of this step, with the cached prefix before them if it is a hit of this step.

        Args:
            query_start_loc: First packed row of each request.
            hidden_states: `(tokens, hidden_size)` of the step.
            num_scheduled_tokens: Rows of each request.

        Returns:
            Request id -> `(rows, hidden_size)` on the CPU, a copy.

        Raises:
            MissingPrefix: Rows of a prefix were never written; has the results of all other requests.
            InvalidRequest: The step's tensor is too short or of another shape.
        """
        step = Step(query_start_loc, input_batch, num_scheduled_tokens)
        chosen = hidden_rows(self._hidden.spec, hidden_states, hidden_states_cpu, step.num_rows)
        rows = self._writer.on_host(self._hidden, chosen, step.num_rows)
        missing: list[MissingRun] = []
        merged = self._merger.merge(self._hidden, rows, step, self._prefixes(step, input_batch), missing)
        if missing:
            raise MissingPrefix(missing, merged)
        return merged

    def get_merged_multimodal_states(
        self,
        query_start_loc: Starts,
        input_batch: EngineBatch,
        multimodal_outputs: Mapping[str, Any] | None,
        num_scheduled_tokens: Mapping[str, int],
    ) -> dict[str, dict[str, object]]:
        """Return key -> request id -> its part of the step's outputs; known keys are merged with the cached prefix.

        For a known key that the step lacks, hits get the prefix alone. Other outputs follow
        `passthrough.split_per_request`; while a key is undecided its prefix is missing.

        Raises:
            MissingPrefix, InvalidRequest: As `get_merged_hidden_states`; to continue without a key that does not fit,
                remove it from `multimodal_outputs`.
        """
        outputs = {key: value for key, value in as_outputs(multimodal_outputs or {}).items() if value is not None}
        step = Step(query_start_loc, input_batch, num_scheduled_tokens)
        prefixes = self._prefixes(step, input_batch)
        for slots in prefixes.values():
            self._staging.rows.settle(slots)
        missing: list[MissingRun] = []
        merged: dict[str, dict[str, Any]] = {}
        for key, value in outputs.items():
            known, undecided = self._keys.known.get(key), self._keys.may_be_rows(key, value)
            if known is not None:
                rows = self._writer.on_host(
                    known, at_least(known.spec.check_rows(value), step.num_rows, key), step.num_rows
                )
                merged[key] = self._merger.merge(known, rows, step, prefixes, missing)
            elif undecided is not None and len(value) >= step.num_rows:
                rows = self._writer.on_host(undecided, value, step.num_rows)
                merged[key] = self._merger.merge(undecided, rows, step, prefixes, missing, is_known=False)
            else:
                merged[key] = split_per_request(key, value, step)
        if prefixes:
            for arenas, is_known in ((self._keys.known, True), (self._keys.undecided, False)):
                for key in [key for key in arenas if key not in outputs]:
                    merged[key] = self._merger.merge(arenas[key], None, step, prefixes, missing, is_known=is_known)
        merged = {key: parts for key, parts in merged.items() if parts}
        if missing:
            raise MissingPrefix(missing, merged)
        return merged

    # ---- the state itself

    def stats(self) -> TensorPrefixCacheStats:
        arenas = (self._hidden, *self._keys.known.values())
        return TensorPrefixCacheStats(
            len(self._keys.known),
            self._merger.row_queries,
            self._merger.row_hits,
            sum(int(np.count_nonzero(arena.written)) * arena.spec.row_nbytes for arena in arenas),
            self._staging.rows.num_rows,
        )

    # ---- inside

    def _make_arena(self, spec: KeySpec) -> RowArena:
        return RowArena(spec, block_size=self.block_size, num_blocks=self.num_blocks)

    def _block_table(self, input_batch: EngineBatch) -> BlockTable:
        table = BlockTable(input_batch, num_blocks=self.num_blocks, block_size=self.block_size)
        if not self._has_warned and table.num_kv_groups > 1:
            self._has_warned = True
            log.warning("%d KV groups: slots are those of the first", table.num_kv_groups)
        return table

    def _prefixes(self, step: Step, input_batch: EngineBatch) -> Prefixes:
        if not self._merger.hits:
            return {}
        return self._merger.prefixes(step, input_batch, self._block_table(input_batch))


def _raise_first(errors: list[InvalidRequest]) -> None:
    for other in errors[1:]:
        errors[0].add_note(str(other))
    if errors:
        raise errors[0]
