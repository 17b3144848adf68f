"""Prompts with pictures: what Transformers computes of them, and the same bits whatever was cached."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from PIL import Image

from mmcached.cache.checkpoints.checkpoint import Checkpoint
from mmcached.gateway.processing.checkpoint_processor import CheckpointProcessor
from mmcached.gateway.processing.decoder_process import DecodedTensors
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.gateway.requests.prompts import CheckpointPrompts
from mmcached.pictures.images import decode_image
from mmcached.pictures.processor import PictureProcessor
from mmcached.pictures.settings import PictureSettings
from mmcached.shm.store.codec import decode_record_frames
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.frontend import Generate
from mmcached.wire.model_config import EncoderConfig, ModelConfig
from tests.hosts.transformers.checkpoints import photograph, save
from tests.hosts.transformers.language_models import write_tokenizer
from tests.hosts.transformers.local_engine import LocalEngine
from tests.hosts.transformers.models import IMAGE
from tests.hosts.transformers.test_language import DTYPES, assert_same

pytestmark = pytest.mark.usefixtures("one_thread")

TILED = ("smolvlm", "idefics3", "internvl", "llava_next")
FAMILIES = ("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3_wide", *TILED)
SIZES = ((160, 90), (70, 130), (300, 300), (60, 200))
CHUNK = 32
MODULE = "layers.1.mlp.up_proj"
ROWS = ("hidden_states", "hidden_states.layer_0", "hidden_states.layer_1", MODULE)
Picture = tuple[str, GatewayItem]


class Asked(NamedTuple):
    """A prompt with one placeholder for each picture, and the numbers of its pictures."""

    prompt: list[int]
    numbers: list[int]


class World:
    """One checkpoint, its pictures, and what Transformers continues a prompt with."""

    def __init__(
        self, folder: Path, family: str, dtype: torch.dtype = torch.float32, *, files: Sequence[bytes] = ()
    ) -> None:
        self.folder = save(family, folder, dtype, text_scale=10.0)
        self.files = list(files) or [photograph(*size, "PNG", seed) for seed, size in enumerate(SIZES)]
        write_tokenizer(self.folder)
        processor = CheckpointProcessor(Checkpoint.open(self.folder, is_for_prompts=True), "")
        settings = PictureSettings.from_config(self.config())
        tensors = [PictureProcessor(self.folder).tensors(decode_image(file, settings)) for file in self.files]
        self._items = [processor.item(DecodedTensors(each)) for each in tensors]

    def config(self, **settings: Any) -> ServiceConfig:
        defaults = {"world_size": 1, "num_kv_blocks": 600, "max_model_len": 1024, "max_num_batched_tokens": 96}
        return ServiceConfig(
            model=ModelConfig(
                kind="hf", path=str(self.folder), chunk_tokens=CHUNK, num_layer_outputs=2, row_modules=MODULE
            ),
            encoder=EncoderConfig(kind="hf", path=str(self.folder)),
            **defaults | settings,
        )

    def pictures(self, numbers: Sequence[int]) -> list[Picture]:
        return [(f"{number:064x}", self._items[number]) for number in numbers]

    def expanded(self, asked: Asked) -> list[int]:
        numbers = iter(asked.numbers)
        return [each for token in asked.prompt for each in (self._tokens(next(numbers)) if token == IMAGE else [token])]

    def _tokens(self, number: int) -> list[int]:
        """Return the tokens of a picture in a prompt."""
        item = self._items[number]
        record = decode_record_frames(item.encoded.frames(), tensors="numpy")
        return [IMAGE if token < 0 else token for token in record.get("tokens", [-1] * item.num_embeds)]

    def alone(self, asked: Asked, max_tokens: int) -> tuple[list[int], list[torch.Tensor]]:
        """Return tokens and logits of `generate` of Transformers."""
        processor = transformers.AutoImageProcessor.from_pretrained(self.folder)
        config = transformers.AutoConfig.from_pretrained(self.folder)
        model = getattr(transformers, config.architectures[0]).from_pretrained(self.folder, dtype="auto").eval()
        token_ids = torch.tensor([self.expanded(asked)])
        found: Mapping[str, torch.Tensor] = {}
        if asked.numbers:
            opened = [Image.open(BytesIO(self.files[number])).convert("RGB") for number in asked.numbers]
            found = processor(images=opened, return_tensors="pt")
        taken = ("pixel_values", "image_grid_thw", "pixel_attention_mask", "image_sizes")
        inputs = {name: each for name, each in found.items() if name in taken}
        if hasattr(model.model, "get_rope_index"):
            inputs["mm_token_type_ids"] = (token_ids == IMAGE).int()
        if config.model_type == "gemma3":
            inputs["token_type_ids"] = (token_ids == IMAGE).int()
        output = model.generate(
            token_ids,
            **inputs,
            max_new_tokens=max_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return output.sequences[0, token_ids.shape[1] :].tolist(), [logits[0] for logits in output.logits]


def asks(random: Random) -> list[Asked]:
    """Return prompts that share a beginning with two pictures; pictures cross the ends of chunks."""

    def text(num_tokens: int) -> list[int]:
        return [random.randrange(3, IMAGE) for _ in range(num_tokens)]

    def picture() -> list[int]:
        return [502, IMAGE, 503]

    shared = [*text(50), *picture(), *text(7), *picture()]
    return [
        Asked([*shared, *text(3)], [0, 1]),
        Asked([*shared, *text(50)], [0, 1]),
        Asked([*shared, *text(1), *picture(), *text(60), *picture(), *text(2)], [0, 1, 2, 0]),
        Asked([*shared, *text(33)], [0, 3]),  # another picture, of another size
        Asked(text(70), []),
        Asked([*picture(), *picture()], [2, 3]),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_with_pictures_is_continued_as_by_transformers_with_the_same_bits_if_cached(
    family: str, dtype: str, tmp_path: Path
) -> None:
    world = World(tmp_path, family, DTYPES[dtype])
    cached, plain = LocalEngine(world.config()), LocalEngine(world.config(enable_prefix_caching=False))
    num_cached = []
    for asked in asks(Random(family)):
        pictures = world.pictures(asked.numbers)
        first = cached.generate(asked.prompt, 8, rows=ROWS, pictures=pictures)
        second = plain.generate(asked.prompt, 8, rows=ROWS, pictures=pictures)
        assert_same(cached, first, plain, second)
        assert second.num_cached_tokens == 0
        num_cached.append(first.num_cached_tokens)
        if dtype == "fp32":
            tokens, logits = world.alone(asked, 8)
            assert first.output_token_ids == tokens
            for found, wanted in zip(cached.logits[first.request_id], logits, strict=True):
                assert torch.allclose(found, wanted, atol=1e-4 * float(wanted.abs().max()))
    assert all(num_cached[1:3])
    for asked, before in zip(asks(Random(family)), num_cached, strict=True):
        again = cached.generate(asked.prompt, 8, rows=ROWS, pictures=world.pictures(asked.numbers))
        alike = plain.generate(asked.prompt, 8, rows=ROWS, pictures=world.pictures(asked.numbers))
        assert_same(cached, again, plain, alike)
        assert again.num_cached_tokens >= before


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_with_pictures_are_the_same_beside_others_and_after_starting_over(family: str, tmp_path: Path) -> None:
    world = World(tmp_path, family, torch.bfloat16)
    crowd = LocalEngine(world.config(num_kv_blocks=26, max_model_len=400))
    plain = LocalEngine(world.config(enable_prefix_caching=False))
    asked = asks(Random(family))
    requests = [crowd.add(each.prompt, 12, rows=ROWS, pictures=world.pictures(each.numbers)) for each in asked + asked]
    for num_steps in (3, 4, 5):
        for _ in range(num_steps):
            crowd.step()
        crowd.preempt()
    crowd.run()
    for each, request in zip(asked + asked, requests, strict=True):
        alike = plain.generate(each.prompt, 12, rows=ROWS, pictures=world.pictures(each.numbers))
        assert request.output_token_ids == alike.output_token_ids
        rows, other_rows = crowd.rows_of(request), plain.rows_of(alike)
        assert all(torch.equal(rows[key], other_rows[key]) for key in ROWS)


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_do_not_depend_on_what_other_prompts_have_left(family: str, tmp_path: Path) -> None:
    world, random = World(tmp_path, family), Random(family)
    cached, plain = LocalEngine(world.config()), LocalEngine(world.config(enable_prefix_caching=False))
    known = [Asked([7], [])]
    num_cached = 0
    for _ in range(30):
        start = random.choice(known)
        kept = start.prompt[: random.randrange(len(start.prompt) + 1)]
        added: list[int] = []
        while random.random() < 0.8:
            added += [502, IMAGE, 503] if random.random() < 0.4 else [5 + random.randrange(3)] * random.randrange(25)
        asked = Asked([*kept, *added, 9], start.numbers[: kept.count(IMAGE)])
        asked.numbers.extend(random.randrange(len(SIZES)) for _ in range(added.count(IMAGE)))
        known.append(asked)
        pictures = world.pictures(asked.numbers)
        first, second = (engine.generate(asked.prompt, 2, rows=ROWS, pictures=pictures) for engine in (cached, plain))
        assert_same(cached, first, plain, second)
        num_cached += first.num_cached_tokens
    assert num_cached


@pytest.mark.parametrize("family", ["smolvlm", "idefics3"])
def test_text_around_tiles_is_that_of_the_processor(family: str, tmp_path: Path) -> None:
    world = World(tmp_path, family)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    processor = transformers.Idefics3Processor(
        transformers.AutoImageProcessor.from_pretrained(tmp_path), tokenizer, image_seq_len=4
    )
    text = "a <image> b <image><image>\n"
    opened = [Image.open(BytesIO(world.files[number])).convert("RGB") for number in (0, 1, 2)]
    wanted = processor(images=opened, text=text)["input_ids"][0]
    assert world.expanded(Asked(tokenizer(text)["input_ids"], [0, 1, 2])) == wanted
    most = Checkpoint.open(tmp_path, is_for_prompts=True).max_embeds_per_item
    assert max(item.num_embeds for _, item in world.pictures(range(len(SIZES)))) <= most


def test_internvl_cuts_pictures_as_its_processor_does_whatever_the_file_says(tmp_path: Path) -> None:
    world = World(tmp_path, "internvl")
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings | {"crop_to_patches": False}))
    tokens = {"context_image_token": "<image>", "start_image_token": "<global-img>", "end_image_token": "<row_1_col_1>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), extra_special_tokens={**tokens, "video_token": "<row_1_col_2>"}
    )
    processor = transformers.InternVLProcessor(
        transformers.AutoImageProcessor.from_pretrained(tmp_path),
        tokenizer,
        video_processor=transformers.InternVLVideoProcessor(),
        image_seq_length=4,
    )
    text = "a <image> b <image>"
    opened = [Image.open(BytesIO(world.files[number])).convert("RGB") for number in (0, 1)]
    wanted = processor(images=opened, text=text, return_tensors="pt")
    own = [PictureProcessor(tmp_path).tensors(picture)["pixel_values"] for picture in opened]
    assert torch.equal(torch.cat([torch.from_numpy(each) for each in own]), wanted["pixel_values"])
    with_frames = text.replace("<image>", "<global-img><image><row_1_col_1>")
    assert world.expanded(Asked(tokenizer(with_frames)["input_ids"], [0, 1])) == wanted["input_ids"][0].tolist()


def test_a_text_gets_the_tokens_that_gemmas_processor_puts_around_a_picture(tmp_path: Path) -> None:
    world = World(tmp_path, "gemma3_wide")
    begin, end = "<global-img>", "<row_1_col_1>"  # 502 and 503
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        extra_special_tokens={"image_token": "<image>", "boi_token": begin, "eoi_token": end},
    )
    processor = transformers.Gemma3Processor(
        transformers.AutoImageProcessor.from_pretrained(tmp_path), tokenizer, image_seq_length=16
    )
    text = f"user\n{begin}what is it? {begin}"
    opened = [Image.open(BytesIO(world.files[number])).convert("RGB") for number in (0, 1)]
    wanted = processor(images=[opened], text=[text])["input_ids"][0]
    prompts = CheckpointPrompts(world.config())
    for given in (text, text.replace(begin, f"\n\n{begin}<image>{end}\n\n")):
        token_ids = prompts.tokens_of(Generate("0" * 32, 1, given, 4, None, 9.0))
        assert world.expanded(Asked(token_ids, [0, 1])) == wanted
