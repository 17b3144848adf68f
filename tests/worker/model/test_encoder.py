"""The encoder against plain integers, for each modality, and what its embeddings depend on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.wire.errors import InvalidRequest
from mmcached.wire.model_config import ModelConfig
from mmcached.worker.model.encoder import ItemEncoder
from tests.house.drawing import examples
from tests.worker.oracle import Image, Item, Oracle, SoundSlice, VideoSlice, random_image, random_sound, random_video

CONFIG = ModelConfig(
    seed=3,
    hidden_size=8,
    num_heads=2,
    encoder_width=12,
    patch_size=2,
    max_patches_per_image=9,
    audio_frame=5,
    audio_window=6,
)
ENCODER = ItemEncoder(CONFIG, torch.device("cpu"))
_RNG = np.random.default_rng(1)
EACH: list[Item] = [random_image(_RNG, (3, 3), 2), random_video(_RNG, (3, 3), 2), random_sound(_RNG, 6, 5)]


def encode(item: Item, encoder: ItemEncoder = ENCODER) -> torch.Tensor:
    match item:
        case Image():
            return encoder.image(torch.from_numpy(item.pixel_values), item.grid)
        case VideoSlice():
            return encoder.video(torch.from_numpy(item.frames), item.grid)
        case SoundSlice():
            return encoder.audio(torch.from_numpy(item.samples))


def rows_of(item: Item) -> np.ndarray[Any, Any]:
    name = dataclasses.fields(item)[0].name
    rows: np.ndarray[Any, Any] = getattr(item, name)
    return rows


def with_rows(item: Item, rows: np.ndarray[Any, Any]) -> Item:
    changes: dict[str, Any] = {dataclasses.fields(item)[0].name: rows}
    return dataclasses.replace(item, **changes)


GRIDS = st.sampled_from([(rows, columns) for rows in range(1, 10) for columns in range(1, 10) if rows * columns <= 9])
MAKERS = st.one_of(
    st.tuples(st.just(random_image), GRIDS, st.just(CONFIG.patch_size)),
    st.tuples(st.just(random_video), GRIDS, st.just(CONFIG.patch_size)),
    st.tuples(st.just(random_sound), st.integers(1, CONFIG.audio_window), st.just(CONFIG.audio_frame)),
)


@settings(max_examples=examples(30))
@given(st.integers(0, 2**32), MAKERS)
def test_equals_plain_integers(seed: int, maker: tuple[Any, Any, int]) -> None:
    make, size, features = maker
    item = make(np.random.default_rng(seed), size, features)
    embeddings = encode(item)
    assert embeddings.dtype == torch.int32
    assert np.array_equal(embeddings.numpy(), Oracle(CONFIG).encode(item))


@pytest.mark.parametrize("extreme", [-32768, 0, 32767])
def test_the_softest_and_the_loudest_sample_count(extreme: int) -> None:
    item = SoundSlice(np.full((2, 5), extreme, np.int16))
    assert np.array_equal(encode(item).numpy(), Oracle(CONFIG).encode(item))


@pytest.mark.parametrize("item", EACH, ids=lambda item: type(item).__name__)
def test_every_embedding_depends_on_every_row(item: Item) -> None:
    before = encode(item)
    for row in range(len(before)):
        changed = rows_of(item).copy()
        changed[row, -1] ^= 1
        assert (encode(with_rows(item, changed)) != before).any(dim=1).all()


def test_embeddings_depend_on_the_grid_and_on_which_frame_is_first() -> None:
    pixels = rows_of(random_image(np.random.default_rng(2), (2, 4), 2))
    assert (encode(Image(pixels, (4, 2))) != encode(Image(pixels, (2, 4)))).any(dim=1).all()
    still = VideoSlice(np.concatenate([pixels, pixels], axis=1), (2, 4))
    moving = VideoSlice(np.concatenate([pixels, pixels[::-1]], axis=1), (2, 4))
    backwards = VideoSlice(np.concatenate([pixels[::-1], pixels], axis=1), (2, 4))
    seen = [encode(each) for each in (still, moving, backwards, VideoSlice(still.frames, (4, 2)))]
    for index, each in enumerate(seen):
        assert all((each != other).any(dim=1).all() for other in seen[:index])


@pytest.mark.parametrize("item", EACH, ids=lambda item: type(item).__name__)
def test_leaves_its_input_alone_and_keeps_no_view_of_it(item: Item) -> None:
    rows = rows_of(item).copy()
    embeddings = encode(with_rows(item, rows))
    kept = embeddings.clone()
    assert np.array_equal(rows, rows_of(item))
    rows[:] = 0
    assert torch.equal(embeddings, kept)


@pytest.mark.parametrize("name", ["pixel_values", "frames"])
@pytest.mark.parametrize(
    ("shape", "dtype", "grid", "field"),
    [
        ((4, 12), torch.float32, (2, 2), ".dtype"),
        ((4, 11), torch.uint8, (2, 2), ".shape"),
        ((48,), torch.uint8, (2, 2), ".shape"),
        ((0, 12), torch.uint8, (0, 0), ""),
        ((10, 12), torch.uint8, (2, 5), ""),
        ((4, 12), torch.uint8, (2, 3), "grid"),
        ((4, 12), torch.uint8, (-2, -2), "grid"),
    ],
)
def test_refuses_patches_that_do_not_fit(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, grid: tuple[int, int], field: str
) -> None:
    is_video = name == "frames"
    rows = torch.zeros((*shape[:-1], shape[-1] * (1 + is_video)), dtype=dtype)
    with pytest.raises(InvalidRequest) as caught:
        (ENCODER.video if is_video else ENCODER.image)(rows, grid)
    assert caught.value.details["field"] == (field if field == "grid" else name + field)


@pytest.mark.parametrize(
    ("shape", "dtype", "field"),
    [
        ((2, 5), torch.int32, "samples.dtype"),
        ((2, 4), torch.int16, "samples.shape"),
        ((5,), torch.int16, "samples.shape"),
        ((0, 5), torch.int16, "samples"),
        ((7, 5), torch.int16, "samples"),
    ],
)
def test_refuses_samples_that_do_not_fit(shape: tuple[int, ...], dtype: torch.dtype, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ENCODER.audio(torch.zeros(shape, dtype=dtype))
    assert caught.value.details["field"] == field


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_bits() -> None:
    on_cuda = ItemEncoder(CONFIG, torch.device("cuda"))
    for item in EACH:
        assert torch.equal(encode(item, on_cuda).cpu(), encode(item))
