"""Versions and variables that decide the bits of an output are named; what does not decide them is not."""

from __future__ import annotations

import pytest

from mmcached.integrations.environment import PACKAGES, computing_variables


def test_no_package_is_listed_twice() -> None:
    assert len(PACKAGES) == len(set(PACKAGES))


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("VLLM_BATCH_INVARIANT", True),
        ("VLLM_USE_TRITON_AWQ", True),
        ("VLLM_ROCM_USE_AITER", True),
        ("SGLANG_VIT_ENABLE_CUDA_GRAPH", True),
        ("CUBLAS_WORKSPACE_CONFIG", True),
        ("VLLM_PORT", False),
        ("VLLM_CPU_OMP_THREADS_BIND", False),
        ("CUDA_VISIBLE_DEVICES", False),
        ("SGLANG_VLM_CACHE_SIZE_MB", False),
        ("PATH", False),
    ],
)
def test_variables(name: str, counts: bool) -> None:
    assert computing_variables({name: "1"}) == ({name: "1"} if counts else {})
