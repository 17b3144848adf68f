"""The reference encoder: what it gives, what it says of itself, and how it refuses what is no image."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from mmcached.cache.store_keys import EMBEDDINGS
from mmcached.wire.config import ModelConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.parts import TensorForm
from mmcached.worker.encoders.reference import ReferenceEncoder, image_of
from mmcached.worker.model.encoder import VisionEncoder
from tests.worker.oracle import random_image

MODEL = ModelConfig(hidden_size=8, num_heads=2, encoder_width=12, patch_size=2, max_patches_per_image=9)
IMAGE = random_image(np.random.default_rng(0), (2, 3), 2)
RECORD = {"pixel_values": torch.from_numpy(IMAGE.pixel_values), "grid": torch.tensor(IMAGE.grid)}


def make_encoder(model: ModelConfig = MODEL) -> ReferenceEncoder:
    return ReferenceEncoder(model, VisionEncoder(model, torch.device("cpu")))


def test_outputs_look_as_it_says() -> None:
    encoder = make_encoder()
    measured = encoder.measure()
    [output] = encoder.encode(RECORD, 6).items()
    assert measured.form.outputs == [TensorForm(EMBEDDINGS, "int32", (-1, 8))]
    assert (output[0], output[1].dtype, tuple(output[1].shape)) == (EMBEDDINGS, torch.int32, (6, 8))
    assert measured.embedding_bytes * 6 == output[1].nbytes


def test_what_outputs_depend_on_has_another_fingerprint() -> None:
    others = [msgspec.structs.replace(MODEL, **{name: 4}) for name in ("seed", "encoder_layers", "hidden_size")]
    assert len({make_encoder(model).fingerprint for model in (MODEL, *others)}) == 4
    assert make_encoder().fingerprint == make_encoder().fingerprint


def test_an_item_of_another_size_than_was_said_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_encoder().encode(RECORD, 5)
    assert caught.value.details["field"] == "num_embeds"


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"grid": torch.tensor([1, 1])}, "pixel_values"),
        ({"pixel_values": torch.ones(1), "grid": (1, 1)}, "grid"),
        ({"pixel_values": torch.ones(1), "grid": torch.tensor([1, 1, 1])}, "grid"),
        ({"pixel_values": torch.ones(1), "grid": torch.tensor([1.0, 1.0])}, "grid"),
    ],
)
def test_a_record_that_is_no_image_is_named(record: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        image_of(record)
    assert caught.value.details["field"] == field
