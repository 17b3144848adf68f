"""Sends the requests after which a service says that it is ready: small generations about a small image, end to end."""

from __future__ import annotations

import base64
from pathlib import Path

from mmcached.client import Client
from mmcached.wire.errors import MmcachedError

TIMEOUT_S = 10.0
DECODER_TIMEOUT_S = 60.0
"""For a service whose decoders bring Transformers: one that is not ready in time is ended, and begins again."""
TINY_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEElEQVR42mNsYIAAJgaKGAAmCACQtTEKkQAAAABJRU5ErkJggg=="
)
"""A file of 8 x 8 grey pixels."""


def first_request(run_dir: Path, timeout_s: float = TIMEOUT_S, *, num_engines: int = 1, generates: bool = True) -> None:
    """Send real requests through frontend, ring, engine and every worker: one after the other, for each engine one.

    Args:
        generates: the service generates about images; one with a checkpoint only encodes them.
    Raises:
        MmcachedError: it was not answered, or not with one token.
    """
    with Client(run_dir, connect_timeout_s=timeout_s, fail_open=False) as client:
        for number in range(num_engines):
            if not generates:
                # As bytes: here, torch would take more memory than all the rest.
                client.encode([TINY_PNG], image_ids=[f"ready {number}"], tensors="bytes", timeout_s=DECODER_TIMEOUT_S)
                continue
            generation = client.generate(f"{number}: ready? <image>", [TINY_PNG], max_tokens=1, timeout_s=timeout_s)
            if len(generation.tokens) != 1:
                raise MmcachedError(f"the first request was answered with {len(generation.tokens)} tokens, not 1")
