"""An encoder actor without Ray: what it answers, in order, and that its errors are answers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from mmcached.cache.store_keys import EMBEDDINGS
from mmcached.integrations.ray.encoder_actor import EncoderActor
from mmcached.shm.store import codec
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, ErrorInfo
from mmcached.worker.encoders.actor_table import Report
from mmcached.worker.encoders.pieces import cut, join
from mmcached.worker.encoders.reference import ReferenceEncoder
from mmcached.worker.encoders.remote import pack
from mmcached.worker.model.encoder import ItemEncoder
from tests.worker.encoders.fake_actors import MODEL
from tests.worker.oracle import random_image

LOCAL = ReferenceEncoder(MODEL, ItemEncoder(MODEL, torch.device("cpu")))
IMAGE = random_image(np.random.default_rng(0), (2, 3), 2)
RECORD = {"pixel_values": torch.from_numpy(IMAGE.pixel_values), "grid": torch.tensor(IMAGE.grid)}


@pytest.fixture
def actor() -> EncoderActor:
    return EncoderActor(msgspec.to_builtins(ServiceConfig(model=MODEL, device="cpu")))


def test_it_describes_itself(actor: EncoderActor) -> None:
    report = msgspec.msgpack.decode(asyncio.run(actor.describe()), type=Report)
    measured = LOCAL.measure()
    assert report == Report(LOCAL.fingerprint, measured.form, measured.embedding_bytes, 0)


def test_it_answers_all_and_says_how_many_wait(actor: EncoderActor) -> None:
    async def ask() -> Any:
        return await asyncio.gather(*(actor.encode(6, 2, *cut(pack(RECORD), 1)) for _ in range(3)))

    answers = asyncio.run(ask())
    assert [num_open for (_, num_open, _), *_ in answers] == [2, 1, 0]
    for (fingerprint, _, error), *pieces in answers:
        assert (fingerprint, error, len(pieces)) == (LOCAL.fingerprint, b"", 2)
        decoded = codec.decode(join(pieces), tensors="torch")
        assert torch.equal(decoded[EMBEDDINGS], LOCAL.encode(RECORD, 6)[EMBEDDINGS])


@pytest.mark.parametrize(
    ("packed", "code"),
    [
        (pack(RECORD), "invalid_request"),
        (pack({"pixel_values": RECORD["pixel_values"]}), "invalid_request"),
        (np.zeros(64, np.uint8), "remote_protocol_error"),
    ],
)
def test_an_error_is_an_answer(actor: EncoderActor, packed: np.ndarray, code: str) -> None:
    (_, _, error), *pieces = asyncio.run(actor.encode(5, 1, packed))
    assert join(pieces).nbytes == 0
    assert msgspec.msgpack.decode(error, type=ErrorInfo).code == code


def test_an_encoder_that_cannot_be_had_is_named() -> None:
    with pytest.raises(ConfigError):
        EncoderActor({"encoder": {"kind": "hf", "path": "/nowhere"}, "device": "cpu"})
