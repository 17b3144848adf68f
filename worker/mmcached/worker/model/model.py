"""Reference model: encoder and decoder in exact integers.

Weights are computed from a seed, not loaded, and are the same on every device and rank.
"""

from __future__ import annotations

import torch

from mmcached.wire.model_config import ModelConfig
from mmcached.worker.model.bounds import check_bounds
from mmcached.worker.model.decoder import CausalDecoder
from mmcached.worker.model.encoder import ItemEncoder


class ReferenceModel:
    """Encoder and decoder on one device. Raises `ConfigError` for sizes that could make the arithmetic inexact."""

    def __init__(self, config: ModelConfig, *, max_model_len: int, device: torch.device) -> None:
        check_bounds(config, max_model_len)
        self.encoder = ItemEncoder(config, device)
        self.decoder = CausalDecoder(config, device)
