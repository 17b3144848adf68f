"""The reference model is an encoder and a decoder in exact integers, made from a seed and sizes.

Knows nothing of caches or processes. Weights are computed, not loaded, and are the same on every device and rank.
"""

from __future__ import annotations

import torch

from mmcached.wire.config import ModelConfig
from mmcached.worker.model.bounds import check_bounds
from mmcached.worker.model.decoder import CausalDecoder
from mmcached.worker.model.encoder import ItemEncoder


class ReferenceModel:
    """Both halves, on one device.

    Raises:
        ConfigError: sizes for which the arithmetic could be inexact.
    """

    def __init__(self, config: ModelConfig, *, max_model_len: int, device: torch.device) -> None:
        check_bounds(config, max_model_len)
        self.encoder = ItemEncoder(config, device)
        self.decoder = CausalDecoder(config, device)
