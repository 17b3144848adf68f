"""A worker without Transformers says what is missing; `tests/hosts/transformers` has the towers themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmcached.cache.checkpoints import checkpoint
from mmcached.wire.errors import ConfigError
from mmcached.worker.encoders.checkpoint import CheckpointEncoder
from tests.cache.checkpoints.folders import config_of, write


def test_a_package_that_is_missing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[hf\]'"):
        CheckpointEncoder(config_of(write(tmp_path)).encoder, torch.device("cpu"))
