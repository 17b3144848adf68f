"""Sends the requests that must succeed before a service is ready: small ones with a small file, end to end."""

from __future__ import annotations

import base64
import io
import wave
from pathlib import Path
from typing import Literal

from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError

TIMEOUT_S = 10.0
DECODER_TIMEOUT_S = 60.0
"""For a service whose decoders import Transformers: a decoder that is not ready in time is ended, and restarted."""
CHECKPOINT_TIMEOUT_S = 60.0
Kind = Literal["both", "model", "encoder"]
TINY_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEElEQVR42mNsYIAAJgaKGAAmCACQtTEKkQAAAABJRU5ErkJggg=="
)
"""A file of 8 x 8 grey pixels."""


def first_request(run_dir: Path, timeout_s: float = TIMEOUT_S, *, num_engines: int = 1, kind: Kind = "both") -> None:
    """Send real requests through frontend, ring, engine and every worker: one for each engine, in sequence.

    Args:
        kind: What is asked for: a generation with a picture; or, of a checkpoint's model, one of a token; or, of a
            service with a checkpoint's encoder alone, an encoding.

    Raises:
        MmcachedError: A request was not answered, or not with one token.
    """
    with Client(run_dir, connect_timeout_s=timeout_s, fail_open=False) as client:
        for number in range(num_engines):
            if kind == "encoder":
                _encode(client, number)
                continue
            if kind == "model":
                generation = client.generate([number], max_tokens=1, timeout_s=CHECKPOINT_TIMEOUT_S)
            else:
                generation = client.generate(f"{number}: ready? <image>", [TINY_PNG], max_tokens=1, timeout_s=timeout_s)
            if len(generation.tokens) != 1:
                raise MmcachedError(f"the first request was answered with {len(generation.tokens)} tokens, not 1")


def kind_of(config: ServiceConfig) -> Kind:
    if config.model.kind == "hf":
        return "model"
    return "both" if config.encoder.kind == "reference" else "encoder"


def _encode(client: Client, number: int) -> None:
    """Encode a small file of a modality that the service takes, different for each number."""
    taken = client.processor_info().inputs
    # As bytes, because importing torch would take more memory than everything else.
    if "image" in taken:
        client.encode([TINY_PNG], image_ids=[f"ready {number}"], tensors="bytes", timeout_s=DECODER_TIMEOUT_S)
    elif "audio" in taken:
        client.encode(audios=[_silence(number)], tensors="bytes", timeout_s=DECODER_TIMEOUT_S)


def _silence(number: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        writer.writeframes(bytes(2 * (160 + number)))
    return file.getvalue()
