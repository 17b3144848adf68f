"""A tiny model with TensorRT-LLM's mixin: a tower of one layer, whose ranks meet in a collective of each encode.

Imported with `site`, or with TensorRT-LLM's own files, on the path; see `conftest.make_site`.
"""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tensorrt_llm._torch.models.modeling_multimodal_mixin import MultimodalModelMixin

ROWS, PIXELS, WIDTH = 3, 8, 16
CACHE_BYTES = 1 << 20


class PretrainedConfig:
    """The configuration of a checkpoint, as Transformers has it."""

    def __init__(self, checkpoint: Path, dtype: torch.dtype) -> None:
        self._name_or_path = str(checkpoint)
        self.torch_dtype = dtype
        self.text_config = SimpleNamespace(hidden_size=WIDTH)

    def to_dict(self) -> dict[str, Any]:
        return {"vision_config": {"depth": 1}, "text_config": {"hidden_size": WIDTH}, "torch_dtype": self.torch_dtype}


class TinyModel(torch.nn.Module, MultimodalModelMixin):
    """Encodes each item to rows of its pixels times the tower's weights.

    Attributes:
        encoded: First pixel of each item that the tower was given.
    """

    supports_encoder_cache = True
    mm_encoder: torch.nn.Linear
    llm: torch.nn.Linear

    def __init__(
        self,
        checkpoint: Path,
        *,
        seed: int = 0,
        cache_bytes: int = CACHE_BYTES,
        dtype: torch.dtype = torch.float32,
        mapping: Any = None,
        is_collective: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._is_collective = is_collective
        self.encoded: list[int] = []
        self.model_config = SimpleNamespace(
            pretrained_config=PretrainedConfig(checkpoint, dtype),
            mapping=mapping or SimpleNamespace(tp_size=1, tp_rank=0, enable_attention_dp=False),
            multimodal_config=SimpleNamespace(encoder_cache_max_bytes=cache_bytes, encoder_side_stream_max_ahead=0),
            **settings,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.mm_encoder = torch.nn.Linear(PIXELS, WIDTH, dtype=dtype)
            self.llm = torch.nn.Linear(WIDTH, WIDTH, dtype=dtype)

    @property
    def language_model(self) -> torch.nn.Module:
        return self.llm

    @property
    def cache(self) -> Any:
        mixin: Any = self
        return mixin._get_multimodal_encoder_cache()

    @torch.inference_mode()
    def encode_multimodal_inputs(self, multimodal_params: Any) -> torch.Tensor:
        pixels = torch.cat([param.multimodal_data["image"]["pixel_values"] for param in multimodal_params])
        self.encoded += [int(each[0, 0]) for each in pixels]
        if self._is_collective and self.model_config.mapping.tp_size > 1:
            seen = torch.tensor([len(pixels)])
            torch.distributed.all_reduce(seen, torch.distributed.ReduceOp.MAX)
            assert seen.item() == len(pixels), "the ranks encode different items"
        # One by one: a product over another number of rows may round otherwise.
        return torch.cat([self.mm_encoder(each.to(self.mm_encoder.weight.dtype)) for each in pixels])

    def build_multimodal_encoder_input(self, param: Any, item_indices: Any) -> Any:
        chosen = param.multimodal_data["image"]["pixel_values"][list(item_indices)]
        data = {**param.multimodal_data, "image": {"pixel_values": chosen}}
        return SimpleNamespace(
            multimodal_data=data, multimodal_input=copy.copy(param.multimodal_input), encoder_event=None
        )

    def step(self, *pictures: int) -> torch.Tensor:
        """Return the rows of one request with these pictures."""
        mixin: Any = self
        rows: torch.Tensor = mixin._get_or_encode_multimodal_embeddings([request(*pictures)])
        return rows


def hash_of(picture: int) -> list[int]:
    return [picture + 1, -7, 3, 4, 5, 6, 7, 8]


def key_of(picture: int, rows: int = ROWS) -> tuple[Any, ...]:
    """Return TensorRT-LLM's key of a picture."""
    return ("image", tuple(hash_of(picture)), rows, "kwargs")


def request(*pictures: int) -> Any:
    pixels = [torch.arange(ROWS * PIXELS, dtype=torch.float32).reshape(ROWS, PIXELS) / 7 + each for each in pictures]
    data = {
        "image": {"pixel_values": torch.stack(pixels)},
        "multimodal_embedding_lengths": [ROWS] * len(pictures),
        "mm_processor_kwargs_hash": "kwargs",
    }
    named = SimpleNamespace(multimodal_hashes=[hash_of(each) for each in pictures])
    return SimpleNamespace(multimodal_data=data, multimodal_input=named, multimodal_runtime=None, encoder_event=None)
