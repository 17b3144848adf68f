"""Copies from a device: what is packed comes out bit for bit; with CUDA, in order and without a wait.

The tests that need a device are skipped without one. That of packing runs anywhere: it is the same code.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from mmcached.worker.hidden_states import KeySpec, RowChunk, RowSpan, TensorPrefixStore
from mmcached.worker.hidden_states.device_copy import PADDING, CudaTransfer, Packing, transfer_for
from tests.worker.hidden_states.by_content.cases import names_of
from tests.worker.hidden_states.by_content.journeys import LARGE, Journey
from tests.worker.hidden_states.by_content.pair import lead
from tests.worker.integrity import check_prefix_store

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

DTYPES = [
    *(torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64),
    *(torch.float8_e4m3fn, torch.complex64, torch.complex128),
]


def tensors_of(device: str = "cpu") -> list[torch.Tensor]:
    """Return a tensor of each dtype: of a number, a row, a table; not all are contiguous."""
    tensors = []
    for number, dtype in enumerate(DTYPES):
        whole = (torch.rand(9, *[(), (3,), (2, 5)][number % 3]) * 100).to(dtype).to(device)
        tensors.append([whole, whole[::2], whole[1:2]][number % 3])
    return [*tensors, torch.rand(6, 4, device=device).t()]


def same_bits(rows: torch.Tensor, source: torch.Tensor) -> bool:
    expected, found = (each.cpu().contiguous().reshape(len(each), -1).view(torch.uint8) for each in (source, rows))
    return rows.dtype == source.dtype and rows.shape == source.shape and torch.equal(found, expected)


def test_what_is_packed_comes_out_bit_for_bit() -> None:
    tensors = tensors_of()
    packing = Packing(tensors)
    buffer = torch.full((packing.nbytes,), 0x55, dtype=torch.uint8)
    for tensor, view in zip(tensors, packing.views(buffer), strict=True):
        assert (view.data_ptr() - buffer.data_ptr()) % PADDING == 0
        view.copy_(tensor)
    assert all(same_bits(view, tensor) for view, tensor in zip(packing.views(buffer), tensors, strict=True))
    assert packing.nbytes <= sum(tensor.nbytes + PADDING for tensor in tensors)


def test_rows_of_the_cpu_need_no_copy() -> None:
    assert transfer_for(torch.device("cpu"), LARGE) is None


# ---- on a device


@needs_cuda
def test_rows_of_a_device_arrive_bit_for_bit_and_buffers_are_used_again() -> None:
    transfer = CudaTransfer(torch.device("cuda", torch.cuda.current_device()), LARGE)
    for _ in range(3):
        tensors = tensors_of("cuda")
        expected = [tensor.cpu() for tensor in tensors]
        copy = transfer.start(tensors)
        for tensor in tensors:
            tensor.zero_()
        copy.wait()
        assert copy.is_done()
        assert all(same_bits(rows, source) for rows, source in zip(copy.rows(), expected, strict=True))
        assert transfer.pinned_nbytes == 0
        copy.release()
        kept = transfer.pinned_nbytes
        assert kept >= copy.nbytes
    assert transfer.pinned_nbytes == kept


@needs_cuda
def test_no_journey_shows_on_a_device() -> None:
    seen = 0
    for seed, limit in enumerate([0, 0, 200, 200, LARGE]):
        seen += lead(seed, 60, journey=Journey(None, limit, seed, "cuda"))["copies"]
    assert seen


@needs_cuda
@pytest.mark.soak
def test_no_journey_shows_on_a_device_for_minutes(draw_seeds: Callable[[int], range]) -> None:
    for seed in draw_seeds(1000):
        lead(seed, 200, journey=Journey(None, [0, 200, LARGE][seed % 3], seed, "cuda"))


WIDTH, BLOCK = 512, 16
KEYS = (
    KeySpec("hidden_states", (WIDTH,), torch.bfloat16),
    KeySpec("codes", (4,), torch.int64),
)
NUM_REQUESTS = 8


class Steps:
    """Decode steps of some requests on the device, whose output buffers are always the same."""

    def __init__(self) -> None:
        self.store = TensorPrefixStore(BLOCK, KEYS, byte_budget=8 << 20)
        self.hidden = torch.empty(NUM_REQUESTS, WIDTH, dtype=torch.bfloat16, device="cuda")
        self.codes = torch.empty(NUM_REQUESTS, 4, dtype=torch.int64, device="cuda")
        self.at = 0

    def compute(self) -> tuple[list[RowChunk], dict[str, object]]:
        """Have the device fill the buffers: request r has r + position everywhere."""
        numbers = torch.arange(NUM_REQUESTS, device="cuda").unsqueeze(1) + self.at
        self.hidden.copy_(numbers.expand(-1, WIDTH))
        self.codes.copy_(numbers.expand(-1, 4))
        end = self.at + 1
        chunks = [
            RowChunk(request, self.at, 1, end // BLOCK - 1, names_of_block(request, end))
            if end % BLOCK == 0
            else RowChunk(request, self.at, 1)
            for request in range(NUM_REQUESTS)
        ]
        self.at = end
        return chunks, {"hidden_states": self.hidden, "codes": self.codes}

    def poison(self) -> None:
        self.hidden.fill_(-1)
        self.codes.fill_(-1)

    def check(self) -> None:
        spans = [RowSpan(request, 0, self.at) for request in range(NUM_REQUESTS)]
        with self.store.read(spans, ["hidden_states", "codes"]) as rows:
            for request in range(NUM_REQUESTS):
                expected = [float(request + at) for at in range(self.at)]
                for key in ("hidden_states", "codes"):
                    found = rows.get(key, request)
                    assert found[:, 0].tolist() == expected
                    assert torch.equal(found, found[:, :1].expand_as(found))
        check_prefix_store(self.store)


def names_of_block(request: int, end: int) -> list[bytes]:
    tokens = chr(ord("a") + request) * end
    return names_of(tokens)[BLOCK // 4 - 1 :: BLOCK // 4][-1:]


def step(steps: Steps) -> None:
    chunks, outputs = steps.compute()
    assert steps.store.write(chunks, outputs) == []
    steps.poison()
    steps.store.commit()


@needs_cuda
@pytest.mark.parametrize("on_default_stream", [True, False])
def test_rows_are_those_of_their_step_however_busy_the_device_is(on_default_stream: bool) -> None:
    """The device is behind: when a step is committed, it has not even been computed."""
    stream = torch.cuda.current_stream() if on_default_stream else torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        steps = Steps()
        step(steps)
        steps.check()
        for number in range(3):
            torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
            for _ in range(3):
                step(steps)
            if number:  # the first time memory is allocated, for several steps that are under way
                assert not stream.query(), "somebody has waited for the device"
                assert steps.store.stats().in_flight_nbytes
            steps.check()
            assert steps.store.stats().in_flight_nbytes == 0
        for _ in range(3 * BLOCK):
            step(steps)
        steps.check()


def warm() -> Steps:
    """Return steps after the first ones, in which memory is allocated."""
    steps = Steps()
    for _ in range(2 * BLOCK):
        step(steps)
    steps.check()
    torch.cuda.synchronize()
    return steps


@needs_cuda
def test_no_call_of_a_step_synchronizes() -> None:
    steps = warm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it does not find everything
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2 * BLOCK):
            step(steps)
        steps.store.release([NUM_REQUESTS - 1])
        steps.store.withdraw()
    finally:
        torch.cuda.set_sync_debug_mode("default")


SYNCHRONIZING = {
    *("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy"),
    *("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuMemcpy"),
}


@needs_cuda
def test_a_trace_of_a_step_shows_no_wait() -> None:
    steps = warm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of profilers themselves
        within = names_within_steps(steps)
    assert "cudaMemcpyAsync" in within, "the trace does not show what it should"
    assert within & SYNCHRONIZING == set()
    steps.check()


def names_within_steps(steps: Steps) -> set[str]:
    """Return the names of all that a trace shows between the beginning of a write and the end of its commit."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(BLOCK):
            chunks, outputs = steps.compute()
            with record_function("step path"):
                steps.store.write(chunks, outputs)
                steps.store.commit()
            steps.poison()
    events = list(trace.events() or ())
    spans = [event.time_range for event in events if event.name == "step path" and event.device_type.name == "CPU"]
    assert len(spans) == BLOCK
    return {event.name for event in events for span in spans if span.start <= event.time_range.start <= span.end}
