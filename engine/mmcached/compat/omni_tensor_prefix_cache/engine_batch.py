"""Reads the requests of a step, from `InputBatch` or an engine's own batch object, into `Step`.

Reads these fields, named as in vLLM's batch:

    req_ids                      the order of all results
    req_id_to_index              row in everything below
    num_computed_tokens_cpu      tokens computed BEFORE the step: list, array or tensor of whole numbers
    block_table                  (rows, max_blocks) block ids on the CPU, array or tensor; or one such table for each KV
                                 group, of which the first counts: block_table.block_tables,
                                 block_table[0].block_table.cpu
    query_start_loc              first packed row of each request: list, array or tensor
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch

from mmcached.wire.errors import InvalidRequest

Starts = Sequence[int] | np.ndarray | torch.Tensor


class EngineBatch(Protocol):
    """A batch object, an engine's own or `InputBatch`."""

    @property
    def req_ids(self) -> Sequence[str]: ...
    @property
    def req_id_to_index(self) -> Mapping[str, int]: ...
    @property
    def num_computed_tokens_cpu(self) -> Any: ...
    @property
    def block_table(self) -> Any: ...


@dataclass(slots=True)
class InputBatch:
    """The requests of one step; its fields are described in the module docstring."""

    req_ids: Sequence[str]
    req_id_to_index: Mapping[str, int]
    num_computed_tokens_cpu: Sequence[int] | torch.Tensor
    block_table: torch.Tensor


class Step:
    """Packed rows of each request.

    Attributes:
        req_ids: Requests of the batch.
        starts, counts: First packed row and number of rows of each request.
        num_rows: Rows that a tensor of the step must have.
        is_packed: Whether the requests' rows follow each other from row 0 on.
    """

    __slots__ = ("counts", "is_packed", "num_rows", "req_ids", "starts")

    def __init__(self, query_start_loc: Starts, input_batch: EngineBatch, scheduled: Mapping[str, int]) -> None:
        try:
            as_list = (
                query_start_loc.tolist() if isinstance(query_start_loc, torch.Tensor | np.ndarray) else query_start_loc
            )
            indexes = input_batch.req_id_to_index
            self.req_ids = list(input_batch.req_ids)
            self.starts: list[int] = [as_list[indexes[req_id]] for req_id in self.req_ids]
            self.counts: list[int] = [scheduled[req_id] for req_id in self.req_ids]
            ends = list(accumulate(self.counts, initial=0))
            operator.index(sum(self.starts) + ends[-1])  # one float among them, and the sum is one
        except (KeyError, IndexError) as error:
            limit = "must have a row for every request of the batch"
            raise InvalidRequest("query_start_loc, num_scheduled_tokens", str(error), limit) from error
        except (AttributeError, TypeError) as error:
            limit = "must be integers by request; a batch has req_ids and req_id_to_index"
            raise InvalidRequest("query_start_loc, num_scheduled_tokens", str(error), limit) from error
        if self.req_ids and (min(self.starts) < 0 or min(self.counts) < 0):
            lowest = min(*self.starts, *self.counts)
            raise InvalidRequest("query_start_loc, num_scheduled_tokens", lowest, "must be at least 0")
        self.num_rows = ends.pop()
        self.is_packed = self.starts == ends
        if not self.is_packed:
            parts = zip(self.starts, self.counts, strict=True)
            self.num_rows = max((start + count for start, count in parts if count), default=0)

    def parts(self, rows: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return each request's part of `(num_rows, …)`: views."""
        if self.is_packed:
            return rows.split_with_sizes(self.counts)
        return [rows[start : start + count] for start, count in zip(self.starts, self.counts, strict=True)]


def num_computed(input_batch: EngineBatch, req_ids: Sequence[str]) -> list[int]:
    """Return for each request the tokens computed before the step.

    Raises:
        InvalidRequest: The number is missing or not integral.
    """
    if not req_ids:
        return []
    field, limit = "num_computed_tokens_cpu", "must be a whole number for every request of the batch"
    try:
        indexes = [input_batch.req_id_to_index[req_id] for req_id in req_ids]
        numbers = np.asarray(input_batch.num_computed_tokens_cpu)[indexes]
        as_integers = numbers.astype(np.int64)
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        raise InvalidRequest(field, str(error), limit) from error
    if numbers.dtype.kind not in "iuf" or (numbers != as_integers).any():
        raise InvalidRequest(field, str(numbers.tolist()), limit)
    computed: list[int] = as_integers.tolist()
    return computed


def as_outputs(outputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a step's outputs if they have names; else raise InvalidRequest."""
    if not isinstance(outputs, Mapping):
        raise InvalidRequest("multimodal_outputs", type(outputs).__name__, "must be outputs by name")
    return outputs
