"""The reference encoder: what it gives, what it says of itself, and how it refuses what is no item."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from mmcached.cache.store_keys import EMBEDDINGS
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.parts import TensorForm
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import Modality
from mmcached.worker.encoders.encoder import form_of
from mmcached.worker.encoders.reference import ReferenceEncoder
from mmcached.worker.model.encoder import ItemEncoder
from tests.worker.oracle import Item, Oracle, num_embeds_of, random_image, random_sound, random_video
from tests.worker.rings import record_of

MODEL = ModelConfig(
    hidden_size=8, num_heads=2, encoder_width=12, patch_size=2, max_patches_per_image=9, audio_frame=3, audio_window=4
)
_RNG = np.random.default_rng(1)
IMAGE = random_image(np.random.default_rng(0), (2, 3), 2)
RECORD = {"pixel_values": torch.from_numpy(IMAGE.pixel_values), "grid": torch.tensor(IMAGE.grid)}


def make_encoder(model: ModelConfig = MODEL) -> ReferenceEncoder:
    return ReferenceEncoder(model, ItemEncoder(model, torch.device("cpu")))


def test_outputs_look_as_it_says() -> None:
    encoder = make_encoder()
    measured = encoder.measure()
    [output] = encoder.encode(RECORD, 6).items()
    assert measured.form.outputs == [TensorForm(EMBEDDINGS, "int32", (-1, 8))]
    assert (output[0], output[1].dtype, tuple(output[1].shape)) == (EMBEDDINGS, torch.int32, (6, 8))
    assert measured.embedding_bytes * 6 == output[1].nbytes


@pytest.mark.parametrize(
    ("item", "form"),
    [
        (random_image(_RNG, (2, 1), 2), "image"),
        (random_video(_RNG, (2, 3), 2), "video"),
        (random_sound(_RNG, 4, 3), "audio"),
    ],
)
def test_the_tensors_of_a_record_say_how_it_is_encoded(item: Item, form: Modality) -> None:
    encoder, record = make_encoder(), {name: torch.as_tensor(value) for name, value in record_of(item).items()}
    found = encoder.encode(record, num_embeds_of(item))[EMBEDDINGS]
    assert np.array_equal(found.numpy(), Oracle(MODEL).encode(item))
    for expected in encoder.measure().form.inputs[form]:
        tensor = record.pop(expected.name)
        assert expected == form_of(expected.name, tensor, [] if expected.name == "grid" else [0])
    assert record == {}


def test_what_outputs_depend_on_has_another_fingerprint() -> None:
    others = [
        msgspec.structs.replace(MODEL, **{name: 4}) for name in ("seed", "encoder_layers", "hidden_size", "audio_frame")
    ]
    assert len({make_encoder(model).fingerprint for model in (MODEL, *others)}) == 5
    assert make_encoder().fingerprint == make_encoder().fingerprint


def test_an_item_of_another_size_than_was_said_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_encoder().encode(RECORD, 5)
    assert caught.value.details["field"] == "num_embeds"


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({}, "pixel_values"),
        ({"grid": torch.tensor([1, 1])}, "pixel_values"),
        ({"pixel_values": torch.ones(1), "grid": (1, 1)}, "grid"),
        ({"pixel_values": torch.ones(1), "grid": torch.tensor([1, 1, 1])}, "grid"),
        ({"pixel_values": torch.ones(1), "grid": torch.tensor([1.0, 1.0])}, "grid"),
        ({"frames": torch.ones(1)}, "grid"),
        ({"frames": b"", "grid": torch.tensor([1, 1])}, "frames"),
        ({"samples": 7}, "samples"),
    ],
)
def test_a_record_that_is_no_item_is_named(record: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_encoder().encode(record, 1)
    assert caught.value.details["field"] == field
