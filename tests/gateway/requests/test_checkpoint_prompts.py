"""A prompt's sampling is for a checkpoint behind `generate`; its pictures are for a checkpoint with their tower."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.cache.checkpoints.language import Language
from mmcached.gateway.caches.item_cache import OutgoingItem
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.tokenizer import CheckpointTokenizer
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.request_builder import build_prompt, prompt_tokens
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.frontend import Generate
from mmcached.wire.messages.parts import Sampling
from mmcached.wire.model_config import ModelConfig
from tests.cache.checkpoints.folders import GEMMA, LLAMA, config_of, model_config_of, write


def request(prompt: list[int], sampling: Sampling | None = None) -> Generate:
    return Generate("0" * 32, 1, prompt, 4, None, 9.0, sampling=sampling)


def test_the_reference_model_does_not_sample() -> None:
    with pytest.raises(InvalidRequest, match=r"sampling.*none: the reference model"):
        prompt_tokens(request([1], Sampling()), [], ServiceConfig())


def test_a_checkpoints_prompt_has_ids_of_its_vocabulary(tmp_path: Path) -> None:
    config = model_config_of(write(tmp_path, LLAMA))
    language, tokenizer = Language.of(config), CheckpointTokenizer(tmp_path)

    def tokens(prompt: list[int], *media: Medium) -> list[int]:
        return prompt_tokens(request(prompt, Sampling()), media, config, language=language, tokenizer=tokenizer)

    assert tokens([258, 511]) == [258, 511]  # 258 is a picture of the reference model
    with pytest.raises(InvalidRequest, match="below 512"):
        tokens([512])
    with pytest.raises(InvalidRequest, match=r"images.*the checkpoint takes text"):
        tokens([258], Medium("image", b"file", "images[0]"))


@pytest.mark.parametrize(("model", "bound"), [(GEMMA, [40, 30]), (LLAMA, [0, 0])])
def test_a_picture_that_is_computed_whole_is_bound_to_the_tokens_before_it(
    tmp_path: Path, model: dict[str, object], bound: list[int]
) -> None:
    config = config_of(write(tmp_path, model), model=ModelConfig(kind="hf", path=str(tmp_path), chunk_tokens=64))
    token_ids = [*[5] * 40, 258, *[5] * 34, 258]
    media = [Medium("image", b"", "images[0]", key=key) for key in ("a", "b")]
    opened = OpenRequest(1, b"", request(token_ids), media, 1.0, token_ids=token_ids, marks={"image": 258})
    opened.language = Language.of(config)
    items = [OutgoingItem(key, 100, num_embeds, None) for key, num_embeds in (("a", 20), ("b", 9))]
    prompt = build_prompt(opened, items, config)
    assert [(each.offset, each.num_bound) for each in prompt.features] == [(40, bound[0]), (94, bound[1])]
