"""Versions and variables that decide the bits of an output are named; what does not decide them is not."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from mmcached.integrations.environment import PACKAGES, computing_variables, package_versions


def test_packages_are_named_whether_they_are_installed_or_not() -> None:
    found = package_versions()
    assert found.keys() == set(PACKAGES)
    assert len(PACKAGES) == len(set(PACKAGES))
    assert found["numpy"] == version("numpy")
    assert found["vllm"] is None


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
