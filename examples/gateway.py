"""A gateway that encodes pictures with Transformers, once per host, and asks vLLM about them by name:

    gateway.py RUN_DIR MODEL URL QUESTION PICTURE...

vLLM decodes no picture, and runs neither processor nor tower: a request has a name and a grid per picture, some hundred
bytes. For checkpoints of the Qwen2-VL and Qwen2.5-VL kind. docs/hosts/gateway.md says how vLLM is started.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmcached.client import Client
from mmcached.integrations.vllm.keys import key_of

ENCODER = "my-encoder"
"""What vLLM's setting `encoder` says; another one for each checkpoint, dtype and version of all that computes."""


class Encoder:
    """A processor and a vision tower. `num_encoded` counts pictures that it has encoded itself.

    Args:
        dtype: that the tower computes in; "auto" for the checkpoint's own, as vLLM's servers take it.
    """

    def __init__(self, client: Client, model: str, dtype: torch.dtype | str = "auto") -> None:
        self.num_encoded = 0
        self._client = client
        self._processor = AutoProcessor.from_pretrained(model).image_processor
        self._model = AutoModelForImageTextToText.from_pretrained(model, dtype=dtype).eval()

    def encode(self, picture: Path) -> tuple[str, dict[str, Any]]:
        """Return the name of a picture, and its record: `embeds` (rows, width), and `grid`, three numbers."""
        file = picture.read_bytes()
        name = f"gateway-{blake3(file).hexdigest()}"
        record = self._client.get_or_compute(key_of(ENCODER, name), lambda: self._compute(picture), timeout_s=60)
        return name, record

    @torch.no_grad()
    def _compute(self, picture: Path) -> dict[str, Any]:
        self.num_encoded += 1
        inputs = self._processor([Image.open(picture).convert("RGB")], return_tensors="pt")
        (embeds,) = self._model.model.get_image_features(**inputs, return_dict=True).pooler_output
        return {"embeds": embeds.contiguous(), "grid": inputs["image_grid_thw"][0].tolist()}


def vllm_part(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a chat message that stands for a picture, for vLLM."""
    return {"type": "image_embeds", "image_embeds": {"image_grid_thw": record["grid"]}, "uuid": name}


def sglang_images(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the `image_data` of a request to SGLang's `Engine.generate`: all its pictures are one item.

    Its prompt has `<|image_pad|>` once for each row.
    """
    return [
        {
            "format": "processor_output",
            "precomputed_embeddings": torch.cat([record["embeds"] for record in records]),
            "image_grid_thw": torch.tensor([record["grid"] for record in records]),
        }
    ]


def ask(url: str, question: str, parts: list[dict[str, Any]]) -> str:
    """Return vLLM's answer to a question about pictures."""
    content = [*parts, {"type": "text", "text": question}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 16, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


if __name__ == "__main__":
    run_dir, model, url, question, *pictures = sys.argv[1:]
    with Client(run_dir, fail_open=False) as client:
        encoder = Encoder(client, model)
        parts = [vllm_part(*encoder.encode(Path(picture))) for picture in pictures]
        print(ask(url, question, parts))
        print(f"encoded here: {encoder.num_encoded} of {len(pictures)} pictures")
