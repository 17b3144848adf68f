"""Exchanges small values among the tensor-parallel ranks of a model, on the host.

Ranks encode together, so a rank that found an output while another one did not would wait for it in a collective of
the encoder. With attention data parallelism each rank has requests, and an encoder, of its own: these ranks exchange
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that encode together.

    Attributes:
        gather: Returns the value of each rank; collective: every rank calls it.
        is_first: Whether this rank saves outputs, which are the same in all ranks.
    """

    gather: Callable[[Any], list[Any]]
    is_first: bool


def ranks_of(mapping: Any) -> Ranks:
    """Return the ranks of a model, by TensorRT-LLM's MPI or, where that is disabled, its torch groups; collective.

    Args:
        mapping: TensorRT-LLM's `Mapping` of the model.
    """
    if mapping.tp_size == 1 or mapping.enable_attention_dp:
        return Ranks(lambda value: [value], is_first=True)
    from tensorrt_llm._utils import mpi_comm, mpi_disabled

    from mmcached.integrations.ranks import of_all  # loads torch

    is_first = mapping.tp_rank == 0
    if mpi_disabled():
        return Ranks(partial(of_all, group=mapping.tp_group_pg), is_first)
    world = mpi_comm()
    return Ranks(world.Create_group(world.group.Incl(mapping.tp_group)).allgather, is_first)
