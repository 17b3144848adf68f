"""A CUDA device reads the ring: the right bytes, while it computes, and under the lease until it has read them."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mmcached.client.device import DeviceLoader
from mmcached.client.device.devices import device_of
from mmcached.client.device.runtime import CudaRuntime, PageRefused
from mmcached.client.device.streams import CudaCopies
from tests.client.device.shared import RING_BYTES, Shared, output
from tests.client.records import is_equal
from tests.integration.processes import DEADLINE_S, eventually

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
BUSY_CYCLES = 2_000_000_000
"""A second or so."""


def be_busy(cycles: int) -> None:
    """Have the current stream compute for so long."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def skip_unless_pinned(shared: Shared) -> None:
    """Many cards in a slot of their own take no memory that is mapped read-only (error 801), whatever the driver."""
    runtime = CudaRuntime(torch.device("cuda:0"))
    try:
        runtime.pin(shared.pages.address, RING_BYTES)
    except PageRefused as error:
        pytest.skip(str(error))
    runtime.unpin(shared.pages.address)


def test_what_is_read_in_place_has_its_bits(shared: Shared) -> None:
    skip_unless_pinned(shared)
    expected = list(output(1, rows=1000).values())
    views = list(shared.view("k", output(1, rows=1000)).values())
    with DeviceLoader("cuda:0", piece_bytes=RING_BYTES) as loader:
        for _ in range(2):
            assert is_equal([each.cpu() for each in loader.load(views)], expected)
        eventually(lambda: loader.pinned_bytes, bool, "the ring to be pinned, though mapped read-only")
        for _ in range(3):
            loaded = loader.load(views)
            assert all(each.is_cuda for each in loaded)
            assert is_equal([each.cpu() for each in loaded], expected)
    assert loader.pinned_bytes == 0
    with DeviceLoader("cuda:0", piece_bytes=RING_BYTES) as again:
        for _ in range(2):
            again.load(views)
        eventually(lambda: again.pinned_bytes, bool, "the ring to be pinned anew: it was unpinned")


def test_what_goes_by_way_of_other_memory_has_its_bits(shared: Shared) -> None:
    expected = list(output(1, rows=1000).values())
    with DeviceLoader("cuda:0", max_pinned_bytes=0) as loader:
        for turn in range(4):
            views = list(shared.view(f"k{turn}", output(1, rows=1000)).values())
            assert is_equal([each.cpu() for each in loader.load(views)], expected)


def test_the_default_device_is_no_matter(shared: Shared) -> None:
    views = list(shared.view("k", output(1)).values())
    device = device_of("cuda:0", max_pinned_bytes=0)
    with torch.device("cuda:0"):
        copies = device.begin_copy(device.load(views))()
    device.close()
    assert is_equal(copies, list(output(1).values()))


@pytest.mark.parametrize("max_pinned_bytes", [0, 1 << 30])
def test_nobody_waits_for_what_the_device_computes(shared: Shared, max_pinned_bytes: int) -> None:
    """Nor does the copy, and so the lease is back while the device still computes."""
    if max_pinned_bytes:
        skip_unless_pinned(shared)
    with DeviceLoader("cuda:0", max_pinned_bytes=max_pinned_bytes, piece_bytes=RING_BYTES) as loader:
        views = list(shared.view("warm", output(1)).values())
        for _ in range(3):
            loader.load(views)
        if max_pinned_bytes:
            eventually(lambda: loader.pinned_bytes, bool, "the ring to be pinned")
        del views
        eventually(shared.num_leases, lambda leases: leases == 0, "the first leases to be back")
        torch.cuda.synchronize()
        stream = torch.cuda.current_stream()
        views = list(shared.view("k", output(2)).values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it does not find everything
            torch.cuda.set_sync_debug_mode("error")
        try:
            be_busy(BUSY_CYCLES)
            loaded = loader.load(views)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        del views
        assert not stream.query(), "somebody has waited for the device"
        eventually(shared.num_leases, lambda leases: leases == 0, "the lease to be back")
        assert not stream.query(), "the copy has waited for what was computed"
        assert is_equal([each.cpu() for each in loaded], list(output(2).values()))


def test_memory_of_a_copy_is_not_used_again_before_its_reader_has_come_so_far(shared: Shared) -> None:
    views = list(shared.view("k", output(1)).values())
    expected = output(1)["embeds"].double().sum()
    with DeviceLoader("cuda:0", max_pinned_bytes=0) as loader:
        sums = []
        for _ in range(16):
            be_busy(BUSY_CYCLES // 100)
            loaded = loader.load(views)
            sums.append(loaded[0].double().sum())
            del loaded  # its memory is wanted by the next load at once
        assert [float(each) for each in sums] == pytest.approx([float(expected)] * len(sums))


def test_a_graph_is_captured_while_a_copy_is_waited_for() -> None:
    """With the default mode, in which calls of other threads count, too."""
    copies = CudaCopies(torch.device("cuda:0"))
    _, done = copies.copy([(torch.ones(8, dtype=torch.uint8), False)])
    given, graph = torch.ones(4, device="cuda:0"), torch.cuda.CUDAGraph()

    def wait() -> None:
        copies.warm_up()
        done.synchronize()
        assert done.query()

    with ThreadPoolExecutor(1) as pool:
        with torch.cuda.graph(graph):
            made = given + 1
            pool.submit(wait).result(DEADLINE_S)
        graph.replay()
    assert made.tolist() == [2] * 4
