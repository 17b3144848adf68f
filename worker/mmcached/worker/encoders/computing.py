"""Describes how this process computes: the rows of an output's name that are torch's, the same in every host.

    device       kind of device                       precision   torch's switches
    libraries    versions of torch and of packages    variables   of the environment

Cheap enough to be asked with every call: what cannot change in a process is read once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from mmcached.cache.output_names import computing_variables, kind_of_cpu
from mmcached.wire.extras import package_versions

_PRECISIONS = [
    (torch.backends.cuda, "matmul"),
    (torch.backends.cudnn, "conv"),
    (torch.backends.mkldnn, "matmul"),
    (torch.backends.mkldnn, "conv"),
]
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
_REDUCTIONS = (
    *("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation"),
)
_CPUINFO = Path("/proc/cpuinfo")


def computing_rows(device: torch.device | None, packages: Iterable[str]) -> dict[str, Any]:
    """Return the rows `device`, `libraries`, `variables` and `precision`, as they are now.

    Args:
        device: The device of the tower; None if it is not known.
        packages: Packages that compute beside torch.
    """
    return {
        "device": None if device is None else device_row(device),
        "libraries": library_row(tuple(packages)),
        "variables": computing_variables(),
        "precision": precision_row("cpu" if device is None else device.type),
    }


def device_row(device: torch.device) -> dict[str, Any]:
    """Return the kind of a device."""
    if device.type == "cpu":
        return {"type": "cpu", **cpu_row()}
    found = _properties(device)
    names = ("name", "gcnArchName", "major", "minor", "multi_processor_count")
    return {"type": device.type, **{name: getattr(found, name) for name in names if hasattr(found, name)}}


@cache
def cpu_row() -> dict[str, Any]:
    """Return the kind of this host's processor, and the instruction set that torch's own kernels use."""
    text = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    return {"capability": torch.backends.cpu.get_cpu_capability(), **kind_of_cpu(text)}


def library_row(packages: tuple[str, ...]) -> dict[str, Any]:
    return {"torch": torch_versions(), "packages": _versions(packages)}


def precision_row(kind: str) -> dict[str, Any]:
    """Return torch's switches for a kind of device: they may be set at any time."""
    precisions = [operator.attrgetter(f"{operation}.fp32_precision")(backend) for backend, operation in _PRECISIONS]
    switches: dict[str, Any] = {
        # An unset precision ("none") equals "ieee".
        "fp32": ["ieee" if each == "none" else each for each in precisions],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": [torch.backends.mkldnn.enabled, torch.backends.mkldnn.deterministic],
        "attention": [getattr(torch.backends.cuda, f"{kernel}_sdp_enabled")() for kernel in _ATTENTION],
    }
    if kind != "cpu":
        cudnn = torch.backends.cudnn
        switches["cudnn"] = [cudnn.enabled, cudnn.deterministic, cudnn.benchmark]
        switches["reductions"] = [getattr(torch.backends.cuda.matmul, name, None) for name in _REDUCTIONS]
        switches["blas"] = str(torch.backends.cuda.preferred_blas_library())
    return switches


def autocast_row(kind: str) -> str | None:
    """Return the dtype of autocast in this thread; None without autocast."""
    return str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None


def threads_row(kind: str) -> int | None:
    """Return the number of threads among which sums are divided; None for a device that does not divide them so."""
    return torch.get_num_threads() if kind == "cpu" else None


@cache
def _properties(device: torch.device) -> Any:
    properties = getattr(torch.get_device_module(device), "get_device_properties", None)
    return None if properties is None else properties(device)


@cache
def torch_versions() -> dict[str, Any]:
    """Return the versions of torch, and of what it was built with."""
    cudnn: Any = torch.backends.cudnn
    return {
        "torch": str(torch.__version__),  # a plain string, which MessagePack can carry
        "torch commit": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": cudnn.version() if cudnn.is_available() else None,
    }


@cache
def _versions(packages: tuple[str, ...]) -> dict[str, str | None]:
    return package_versions(packages)
