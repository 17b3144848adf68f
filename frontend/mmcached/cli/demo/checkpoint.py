"""`mmcached demo --model DIR`: settings of the demo's services for a user's vision-language checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mmcached.cache.checkpoints.checkpoint import check_encoder
from mmcached.cache.checkpoints.language import VISION_MODELS, Language, architecture_of, check_model
from mmcached.cli.config.fields import DEFAULT
from mmcached.cli.config.settings import LoadedConfig
from mmcached.cli.demo.run import as_shown
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest


def with_checkpoint(loaded: LoadedConfig, folder: Path) -> ServiceConfig:
    """Return the user's settings with the checkpoint as model and encoder, and the demo's own defaults for the rest.

    Raises:
        ConfigError: The checkpoint cannot be served.
        InvalidRequest: It takes no pictures.
    """
    path = str(folder.resolve())
    config = as_shown(loaded)
    model = msgspec.structs.replace(config.model, kind="hf", path=path)
    encoder = msgspec.structs.replace(config.encoder, kind="hf", path=path)
    config = msgspec.structs.replace(config, model=model, encoder=encoder)
    if architecture_of(folder) not in VISION_MODELS:
        known = ", ".join(VISION_MODELS)
        reason = f"is a {architecture_of(folder)}, which takes text alone; the demo shows photographs: one of {known}"
        raise InvalidRequest("--model", str(folder), reason)
    most = Language.of(config).max_positions
    if most is not None and loaded.origins["max_model_len"] == DEFAULT:
        config = msgspec.structs.replace(config, max_model_len=min(config.max_model_len, most))
    check_encoder(config)
    check_model(config)
    return config
