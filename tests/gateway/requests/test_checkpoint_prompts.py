"""A prompt's sampling is for a checkpoint behind `generate`; its pictures are for a checkpoint with their tower."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.cache.checkpoints.language import Language
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.tokenizer import CheckpointTokenizer
from mmcached.gateway.requests.request_builder import prompt_tokens
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.frontend import Generate
from mmcached.wire.messages.parts import Sampling
from tests.cache.checkpoints.folders import LLAMA, model_config_of, write


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
