"""What this process computes with is in the name, and the bits that the same sums give elsewhere show why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from mmcached.cache.output_names import ROWS, output_name
from mmcached.worker.encoders import computing
from mmcached.worker.encoders.computing import autocast_row, computing_rows, device_row, threads_row

CPU = torch.device("cpu")
DEADLINE_S = 120.0
A100 = {"name": "NVIDIA A100-SXM4-80GB", "major": 8, "minor": 0, "multi_processor_count": 108}
H100 = {"name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "multi_processor_count": 132}
H100_SLICE = H100 | {"multi_processor_count": 16}
PROGRAM = """
import hashlib, json, sys, torch
from mmcached.worker.encoders.computing import computing_rows
torch.manual_seed(0)
numbers = torch.randn(196, 768)
outputs = [torch.nn.functional.linear(n, n) for n in (numbers, numbers.bfloat16())] + [numbers.softmax(-1)]
print(hashlib.sha256(b"".join(each.float().numpy().tobytes() for each in outputs)).hexdigest())
print(json.dumps(computing_rows(torch.device("cpu"), ("torch",)), sort_keys=True))
"""


def name(**rows: Any) -> str:
    return output_name(dict.fromkeys(ROWS) | computing_rows(CPU, ("torch", "numpy")) | rows)


def computed(**variables: str) -> list[str]:
    """Return the digest of some sums of another process, and its rows."""
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        words, env=os.environ | variables, check=True, capture_output=True, text=True, timeout=DEADLINE_S
    )
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def usual() -> list[str]:
    return computed()


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="needs more than one instruction set")
@pytest.mark.parametrize(
    "variables",
    [{"ATEN_CPU_CAPABILITY": "default"}, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, {"MKL_CBWR": "COMPATIBLE"}],
    ids=str,
)
def test_other_instructions_give_other_bits_and_another_name(usual: list[str], variables: Mapping[str, str]) -> None:
    bits, rows = computed(**variables)
    assert bits != usual[0]
    assert rows != usual[1]


def test_another_process_of_this_host_has_the_same_name(usual: list[str]) -> None:
    assert computed() == usual


def test_sums_are_divided_among_threads() -> None:
    torch.manual_seed(0)
    rows, weights, number = torch.randn(7, 4304), torch.randn(1152, 4304), torch.get_num_threads()
    seen = {}
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            seen[threads_row("cpu")] = torch.nn.functional.linear(rows, weights)
    finally:
        torch.set_num_threads(number)
    assert set(seen) == {1, 2}
    assert threads_row("cuda") is None
    assert name(threads=1) != name(threads=2)
    if torch.equal(seen[1], seen[2]):
        pytest.skip("this processor's library divides these sums alike: the name need not tell them apart here")


@contextmanager
def restored(read: Callable[[], Any], write: Callable[[Any], None], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def attribute(owner: Any, name: str, value: Any) -> Any:
    return restored(lambda: getattr(owner, name), lambda new: setattr(owner, name, new), value)


SWITCHES: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "float32 products": lambda: restored(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "deterministic algorithms": lambda: restored(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "oneDNN's own": lambda: attribute(torch.backends.mkldnn, "deterministic", True),
    "attention kernels": lambda: torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_what_chooses_other_sums_is_in_the_name(switch: str) -> None:
    before = name()
    with SWITCHES[switch]():
        assert name() != before
    assert name() == before


CUDA_SWITCHES: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "cudnn": lambda: attribute(torch.backends.cudnn, "deterministic", True),
    "its choice by time": lambda: attribute(torch.backends.cudnn, "benchmark", True),
    "tf32": lambda: attribute(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
}


@pytest.mark.parametrize("switch", CUDA_SWITCHES)
def test_what_chooses_other_sums_on_a_gpu_is_in_the_name(switch: str) -> None:
    before = computing.precision_row("cuda")
    with CUDA_SWITCHES[switch]():
        assert computing.precision_row("cuda") != before
    assert computing.precision_row("cuda") == before


def test_autocast_is_in_the_name() -> None:
    assert autocast_row("cpu") is None
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_row("cpu") == "torch.bfloat16"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., torch.device]]:
    """Return what makes this process see a GPU."""

    def seen(**properties: Any) -> torch.device:
        module = SimpleNamespace(get_device_properties=lambda device: SimpleNamespace(**properties))
        monkeypatch.setattr(torch, "get_device_module", lambda device: module)
        computing._properties.cache_clear()
        return torch.device("cuda", 0)

    yield seen
    computing._properties.cache_clear()


def test_another_kind_of_gpu_has_another_name(gpu: Callable[..., torch.device]) -> None:
    names = [name(device=device_row(gpu(**kind))) for kind in (A100, H100, H100_SLICE, A100)]
    assert names[0] == names[3]
    assert len({*names, name()}) == 4


def test_a_device_without_properties_has_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    assert device_row(torch.device("xpu", 3)) == {"type": "xpu"}


@pytest.mark.parametrize("version", ["cuda", "hip", "git_version"])
def test_what_torch_was_built_with_is_in_the_name(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    before = name()
    monkeypatch.setattr(torch.version, version, "other")
    computing.torch_versions.cache_clear()
    try:
        assert name() != before
    finally:
        monkeypatch.undo()
        computing.torch_versions.cache_clear()
    assert name() == before


def test_rows_can_be_sent_by_an_encoder_on_another_host() -> None:
    rows = computing_rows(CPU, ("torch", "numpy"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(rows)) == rows
