"""A platform for CPUs, which vllm-omni lacks: its workers and pipelines run on it unchanged."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import vllm_omni.platforms
from vllm.platforms.cpu import CpuPlatform
from vllm_omni.diffusion.attention.backends.sdpa import SDPABackend, SDPAImpl
from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum


class CpuOmniPlatform(OmniPlatform, CpuPlatform):
    _omni_enum: ClassVar[Any] = OmniPlatformEnum.UNSPECIFIED

    @classmethod
    def get_torch_device(cls, local_rank: int | None = None) -> torch.device:
        return torch.device("cpu")

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Do nothing: a process has one CPU."""

    @classmethod
    def get_device_count(cls) -> int:
        return 1

    @classmethod
    def synchronize(cls) -> None:
        """Do nothing: operations on a CPU are over when they return."""

    @classmethod
    def empty_cache(cls) -> None:
        """Do nothing: torch has no cache of a CPU's memory."""

    @classmethod
    def reset_peak_memory_stats(cls) -> None:
        """Do nothing: torch does not count a CPU's memory."""

    @classmethod
    def get_free_memory(cls, device: torch.device | None = None) -> int:
        return 1 << 34

    @classmethod
    def max_memory_reserved(cls) -> int:
        return 0

    @classmethod
    def max_memory_allocated(cls) -> int:
        return 0

    @classmethod
    def supports_torch_inductor(cls) -> bool:
        return False

    @classmethod
    def get_diffusion_attn_backend_cls(
        cls, selected_backend: str | None, head_size: int, allow_trtllm_default: bool = False
    ) -> str:
        return f"{__name__}.CpuAttention"


class CpuAttentionImpl(SDPAImpl):
    forward = SDPAImpl.forward_cuda


class CpuAttention(SDPABackend):
    """Torch's attention, which vllm-omni calls on known platforms only."""

    @staticmethod
    def get_impl_cls() -> type:
        return CpuAttentionImpl


def use_cpu() -> None:
    """Make vllm-omni take this platform in this process."""
    vllm_omni.platforms.current_omni_platform = CpuOmniPlatform()
