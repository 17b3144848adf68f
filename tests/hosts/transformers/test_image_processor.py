"""Processed images that were found are what the processor itself returns, bit for bit; a file is not even decoded."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.image_utils import load_image
from transformers.utils import is_torchvision_available

from mmcached.client import Client
from mmcached.integrations.transformers import CachedImageProcessor, image_processor
from mmcached.integrations.transformers.image_batches import BATCHES
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually, small_config

PROCESSORS = sorted(BATCHES)
needs_torchvision = pytest.mark.skipif(not is_torchvision_available(), reason="torchvision is not installed")
MODULES = {
    "CLIP": "clip",
    "Siglip": "siglip",
    "Llava": "llava",
    "Qwen2VL": "qwen2_vl",
    "Gemma3": "gemma3",
    "GotOcr2": "got_ocr2",
    "LlavaNext": "llava_next",
    "LlavaOnevision": "llava_onevision",
    "MiniCPMV4_6": "minicpmv4_6",
}
EDGES = (32, 64, 96)
SIDE = {"height": 32, "width": 32}
PINPOINTS = [[height, width] for height in EDGES for width in EDGES]
TILED: dict[str, dict[str, Any]] = {
    "GotOcr2": {"size": SIDE, "crop_to_patches": True, "max_patches": 6},
    "LlavaNext": {"size": {"shortest_edge": 32}, "crop_size": SIDE, "image_grid_pinpoints": PINPOINTS},
    "LlavaOnevision": {"size": SIDE, "image_grid_pinpoints": PINPOINTS},
    "MiniCPMV4_6": {"scale_resolution": 64},
}
"""Settings with which small images are cut into several tiles."""
DEADLINE_S = 200.0
PAN_AND_SCAN = {
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 64,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.1,
}


def processor_of(name: str, **settings: Any) -> Any:
    family, is_pil = name.split("ImageProcessor")
    module = MODULES[family]
    path = f"transformers.models.{module}.image_processing_{'pil_' if is_pil else ''}{module}"
    return getattr(importlib.import_module(path), name)(**settings)


def tiled(name: str) -> Any:
    return processor_of(name, **TILED[name.split("ImageProcessor", maxsplit=1)[0]])


def with_marks(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name.endswith("Pil") else needs_torchvision) for name in names]


of_tiled = pytest.mark.parametrize("name", with_marks(name for name in PROCESSORS if name.startswith(tuple(TILED))))


@pytest.fixture(params=with_marks(PROCESSORS))
def processor(request: pytest.FixtureRequest) -> Any:
    return processor_of(request.param)


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


BATCH = [
    noise(120, 80),
    noise(80, 120),
    noise(120, 80, seed=1),
    noise(90, 90, "L"),
    noise(64, 200, "P"),
    noise(120, 80),
]
"""Six images, two of which are equal."""


def assert_same(found: Any, wanted: Any) -> None:
    """Compare two outputs of processors bit for bit."""
    assert type(found) is type(wanted)
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert type(found[name]) is type(value), name
        if isinstance(value, list):
            assert found[name] == value, name
            continue
        assert found[name].dtype == value.dtype, name
        assert torch.equal(torch.as_tensor(found[name]), torch.as_tensor(value)), name


@pytest.mark.parametrize("asked", [{}, {"do_rescale": False}, {"resample": 2}, PAN_AND_SCAN], ids="+".join)
def test_a_batch_is_what_the_processor_returns(client: Client, processor: Any, asked: dict[str, Any]) -> None:
    if asked is PAN_AND_SCAN and "Gemma3" not in type(processor).__name__:
        pytest.skip("only of Gemma 3")
    for kind in ("pt", "np"):
        wanted = processor(BATCH, return_tensors=kind, **asked)
        cached = CachedImageProcessor(processor, client)
        assert_same(cached(BATCH, return_tensors=kind, **asked), wanted)
        assert (cached.num_images, cached.num_processed, cached.num_bypassed) == (6, 5 if kind == "pt" else 0, 0)
    others = [BATCH[place] for place in (4, 0, 2)]
    assert_same(cached(others, return_tensors="pt", **asked), processor(others, return_tensors="pt", **asked))
    assert (cached.num_processed, cached.num_hits) == (0, 9)


def num_tiles(result: Any) -> int:
    """Return the number of tiles of the only image."""
    counts = [result[name] for name in ("num_patches", "num_patches_per_image") if name in result]
    return int(counts[0][0]) if counts else result["pixel_values"].shape[1]


@of_tiled
@pytest.mark.parametrize("asked", [{}, {"do_normalize": False}], ids="+".join)
def test_images_of_different_numbers_of_tiles(client: Client, name: str, asked: dict[str, Any]) -> None:
    processor = tiled(name)
    counts = [num_tiles(processor(image, return_tensors="pt", **asked)) for image in BATCH]
    assert len(set(counts)) > 1 < max(counts)
    for kind in ("pt", "np"):
        cached = CachedImageProcessor(processor, client)
        for images in [BATCH, BATCH[3:], *BATCH]:
            wanted = processor(images, return_tensors=kind, **asked)
            assert_same(cached(images, return_tensors=kind, **asked), wanted)
        assert (cached.num_processed, cached.num_bypassed, cached.num_refused) == (5 if kind == "pt" else 0, 0, 0)


@of_tiled
def test_an_image_of_another_number_of_tiles_than_the_blank_ones(client: Client, name: str) -> None:
    """The form of a record does not have the number of tiles of the images that show it."""
    cases = [(tiled(name), [noise(40, 150), noise(60, 30), noise(200, 180), noise(20, 20)])]
    if name.startswith("LlavaNext"):  # with its own settings all blank images have three tiles
        cases.append((processor_of(name), [noise(40, 30), noise(700, 690)]))
    for processor, images in cases:
        cached = CachedImageProcessor(processor, client)
        for image in images * 2:
            assert_same(cached(image, return_tensors="pt"), processor(image, return_tensors="pt"))
        num_images = len(images)
        assert (cached.num_processed, cached.num_hits, cached.num_refused) == (num_images, num_images, 0)


GROUPS = [
    [BATCH[:2]],
    [[BATCH[0]], BATCH[1:4], [], BATCH[4:]],
    [[BATCH[2]], [BATCH[3]]],
    [(BATCH[0], BATCH[1])],
]


@pytest.mark.parametrize(
    "name",
    with_marks([f"Llava{kind}ImageProcessor{backend}" for kind in ("Next", "Onevision") for backend in ("", "Pil")]),
)
def test_images_in_groups(client: Client, name: str) -> None:
    """LLaVA-OneVision does not cut an image that shares its list with others."""
    processor = tiled(name)
    for kind in ("pt", "np"):
        cached = CachedImageProcessor(processor, client)
        for images in [BATCH, *GROUPS, *GROUPS]:
            assert_same(cached(images, return_tensors=kind), processor(images, return_tensors=kind))
        assert (cached.num_bypassed, cached.num_refused) == (0, 0)
        wanted = 0 if kind == "np" else 10 if "Onevision" in name else 5
        assert cached.num_processed == wanted
    files = [encoded(each.convert("RGB"), "PNG") for each in BATCH[:3]]
    wanted = processor([[load_image(Image.open(BytesIO(file))) for file in files]], return_tensors="pt")
    assert_same(cached([files], return_tensors="pt"), wanted)


def test_images_that_the_processor_does_not_take_in_this_form(client: Client) -> None:
    cached = CachedImageProcessor(tiled("LlavaOnevisionImageProcessorPil"), client)
    for images, error in (
        ([BATCH[0], BATCH[1:3]], ValueError),
        (np.stack([np.asarray(BATCH[0])] * 2), IndexError),
        ([], IndexError),
    ):
        with pytest.raises(error):
            cached.processor(images, return_tensors="pt")
        with pytest.raises(error):
            cached(images, return_tensors="pt")
    assert (cached.num_images, cached.num_bypassed) == (0, 3)


def test_tiles_that_are_not_padded_to_a_common_number(client: Client) -> None:
    for name in ("LlavaNextImageProcessorPil", "LlavaOnevisionImageProcessorPil"):
        cached = CachedImageProcessor(tiled(name), client)
        asked = {"return_tensors": "pt", "do_pad": False}
        same = [BATCH[0], BATCH[2]]
        assert_same(cached(same, **asked), cached.processor(same, **asked))
        assert (cached.num_images, cached.num_bypassed) == (0, 1)
        assert_same(cached(BATCH[0], **asked), cached.processor(BATCH[0], **asked))
        assert (cached.num_images, cached.num_bypassed) == (1, 1)


def encoded(image: Image.Image, kind: str, **settings: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def test_a_file_that_is_found_is_not_decoded(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    contents = [encoded(BATCH[0], "JPEG", exif=turned), encoded(BATCH[1].convert("RGBA"), "PNG")]
    path = tmp_path / "image"
    path.write_bytes(contents[1])
    processor = processor_of("Qwen2VLImageProcessorPil")
    turned_up = [load_image(Image.open(BytesIO(each))) for each in contents]
    wanted = processor(turned_up, return_tensors="pt")
    cached = CachedImageProcessor(processor, client)
    assert_same(cached([contents[0], path], return_tensors="pt"), wanted)
    assert cached.num_processed == 2
    monkeypatch.setattr(image_processor, "_decoded", None)
    assert_same(cached(contents, return_tensors="pt"), wanted)
    path.write_bytes(contents[0])
    assert_same(cached([path, contents[1]], return_tensors="pt"), wanted)  # the content counts
    assert (cached.num_images, cached.num_processed) == (6, 2)


@pytest.mark.parametrize(
    "form",
    [
        lambda images: images[0],
        tuple,
        lambda images: [[images[0]], images[1:]],
        lambda images: [np.asarray(image) for image in images],
        lambda images: np.stack([np.asarray(image) for image in images]),
        lambda images: torch.stack([torch.as_tensor(np.array(image)).permute(2, 0, 1) for image in images]),
    ],
    ids=["one", "tuple", "nested", "arrays", "batch", "tensors"],
)
def test_images_may_come_in_any_form(client: Client, form: Callable[[list[Image.Image]], Any]) -> None:
    processor = processor_of("Gemma3ImageProcessorPil")
    images = form([noise(60, 40), noise(60, 40, seed=1), noise(60, 40, seed=2)])
    cached = CachedImageProcessor(processor, client)
    for _ in range(2):
        assert_same(cached(images, return_tensors="pt"), processor(images, return_tensors="pt"))
    assert cached.num_bypassed == 0
    assert cached.num_processed == cached.num_hits > 0
    assert_same(cached.preprocess(images, return_tensors="pt"), processor(images, return_tensors="pt"))


def test_a_store_killed_within_a_batch_changes_no_pixel(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = processor_of("Qwen2VLImageProcessorPil")
    wanted = processor(BATCH, return_tensors="pt")
    with LoneFrontend(run_dir, small_config(world_size=0)) as frontend, Client(run_dir) as client:
        cached = CachedImageProcessor(processor, client)
        cached(BATCH[:2], return_tensors="pt")
        alone = cached._alone

        def kill_and_process(*of_image: Any) -> Any:
            if frontend.process.poll() is None:
                frontend.kill()
            return alone(*of_image)

        monkeypatch.setattr(cached, "_alone", kill_and_process)
        for _ in range(2):
            assert_same(cached(BATCH, return_tensors="pt"), wanted)
        assert frontend.process.poll() is not None
        assert cached.num_hits >= 4, "hits need no service that lives"
        monkeypatch.undo()
        frontend.start()

        def num_processed() -> int:
            before = cached.num_processed
            assert_same(cached(BATCH, return_tensors="pt"), wanted)
            return cached.num_processed - before

        eventually(num_processed, lambda count: count == 0, "it is kept again")
        assert cached.num_bypassed == 0


def test_what_a_result_depends_on_tells_it_apart(client: Client) -> None:
    cached = CachedImageProcessor(processor_of("CLIPImageProcessorPil"), client)
    seen = []
    for name, value in ((None, None), ("resample", 0), ("do_normalize", False), ("image_mean", [0.1, 0.2, 0.3])):
        if name is not None:
            setattr(cached.processor, name, value)
        seen.append(cached(BATCH[0], return_tensors="pt")["pixel_values"])
        assert torch.equal(seen[-1], cached.processor(BATCH[0], return_tensors="pt")["pixel_values"])
    seen.append(cached(BATCH[0], return_tensors="pt", do_rescale=False)["pixel_values"])
    other = CachedImageProcessor(processor_of("SiglipImageProcessorPil"), client)
    other(BATCH[0], return_tensors="pt")
    assert (cached.num_processed, other.num_processed) == (5, 1)
    assert not any(torch.equal(seen[0], each) for each in seen[1:])


@pytest.mark.parametrize(
    "drift", ["versions", "options", "arguments", pytest.param("backend", marks=needs_torchvision)]
)
def test_items_of_another_processor_are_not_found(client: Client, monkeypatch: pytest.MonkeyPatch, drift: str) -> None:
    cached = CachedImageProcessor(processor_of("CLIPImageProcessorPil"), client)
    cached(BATCH[0], return_tensors="pt")
    other = CachedImageProcessor(processor_of("CLIPImageProcessorPil"), client)
    other(BATCH[0], return_tensors="pt")
    assert other.num_processed == 0
    arguments = {}
    if drift == "versions":
        monkeypatch.setattr(image_processor, "_versions", lambda: {"transformers": "0", "pillow": "0"})
    elif drift == "options":
        other.processor.crop_size = {"height": 28, "width": 28}
    elif drift == "arguments":
        arguments = {"do_center_crop": False}
    else:  # torchvision, the fast one
        other = CachedImageProcessor(processor_of("CLIPImageProcessor"), client)
    other(BATCH[0], return_tensors="pt", **arguments)
    assert (other.num_images - other.num_hits, other.num_bypassed) == (1, 0)


def test_results_are_the_callers_own(client: Client) -> None:
    cached = CachedImageProcessor(processor_of("CLIPImageProcessorPil"), client)
    wanted = cached(BATCH[0], return_tensors="pt")["pixel_values"].clone()
    for kind in ("pt", "np"):
        found = cached(BATCH[0], return_tensors=kind)["pixel_values"]
        found[:] = 0
    assert torch.equal(cached(BATCH[0], return_tensors="pt")["pixel_values"], wanted)


def test_what_is_not_known_goes_to_the_processor(client: Client) -> None:
    class OwnImageProcessor(type(processor_of("CLIPImageProcessorPil"))):  # type: ignore[misc]
        """Of which nobody knows what it does."""

    small = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    calls: Iterator[tuple[Any, Any, dict[str, Any]]] = iter(
        [
            (OwnImageProcessor(), BATCH[0], {"return_tensors": "pt"}),
            (processor_of("CLIPImageProcessorPil"), BATCH[0], {}),
            (processor_of("CLIPImageProcessorPil"), BATCH[:2], {"return_tensors": "pt", "do_pad": True}),
            (processor_of("CLIPImageProcessorPil", **small), [], {"return_tensors": "np"}),
        ]
    )
    for processor, images, asked in calls:
        cached = CachedImageProcessor(processor, client)
        try:
            wanted = processor(images, **asked)
        except Exception as error:  # nothing to process, say: then the same is raised
            with pytest.raises(type(error)):
                cached(images, **asked)
        else:
            found = cached(images, **asked)
            assert np.array_equal(np.asarray(found["pixel_values"]), np.asarray(wanted["pixel_values"]))
        assert (cached.num_images, cached.num_bypassed) == (0, 1)


def test_a_whole_processor_takes_it(client: Client) -> None:
    raw = Tokenizer(models.WordLevel({"<pad>": 0, "<image>": 1, "cat": 2}, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", extra_special_tokens={"image_token": "<image>"}
    )
    plain = processor_of("CLIPImageProcessorPil", size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor = transformers.LlavaProcessor(plain, tokenizer, patch_size=14, vision_feature_select_strategy="full")
    asked = {"text": ["<image> cat", "cat <image>"], "images": BATCH[:2], "return_tensors": "pt"}
    wanted = processor(**asked)
    processor.image_processor = CachedImageProcessor(plain, client)
    for num_hits in (0, 2):
        assert_same(processor(**asked), wanted)
        assert (processor.image_processor.num_hits, processor.image_processor.num_bypassed) == (num_hits, 0)
    assert processor.image_processor.crop_size == plain.crop_size


PROGRAM = """
import hashlib
from tests.hosts.transformers.test_image_processor import BATCH, PROCESSORS, is_there, processor_of
for name in PROCESSORS:
    if name.startswith(("CLIP", "Siglip", "Qwen2VL")) and is_there(name):
        pixels = processor_of(name)(BATCH[1], return_tensors="np")["pixel_values"]
        print(name, hashlib.sha256(pixels.tobytes()).hexdigest())
"""


def is_there(name: str) -> bool:
    return name.endswith("Pil") or is_torchvision_available()


def pixels_with(**variables: str) -> list[str]:
    """Return the digests of what some processors make of an image in another process."""
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        words, env=os.environ | variables, check=True, capture_output=True, text=True, timeout=DEADLINE_S
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="needs more than one instruction set")
def test_pixels_have_the_same_bits_with_other_instruction_sets_of_torch() -> None:
    """The key of an item does not have the CPU: see docs/exactness.md."""
    usual = pixels_with()
    assert len(usual) >= 3
    for capability in ("avx2", "default"):
        assert pixels_with(ATEN_CPU_CAPABILITY=capability) == usual
