"""Does what the adapter relies on: looks up each item of a step, encodes the others in one call, and keeps them."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm._torch.tensor_lru_cache import TensorLRUCache


class MultimodalModelMixin:
    supports_encoder_cache = False
    model_config: Any
    _multimodal_encoder_cache: Any = None

    def encode_multimodal_inputs(self, multimodal_params: list[Any]) -> torch.Tensor:
        raise NotImplementedError

    @property
    def language_model(self) -> Any:
        raise NotImplementedError

    @property
    def embedding_dim(self) -> int:
        raise NotImplementedError

    @property
    def embedding_dtype(self) -> torch.dtype:
        raise NotImplementedError

    def _get_multimodal_encoder_cache(self) -> Any:
        max_bytes = self.model_config.multimodal_config.encoder_cache_max_bytes
        if not self.supports_encoder_cache or max_bytes <= 0:
            return None
        if self._multimodal_encoder_cache is None:
            self._multimodal_encoder_cache = TensorLRUCache(max_bytes, name="mm_encoder_cache")
        return self._multimodal_encoder_cache

    def _get_or_encode_multimodal_embeddings(self, multimodal_params: list[Any]) -> torch.Tensor:
        """Return the rows of requests, each with one or several items of one modality."""
        cache = self._get_multimodal_encoder_cache()
        found: list[torch.Tensor | None] = []
        missing: list[tuple[int, Any, Any]] = []
        for param in multimodal_params:
            data = param.multimodal_data
            for place, (item, length) in enumerate(
                zip(param.multimodal_input.multimodal_hashes, data["multimodal_embedding_lengths"], strict=True)
            ):
                key = ("image", tuple(item), length, data["mm_processor_kwargs_hash"])
                rows = None if cache is None else cache.get(key)
                if rows is None:
                    missing.append((len(found), key, self.build_multimodal_encoder_input(param, [place])))
                found.append(rows)
        if missing:
            lengths = [key[2] for _, key, _ in missing]
            encoded = torch.split(self.encode_multimodal_inputs([each for _, _, each in missing]), lengths, dim=0)
            for (at, key, _), rows in zip(missing, encoded, strict=True):
                found[at] = rows
                if cache is not None:
                    cache.put(key, rows)
        return torch.cat([rows for rows in found if rows is not None])

    def build_multimodal_encoder_input(self, param: Any, item_indices: list[int]) -> Any:
        raise NotImplementedError
