"""What is copied from and to a device has its bits, and what is loaded is the caller's own."""

from __future__ import annotations

import pytest
import torch

from mmcached.client.device.devices import Cuda, Other, device_of

HAS_CUDA = torch.cuda.is_available()
NAMES = ["cpu", *(["cuda", "cuda:0"] if HAS_CUDA else [])]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_come_back_with_their_bits(name: str) -> None:
    device = device_of(name, max_pinned_bytes=1 << 30)
    before = [torch.randn(64, 8).bfloat16(), torch.randn(3, 5).t()]
    outputs = device.load([tensor.clone() for tensor in before])
    assert {tensor.device.type for tensor in outputs} == {name.partition(":")[0]}
    wait = device.begin_copy(outputs)
    del outputs
    copies = wait()
    assert all(copy.is_contiguous() and not copy.is_cuda for copy in copies)
    assert all(map(torch.equal, copies, before))


@pytest.mark.skipif(not HAS_CUDA, reason="needs a GPU")
def test_a_copy_begins_after_the_work_on_the_outputs_stream() -> None:
    device = device_of("cuda", max_pinned_bytes=1 << 30)
    waits = []
    for number in range(8):
        busy = torch.randn(4096, 4096, device="cuda")
        output = (busy @ busy).zero_() + number
        waits.append(device.begin_copy([output]))
        del output  # its memory is taken again at once
    assert [float(copy.max()) for wait in waits for copy in wait()] == list(range(8))


@pytest.mark.parametrize("device", [Other(torch.device("cpu")), Cuda(torch.device("cuda"), 1 << 30)])
def test_outputs_that_lie_elsewhere_are_copied_in_the_step(device: Other) -> None:
    output = torch.ones(4, 2, requires_grad=True)
    wait = device.begin_copy([output])
    assert torch.equal(wait()[0], torch.ones(4, 2))
    assert not wait()[0].requires_grad
