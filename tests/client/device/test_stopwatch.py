"""A stopwatch says how long work took, on the CPU at once."""

from __future__ import annotations

import time

import pytest
import torch

from mmcached.client.device.stopwatch import Stopwatch


def test_on_the_cpu_it_is_over_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    watch = Stopwatch(torch.device("cpu"))
    watch.stop()
    assert watch.is_over()
    assert watch.seconds() == 2.5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_with_cuda_nobody_waits_for_it() -> None:
    device = torch.device("cuda")
    work = torch.ones(4096, 4096, device=device)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        watch = Stopwatch(device)
        for _ in range(10):
            work = work @ work
        watch.stop()
        watch.is_over()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert watch.is_over()
    assert watch.seconds() > 0
