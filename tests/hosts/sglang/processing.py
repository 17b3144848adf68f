"""The part of an SGLang server that processes pictures: SGLang's processor of Qwen2.5-VL."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.multimodal.processors.qwen_vl import QwenVLImageProcessor
from sglang.srt.runtime_context import get_server_args
from transformers import AutoProcessor

from mmcached.client import Client
from mmcached.integrations.sglang.processed_inputs import SharedArtifacts, share

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
DEADLINE_S = 60.0


class Server:
    """The processor of one server, which counts the pictures that it is given.

    SGLang's arguments must have been published.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.artifacts: SharedArtifacts | None = None
        given = get_server_args()
        config = ModelConfig.from_server_args(given).hf_config
        self.mm_processor = QwenVLImageProcessor(config, given, AutoProcessor.from_pretrained(checkpoint), None)
        self.num_processed = 0
        made = self.mm_processor.prepare_artifact_batch
        whole = self.mm_processor.process_mm_data

        def prepare(entries: list[Any], **named: Any) -> Any:
            self.num_processed += len(entries)
            return made(entries, **named)

        def process(*values: Any, images: Any = None, **named: Any) -> Any:
            self.num_processed += len(images or ())
            return whole(*values, images=images, **named)

        self.mm_processor.prepare_artifact_batch = prepare
        self.mm_processor.process_mm_data = process

    def run(self, *images: Any, prompt: str | None = None, **request: Any) -> Any:
        """Return what SGLang sends to its ranks for a request with these images."""
        fields = {"rid": "x", "video_data": None, "audio_data": None, "mm_content_hashes": None} | request
        prompt = IMAGE * len(images) + "what" if prompt is None else prompt
        process = self.mm_processor.process_mm_data_async
        call = process(list(images), prompt, SimpleNamespace(**fields), max_req_input_len=4096)
        return asyncio.run(asyncio.wait_for(call, DEADLINE_S))

    def share(self, run_dir: Path) -> None:
        self.client = Client(run_dir, timeout_s=DEADLINE_S, connect_timeout_s=1.0)
        self.artifacts = share(self.mm_processor, self.client)
        assert self.artifacts is not None

    def drain(self) -> None:
        """Wait until other servers find what this one has processed."""
        assert self.artifacts is not None
        assert self.artifacts.drain(DEADLINE_S)

    def close(self) -> None:
        if self.artifacts is not None:
            self.artifacts.close()
            self.client.close()
        self.mm_processor.shutdown()
        self.mm_processor.io_executor.shutdown()
        self.mm_processor.cpu_executor.shutdown()
