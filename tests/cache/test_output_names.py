"""A name has every row of the table, and differs where a row differs; what does not decide bits is not in it."""

from __future__ import annotations

from typing import Any

import pytest

from mmcached.cache.output_names import (
    PACKAGES,
    ROWS,
    computing_variables,
    is_exact,
    kind_of_cpu,
    output_name,
)

NOTHING: dict[str, Any] = dict.fromkeys(ROWS)
INTEL = "processor : 0\nvendor_id : GenuineIntel\nflags : fpu avx2 avx512f amx_tile\n"
ARM = "processor : 0\nFeatures : fp asimd sve\nCPU implementer : 0x41\n"


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_part_of_the_name(row: str) -> None:
    assert output_name(NOTHING | {row: "other"}) != output_name(NOTHING)
    assert output_name(NOTHING | {row: {"part": 1}}) != output_name(NOTHING | {row: {"part": 2}})


@pytest.mark.parametrize("row", ROWS)
def test_a_host_that_forgets_a_row_gets_no_name(row: str) -> None:
    with pytest.raises(KeyError, match=row):
        output_name({name: value for name, value in NOTHING.items() if name != row})


def test_a_row_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(KeyError, match="moon"):
        output_name(NOTHING | {"moon": "full"})


@pytest.mark.parametrize(("batching", "exact"), [("alone", True), ("invariant", True), ("any", False)])
def test_names_of_two_classes(batching: str, exact: bool) -> None:
    assert is_exact(NOTHING | {"batching": batching}) is exact


def test_no_package_is_listed_twice() -> None:
    assert len(PACKAGES) == len(set(PACKAGES))


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("VLLM_BATCH_INVARIANT", True),
        ("VLLM_USE_TRITON_AWQ", True),
        ("VLLM_ROCM_USE_AITER", True),
        ("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", True),
        ("VLLM_DISABLED_KERNELS", True),
        ("VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER", True),
        ("VLLM_ALLREDUCE_USE_SYMM_MEM", True),
        ("VLLM_CPU_INT4_W4A8", True),
        ("NCCL_ALGO", True),
        ("SGLANG_VIT_ENABLE_CUDA_GRAPH", True),
        ("CUBLAS_WORKSPACE_CONFIG", True),
        ("ONEDNN_MAX_CPU_ISA", True),
        ("MKL_CBWR", True),
        ("VLLM_PORT", False),
        ("VLLM_CPU_KVCACHE_SPACE", False),
        ("VLLM_TRITON_JIT_WARMUP_NUM_THREADS", False),
        ("NCCL_DEBUG", False),
        ("VLLM_CPU_OMP_THREADS_BIND", False),
        ("CUDA_VISIBLE_DEVICES", False),
        ("SGLANG_VLM_CACHE_SIZE_MB", False),
        ("PATH", False),
    ],
)
def test_variables(name: str, counts: bool) -> None:
    assert computing_variables({name: "1"}) == ({name: "1"} if counts else {})


def test_processors() -> None:
    assert kind_of_cpu(INTEL) == {"vendor": "GenuineIntel", "instructions": ["avx2", "avx512f", "amx_tile"]}
    assert kind_of_cpu(ARM) == {"vendor": "0x41", "instructions": ["asimd", "sve"]}
    assert kind_of_cpu("") == {"vendor": "", "instructions": []}
