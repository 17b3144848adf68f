"""Selects the device of a worker or its encoder, and classifies failed computations on it."""

from __future__ import annotations

import torch

from mmcached.wire.errors import ComputationFailed, ConfigError


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; `auto` is CUDA if available, else the CPU.

    Raises `ConfigError` for a CUDA device that this process does not see.
    """
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda:0" if found else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= found:
        raise ConfigError("device", name, f"this process sees {found} CUDA devices")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def is_alive(device: torch.device) -> bool:
    """Return whether a device still computes; some CUDA errors make it unusable for the process."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def failure_of(error: Exception) -> ComputationFailed:
    is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))  # perhaps only for now
    return ComputationFailed(type(error).__name__, retryable=is_memory)
