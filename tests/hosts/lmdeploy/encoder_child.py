"""LMDeploy's own `ImageEncoder` with its own vision models, from pictures to the input of the TurboMind engine.

    python -m tests.hosts.lmdeploy.encoder_child CHECKPOINT RUN_DIR PICTURE…

prints, as JSON, digests of the embeddings and how many pictures were encoded. TurboMind itself needs a GPU. LMDeploy's
`build_model` of LLaVA fails with each version of Transformers that LMDeploy allows, so the weights are loaded here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmcached.integrations.lmdeploy import install

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lmdeploy.messages import TurbomindEngineConfig
    from lmdeploy.vl import engine
    from lmdeploy.vl.model.llava_hf import LlavaHfVisionModel
    from lmdeploy.vl.model.minicpmv import MiniCPMVModel
    from transformers import AutoConfig, LlavaForConditionalGeneration

DEADLINE_S = 30.0
OWN_INFER = engine.ImageEncoder.async_infer
WIDTH, QUERIES = 16, 3


class Words:
    """A tokenizer and a chat template: characters are tokens."""

    def encode(self, text: str, add_bos: bool) -> list[int]:
        return [ord(each) for each in text]

    def messages2prompt(self, messages: list[Any], **named: Any) -> str:
        return "".join(message["content"] for message in messages)


class Encoder:
    """One `ImageEncoder`.

    Args:
        installs: Whether it shares features.
        kind: "llava", with the checkpoint's weights, or "minicpmv", whose pictures have several slices.
        scale: Factor of the projector's weights.

    Attributes:
        encoded: Number of pictures in each call of the model.
    """

    def __init__(
        self,
        checkpoint: Path,
        run_dir: Path,
        *,
        installs: bool = True,
        kind: str = "llava",
        scale: float = 1.0,
        max_batch_size: int = 1,
    ) -> None:
        self.encoded: list[int] = []
        engine.ImageEncoder.async_infer = OWN_INFER
        if installs:
            install(str(run_dir))
        self._infer = engine.ImageEncoder.async_infer
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = MAKERS[kind](checkpoint)
            engine.load_vl_model = lambda *values, **named: model
            self.own = engine.ImageEncoder(str(checkpoint), "turbomind", backend_config=TurbomindEngineConfig())
        self.own.max_batch_size = max_batch_size
        with torch.no_grad():
            self.projector.mul_(scale)
        forward = model.forward

        def counted(messages: list[Any], *values: Any) -> Any:
            given = [each for message in messages for each in _items(message)]
            self.encoded.append(len(given))
            return forward(messages, *values)

        model.forward = counted

    @property
    def projector(self) -> torch.Tensor:
        """A tensor that all features depend on."""
        found: dict[str, torch.Tensor] = dict(self.own.model.model.named_parameters())
        return next(value for name, value in found.items() if "projector" in name)

    @property
    def shared(self) -> Any:
        return vars(self.own).get("_mmcached_features")

    def ask(self, *pictures: int) -> list[torch.Tensor]:
        """Return the embeddings of one request, one for each picture or slice."""
        self.encoded.clear()
        found: list[torch.Tensor] = asyncio.run(self.request(*pictures))["input_embeddings"]
        assert self.shared is None or self.shared.saver.drain(DEADLINE_S)
        return found

    async def request(self, *pictures: int) -> Any:
        """Return the input of the TurboMind engine for a request with these pictures."""
        content: list[Any] = [{"type": "image", "data": picture(number)} for number in pictures]
        messages = [{"role": "user", "content": [*content, {"type": "text", "text": "What?"}]}]
        messages = await self.own.preprocess(messages)
        messages = await self._infer(self.own, messages)
        return await self.own.wrap_for_turbomind(messages, Words(), Words())

    def close(self) -> None:
        if self.shared is not None:
            self.shared.close()
        self.own.executor.shutdown()


def picture(number: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (56, 56, 3), dtype=np.uint8))


def llava(checkpoint: Path) -> Any:
    config = AutoConfig.from_pretrained(checkpoint)
    model = LlavaHfVisionModel(str(checkpoint), hf_config=config, backend="turbomind")
    model.build_preprocessor()
    weights = LlavaForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    del weights.model.language_model
    model.vl_model = model.model = weights
    return model


class Slices(torch.nn.Module):
    """Stands for the remote code of a MiniCPM-V checkpoint: its tower and its resampler."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.projector = torch.nn.Linear(3, WIDTH)

    @property
    def device(self) -> torch.device:
        return self.projector.weight.device

    def vpm(self, pixel_values: torch.Tensor, **named: Any) -> Any:
        return SimpleNamespace(last_hidden_state=pixel_values.float().mean(dim=(2, 3)))

    def resampler(self, rows: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        each = [self.projector(row * (1 + query)) for row in rows for query in range(QUERIES)]
        return torch.stack(each).reshape(len(rows), QUERIES, WIDTH)


class SlicedPictures(MiniCPMVModel):
    """LMDeploy's MiniCPM-V without its processor: a picture has 2 slices or 3, by its first pixel."""

    def __init__(self, checkpoint: Path) -> None:
        config = AutoConfig.from_pretrained(checkpoint)
        config.text_config.hidden_size = WIDTH
        config.version = 2.6
        super().__init__(str(checkpoint), hf_config=config, backend="turbomind")
        self._preprocess_func = _slices_of
        self.model = self.vl_model = Slices()

    def build_preprocessor(self, trust_remote_code: bool = False) -> None:
        raise NotImplementedError


def _slices_of(image: Image.Image, params: Any) -> dict[str, Any]:
    pixels = torch.from_numpy(np.array(image)).float().permute(2, 0, 1)
    count = 2 + int(pixels[0, 0, 0]) % 2
    return {
        "pixel_values": [pixels[:, :4, : 4 + each] for each in range(count)],
        "tgt_sizes": [torch.tensor([[1, 1]])] * count,
        "num_patches": count,
        "best_grid": [1, count - 1],
        "image_tokens": [QUERIES] * count,
    }


def _items(message: Any) -> Iterator[Any]:
    yield from message["content"] if message.get("role") == "preprocess" else message.get("preprocess") or ()


MAKERS = {"llava": llava, "minicpmv": SlicedPictures}


def main(checkpoint: str, run_dir: str, *pictures: str) -> None:
    encoder = Encoder(Path(checkpoint), Path(run_dir))
    found = encoder.ask(*map(int, pictures))
    digests = [hashlib.sha256(each.numpy().tobytes()).hexdigest() for each in found]
    print(json.dumps({"digests": digests, "encoded": sum(encoder.encoded)}))
    encoder.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
