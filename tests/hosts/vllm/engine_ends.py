"""The two ends of vLLM's processor cache in a server with one API process, and the message between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import zmq
from vllm.multimodal.cache.lru import LruKeyReplicatedReceiverCache, LruKeyReplicatedSenderCache
from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItem, PlaceholderRange
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from mmcached.client import Client
from mmcached.integrations.processed_inputs.vllm_cache import MmcachedProcessorCache
from mmcached.integrations.processed_inputs.vllm_handles import MmcachedReceiverCache
from mmcached.wire.closeable import Closeable
from tests.hosts.vllm.processing import Server, picture

DEADLINE_S = 30


class Engine(Closeable):
    """One server's API process and engine process, as far as they touch pictures.

    Args:
        run_dir: of the service; None for a server that has vLLM's own cache alone.
        copies: Copy messages once more than vLLM does; otherwise pyzmq starts a thread that outlives the engine.
    """

    def __init__(self, model: Path, run_dir: Path | None, *, copies: bool = True, has_named: bool = False) -> None:
        self._copies = copies
        self.server = Server(model, None)
        config = self.server.config
        self.client = Client(run_dir)
        self.num_sent_bytes = 0
        self.sender: Any = LruKeyReplicatedSenderCache(config)
        self._receiver: Any = LruKeyReplicatedReceiverCache(config)
        if run_dir is not None:
            self.sender = MmcachedProcessorCache(config, Client(run_dir), own=self.sender, has_named=has_named)
            self._receiver = MmcachedReceiverCache(self.client, self._receiver)
        self.server.cache = self.sender
        self._context = zmq.Context()
        self._folder = TemporaryDirectory(prefix="mmc-")
        self._output, self._input = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._input.bind(f"ipc://{self._folder.name}/s")
        self._output.connect(f"ipc://{self._folder.name}/s")

    def send(self, pictures: Sequence[Any], names: Sequence[str | None] | None = None) -> None:
        """Send what vLLM sends for the items of a prompt with these pictures; None: one that has only a name."""
        rendered = self.server.render(list(pictures), names)
        features = [
            MultiModalFeatureSpec(item, "image", mm_hash, PlaceholderRange(0, 1), mm_hash)
            for item, mm_hash in zip(rendered["mm_kwargs"]["image"], rendered["mm_hashes"]["image"], strict=True)
        ]
        frames = MsgpackEncoder().encode(features)
        self.num_sent_bytes = sum(memoryview(frame).nbytes for frame in frames)
        self._output.send_multipart(frames, copy=self._copies)

    def receive(self) -> list[MultiModalKwargsItem]:
        """Return what the engine makes of the next message."""
        if not self._input.poll(DEADLINE_S * 1000):
            raise TimeoutError("no message came")
        features = MsgpackDecoder(list[MultiModalFeatureSpec]).decode(self._input.recv_multipart(copy=False))
        return [feature.data for feature in self._receiver.get_and_update_features(features)]

    def run(self, *seeds: int) -> list[MultiModalKwargsItem]:
        self.send([picture(seed) for seed in seeds])
        return self.receive()

    def drain(self) -> None:
        """Wait until other processes find what this server has processed."""
        if isinstance(self.sender, MmcachedProcessorCache) and not self.sender.drain(DEADLINE_S):
            raise TimeoutError("new items are not put")

    def close(self) -> None:
        self.server.close()
        self.client.close()
        self._context.destroy(linger=0)
        self._folder.cleanup()
