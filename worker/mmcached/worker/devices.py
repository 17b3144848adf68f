"""Chooses the device of a worker, or of its encoder, among those that this process sees, and says what a failure of a
computation on it means.
"""

from __future__ import annotations

import torch

from mmcached.wire.errors import ComputationFailed, ConfigError


def choose_device(name: str) -> torch.device:
    """Return the device that `name` means here: `auto` is CUDA if there is any, else the CPU.

    Raises:
        ConfigError: a CUDA device that this machine does not have.
    """
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda:0" if found else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= found:
        raise ConfigError("device", name, f"this process sees {found} CUDA devices")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def is_alive(device: torch.device) -> bool:
    """Return whether a device still computes: some errors of CUDA leave none that does in this process."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def failure_of(error: Exception) -> ComputationFailed:
    """Return what a client is told of an exception in a computation."""
    is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))  # perhaps somebody else's, for now
    return ComputationFailed(type(error).__name__, retryable=is_memory)
