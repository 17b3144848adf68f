"""Creates the configured encoder: in this process, or a client of actors on a Ray cluster."""

from __future__ import annotations

import torch

from mmcached.wire.config import ServiceConfig
from mmcached.worker.devices import choose_device
from mmcached.worker.encoders.encoder import Encoder
from mmcached.worker.encoders.reference import ReferenceEncoder
from mmcached.worker.encoders.remote import RemoteEncoder
from mmcached.worker.model.encoder import ItemEncoder


def make_encoder(config: ServiceConfig, items: ItemEncoder, device: torch.device) -> Encoder:
    """Return an encoder in this process; raises `ConfigError`, see `CheckpointEncoder`.

    `items` is the reference model's encoder; `device` is the default.
    """
    if config.encoder.kind == "reference":
        return ReferenceEncoder(config.model, items)
    from mmcached.worker.encoders.checkpoint import CheckpointEncoder  # imports Transformers
    from mmcached.worker.encoders.tiled import TiledEncoder

    name = config.encoder.device
    kind = TiledEncoder if config.encoder.caches_tiles else CheckpointEncoder
    return kind(
        config.encoder,
        device if name == "auto" else choose_device(name),
        max_pinned_bytes=config.limits.max_pinned_mb << 20,
        is_for_prompts=config.model.kind == "hf",
    )


def make_remote_encoder(config: ServiceConfig, items: ItemEncoder, device: torch.device) -> RemoteEncoder:
    """Return an encoder that calls actors; for the reference model, only actors with the fingerprint of `items`.

    Raises `ServiceUnavailable` if no such actor has answered within `start_timeout_s`.
    """
    from mmcached.worker.encoders.ray_actors import RayCluster

    encoder = config.encoder
    return RemoteEncoder(
        RayCluster(encoder.ray_address, encoder.ray_namespace, timeout_s=config.start_timeout_s),
        device=device,
        limit_s=config.limits.remote_encode_s,
        start_timeout_s=config.start_timeout_s,
        fingerprint=items.fingerprint if encoder.kind == "reference" else None,
    )
