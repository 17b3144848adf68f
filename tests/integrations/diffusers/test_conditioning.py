"""An encoder whose weights cannot be read stays as it is; the pipeline's others are shared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mmcached.client import Client
from mmcached.integrations.diffusers import conditioning
from mmcached.integrations.diffusers.conditioning import Conditioning


def test_a_weight_that_cannot_be_read_is_logged(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(module: torch.nn.Module) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(conditioning, "find_encoder", fail)
    with Client(run_dir, connect_timeout_s=0.01) as client, Conditioning(client, timeout_s=1.0) as shared:
        shared.add_all(SimpleNamespace(text_encoder=torch.nn.Linear(1, 1)))
        assert shared.num_encoders == 0
    assert "Linear: CUDA error" in caplog.text
