"""The KV pool: rows by slot, whole blocks out, and the bit that says computed."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from mmcached.wire.errors import InvariantError
from mmcached.worker.model.kv_pool import KVPool


def make_pool() -> KVPool:
    return KVPool(num_layers=2, num_blocks=4, block_size=3, hidden_size=2, device=torch.device("cpu"))


def test_gather_returns_what_was_written_where_it_was_written() -> None:
    pool = make_pool()
    slots = torch.tensor([7, 3, 11])
    keys = torch.arange(6, dtype=torch.float64).view(3, 2) + 1
    pool.write(1, slots, keys, keys * 10)
    found_keys, found_values = pool.gather(1, torch.tensor([[2, 1], [3, 0]]))
    assert found_keys.shape == (2, 6, 2)
    assert found_keys[0, 1].tolist() == [1, 2]
    assert found_keys[0, 3].tolist() == [3, 4]
    assert found_values[1, 2].tolist() == [50, 60]
    assert found_keys[1, 3:].eq(0).all()
    assert pool.gather(0, torch.tensor([[2, 1]]))[0].eq(0).all()


def test_gathered_blocks_are_copies() -> None:
    pool = make_pool()
    keys, _ = pool.gather(0, torch.tensor([[1]]))
    keys.fill_(9)
    assert pool.gather(0, torch.tensor([[1]]))[0].eq(0).all()


def test_a_slot_is_readable_from_marking_to_withdrawal() -> None:
    pool = make_pool()
    with pytest.raises(InvariantError, match="position 0"):
        pool.check_computed(torch.tensor([5, 3]))
    pool.mark_computed(torch.tensor([5, 3]))
    pool.check_computed(torch.tensor([5, 3]))
    pool.forget_slots(torch.tensor([3]))
    with pytest.raises(InvariantError) as caught:
        pool.check_computed(torch.tensor([5, 3]))
    assert caught.value.details == {"position": 1, "slot": 3}
    assert pool.stats().slots_computed == 1
    pool.clear()
    assert pool.stats().slots_computed == 0


def test_a_pool_takes_the_memory_of_what_was_written() -> None:
    before = resident_bytes()
    pool = KVPool(num_layers=2, num_blocks=4096, block_size=16, hidden_size=64, device=torch.device("cpu"))
    assert pool.stats().nbytes == 128 << 20
    assert resident_bytes() - before < pool.stats().nbytes / 4


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
