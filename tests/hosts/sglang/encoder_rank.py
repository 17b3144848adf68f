"""One rank of an encoder server with two: SGLang's own `MMEncoder` with a tower in two parts, over gloo.

    python -m tests.hosts.sglang.encoder_rank RANK MEETING CHECKPOINT

Reads commands as `engine_rank` does. SGLang's pools are pinned and filled from a GPU; here they are not pinned, and the
GPU is one in name.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import sys
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.disaggregation.encoder.server import MMEncoder
from sglang.srt.managers.schedule_batch import Modality
from sglang.srt.mem_cache.embedding_cache_controller import EmbeddingCacheController, EmbeddingPool
from sglang.srt.mem_cache.embedding_store import EmbeddingStoreFactory
from sglang.srt.runtime_context import publish
from sglang.srt.server_args import ServerArgs

from tests.hosts.prompts import image
from tests.hosts.sglang.conftest import DEADLINE_S
from tests.hosts.sglang.rank_processes import answer_lines
from tests.hosts.sglang.test_encoder_store import OnGpu


def pretend_gpu() -> None:
    """Make pools of plain memory, and every stream end at once."""
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
    event = SimpleNamespace(record=lambda stream: None, query=lambda: True, synchronize=lambda: None)
    cuda: Any = torch.cuda
    cuda.current_stream = cuda.Stream = lambda device=None: stream
    cuda.stream, cuda.Event = contextlib.nullcontext, lambda: event
    empty, create, keep = torch.empty, EmbeddingPool.create, EmbeddingCacheController.store_to_pool_async

    def unpinned(*sizes: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:
        return empty(*sizes, **named)

    torch.empty = unpinned  # type: ignore[assignment]
    pools: Any = EmbeddingPool
    pools.create = lambda *given: create(*given[:4], pin_memory=False)
    controller: Any = EmbeddingCacheController
    controller.store_to_pool_async = lambda self, hashes, tensors, modality: keep(
        self, hashes, [tensor.as_subclass(OnGpu) for tensor in tensors], modality
    )


class Commands:
    """What a test tells a rank; each method returns the answer."""

    def __init__(self, rank: int, meeting: str, checkpoint: str) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        arguments = ServerArgs(
            model_path=checkpoint,
            device="cpu",
            dtype="float32",
            tp_size=2,
            encoder_only=True,
            enable_mm_global_cache=True,
        )
        publish(arguments, role="encoder")
        self._numbers = itertools.count()
        self._encoded: list[int] = []
        self._encoder = self._loop.run_until_complete(self._start(arguments, meeting, rank))

    async def _start(self, arguments: ServerArgs, meeting: str, rank: int) -> MMEncoder:
        encoder = MMEncoder(arguments, None, f"file://{meeting}", rank)
        encode: Any = encoder._encode_missing

        def noted(feature: Any, result: Any, indices: list[int], *more: Any) -> Any:
            self._encoded += indices
            return encode(feature, result, indices, *more)

        encoder._encode_missing = noted
        return encoder

    def step(self, *pictures: int) -> dict[str, Any]:
        """Return the digest of the pictures' embeddings, in the first rank, and the places of the encoded pictures."""
        self._encoded.clear()
        digest = self._loop.run_until_complete(self._encode(f"request {next(self._numbers)}", pictures))
        return {"sha256": digest, "encoded": list(self._encoded)}

    async def _encode(self, name: str, pictures: tuple[int, ...]) -> str | None:
        urls = [image(picture)["image_url"]["url"] for picture in pictures]
        _, _, _, error, _ = await self._encoder.encode(urls, Modality.IMAGE, name, 1, 0)
        assert error is None, error
        await asyncio.gather(*self._encoder.background_tasks)
        controller = self._encoder.mm_global_cache
        await asyncio.to_thread(controller.insert_queue.join)
        assert controller.embedding_store.saver.drain(DEADLINE_S)
        if self._encoder.rank > 0:
            return None
        embedding = self._encoder.req_states[name].embedding_data.embedding
        return hashlib.sha256(embedding.numpy().tobytes()).hexdigest()


def main(rank: str, meeting: str, checkpoint: str) -> None:
    pretend_gpu()
    store = "mmcached.integrations.sglang.embedding_store", "MmcachedEmbeddingStore"
    EmbeddingStoreFactory.register_backend("mooncake", *store)
    answer_lines(Commands(int(rank), meeting, checkpoint))


if __name__ == "__main__":
    main(*sys.argv[1:])
