"""An actor that encodes one image at a time, and reports its queue length.

Arguments and results are plain values and records in the store's encoding; Ray carries them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from mmcached.shm.store import codec
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, error_to_wire
from mmcached.worker.devices import choose_device, failure_of, is_alive
from mmcached.worker.encoders.actor_table import Report
from mmcached.worker.encoders.making import make_encoder
from mmcached.worker.encoders.pieces import Bytes1D, cut, join
from mmcached.worker.encoders.remote import pack
from mmcached.worker.model.bounds import check_bounds
from mmcached.worker.model.encoder import ItemEncoder

NOTHING = np.empty(0, np.uint8)


class EncoderActor:
    """An encoder, to be made an asynchronous actor of Ray.

    Args:
        fields: Fields of a `ServiceConfig`; model, encoder and device are used.

    Raises:
        ConfigError: The encoder cannot be made here.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        config = ServiceConfig.from_fields(fields)
        check_bounds(config.model, config.max_model_len)
        self._device = choose_device(config.device)
        self._encoder = make_encoder(config, ItemEncoder(config.model, self._device), self._device)
        self._measured = self._encoder.measure()
        self._turn = asyncio.Lock()
        self._num_open = 0

    async def describe(self) -> bytes:
        """Return a `Report`, as MessagePack."""
        measured = self._measured
        rows = self._encoder.rows
        report = Report(
            self._encoder.fingerprint,
            measured.form,
            measured.embedding_bytes,
            self._num_open,
            None if rows is None else dict(rows),
        )
        return msgspec.msgpack.encode(report)

    async def node_id(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    async def encode(self, num_embeds: int, num_returned: int, *pieces: Bytes1D) -> tuple[Any, ...]:
        """Encode one item, in order of arrival.

        Args:
            num_returned: Number of pieces in which to return the outputs.
            pieces: Pieces of the item's record, as the codec encodes it.

        Returns:
            An `Answer` without outputs, followed by the pieces of the outputs.
        """
        self._num_open += 1
        try:
            async with self._turn:
                error, outputs = await asyncio.to_thread(self._encode, join(pieces), num_embeds)
        finally:
            self._num_open -= 1
        return (self._encoder.fingerprint, self._num_open, error), *cut(outputs, num_returned)

    def _encode(self, packed: Bytes1D, num_embeds: int) -> tuple[bytes, Bytes1D]:
        try:
            outputs = self._encoder.encode(codec.decode(packed, tensors="torch"), num_embeds)
            return b"", pack({name: tensor.cpu() for name, tensor in outputs.items()})
        except MmcachedError as failed:
            return _error(failed), NOTHING
        except Exception as failed:
            if not is_alive(self._device):
                os._exit(1)  # Ray restarts the process
            return _error(failure_of(failed)), NOTHING


def _error(error: MmcachedError) -> bytes:
    return msgspec.msgpack.encode(error_to_wire(error))
